"""Define manifests: the changes of one flush. Sans-IO.

A manifest is one line of JSON. It names segments (Parquet files) that were durable before it
appeared, so a reader of the manifest may read all of them. Manifests form a chain: each names the
position of the one before it.
"""

import datetime as dt
import re
import zlib
from collections.abc import Iterable
from typing import Final

import msgspec

from waltap.base.files.durable_file import UNREADABLE
from waltap.changes.decode.relation import FormerOwner
from waltap_sinks.changelog.errors import ChangeLogDamaged

VERSION: Final = 1
# The version of manifests with external snapshots. Older readers would take these tables
# for empty.
WITH_EXTERNAL_ROWS: Final = 2
_SUM: Final = b',"crc32":"%08x"}\n'
_NAME: Final = re.compile(r"([0-9a-f]{16})-([0-9a-f]{16})-([0-9a-f]{6})\.json")


class LogPosition(msgspec.Struct, frozen=True, order=True):
    """Define an ordered point of the log; it covers everything before."""

    # Grows when a pipeline starts over, since LSNs of two server histories cannot be compared.
    epoch: int
    # The end of the last complete transaction.
    end_lsn: int
    # Distinguishes manifests with the same LSN: parts of a snapshot.
    ordinal: int

    def __str__(self) -> str:
        return f"{self.epoch:04x}-{self.end_lsn:016x}-{self.ordinal:06x}"

    @classmethod
    def parse(cls, text: str) -> "LogPosition":
        """Return the position that is written as ``text``. Raises: ValueError."""
        epoch, end_lsn, ordinal = (int(part, 16) for part in text.split("-"))
        return cls(epoch, end_lsn, ordinal)


# A clock that is right shows no earlier time.
EARLIEST: Final = "20260101T000"
# The position before the first manifest.
NOTHING: Final = LogPosition(0, 0, 0)


class ColumnEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Describe one column of the source table."""

    name: str
    type: str
    arrow: str
    nullable: bool | None = None
    # The source's attnum: it survives a rename and is never reused.
    number: int | None = None
    typmod: int = -1
    # New rows get a default.
    default: bool = False
    # The value of rows older than the column, as Arrow's text (bytes in hexadecimal); of an array a
    # JSON array of such texts.
    missing: str | None = None
    # The server computes the column and may not send it.
    generated: bool = False


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """Describe one Parquet file; its rows are in order."""

    path: str
    rows: int
    bytes: int
    # Bytes of the values in Arrow, 0 if unknown. Compressed they may be a thousandth.
    unpacked: int = 0


class TableEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Describe the rows that a manifest adds to one table version.

    A table whose schema changed has several entries in order.
    """

    schema: str
    table: str
    oid: int
    identity: str
    # The columns that identify a row; () for a table without a key (a multiset of rows).
    key: tuple[str, ...]
    # Equal if columns, types and key are equal, whatever is ``missing``.
    fingerprint: str
    columns: tuple[ColumnEntry, ...]
    segments: tuple[Segment, ...] = ()
    rows: int = 0
    # The number of rows by ``_op``.
    operations: dict[str, int] = {}
    # Columns that some row leaves unchanged.
    unchanged: tuple[str, ...] = ()
    # Rows with a new key and unchanged columns.
    key_changes: int = msgspec.field(name="moved", default=0)
    # A transaction deleted a row from a key under which it had put a row before. The old row is the
    # deleted one if the key existed (rows that change places), else the new one (put, then moved).
    key_reused: bool = msgspec.field(name="crossed", default=False)
    # Values by column that are null since the Arrow type cannot hold them.
    misfits: dict[str, int] = {}
    # The table was not captured for a while before these rows.
    missed: bool = False
    # The number of the snapshot that read the rows.
    snapshot_id: int | None = msgspec.field(name="generation", default=None)
    # All rows of the snapshot are in the log; they replace every earlier row of the table.
    complete: bool = False
    # Chunks of the table whose rows are complete with this entry.
    chunks: tuple[int, ...] = ()
    # Earlier entries of the table and snapshot are void.
    restarts: bool = False
    # The rows of the snapshot are in no segment: executors read them into the tables
    # (`SplitReadingSink.assign_splits`), under this name. The segment, without rows, has the
    # columns.
    external_snapshot: str = msgspec.field(name="elsewhere", default="")
    # Entries with one id follow each other without a gap (`waltap_sinks.changelog.continuity`).
    # Empty if unknown.
    continuity_id: str = msgspec.field(name="stretch", default="")
    # The table that had this name before and was renamed. None: it was dropped, or is unknown.
    former_owner: FormerOwner | None = None

    @property
    def name(self) -> str:
        return f"{self.schema}.{self.table}"


