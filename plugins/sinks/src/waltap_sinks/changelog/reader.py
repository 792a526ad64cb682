"""Read a change log, register its readers, and clean it up."""

import datetime as dt
import logging
import time
from collections.abc import Iterable, Iterator
from itertools import islice, takewhile
from typing import Final

import msgspec

from waltap.base.files.durable_file import UNREADABLE
from waltap.base.files.errors import FilesUnavailable
from waltap.base.files.store import FileStore, safe_name
from waltap.base.import_rules import pa
from waltap.errors import WaltapError
from waltap_sinks.changelog.continuity import log_identity
from waltap_sinks.changelog.errors import (
    ChangeLogDamaged,
    ChangeLogExpired,
    ColumnNameTaken,
    ReaderUnknown,
    RowsInExternalSnapshot,
)
from waltap_sinks.changelog.manifest import (
    NOTHING,
    LogPosition,
    Manifest,
    TableEntry,
    bucket_of,
    log_position_of_name,
    parse_manifest,
    written_before,
)

log = logging.getLogger(__name__)


# Readers for which a change log waits. Each has a file readers/NAME.json in the log.
# A program on another machine registers and reports its position from time to time. Retention keeps
# the manifests that it has not read. A reader that was silent for `hold_s` is skipped, so that a
# forgotten one does not fill the disk.

FOLDER: Final = "readers"
SUFFIX: Final = ".json"
HOLD_S: Final = 72 * 3600.0


class LogReader(msgspec.Struct, frozen=True, kw_only=True):
    """Describe a registered reader."""

    name: str
    # Everything up to this position is read.
    log_position: LogPosition = msgspec.field(name="mark")
    # The time of its last report (s since 1970).
    seen: float
    # How long the log waits for the next report.
    hold_s: float = HOLD_S
    # A name for people.
    by: str = ""

    def holds(self, now: float) -> bool:
        """Return whether the log still waits for it."""
        return now - self.seen <= self.hold_s


class LogReaders:
    """Manage the readers of the log in ``store``.

    Every method reads the files; a reader writes its own file only.
    """

    def __init__(self, store: FileStore) -> None:
        self._store = store
        self._passed: set[str] = set()

    def register(
        self,
        name: str,
        log_position: LogPosition = NOTHING,
        *,
        hold_s: float | None = None,
        by: str = "",
    ) -> LogReader:
        """Register a reader, for which manifests after ``log_position`` are kept.

        An existing reader with that name keeps its position, and its ``hold_s`` unless one is
        given. Return it.
        """
        found = self.get(name)
        if found is not None:
            log_position = found.log_position
        if hold_s is None:
            hold_s = HOLD_S if found is None else found.hold_s
        return self._write(
            LogReader(name=name, log_position=log_position, seen=time.time(), hold_s=hold_s, by=by)
        )

    def advance(self, name: str, log_position: LogPosition) -> LogReader:
        """Record that everything up to ``log_position`` is read.

        The position never moves back; each call counts as a report. Raises: ReaderUnknown.
        """
        found = self.get(name)
        if found is None:
            raise self._unknown(name)
        # A reader that starts from an older checkpoint must not claim segments that are removed.
        log_position = max(log_position, found.log_position)
        return self._write(
            msgspec.structs.replace(found, log_position=log_position, seen=time.time())
        )

    def forget(self, name: str) -> None:
        """Remove a reader. Raises: ReaderUnknown."""
        if self.get(name) is None:
            raise self._unknown(name)
        self._store.delete(_path(name))

    def get(self, name: str) -> LogReader | None:
        """Return the reader ``name``, None if there is none. Raises: ChangeLogDamaged."""
        file = _path(name).rpartition("/")[2]
        return self._load(file) if file in self._store.names(FOLDER) else None

    def all(self) -> list[LogReader]:
        """Return every reader by name. Raises: ChangeLogDamaged."""
        names = [name for name in self._store.names(FOLDER) if name.endswith(SUFFIX)]
        return [self._load(name) for name in names]

    def held(self, applied: LogPosition) -> LogPosition:
        """Return the least position of ``applied`` and of the waiting readers."""
        now = time.time()
        for reader in self.all():
            if reader.holds(now):
                self._passed.discard(reader.name)
                applied = min(applied, reader.log_position)
            elif reader.name not in self._passed:
                self._passed.add(reader.name)
                log.warning(
                    "the change log no longer waits for its reader %s, which was silent for %.1f h",
                    reader.name,
                    (now - reader.seen) / 3600,
                )
        return applied

    def _load(self, file: str) -> LogReader:
        path = f"{FOLDER}/{file}"
        try:
            return msgspec.json.decode(self._store.read(path), type=LogReader)
        except UNREADABLE as cause:
            raise ChangeLogDamaged(f"{path} is no reader: {cause}", path=path) from cause

    def _write(self, reader: LogReader) -> LogReader:
        self._store.publish(_path(reader.name), msgspec.json.encode(reader) + b"\n")
        return reader

    def _unknown(self, name: str) -> WaltapError:
        known = ", ".join(each.name for each in self.all()) or "none"
        return ReaderUnknown(
            f"{self._store.location} has no reader {name!r}", known=known, path=self._store.location
        )


