"""Cut the log between two checkpoint offsets into tasks."""

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from waltap.base.files.properties import StorageProperties
from waltap_sinks.changelog import ChangeLog, FileStore, LogPosition, Manifest, TableEntry
from waltap_sinks.changelog.errors import RowsInExternalSnapshot
from waltap_sinks.changelog.manifest import NOTHING
from waltap_sinks.changelog.reader import as_read, complete_generations, entries_by_name
from waltap_spark.errors import ChangesMissing, ColumnsGrew
from waltap_spark.read.catalogue import MANY, OWN, QueryColumns, logged_tables
from waltap_spark.read.options import SourceOptions, end_log_position, start_log_position
from waltap_spark.read.rows import RowLimits, SegmentRows, batches

log = logging.getLogger(__name__)

# Of the offset's form in checkpoints, for a later release that changes it.
VERSION: Final = 1


class QueryStart(NamedTuple):
    """The epoch and LSN, or time (µs), of a query's first start.

    LSNs of two epochs do not compare.
    """

    epoch: int
    lsn: int | None = None
    time: int | None = None

    @classmethod
    def of(cls, offset: dict[str, Any]) -> "QueryStart | None":
        """Return an offset's start, None if all later rows follow it."""
        first = offset.get("first")
        return None if first is None else cls(**first)

    def lies_behind(self, log_position: LogPosition) -> bool:
        """Return whether later manifests may have rows from before it."""
        # Commit times need not grow with positions.
        return self.lsn is None or (
            (log_position.epoch, log_position.end_lsn) <= (self.epoch, self.lsn)
        )

    def offset(self) -> dict[str, int]:
        """Return the member ``first`` of an offset."""
        return {name: value for name, value in self._asdict().items() if value is not None}


def offset_of(
    identity: str, log_position: LogPosition, first: QueryStart | None = None
) -> dict[str, Any]:
    """Return the offset of ``log_position`` in the log ``identity``."""
    offset: dict[str, Any] = {
        "version": VERSION,
        "log": identity,
        "epoch": log_position.epoch,
        "end_lsn": log_position.end_lsn,
        "ordinal": log_position.ordinal,
    }
    if first is not None and first.lies_behind(log_position):
        offset["first"] = first.offset()
    return offset


def log_position_of(offset: dict[str, Any]) -> LogPosition:
    """Return the position of an offset."""
    return LogPosition(offset["epoch"], offset["end_lsn"], offset["ordinal"])


# The offset before everything, in a log that may not exist yet.
NOWHERE: Final = offset_of("", NOTHING)


@dataclass(eq=False, repr=False)
class LogTask(InputPartition):  # type: ignore[misc]
    """Segments that one task reads in order.

    Spark pickles it, with the store of the files.
    """

    segments: list[SegmentRows]
    limits: RowLimits
    location: str
    storage: StorageProperties | None