class SnapshotPart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Describe the snapshot of a manifest.

    ``lsn`` and ``ts`` (µs since 1970 UTC) are of its first piece.
    """

    snapshot_id: int = msgspec.field(name="generation")
    lsn: int | None
    # The manifest is the last one of the snapshot.
    complete: bool
    ts: int | None = None


class Manifest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Describe one step of the change log."""

    version: int
    # The log's position with this manifest.
    log_position: LogPosition = msgspec.field(name="mark")
    # The position before it.
    previous: LogPosition
    # The manifest's folder, `bucket_of` its time.
    bucket: str
    transactions: int = 0
    rows: int = 0
    # µs since 1970 UTC; None without transactions.
    first_commit_ts: int | None = None
    last_commit_ts: int | None = None
    # The newest snapshot that has begun.
    last_snapshot_id: int = msgspec.field(name="last_generation", default=0)
    # The pipeline that wrote it.
    pipeline: str = ""
    snapshot: SnapshotPart | None = None
    tables: tuple[TableEntry, ...] = ()
    # For changes from Kafka: topic → partition → the next offset, and the position (commit, LSN) of
    # its newest event.
    offsets: dict[str, dict[int, tuple[int, int, int]]] = {}
    # The offsets of its newest first snapshot, if there are later ones.
    reads: dict[str, dict[int, int]] = {}
    # Topic → its id at the broker.
    topic_ids: dict[str, str] = {}
    # The file that it was read from; not written.
    path: str = ""

    @property
    def unfinished_snapshot(self) -> int | None:
        """Return the id of the snapshot that this manifest leaves unfinished."""
        part = self.snapshot
        return None if part is None or part.complete else part.snapshot_id

    @property
    def external_snapshots(self) -> frozenset[str]:
        return frozenset(
            entry.external_snapshot for entry in self.tables if entry.external_snapshot
        )

    def renews(self, reached: LogPosition) -> bool:
        """Return whether it begins an epoch again, in a copy.

        The copy lacks the manifests up to ``reached``, which a reader has seen.
        """
        return self.previous < reached and reached.epoch < self.log_position.epoch

    def encode(self) -> bytes:
        """Return the manifest as one line of JSON with its checksum."""
        version = WITH_EXTERNAL_ROWS if self.external_snapshots else VERSION
        data = msgspec.json.encode(msgspec.structs.replace(self, path="", version=version))
        return data[:-1] + _SUM % zlib.crc32(data[:-1])


def bucket_of(moment: dt.datetime) -> str:
    """Return the folder of files written at ``moment`` (UTC).

    It covers ten minutes. Readers list the newest folder only, so the cost of following a log does
    not grow.
    """
    return moment.strftime("%Y%m%dT%H%M")[:-1]


def next_bucket(last: str, moment: dt.datetime) -> str:
    """Return the folder for ``moment``, sorted behind ``last``.

    ``last`` is "" at first. A clock that goes back a little changes nothing. One that was more
    than a day ahead left a folder of the future: its name comes before the time then.
    """
    written = bucket_of(moment)
    if written >= written_in(last):
        return last.removesuffix(written_in(last)) + written
    ahead = bucket_of(moment + dt.timedelta(days=1)) < written_in(last)
    return last + written if ahead and written > EARLIEST else last


def written_in(bucket: str) -> str:
    """Return when a folder's files were written, as `bucket_of`."""
    return bucket[-len(EARLIEST) :]


def written_before(buckets: Iterable[str], before: str) -> list[str]:
    """Return the ``buckets``, in order, older than ``before``.

    A folder of the future is as old as one behind it.
    """
    found = list(buckets)
    while found and written_in(found[-1]) >= before:
        found.pop()
    return found


def manifest_name(previous: LogPosition, log_position: LogPosition) -> str:
    """Return the name of the manifest from ``previous`` to ``log_position``.

    Names of one epoch sort in the log's order.
    """
    start = previous.end_lsn if previous.epoch == log_position.epoch else 0
    return f"{start:016x}-{log_position.end_lsn:016x}-{log_position.ordinal:06x}.json"


def log_position_of_name(epoch: int, name: str) -> LogPosition | None:
    """Return the position in a manifest's name, None for another file."""
    match = _NAME.fullmatch(name)
    return None if match is None else LogPosition(epoch, int(match[2], 16), int(match[3], 16))


def parse_manifest(data: bytes | str, path: str) -> Manifest:
    """Read a manifest. Raises: ChangeLogDamaged."""
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except UNREADABLE as cause:
        raise ChangeLogDamaged(f"{path} is not a manifest: {cause}", path=path) from cause
    if manifest.version not in {VERSION, WITH_EXTERNAL_ROWS}:
        raise ChangeLogDamaged(
            f"{path} has version {manifest.version}, this program reads up to {WITH_EXTERNAL_ROWS}",
            path=path,
        )
    _require_sum(data.encode() if isinstance(data, str) else data, path)
    return msgspec.structs.replace(manifest, path=path)


def _require_sum(data: bytes, path: str) -> None:
    """Check a manifest's checksum.

    Earlier releases wrote none, nor does a user who edits it. Raises: ChangeLogDamaged.
    """
    data = data.rstrip()
    at = len(data) - len(_SUM % 0) + 1
    checksum = data[at:]
    if checksum[:10] == _SUM[:10] and checksum + b"\n" != _SUM % zlib.crc32(data[:at]):
        raise ChangeLogDamaged(
            f"{path} is not as it was written: its checksum is another", path=path
        )
