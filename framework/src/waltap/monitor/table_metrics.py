"""Declare metrics of tables, snapshots and stages after the sink."""

from collections.abc import Iterable, Iterator
from heapq import nlargest
from operator import attrgetter

from waltap.monitor.metric import Sample, StatusMetric, one
from waltap.pipeline.counts import SnapshotStatus, SnapshotTableProgress, TableStatus
from waltap.pipeline.status import PipelineStatus
from waltap.sink.downstream import OnwardTable

__all__ = ["ONWARD", "SNAPSHOT", "SNAPSHOT_STATES", "TABLES"]

SNAPSHOT_STATES = ("running", "paused", "completed", "aborted", "skipped")


def _busiest(status: PipelineStatus) -> Iterable[TableStatus]:
    """Return the tables with the most events."""
    # waltap.metrics.tables bounds how many tables have metrics
    return nlargest(status.metric_tables, status.tables, key=attrgetter("events"))


def _events(status: PipelineStatus) -> Iterator[Sample]:
    for table in _busiest(status):
        found = {
            "c": table.creates,
            "u": table.updates,
            "d": table.deletes,
            "t": table.truncates,
            "r": table.reads,
        }
        for op, events in found.items():
            if events:
                yield {"table": table.table, "op": op}, float(events)


def _positions(status: PipelineStatus) -> Iterator[Sample]:
    for table in _busiest(status):
        if table.commit_lsn:
            yield {"table": table.table}, float(table.commit_lsn)


def _committed(status: PipelineStatus) -> Iterator[Sample]:
    for table in _busiest(status):
        if table.committed_ms:
            yield {"table": table.table}, table.committed_ms / 1000


TABLES: tuple[StatusMetric, ...] = (
    StatusMetric(
        name="waltap_table_events",
        kind="counter",
        summary="Events of a table, by operation: c, u, d, t, and r for rows of snapshots.",
        samples=_events,
        labels=("table", "op"),
    ),
    StatusMetric(
        name="waltap_table_lsn",
        kind="gauge",
        summary="Commit LSN of the last transaction that changed the table.",
        samples=_positions,
        labels=("table",),
    ),
    StatusMetric(
        name="waltap_table_last_commit_time_seconds",
        kind="gauge",
        summary="When that transaction was committed, since 1970 UTC.",
        samples=_committed,
        labels=("table",),
    ),
    StatusMetric(
        name="waltap_last_event_time_seconds",
        kind="gauge",
        summary="When the last event was written, since 1970 UTC.",
        samples=one(
            lambda status: None if status.last_event is None else status.last_event.at_ms / 1000
        ),
    ),
)
"""Metrics of the stream and of snapshots."""


def _run(status: PipelineStatus) -> SnapshotStatus | None:
    return status.snapshot_run


def _states(status: PipelineStatus) -> Iterator[Sample]:
    run = _run(status)
    state = "" if run is None else run.state
    # as Debezium's SnapshotSkipped: the run streams and has read no snapshot
    if run is None and status.state == "streaming":
        state = "skipped"
    for each in SNAPSHOT_STATES:
        yield {"state": each}, float(each == state)


def _total(status: PipelineStatus) -> int:
    run = _run(status)
    # an initial snapshot reads all captured tables, also those that it has not begun
    captured = len(status.captured_tables) if run is not None and run.kind == "initial" else 0
    waiting = 0 if status.incremental is None else status.incremental.queued
    return max(captured, len(status.snapshot) + waiting)


def _read(status: PipelineStatus) -> int:
    return sum(table.complete for table in status.snapshot)


def _at_hand(status: PipelineStatus) -> Iterable[SnapshotTableProgress]:
    """Return the snapshot tables that have metrics.

    Unfinished tables come first, then the largest.
    """
    return nlargest(
        status.metric_tables, status.snapshot, key=lambda table: (not table.complete, table.rows)
    )


def _rows(status: PipelineStatus) -> Iterator[Sample]:
    for table in _at_hand(status):
        yield {"table": table.table}, float(table.rows)


def _estimates(status: PipelineStatus) -> Iterator[Sample]:
    for table in _at_hand(status):
        if table.estimate is not None:
            yield {"table": table.table}, float(table.estimate)