class TaskReading:
    """A reader's part that runs in the tasks."""

    _options: SourceOptions
    _struct: StructType

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of ``partition``; Spark also passes an empty one."""
        if not isinstance(partition, LogTask):
            return iter(())
        store, many = FileStore(partition.location, partition.storage), not self._options.table
        return batches(store, partition.segments, self._struct, partition.limits, many=many)


class TaskPlanner:
    """Turns manifests into tasks for one query."""

    def __init__(
        self,
        log: ChangeLog,
        options: SourceOptions,
        struct: StructType,
        known: LogPosition | None = None,
    ) -> None:
        """Look up the columns of ``struct`` in the log.

        ``known`` is the log's position when ``struct`` was made; None if the reader made it. Tables
        of ``struct`` that the log lacks come from a catalogue, or their segments have expired.
        """
        self._options, self._log = options, log
        self._log_position = log.end if known is None else known
        entries = logged_tables(log, options, known, required=False)
        names = [name for name in struct.names if name not in OWN]
        tables = (
            {options.table: names}
            if options.table
            else {name: struct[name].dataType.names for name in names if name not in MANY}
        )
        # Columns of each table; without an entry in the log they are looked up in its first one.
        self._columns = {
            name: self._known(columns, entries.get(name)) for name, columns in tables.items()
        }

    def _known(self, names: Iterable[str], entry: TableEntry | None) -> QueryColumns:
        """Return a table's columns ``names`` as the query has them."""
        logged = () if entry is None else entry.columns
        columns = [each for each in logged if each.name in names]
        return QueryColumns(
            numbers=dict.fromkeys(names) | {each.name: each.number for each in columns},
            log_position=self._log_position,
            oid=0 if entry is None else entry.oid,
            arrow={each.name: each.arrow for each in columns},
            seen=entry is not None,
        )

    def wanted(self, manifest: Manifest) -> Iterator[TableEntry]:
        """Yield the entries that the query reads. Raises: RowsInExternalSnapshot."""
        for entry in manifest.tables:
            if self._options.wants(entry.name):
                if entry.external_snapshot:
                    text = f"rows of {entry.name} that a snapshot read are not in the log"
                    raise RowsInExternalSnapshot(text, table=entry.name)
                yield entry

    def of_manifests(
        self, manifests: Iterable[Manifest], first: QueryStart | None = None
    ) -> list[LogTask]:
        """Return the tasks that read ``manifests`` from ``first`` on.

        Raises: ColumnsGrew, ChangesMissing.
        """
        segments: list[SegmentRows] = []
        for manifest in manifests:
            for entry in self.wanted(manifest):
                self._require_complete(entry, manifest.log_position)
                segments += self._segments(entry, manifest.log_position)
        epoch, lsn, time = first or (0, None, None)
        return self._cut(segments, RowLimits(epoch=epoch, first_lsn=lsn, first_time=time))

    def of_range(self, log: ChangeLog) -> list[LogTask]:
        """Return the tasks for the range in the options.

        Rows of incomplete snapshots are left out. Raises: ColumnsGrew for columns since ``known``,
        ChangesMissing.
        """
        options, last = self._options, log.last()
        newest = logged_tables(log, options, required=False)
        start = start_log_position(log, options.start, last)
        end = end_log_position(log, options.end)
        # The schema has the columns up to this position; later ones raise before a task starts.
        if end > self._log_position:
            for entry in newest.values():
                self._called(entry, end)
        manifests = list(log.manifests(start, end)) if newest else []
        logged, complete = entries_by_name(manifests), complete_generations(manifests)
        entries = [
            found
            for name in newest
            for found in as_read(
                logged.get(name, ()), complete, skip_replaced=options.skip_replaced
            )
        ]
        for _epoch, entry in entries:
            self._require_complete(entry, end)
        at = self._log_position
        return self._cut(
            [
                each
                for epoch, entry in entries
                for each in self._segments(entry, LogPosition(epoch, at.end_lsn, at.ordinal))
            ],
            RowLimits(
                epoch=NOTHING.epoch if last is None else last.log_position.epoch,
                first_lsn=options.start.lsn,
                end_lsn=options.end.lsn,
                first_time=options.start.time,
                last_time=options.end.time,
            ),
        )

    def _require_complete(self, entry: TableEntry, until: LogPosition) -> None:
        """Check that no change of the table is missing before ``entry``.

        ``until`` is the position of the entry or a later one. Raises: ChangesMissing.
        """
        # a snapshot's rows are whole, and before its first rows a table had nothing to miss
        if not entry.missed or entry.snapshot_id is not None or not self._had(entry, until):
            return
        lost = ChangesMissing(
            f"{entry.name} was not captured for a while before {until}", table=entry.name
        )
        if not self._options.ignores_loss:
            raise lost
        log.warning("%s; the query reads on", lost.problem)

    def _had(self, entry: TableEntry, until: LogPosition) -> bool:
        """Return whether the log had rows of the table before ``entry``."""
        first = self._log.first()
        if first is None or first.previous != NOTHING:
            return True  # earlier manifests have expired
        for manifest in self._log.manifests(None, until):
            for each in manifest.tables:
                if each == entry:
                    return False
                if each.name == entry.name:
                    return True
        return False

    def _called(self, entry: TableEntry, log_position: LogPosition) -> dict[str, str] | None:
        """Return the names of the query's columns in ``entry``, at ``log_position``.

        None if the query leaves the table out. Raises: ColumnsGrew.
        """
        columns = self._columns.get(entry.name)
        if columns is None:
            if self._options.ignores_new:
                return None
            raise ColumnsGrew(f"the table {entry.name} joined at {log_position}")
        if not columns.seen:
            columns = self._columns[entry.name] = self._known(columns.numbers, entry)
        new, retyped = columns.changed_in(entry, log_position)
        if new and not self._options.ignores_new:
            raise ColumnsGrew(f"{entry.name} got columns at {log_position}: {', '.join(new)}")
        if retyped:
            raise ColumnsGrew(
                f"{entry.name} has other types at {log_position}: {', '.join(retyped)}"
            )
        return columns.stored(entry)

    def _segments(self, entry: TableEntry, log_position: LogPosition) -> list[SegmentRows]:
        called = self._called(entry, log_position)
        if called is None:
            return []
        return [
            SegmentRows(
                path=part.path,
                rows=part.rows,
                table=entry.name,
                epoch=log_position.epoch,
                snapshot_id=entry.snapshot_id,
                called=called,
                source=self._options.source,
            )
            for part in entry.segments
        ]

    def _cut(self, segments: list[SegmentRows], limits: RowLimits) -> list[LogTask]:
        """Join small segments: a task costs more than reading few rows."""
        tasks, store = list[LogTask](), self._log.store
        rows = 0
        for segment in segments:
            # A segment is never split, so a large one is a task by itself.
            if not tasks or rows + segment.rows > self._options.rows_per_task:
                tasks.append(LogTask([], limits, store.location, store.storage))
                rows = 0
            tasks[-1].segments.append(segment)
            rows += segment.rows
        return tasks
