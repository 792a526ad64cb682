"""Write whole files and commit them with their position.

```
table=public.orders/date=2026-03-01/0000000012-000000000153f2a8-0001.jsonl.gz
_waltap/commits/0000000012.json   a `FileCommit`, written atomically after its files
_waltap/begun.json                a `PendingCommit`, written before the first file
```

A file's name has the number of its commit and the position behind which it begins. So changes that
come again after a crash get the same name, and files of another history have another number:
numbers are never reused.
"""

import contextlib
import datetime as dt
import logging
import time
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Final

import msgspec

from waltap.base.files.durable_file import UNREADABLE
from waltap.base.files.errors import FilesUnavailable
from waltap.base.files.store import FileStore, unfinished
from waltap.base.import_rules import pa, parquet
from waltap.changes.decode.relation import Relation
from waltap.changes.transactions.position import Position, Positions
from waltap.changes.transactions.transaction import Batch, SnapshotRows, TransactionPart
from waltap.errors import SinkError
from waltap.ports.sink.refusal import FailStop
from waltap.ports.sink.sink import Sink, SinkCapabilities, SinkContext
from waltap.ports.sink.stored_position import (
    REREAD,
    DestinationBehind,
    begins_snapshot,
)
from waltap.ports.source.connector import PreflightCheck
from waltap_sinks.changelog.progress import write_note
from waltap_sinks.changelog.segment import TableBuffer, by_relation, estimated_bytes
from waltap_sinks.changelog.table_version import TableVersions
from waltap_sinks.files.lines import FolderNames, LineBlocks, day_of
from waltap_sinks.files.properties import FilesProperties

log = logging.getLogger(__name__)

FilesOfAnother = SinkError.define("FilesOfAnother", "WT-5125")
FilesDamaged = SinkError.define("FilesDamaged", "WT-5126")
FilesGone = DestinationBehind.define("FilesGone", "WT-5127")


# From this number of rows on changes are converted to columns.
UNCONVERTED_ROWS: Final = 16_384


class GatheredColumns:
    """Collect columns of the change log by folder and table version.

    Each group becomes a file.
    """

    ending: Final = ".parquet"

    def __init__(self, folders: FolderNames, compression: str, context: SinkContext) -> None:
        self._folders, self._compression, self._context = folders, compression, context
        self._versions = TableVersions(context)
        self.clear()

    def forget(self, oid: int) -> None:
        """Forget a dropped relation, but not its rows."""
        self._versions.forget(oid)

    def clear(self) -> None:
        # The estimated size of the collected rows.
        self.bytes = self._unconverted = 0
        self._buffers: dict[tuple[str, str], TableBuffer] = {}

    def add(self, batch: Batch) -> None:
        hour = day_of(batch)
        for part in batch.parts:
            if isinstance(part, TransactionPart):
                for relation, changes, numbers in by_relation(part):
                    buffer = self._buffer(relation, hour)
                    if buffer is not None:
                        buffer.add_changes(part, changes, numbers)
            elif isinstance(part, SnapshotRows) and part.rows:
                buffer = self._buffer(part.relation, hour)
                if buffer is not None:
                    lsn = part.lsn if part.kind == "initial" else None
                    buffer.add_snapshot(part, batch.position.end_lsn if lsn is None else lsn)
        # A truncate has no bytes, but must be written.
        self.bytes += max(estimated_bytes(batch), batch.events)
        self._unconverted += batch.events
        if self._unconverted >= UNCONVERTED_ROWS:
            self._convert()

    def take(self) -> "list[tuple[str, pa.Table, int]]":
        """Return and forget each file's folder, rows and row count."""
        self._convert()
        found = []
        for (folder, _), buffer in self._buffers.items():
            batches = buffer.batches
            if batches:
                rows = pa.Table.from_batches(batches)
                found.append((folder, rows, rows.num_rows))
        self.clear()
        return found

    def content(self, rows: "pa.Table") -> bytes:
        """Return a file's content, the same for the same rows."""
        made = pa.BufferOutputStream()
        parquet.write_table(rows, made, compression=self._compression)
        content: bytes = made.getvalue().to_pybytes()
        return content

    def _buffer(self, relation: Relation, hour: str) -> TableBuffer | None:
        """Return the buffer for a table's rows of this hour.

        The result is None if the table is not captured.
        """
        version = self._versions.of(relation)
        if version is None:
            return None
        capture = self._context.capture
        topic = relation.name if capture is None else capture.topic(relation.schema, relation.table)
        folder = self._folders.of(relation.name, topic, hour)
        key = folder, version.fingerprint
        buffer = self._buffers.get(key)
        if buffer is None:
            buffer = self._buffers[key] = TableBuffer(version)
        buffer.continue_as(version)
        return buffer

    def _convert(self) -> None:
        self._unconverted = 0
        for buffer in self._buffers.values():
            buffer.convert()


