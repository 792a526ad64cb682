"""Manifests: what one flush of whole transactions added to the change log. Sans-IO.

A manifest is one line of JSON. It names segments (Parquet files) that were complete and durable
before it appeared, so whoever sees a manifest may read everything it names. Manifests form one
chain: each names the mark of the one before it.
"""

import datetime as dt
import re
import zlib
from typing import Final

import msgspec

from waltap.base.decode_errors import UNREADABLE
from waltap_sinks.changelog.errors import ChangeLogDamaged

__all__ = [
    "NOTHING",
    "VERSION",
    "ColumnEntry",
    "LogPosition",
    "Manifest",
    "Segment",
    "SnapshotPart",
    "TableEntry",
    "bucket_of",
    "manifest_name",
    "mark_of_name",
    "parse_manifest",
]

VERSION: Final = 1
ELSEWHERE: Final = 2
"""The version of manifests that say of tables that their rows are elsewhere: who does not know that would
take them for empty."""
_SUM: Final = b',"crc32":"%08x"}\n'
_NAME: Final = re.compile(r"([0-9a-f]{16})-([0-9a-f]{16})-([0-9a-f]{6})\.json")


class LogPosition(msgspec.Struct, frozen=True, order=True):
    """A point of the change log; totally ordered. It stands for everything up to it.

    ``epoch`` counts server histories: it grows when a pipeline starts over, because LSNs of two
    histories cannot be compared. ``end_lsn`` is the end of the last whole transaction.
    ``ordinal`` tells manifests apart that end at one LSN (parts of a snapshot).
    """

    epoch: int
    end_lsn: int
    ordinal: int

    def __str__(self) -> str:
        return f"{self.epoch:04x}-{self.end_lsn:016x}-{self.ordinal:06x}"


NOTHING: Final = LogPosition(0, 0, 0)
"""The mark before the first manifest."""


class ColumnEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One column of the source table: name, PostgreSQL type as the server writes it, the Arrow
    type it has in the segments, and what is known of nullability.

    ``number`` is the source's own (attnum): it stays when the column is renamed and is never given
    to another. ``typmod`` is the type's modifier. ``default``: new rows get one. ``missing``: what
    rows have that were there before the column was added, as Arrow writes the value (bytes in
    hexadecimal). ``generated``: computed by the server, which may not send it.
    """

    name: str
    type: str
    arrow: str
    nullable: bool | None = None
    number: int | None = None
    typmod: int = -1
    default: bool = False
    missing: str | None = None
    generated: bool = False


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """One Parquet file; ``path`` is relative to the log. Rows are in order of their position.

    ``unpacked``: bytes of the values as Arrow holds them, 0 where that is not known. Packed, they may be a
    thousandth."""

    path: str
    rows: int
    bytes: int
    unpacked: int = 0


class TableEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a manifest adds to one table under one schema. One table has several entries when its
    schema changed on the way; they are in order.

    ``key``: the columns that identify a row, () for a table without any (a multiset of rows).
    ``fingerprint``: equal exactly where columns, types and key are, whatever is ``missing``.
    ``operations``: rows by ``_op``. ``unchanged``: columns for which a row says that its value is
    the earlier one.
    ``moved``: rows that got a new key and at the same time have unchanged columns.
    ``crossed``: in some transaction a row was deleted from a key under which a row had been put
    before, by the same transaction. Which of two rows it was depends on whether the key was there
    already (a deferrable key, two rows that change places) or not (put, then moved on).
    ``misfits``: values by column that are null because the column's Arrow type cannot hold them.
    ``missed``: the table was captured before, and not for a while until these rows.
    ``generation``: for rows of a snapshot, which one; ``complete``: the table's rows of that
    generation are all there, they replace everything the table held before. ``chunks``: the chunks of the
    table that this adds, all their rows; ``restarts``: entries of the table and generation before this one
    count for nothing. ``elsewhere``: the table's rows of that generation are in no segment. Whoever keeps
    tables of this log has them read by others, and this is the name of what those read (`Sink.hand_over`);
    the segment, without rows, tells the columns. ``stretch``: entries of the table with one name come
    without a gap, no change of the table between or within them is missing
    (`waltap_sinks.changelog.continuity`); "": nobody knows.
    """

    schema: str
    table: str
    oid: int
    identity: str
    key: tuple[str, ...]
    fingerprint: str
    columns: tuple[ColumnEntry, ...]
    segments: tuple[Segment, ...] = ()
    rows: int = 0
    operations: dict[str, int] = {}
    unchanged: tuple[str, ...] = ()
    moved: int = 0
    crossed: bool = False
    misfits: dict[str, int] = {}
    missed: bool = False
    generation: int | None = None
    complete: bool = False
    chunks: tuple[int, ...] = ()
    restarts: bool = False
    elsewhere: str = ""
    stretch: str = ""

    @property
    def name(self) -> str:
        """Return ``schema.table``."""
        return f"{self.schema}.{self.table}"


