"""Stream a change log; offsets are positions in the log.

Spark calls these methods in a Python process next to the driver, and `read` in its workers. The log
is the only state: an offset from a checkpoint always means the same rows.
"""

import time
from typing import Any, Final, NamedTuple

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from waltap_sinks.changelog import LogPosition, Manifest
from waltap_spark.errors import OffsetOfAnother, SourceOption
from waltap_spark.read.options import OF_A_BATCH, SourceOptions, shows_text, start_log_position
from waltap_spark.read.tasks import (
    QueryStart,
    TaskPlanner,
    TaskReading,
    log_position_of,
    offset_of,
)

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )

    LIMITED = True
except ImportError:  # before Spark 4.2 a source is asked for its end without a limit
    SupportsTriggerAvailableNow = object
    LIMITED = False

__all__ = ["LIMITED", "ChangeLogStream", "SupportsTriggerAvailableNow", "read_limit", "share_of"]

# How often an empty batch moves the offset past other tables' changes, a registered reader of a quiet
# log reports that it is alive, and the log's id is read.
PROGRESS_S: Final = 60.0


class ChangeLogStream(TaskReading, DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Reads a growing change log; a batch ends between transactions."""

    def __init__(
        self, options: SourceOptions, struct: StructType, *, known: LogPosition | None = None
    ) -> None:
        """``known``: as in `TaskPlanner`. Raises: SourceOption."""
        for name in options.ranged:
            if name in OF_A_BATCH:
                raise SourceOption(f"{name} is of a batch, not of a stream", option=name)
        self._options, self._struct = options, struct
        self._log = options.log()
        self._planner = TaskPlanner(self._log, options, struct, known)
        self._identity = self._log.identity()
        # Offsets name a first LSN only until the stream has passed it. Offsets of earlier releases name
        # no time, so the option counts with them.
        moment = options.start.time
        self._first = None if moment is None else QueryStart(0, time=moment)
        self._target: LogPosition | None = None
        self._passed: tuple[LogPosition, LogPosition] | None = None
        self._at: tuple[LogPosition, int | None] | None = None
        self._next_progress = time.monotonic() + PROGRESS_S
        # At once: a query may end before it has a batch, as those that a scheduler starts.
        self._next_report = time.monotonic()

    @shows_text
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        last, start = self._log.last(), self._options.start
        log_position = start_log_position(self._log, start, last)
        if self._options.reader:
            self._log.readers.register(self._options.reader, log_position, by="Spark")
            # retention may have removed the log's beginning before it knew the reader
            log_position = start_log_position(self._log, start, last)
        if start.lsn is not None:
            # An LSN that is given before the log has anything is of its first epoch.
            epoch = 1 if last is None else last.log_position.epoch
            self._first = QueryStart(epoch, start.lsn)
        return self._offset(log_position)

    def _offset(self, log_position: LogPosition) -> dict[str, Any]:
        return offset_of(self._identity, log_position, self._first)

    def _log_position(self, offset: dict[str, Any]) -> LogPosition:
        """Return the position of an offset. Raises: OffsetOfAnother."""
        log = offset.get("log", "")
        if log and self._identity and log != self._identity:
            where = self._log.store.location
            raise OffsetOfAnother(f"the checkpoint is one of the change log {log}, not of {where}")
        return log_position_of(offset)

    @shows_text
    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next batch.

        This is the first manifest that would exceed ``limit``, or the last manifest; ``start`` if
        no change of the tables came. Raises: ChangeLogExpired, ChangeLogDamaged, OffsetOfAnother.
        """
        if start is None:  # Spark 4.1 asks so
            self._keep_up(None)
            last = self._log.last()
            return self.initialOffset() if last is None else self._offset(last.log_position)
        begin, self._first = self._log_position(start), QueryStart.of(start) or self._first
        self._keep_up(begin)
        # The last call read the manifests up to there, and found no rows.
        at, found = self.passed(begin), _BatchEstimate()
        for manifest in self._log.manifests(at, self._target):
            more = found.with_(self._planner, manifest)
            # A batch has at least one manifest, however large: otherwise the offset would never move.
            if found.rows and more.beyond(limit):
                break
            at, found = manifest.log_position, more
            self._at = (at, manifest.last_commit_ts or (self._at[1] if self._at else None))
        if found.rows:
            self._passed = None
            return self._offset(at)
        self._passed = (begin, at)
        return self._offset(at if at > begin and self._progresses() else begin)

    def _keep_up(self, log_position: LogPosition | None) -> None:
        """Check the log's id, and report that the reader is alive.

        It does so once in `PROGRESS_S`. Raises: OffsetOfAnother.
        """
        now = time.monotonic()
        if now < self._next_report:
            return
        self._next_report = now + PROGRESS_S
        # A log of another server may have lower LSNs: nothing would come, without an error.
        if self._identity and self._log.identity() != self._identity:
            where = self._log.store.location
            raise OffsetOfAnother(f"the change log {self._identity} is no longer in {where}")
        if self._options.reader:  # a registered reader keeps its position
            at = self._log.begin if log_position is None else log_position
            self._log.readers.register(self._options.reader, at, by="Spark")

    def passed(self, begin: LogPosition) -> LogPosition:
        """Return the position up to which no change follows ``begin``."""
        if self._passed is not None and self._passed[0] == begin:
            return self._passed[1]
        return begin

    def _progresses(self) -> bool:
        """Return whether the offset must pass changes of other tables."""
        if self._target is not None:
            return True
        now = time.monotonic()
        if now < self._next_progress:
            return False
        self._next_progress = now + PROGRESS_S
        return True

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        return read_limit(self._options)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """End the query at the log's present end."""
        last = self._log.last()
        self._target = None if last is None else last.log_position

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the log's end and the last batch's lag."""
        last = self._log.last()
        if last is None:
            return None
        reported = self._offset(last.log_position)
        # LSNs of two epochs do not compare, so there is no lag in bytes between them.
        if self._at is not None:
            log_position, moment = self._at
            if log_position.epoch == last.log_position.epoch:
                reported["behind_bytes"] = max(0, last.log_position.end_lsn - log_position.end_lsn)
            if moment is not None and last.last_commit_ts is not None:
                reported["behind_ms"] = max(0, last.last_commit_ts - moment) // 1000
        return reported

    def commit(self, end: dict[str, Any]) -> None:
        """Advance the registered reader, so that the log may expire segments."""
        if self._options.reader:
            log_position = self._log_position(end)
            self._log.readers.register(self._options.reader, log_position, by="Spark")
            self._log.readers.advance(self._options.reader, log_position)

    @shows_text
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the tasks of a batch, also when Spark repeats it."""
        begin, last = self._log_position(start), self._log_position(end)
        self._first = QueryStart.of(start) or self._first
        if last <= begin:
            return []
        return list(self._planner.of_manifests(self._log.manifests(begin, last), self._first))


def read_limit(options: SourceOptions) -> Any:
    """Return Spark's limit of a batch for the options."""
    if options.most_rows is not None:
        return ReadMaxRows(options.most_rows)
    if options.most_bytes is not None:
        return ReadMaxBytes(options.most_bytes)
    return ReadAllAvailable()


def share_of(limit: Any, parts: int) -> Any:
    """Return the limit of each of ``parts`` streams in a batch."""
    if isinstance(limit, ReadMaxRows):
        return ReadMaxRows(max(1, limit.max_rows // parts))
    if isinstance(limit, ReadMaxBytes):
        return ReadMaxBytes(max(1, limit.max_bytes // parts))
    return limit


class _BatchEstimate(NamedTuple):
    """Rows and bytes of a batch, counted before reading."""

    rows: int = 0
    bytes: int = 0

    def with_(self, planner: TaskPlanner, manifest: Manifest) -> "_BatchEstimate":
        """Return this estimate plus the entries of ``manifest``."""
        parts = [part for entry in planner.wanted(manifest) for part in entry.segments]
        return _BatchEstimate(
            self.rows + sum(part.rows for part in parts),
            self.bytes + sum(part.bytes for part in parts),
        )

    def beyond(self, limit: object) -> bool:
        """Return whether the estimate exceeds ``limit``, one of `read_limit`."""
        if not LIMITED:
            return False
        if isinstance(limit, ReadMaxRows):
            return bool(self.rows > limit.max_rows)
        return isinstance(limit, ReadMaxBytes) and self.bytes > limit.max_bytes