VERSION: Final = 1
COMMITS: Final = "_waltap/commits"
BEGUN: Final = "_waltap/begun.json"


class WrittenFile(msgspec.Struct, frozen=True):
    """Describe one file."""

    # The path below the folder.
    path: str
    lines: int
    # The size as stored.
    bytes: int


class FileCommit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Describe one commit."""

    version: int
    number: int
    pipeline: str
    at: str
    # The position of each partition of the source.
    positions: dict[str, Position]
    # An initial snapshot was unfinished, so the positions are no place to resume from.
    snapshot: bool = False
    files: tuple[WrittenFile, ...] = ()
    # Dead letters of the last redelivery, in this commit or an earlier one (`Batch.redelivers`).
    dead_letters: tuple[str, ...] = msgspec.field(name="letters", default=())

    @property
    def name(self) -> str:
        """Return the path of the commit."""
        return f"{COMMITS}/{self.number:010d}.json"


class PendingCommit(msgspec.Struct, frozen=True, kw_only=True):
    """Name a coming commit's files; without it they are discarded."""

    number: int
    paths: tuple[str, ...]


def file_name(number: int, behind: Position | None, part: int, ending: str) -> str:
    """Return a file's name in commit ``number`` behind a position."""
    lsn = 0 if behind is None else behind.end_lsn
    return f"{number:010d}-{lsn:016x}-{part:04d}{ending}"


def parse(data: bytes, path: str) -> FileCommit:
    """Read a commit. Raises: FilesDamaged."""
    try:
        found = msgspec.json.decode(data, type=FileCommit)
    except UNREADABLE as cause:
        raise FilesDamaged(f"{path} is not a commit: {cause}", path=path) from cause
    if found.version != VERSION:
        raise FilesDamaged(
            f"{path} has version {found.version}, this program reads {VERSION}", path=path
        )
    return found


MAX_COMMITS: Final = 1000
# Files that are sent in parallel.
UPLOADS: Final = 8

# A file's path, its argument of `content`, and its number of lines.
Content = tuple[str, Any, int]