def _path(name: str) -> str:
    return f"{FOLDER}/{safe_name(name)}{SUFFIX}"


# An entry of a manifest, after the epoch.
LoggedEntry = tuple[int, TableEntry]

MANIFESTS: Final = "manifests"
SEGMENTS: Final = "segments"
# A transaction may be open for so long in a bucket, where no lock shows its writer.
OPEN_FOR: Final = dt.timedelta(hours=24)


class ChangeLog:
    """Read a change log, also while it is written."""

    def __init__(self, location: "FileStore | str") -> None:
        self.store = location if isinstance(location, FileStore) else FileStore(location)
        self.readers = LogReaders(self.store)

    def exists(self) -> bool:
        """Return whether there is a change log, which may be empty."""
        return not {MANIFESTS, SEGMENTS}.isdisjoint(self.store.folders(""))

    def logs_below(self) -> list["ChangeLog"]:
        """Return the change logs in the folders of this location."""
        places = map(self.store.uri, self.store.folders(""))
        found = (ChangeLog(self.store.reached_alike(place)) for place in places)
        return [each for each in found if each.exists()]

    def identity(self) -> str:
        """Return this log's id, which moves with it, or ""."""
        return log_identity(self.store)

    # --- manifests --------------------------------------------------------------------------------

    def last(self) -> Manifest | None:
        """Return the newest manifest, None if the log is empty."""
        return self._outermost(newest=True)

    def first(self) -> Manifest | None:
        """Return the oldest remaining manifest, None if the log is empty."""
        return self._outermost(newest=False)

    @property
    def end(self) -> LogPosition:
        """Return the newest manifest's position, `NOTHING` without one."""
        last = self.last()
        return NOTHING if last is None else last.log_position

    @property
    def begin(self) -> LogPosition:
        """Return the position before the oldest manifest, else `NOTHING`."""
        first = self.first()
        return NOTHING if first is None else first.previous

    def _outermost(self, *, newest: bool) -> Manifest | None:
        return next(self._remaining(self._named(newest_first=newest)), None)

    def manifests(
        self, after: LogPosition | None = None, until: LogPosition | None = None
    ) -> Iterator[Manifest]:
        """Yield the manifests after ``after`` up to ``until``, in order.

        Only the folders that hold them are listed. Raises: ChangeLogExpired if the manifests after
        ``after`` were removed; ChangeLogDamaged if a manifest is missing.
        """
        began = previous = after or NOTHING
        missed = False
        while True:
            gap: WaltapError | None = None
            for log_position, path in self._behind(previous):
                if until is not None and log_position > until:
                    return
                manifest = self._load(path)
                if manifest is None:
                    gap = ChangeLogExpired(f"{path} was removed before it was read", path=path)
                    break
                if manifest.previous != previous and not manifest.renews(previous):
                    gap = self._gap(previous, manifest, expired=previous == began)
                    break
                previous, missed = log_position, False
                yield manifest
            if gap is None:
                return
            # A folder that grows while it is listed may show a file without the one before it.
            if missed:
                raise gap
            missed = True

    def _behind(self, after: LogPosition) -> list[tuple[LogPosition, str]]:
        """Return positions and paths of the manifests after ``after``."""
        # Older folders have older manifests only, so listings do not grow with the log.
        newer = takewhile(lambda named: named[0] > after, self._named(newest_first=True))
        return list(newer)[::-1]

    def newest(self, count: int) -> list[Manifest]:
        """Return the newest ``count`` manifests, oldest first."""
        return list(self._remaining(self._newest(count)))

    def _newest(self, count: int) -> list[tuple[LogPosition, str]]:
        return list(islice(self._named(newest_first=True), count))[::-1]

    def damages(self, files: int) -> Iterator[WaltapError]:
        """Yield damages of the newest manifests and segments, by size.

        About ``files`` files are examined, a request for each in an object store.
        """
        for _log_position, path in reversed(self._newest(files)):
            if files <= 0:
                return
            try:
                manifest = self._load(path)
            except ChangeLogDamaged as error:
                yield error
                continue
            if manifest is None:
                continue
            segments = [part for table in manifest.tables for part in table.segments]
            files -= 1
            for part in segments[:files]:
                size = self.store.known_size(part.path)
                # Retention removes segments after their manifest.
                if size != part.bytes and self.store.has(path):
                    text = "is missing" if size is None else f"has {size:,} bytes"
                    text = f"{part.path} {text}; {path} says {part.bytes:,} bytes"
                    yield ChangeLogDamaged(text, path=part.path)
            files -= len(segments)

    def _gap(self, previous: LogPosition, found: Manifest, *, expired: bool) -> WaltapError:
        # Retention removes from the beginning, also what a slow reader still wants.
        first = self.first()
        if expired or (first is not None and first.log_position >= found.log_position):
            text = f"the log reaches back to {found.previous} only, not to {previous}"
            return ChangeLogExpired(text, path=found.path)
        text = f"manifest {found.log_position} does not follow {previous}, as it should"
        return ChangeLogDamaged(text, path=found.path)

    def _named(self, *, newest_first: bool) -> Iterator[tuple[LogPosition, str]]:
        """Yield positions and paths of all manifests, folder by folder."""
        for folder in self._buckets(newest_first=newest_first):
            found = self._log_positions(folder)
            yield from reversed(found) if newest_first else found

    def _buckets(self, *, newest_first: bool) -> Iterator[str]:
        """Yield the folders with manifests."""
        epochs = self.store.folders(MANIFESTS)
        for epoch in reversed(epochs) if newest_first else epochs:
            buckets = self.store.folders(f"{MANIFESTS}/{epoch}")
            for bucket in reversed(buckets) if newest_first else buckets:
                yield f"{MANIFESTS}/{epoch}/{bucket}"

    def _log_positions(self, folder: str) -> list[tuple[LogPosition, str]]:
        epoch = int(folder.split("/")[1], 16)
        named = ((log_position_of_name(epoch, name), name) for name in self.store.names(folder))
        return sorted(
            (log_position, f"{folder}/{name}")
            for log_position, name in named
            if log_position is not None
        )

    def _load(self, path: str) -> Manifest | None:
        """Return a listed manifest, None if retention removed it since."""
        try:
            data = self.store.read(path)
        except FilesUnavailable:
            if self.store.has(path):
                raise
            return None
        return parse_manifest(data, path)

    def _remaining(self, named: Iterable[tuple[LogPosition, str]]) -> Iterator[Manifest]:
        for _log_position, path in named:
            if (manifest := self._load(path)) is not None:
                yield manifest

    def of_snapshot(self, snapshot_id: int) -> list[Manifest]:
        """Return the manifests of the last snapshot, oldest first."""
        own = takewhile(
            lambda each: each.snapshot is not None and each.snapshot.snapshot_id == snapshot_id,
            self._remaining(self._named(newest_first=True)),
        )
        return list(own)[::-1]

    # --- rows -------------------------------------------------------------------------------------

    def rows(
        self,
        schema: str,
        table: str,
        *,
        after: LogPosition | None = None,
        until: LogPosition | None = None,
        skip_replaced: bool = False,
    ) -> "list[pa.Table]":
        """Return a table's changes in order, one Arrow table per schema.

        ``_epoch`` is the position's epoch (LSNs of two epochs do not compare). ``_generation`` is
        the number of the snapshot that read the row, null for a change. Rows of unfinished
        snapshots are left out. With ``skip_replaced`` only the last complete snapshot and the
        changes after it are returned.

        Raises: ColumnNameTaken, RowsInExternalSnapshot.
        """
        runs: list[tuple[str, list[pa.Table]]] = []
        manifests = list(self.manifests(after, until))
        found = as_read(
            entries_by_name(manifests).get(f"{schema}.{table}", ()),
            complete_generations(manifests),
            skip_replaced=skip_replaced,
        )
        for epoch, entry in found:
            if not runs or runs[-1][0] != entry.fingerprint:
                runs.append((entry.fingerprint, []))
            for part in entry.segments:
                rows = self.store.read_parquet(part.path)
                for name, value in (("_epoch", epoch), ("_generation", entry.snapshot_id)):
                    if name in rows.column_names:
                        raise ColumnNameTaken(
                            f"{schema}.{table} has a column {name}, which readers get of the log",
                            column=rf"{schema}\.{table}\.{name}",
                        )
                    column = pa.repeat(pa.scalar(value, pa.int32()), rows.num_rows)
                    rows = rows.append_column(name, column)
                runs[-1][1].append(rows)
        return [pa.concat_tables(parts) for _fingerprint, parts in runs if parts]

    # --- cleaning up ------------------------------------------------------------------------------

    def remove_started_after(self, last: Manifest) -> int:
        """Remove segments that a crash left behind after manifest ``last``.

        Only the writer may call it. A segment's name has the manifest before it, and nothing that
        began after the newest one is published.
        """
        removed = 0
        prefix = f"{last.log_position}-"
        for bucket in self.store.folders(SEGMENTS):
            if bucket < last.bucket:
                continue
            for path in self._segments(bucket):
                if path.rpartition("/")[2].startswith(prefix):
                    self.store.delete(path)
                    removed += 1
        return removed

    def expire(self, applied: LogPosition, before: str) -> int:
        """Remove manifests up to ``applied``, with their segments.

        Their folders are older than ``before``, `bucket_of` a time. Three kinds stay: the newest
        manifest, manifests of an unfinished snapshot, and manifests that a registered reader (`readers`)
        has not read. Return the number.

        Manifests go first, oldest first, so that readers find a whole step or none. `vacuum` removes
        leftovers of a crash.
        """
        last = self.last()
        if last is None:
            return 0
        if expired := self._expired(last, self.readers.held(applied), before):
            self._delete_empty_folders()
        return expired

    def _delete_empty_folders(self) -> None:
        """Remove empty folders of segments that no manifest can name.

        No writer begins a segment in a folder older than the newest manifest's.
        """
        if (first := self.first()) is not None:
            for bucket in takewhile(lambda each: each < first.bucket, self.store.folders(SEGMENTS)):
                self.store.delete_empty_folders(f"{SEGMENTS}/{bucket}")

    def _expired(self, last: Manifest, applied: LogPosition, before: str) -> int:
        unfinished = last.unfinished_snapshot
        expired = 0
        for folder in written_before(self._buckets(newest_first=False), before):
            log_positions = self._log_positions(folder)
            for log_position, path in log_positions:
                if log_position > applied or log_position >= last.log_position:
                    return expired
                if (manifest := self._load(path)) is None:
                    continue
                part = manifest.snapshot
                if part is not None and part.snapshot_id == unfinished:
                    return expired
                self.store.delete(path)
                for entry in manifest.tables:
                    for segment in entry.segments:
                        self.store.delete(segment.path)
                expired += 1
            if not folder.endswith(f"/{last.bucket}"):
                self.store.delete_folder(folder)
        return expired

    def vacuum(self, before: str) -> int:
        """Remove segments older than ``before`` that no manifest names.

        An open transaction may have begun under any earlier manifest, and only its writer knows its
        segments. So this takes the log's lock. A bucket has no lock; there segments younger than
        `OPEN_FOR` stay. While a snapshot is unfinished, nothing is removed.

        Return the number. It reads every manifest: run it once a day, not at each start. Raises:
        FilesInUse.
        """
        if not self.store.local:
            before = min(before, bucket_of(dt.datetime.now(dt.UTC) - OPEN_FOR))
        self.store.lock(".lock")
        try:
            return self._vacuumed(before)
        finally:
            self.store.unlock()

    def _vacuumed(self, before: str) -> int:
        last = self.last()
        if last is not None and last.unfinished_snapshot is not None:
            return 0
        begun = str(self.end)
        named = {
            part.path
            for manifest in self._remaining(self._named(newest_first=False))
            for entry in manifest.tables
            for part in entry.segments
        }
        removed = 0
        for bucket in written_before(self.store.folders(SEGMENTS), before):
            paths = list(self._segments(bucket))
            orphans = [
                path
                for path in paths
                if path not in named and not path.rpartition("/")[2].startswith(begun)
            ]
            # One request for a folder, where object stores would take one for each file.
            if len(orphans) == len(paths):
                self.store.delete_folder(f"{SEGMENTS}/{bucket}")
            else:
                for path in orphans:
                    self.store.delete(path)
            removed += len(orphans)
        return removed

    def _segments(self, bucket: str) -> Iterator[str]:
        for schema in self.store.folders(f"{SEGMENTS}/{bucket}"):
            for table in self.store.folders(f"{SEGMENTS}/{bucket}/{schema}"):
                folder = f"{SEGMENTS}/{bucket}/{schema}/{table}"
                for name in self.store.names(folder):
                    yield f"{folder}/{name}"