SNAPSHOT: tuple[StatusMetric, ...] = (
    StatusMetric(
        name="waltap_snapshot_state",
        kind="gauge",
        summary="1 for what the snapshot that runs, or was the last of this run, does: running, paused, "
        "completed, aborted; skipped: none was taken.",
        samples=_states,
        labels=("state",),
    ),
    StatusMetric(
        name="waltap_snapshot_duration_seconds",
        kind="gauge",
        summary="How long it has taken.",
        samples=one(
            lambda status: None if status.snapshot_run is None else status.snapshot_run.seconds
        ),
    ),
    StatusMetric(
        name="waltap_snapshot_paused_seconds",
        kind="gauge",
        summary="For how much of that it stood still.",
        samples=one(
            lambda status: (
                None if status.snapshot_run is None else status.snapshot_run.paused_seconds
            )
        ),
    ),
    StatusMetric(
        name="waltap_snapshot_tables",
        kind="gauge",
        summary="Tables that it reads.",
        samples=one(_total),
    ),
    StatusMetric(
        name="waltap_snapshot_tables_remaining",
        kind="gauge",
        summary="Of these, those that are not read to their end.",
        samples=one(lambda status: _total(status) - _read(status)),
    ),
    StatusMetric(
        name="waltap_snapshot_table_rows",
        kind="gauge",
        summary="Rows of a table that it has read.",
        samples=_rows,
        labels=("table",),
    ),
    StatusMetric(
        name="waltap_snapshot_table_rows_estimate",
        kind="gauge",
        summary="The planner's estimate of all.",
        samples=_estimates,
        labels=("table",),
    ),
)
"""Metrics of the running snapshot, or of the last one."""


def _onward_lsn(status: PipelineStatus) -> Iterator[Sample]:
    for stage in status.onward:
        if stage.lsn:
            yield {"stage": stage.stage}, float(stage.lsn)


def _onward_bytes(status: PipelineStatus) -> Iterator[Sample]:
    for stage in status.onward:
        if stage.lag_bytes is not None:
            yield {"stage": stage.stage}, float(stage.lag_bytes)


def _onward_seconds(status: PipelineStatus) -> Iterator[Sample]:
    for stage in status.onward:
        lag_ms = stage.lag_ms(status.at_ms)
        if lag_ms is not None:
            yield {"stage": stage.stage}, lag_ms / 1000


def _onward_shown(status: PipelineStatus) -> Iterator[tuple[str, OnwardTable]]:
    """Yield the stages with those tables that have metrics.

    These are all suspended tables, then the tables with the most waiting rows.
    """
    for stage in status.onward:
        failed = [table for table in stage.tables if table.failed]
        others = [table for table in stage.tables if not table.failed]
        left = max(0, status.metric_tables - len(failed))
        for table in (*failed, *nlargest(left, others, key=lambda each: each.waiting_rows or 0)):
            yield stage.stage, table


def _onward_tables(status: PipelineStatus) -> Iterator[Sample]:
    for stage, table in _onward_shown(status):
        yield {"stage": stage, "table": table.table}, float(table.lsn)


def _onward_stopped(status: PipelineStatus) -> Iterator[Sample]:
    for stage, table in _onward_shown(status):
        yield {"stage": stage, "table": table.table}, float(bool(table.failed))


def _onward_problem(status: PipelineStatus) -> Iterator[Sample]:
    for stage in status.onward:
        yield {"stage": stage.stage}, float(bool(stage.problem))


ONWARD: tuple[StatusMetric, ...] = (
    StatusMetric(
        name="waltap_onward_lsn",
        kind="gauge",
        summary="How far a stage behind the engine has come: spark, or one of several sinks.",
        samples=_onward_lsn,
        labels=("stage",),
    ),
    StatusMetric(
        name="waltap_onward_lag_bytes",
        kind="gauge",
        summary="WAL between that and what there is for it.",
        samples=_onward_bytes,
        labels=("stage",),
    ),
    StatusMetric(
        name="waltap_onward_lag_seconds",
        kind="gauge",
        summary="Age of the last transaction that it has, while there are others; 0 where it has all.",
        samples=_onward_seconds,
        labels=("stage",),
    ),
    StatusMetric(
        name="waltap_onward_problem",
        kind="gauge",
        summary="Whether it gets nothing now.",
        samples=_onward_problem,
        labels=("stage",),
    ),
    StatusMetric(
        name="waltap_onward_table_lsn",
        kind="gauge",
        summary="Up to where a table has everything there.",
        samples=_onward_tables,
        labels=("stage", "table"),
    ),
    StatusMetric(
        name="waltap_onward_table_stopped",
        kind="gauge",
        summary="Whether it stands still while others go on.",
        samples=_onward_stopped,
        labels=("stage", "table"),
    ),
)
"""Metrics of the stages after the sink."""