class FilesSink(Sink):
    """Write JSON lines or Parquet as whole files, committed with their position.

    Life cycle: open, (write*, flush)*, close. `write` collects lines by folder. `flush` writes a
    file for each folder, then the commit that names them. Exactly once: `open` removes files
    without a commit and returns the position of the last commit. Single-threaded; several threads
    send files.
    """

    capabilities = SinkCapabilities(
        records=True,
        json_only=True,
        exactly_once=True,
        partitions=True,
        whole_transactions=True,
        resumes_snapshots=True,
    )

    def __init__(self, properties: FilesProperties, context: SinkContext) -> None:
        self._properties, self._context = properties, context
        self._store = FileStore(properties.path, properties)
        self._store.takes_over, self._store.may_write = context.takes_over, context.may_write
        capture = context.capture
        prefix = "" if capture is None else capture.properties.topic_prefix
        folders, compression = FolderNames(properties.layout, prefix), properties.compression
        self._gathered: LineBlocks | GatheredColumns
        if properties.format == "parquet":
            self.capabilities = replace(self.capabilities, records=False, json_only=False)
            self._gathered = GatheredColumns(folders, compression, context)
        else:
            self._gathered = LineBlocks(folders, compression, values=properties.line == "value")
        self._fail_stop = FailStop(self._store.location)
        self._note = context.state_dir / "files.committed"
        self._forget()

    def _forget(self) -> None:
        self._number = 0
        self._commits: list[str] = []
        self._committed = self._accepted = Positions()
        self._dead_letters: tuple[str, ...] = ()
        self._written: list[WrittenFile] = []
        self._since: float | None = None
        self._in_snapshot = self._committed_in_snapshot = False
        self._gathered.clear()

    def forget(self, oid: int) -> None:
        self._gathered.forget(oid)

    # --- life cycle -------------------------------------------------------------------------------

    def check(self) -> list[PreflightCheck]:
        """Check that the folder is writable and belongs to this pipeline.

        Raises: FilesUnavailable, FilesInUse, FilesOfAnother, FilesGone.
        """
        self._store.check(".lock")
        self._last(self._store.names(COMMITS))
        return [PreflightCheck.ok("sink files", self._store.location)]

    def open(self) -> Positions | None:
        """Lock the folder and return the position of the last commit.

        Files without a commit are removed. Without a stored offset (``SinkContext.has_offset``) the
        position belongs to another history, and files are only added. Raises: FilesUnavailable,
        FilesInUse, FilesOfAnother, FilesDamaged, FilesGone.
        """
        self._store.lock(".lock")
        self._fail_stop.reset()
        self._forget()
        self._store.make_folder(COMMITS)
        self._commits = self._store.names(COMMITS)
        last = self._last(self._commits)
        self._number = 0 if last is None else last.number
        if self._context.repairs:  # numbers of lost commits are not reused
            self._number = max(self._number, self._known())
        self._remove_begun(last)
        if last is None or not self._context.has_offset:
            return None
        self._in_snapshot = self._committed_in_snapshot = last.snapshot
        self._dead_letters = last.dead_letters
        if last.snapshot:
            return None  # it resumes from the stored offset, or begins again
        self._committed = self._accepted = Positions(last.positions)
        return self._committed or None

    def stored_position(self) -> Positions | None:
        """Return the position of the last commit, None within a snapshot."""
        return None if self._committed_in_snapshot else self._committed or None

    def redelivered(self) -> Collection[str]:
        return self._dead_letters

    def _last(self, names: list[str]) -> FileCommit | None:
        """Return the newest commit. Raises: FilesDamaged, FilesOfAnother, FilesGone."""
        known = self._known()
        path = f"{COMMITS}/{names[-1]}" if names else ""
        last = parse(self._store.read(path), self._store.uri(path)) if path else None
        if last is not None and last.pipeline != self._context.pipeline:
            raise FilesOfAnother(
                f"{self._store.location} is written by pipeline {last.pipeline!r}",
                owner=last.pipeline,
                path=self._store.location,
            )
        repairs = self._context.repairs and self._context.snapshot is None
        if (
            self._context.has_offset
            and not repairs
            and known > (0 if last is None else last.number)
        ):
            raise self._older(last, known)
        return last

    def _older(self, last: FileCommit | None, known: int) -> DestinationBehind:
        """Return the error for a folder that ends with ``last``.

        This pipeline has made ``known`` commits.
        """
        found = "no commits" if last is None else f"commits up to {last.number} only"
        has = Positions() if last is None else Positions(last.positions)
        return self._gone(f"has {found}; this pipeline has made {known}", has)

    def _gone(self, what: str, has: Positions | None = None) -> DestinationBehind:
        in_snapshot = self._in_snapshot or self._context.snapshot is not None
        return FilesGone(
            f"{self._store.location} {what}",
            has=has,
            path=self._store.location,
            repair="" if in_snapshot else REREAD,
        )

    def _remove_begun(self, last: FileCommit | None) -> None:
        """Remove the files of an aborted commit; their lines come again."""
        if BEGUN.rpartition("/")[2] not in self._store.names("_waltap"):
            return
        try:
            begun = msgspec.json.decode(self._store.read(BEGUN), type=PendingCommit)
        except UNREADABLE:
            return  # it is written atomically, so another program wrote it
        # The note is older than the commit: its files are committed.
        if last is not None and begun.number <= last.number:
            return
        for path in begun.paths:
            self._store.delete(path)
            self._store.delete(unfinished(path))
        log.info(
            "%s: %d files of a run that broke off removed", self._store.location, len(begun.paths)
        )

    def close(self) -> None:
        """Unlock the folder; write nothing. May be called twice."""
        self._store.forget_unsynced()
        self._gathered.clear()
        self._store.unlock()

    # --- taking batches ---------------------------------------------------------------------------

    def write(self, batch: Batch) -> None:
        """Collect the records of ``batch``.

        Too many for memory go to files that their commit will name. Raises: FilesUnavailable.
        """
        self._fail_stop.check()
        with self._fail_stop, self._with_position():
            if self._in_snapshot and begins_snapshot(batch):
                self._drop()
            self._gathered.add(batch)
            self._dead_letters = batch.redelivers or self._dead_letters
            self._accepted = self._accepted.advanced(batch.partition, batch.position)
            self._in_snapshot = batch.snapshot and bool(batch.parts)
            if self._since is None and self._gathered.bytes:
                self._since = time.monotonic()
            # `holds_back` ends at the limit; a transaction that is larger must not fill the memory.
            if self._gathered.bytes >= 2 * self._properties.max_bytes:
                self._send()

    def _drop(self) -> None:
        """Forget uncommitted rows of a snapshot that begins again."""
        self._gathered.clear()
        for file in self._written:
            self._store.delete(file.path)
        self._written = []

    def holds_back(self) -> bool:
        """Return whether the files are too small and young."""
        if self._since is None or self._written or self._context.stopping():
            return False
        waited = time.monotonic() - self._since
        return (
            self._gathered.bytes < self._properties.max_bytes
            and waited * 1000 < self._properties.max_age_ms
        )

    def flush(self) -> Positions | None:
        """Write and commit all lines, and return the position.

        Raises: FilesUnavailable, FilesGone.
        """
        with self._fail_stop, self._with_position():
            # The end of a snapshot needs a commit even without rows, or it would be read again.
            ended = self._committed_in_snapshot and not self._in_snapshot
            if self._gathered.bytes or self._written or ended:
                self._send()
                self._commit()
            if not self._store.locked():
                raise self._gone("was moved or deleted while it was written")
        return self._accepted or None

    def _send(self) -> None:
        if not self._gathered.bytes:
            return
        behind = next(iter(self._committed.values()), None)
        number = self._number + 1
        contents: list[Content] = []
        for folder, blocks, lines in self._gathered.take():
            part = len(self._written) + len(contents) + 1
            name = file_name(number, behind, part, self._gathered.ending)
            contents.append((f"{folder}/{name}", blocks, lines))
        paths = tuple(path for path, _blocks, _lines in contents)
        begun = PendingCommit(
            number=number, paths=tuple(each.path for each in self._written) + paths
        )
        # After a crash `open` removes the files with these names.
        self._store.publish(BEGUN, msgspec.json.encode(begun))
        if len(contents) == 1:
            self._written.append(self._put(contents[0]))
            return
        with ThreadPoolExecutor(UPLOADS, "waltap-files") as pool:
            self._written += pool.map(self._put, contents)

    def _put(self, content: Content) -> WrittenFile:
        path, blocks, lines = content
        data = self._gathered.content(blocks)
        self._store.put(path, data)
        return WrittenFile(path, lines, len(data))

    def _commit(self) -> None:
        """Commit on top of the last commit, which must still exist.

        Raises: FilesUnavailable, FilesGone.
        """
        # A commit on top of a removed one would hide the loss from the next start.
        if self._commits and not self._store.has(f"{COMMITS}/{self._commits[-1]}"):
            names = self._store.names(COMMITS)
            raise self._older(self._last(names), self._number)
        commit = FileCommit(
            version=VERSION,
            number=self._number + 1,
            pipeline=self._context.pipeline,
            at=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
            positions={**self._committed, **self._accepted},
            snapshot=self._in_snapshot,
            files=tuple(self._written),
            dead_letters=self._dead_letters,
        )
        self._store.publish(commit.name, msgspec.json.encode(commit) + b"\n")
        self._number, self._committed = commit.number, Positions(commit.positions)
        self._written, self._since = [], None
        self._committed_in_snapshot = commit.snapshot
        # The next start compares the folder with it.
        write_note(self._note, f"{self._store.path('')}\n{commit.number}")
        self._commits.append(commit.name.rpartition("/")[2])
        while len(self._commits) > MAX_COMMITS:
            self._store.delete(f"{COMMITS}/{self._commits.pop(0)}")

    # --- what is known of the folder --------------------------------------------------------------

    def _known(self) -> int:
        """Return the number of this pipeline's last commit, 0 if unknown."""
        try:
            path, _, number = self._note.read_text().rpartition("\n")
            return int(number) if path == self._store.path("") else 0
        except (OSError, ValueError):
            return 0

    @contextlib.contextmanager
    def _with_position(self) -> Iterator[None]:
        """Add the durable position to the message of a failure."""
        try:
            yield
        except FilesUnavailable as error:
            if self._committed:
                error.problem += f"; committed up to {self._committed}"
            raise