class SnapshotPart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """That a manifest belongs to a snapshot. ``complete``: it is the last one of ``generation``. ``lsn``
    and ``ts`` (µs since 1970 UTC, None where an earlier version wrote it) are those of its first piece."""

    generation: int
    lsn: int | None
    complete: bool
    ts: int | None = None


class Manifest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One step of the change log.

    ``mark`` is where the log stands after it, ``previous`` where it stood before.
    ``first_commit_ts`` and ``last_commit_ts`` are µs since 1970 UTC, None without transactions.
    ``bucket`` is the folder (`bucket_of` the time of writing) it lies in. ``last_generation`` is
    the number of the newest snapshot that the log has seen begin. ``pipeline`` is the name of the
    pipeline that wrote it, "" where an earlier version did. ``offsets``, where changes came by way of
    Kafka: topic → partition → the next offset, and the position (commit, LSN) of its newest event;
    ``reads``: where those of its newest first snapshot stand, once there are others.
    """

    version: int
    mark: LogPosition
    previous: LogPosition
    bucket: str
    transactions: int = 0
    rows: int = 0
    first_commit_ts: int | None = None
    last_commit_ts: int | None = None
    last_generation: int = 0
    pipeline: str = ""
    snapshot: SnapshotPart | None = None
    tables: tuple[TableEntry, ...] = ()
    offsets: dict[str, dict[int, tuple[int, int, int]]] = {}
    reads: dict[str, dict[int, int]] = {}
    path: str = ""
    """Where it was read from; not written."""

    @property
    def unfinished_snapshot(self) -> int | None:
        """Return the generation of the snapshot that has not come to its end with this manifest."""
        part = self.snapshot
        return None if part is None or part.complete else part.generation

    @property
    def elsewhere(self) -> frozenset[str]:
        """Return the names of what others read, see `TableEntry.elsewhere`."""
        return frozenset(entry.elsewhere for entry in self.tables if entry.elsewhere)

    def encode(self) -> bytes:
        """Return the manifest as one line of JSON, the checksum of what stands before it at its end."""
        version = ELSEWHERE if self.elsewhere else VERSION
        data = msgspec.json.encode(msgspec.structs.replace(self, path="", version=version))
        return data[:-1] + _SUM % zlib.crc32(data[:-1])


def bucket_of(moment: dt.datetime) -> str:
    """Return the folder of files written at ``moment`` (UTC): one for ten minutes.

    Readers list the newest folder only, so that following a log costs the same however long it is.
    """
    return moment.strftime("%Y%m%dT%H%M")[:-1]


def manifest_name(previous: LogPosition, mark: LogPosition) -> str:
    """Return the file name of the manifest that leads from ``previous`` to ``mark``.

    Names of one epoch sort in the order of the log.
    """
    start = previous.end_lsn if previous.epoch == mark.epoch else 0
    return f"{start:016x}-{mark.end_lsn:016x}-{mark.ordinal:06x}.json"


def mark_of_name(epoch: int, name: str) -> LogPosition | None:
    """Return the mark that a manifest's file name tells, None for another file."""
    match = _NAME.fullmatch(name)
    return None if match is None else LogPosition(epoch, int(match[2], 16), int(match[3], 16))


def parse_manifest(data: bytes | str, path: str) -> Manifest:
    """Read a manifest. Raises: ChangeLogDamaged."""
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except UNREADABLE as cause:
        raise ChangeLogDamaged(f"{path} is not a manifest: {cause}", path=path) from cause
    if manifest.version not in {VERSION, ELSEWHERE}:
        text = f"{path} has version {manifest.version}, this program reads up to {ELSEWHERE}"
        raise ChangeLogDamaged(text, path=path)
    _require_sum(data.encode() if isinstance(data, str) else data, path)
    return msgspec.structs.replace(manifest, path=path)


def _require_sum(data: bytes, path: str) -> None:
    """See that a manifest is as it was written. Without a checksum it is of an earlier version, or
    somebody wrote it anew. Raises: ChangeLogDamaged."""
    data = data.rstrip()
    at = len(data) - len(_SUM % 0) + 1
    told = data[at:]
    if told[:10] == _SUM[:10] and told + b"\n" != _SUM % zlib.crc32(data[:at]):
        text = f"{path} is not as it was written: its checksum is another"
        raise ChangeLogDamaged(text, path=path)
