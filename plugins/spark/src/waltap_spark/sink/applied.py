"""Report how far Spark has applied the change log."""

import threading
import time

from waltap.base.files.properties import StorageProperties
from waltap.base.files.store import FileStore
from waltap.errors import SinkError
from waltap.ports.sink.roles import DownstreamProgress, DownstreamTable
from waltap_sinks.changelog.manifest import NOTHING, LogPosition
from waltap_spark.sink.output_monitor import OutputMonitor, TableLag
from waltap_spark.state.output import OutputState, SparkOutput, applied_by_all

# Minimum seconds between two reads of the newest commit.
POLL_S = 2.0


class AppliedSoFar:
    """Reads the commits of an output at ``location``; safe for threads."""

    def __init__(self, location: str, storage: StorageProperties | None = None) -> None:
        self._location, self._storage = location, storage
        self._output: SparkOutput | None = None
        self._watch: OutputMonitor | None = None
        self._state: OutputState | None = None
        self._progress: dict[str, TableLag] = {}
        self._rows: dict[str, int] = {}
        self._problem = ""
        self._looked: float | None = None
        self._lock = threading.Lock()

    def downstream_progress(self, log: LogPosition) -> DownstreamProgress:
        """Return Spark's progress; ``log`` is the change log's end."""
        with self._lock:
            now = time.monotonic()
            if self._looked is None or now - self._looked >= POLL_S:
                self._read_progress()
                self._looked = now
            state, problem = self._state, self._problem
        log_position = NOTHING if state is None else applied_by_all(state)
        same = log_position.epoch == log.epoch  # LSNs of two source histories are not comparable
        return DownstreamProgress(
            stage="spark",
            lsn=log_position.end_lsn,
            lag_bytes=max(0, log.end_lsn - log_position.end_lsn) if same else None,
            current=log_position >= log,
            committed_ms=None if state is None else _ms(state.last_commit_ts),
            applied_ms=None if state is None else round(state.committed_at * 1000),
            tables=() if state is None else self._tables(state),
            problem=problem,
        )

    def _tables(self, state: OutputState) -> tuple[DownstreamTable, ...]:
        progress = self._progress
        return tuple(
            DownstreamTable(
                table=name,
                lsn=(table.log_position or state.log_position).end_lsn,
                failed=table.failed,
                batch_rows=self._rows.get(name, 0),
                waiting_rows=progress[name].waiting_rows if name in progress else None,
                lag_ms=progress[name].lag_ms if name in progress else None,
            )
            for name, table in state.tables.items()
        )

    def _read_progress(self) -> None:
        try:
            if self._output is None:
                self._output = SparkOutput(FileStore(self._location, self._storage))
                self._watch = OutputMonitor(self._output)
            # an output has no state before its first commit; keep the last state that was read
            self._state = self._output.state() or self._state
            assert self._watch is not None
            progress = self._watch.progress(time.time_ns() // 1_000_000)
            self._progress = {each.table: each for each in progress.tables}
            self._rows = (progress.batches[-1].rows or {}) if progress.batches else {}
        except SinkError as error:
            self._problem = error.problem
        else:
            self._problem = ""


def _ms(us: int | None) -> int | None:
    return None if us is None else us // 1000