def plain_type(kind: "pa.DataType", *, times: bool) -> "pa.DataType":
    """Return the type in decimals of at most 38 digits.

    Wider decimals are text, and times of day without ``times``, also within nested types.
    """
    if pa.types.is_decimal256(kind) or (pa.types.is_time(kind) and not times):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(plain_type(kind.value_type, times=times)))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, plain_type(kind.item_type, times=times))
    if pa.types.is_struct(kind):
        return pa.struct([each.with_type(plain_type(each.type, times=times)) for each in kind])
    return kind


def entries_by_name(manifests: Iterable[Manifest]) -> dict[str, list[LoggedEntry]]:
    """Return the entries of each ``schema.table``, in order."""
    found: dict[str, list[LoggedEntry]] = {}
    for manifest in manifests:
        for entry in manifest.tables:
            found.setdefault(entry.name, []).append((manifest.log_position.epoch, entry))
    return found


def as_read(
    entries: Iterable[LoggedEntry],
    complete: set[tuple[str, int]],
    *,
    skip_replaced: bool = False,
) -> list[LoggedEntry]:
    """Return the entries of one table that `ChangeLog.rows` reads.

    ``complete`` are the `complete_generations`. Raises: RowsInExternalSnapshot.
    """
    found: list[LoggedEntry] = []
    for epoch, entry in entries:
        if entry.restarts:
            found = [each for each in found if each[1].snapshot_id != entry.snapshot_id]
        if entry.snapshot_id is None or (entry.name, entry.snapshot_id) in complete:
            found.append((epoch, entry))
    newest = max((entry.snapshot_id or 0 for _epoch, entry in found), default=0)
    if skip_replaced and newest:
        own = [entry.snapshot_id == newest for _epoch, entry in found]
        changes = found[len(own) - own[::-1].index(True) :]
        found = [each for each, stays in zip(found, own, strict=True) if stays] + changes
    for _epoch, entry in found:
        if entry.external_snapshot:
            raise RowsInExternalSnapshot(
                f"rows of {entry.name} that a snapshot read are not in the log", table=entry.name
            )
    return found


def complete_generations(manifests: Iterable[Manifest]) -> set[tuple[str, int]]:
    """Return (``schema.table``, generation) of each table's complete snapshots."""
    found: set[tuple[str, int]] = set()
    begun: set[tuple[str, int]] = set()
    for manifest in manifests:
        for entry in manifest.tables:
            if entry.snapshot_id is not None:
                begun.add((entry.name, entry.snapshot_id))
                if entry.complete:
                    found.add((entry.name, entry.snapshot_id))
        if manifest.snapshot is not None and manifest.snapshot.complete:
            number = manifest.snapshot.snapshot_id
            found |= {item for item in begun if item[1] == number}
    return found
