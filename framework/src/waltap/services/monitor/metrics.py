"""Declare the metrics of a run."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from heapq import nlargest
from operator import attrgetter
from typing import Any, Literal, NamedTuple

from waltap.base.text import printable
from waltap.services.monitor.status import PipelineStatus

STATES = ("checking", "standby", "snapshot", "streaming", "reconnecting", "stopped", "failed")
SNAPSHOT_STATES = ("running", "paused", "completed", "aborted", "skipped")


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedMetric:
    """A metric that observers count."""

    # without the suffix ``_total``, which Prometheus adds to counters
    name: str
    kind: Literal["counter", "gauge", "histogram"]
    summary: str
    labels: tuple[str, ...] = ()
    # upper bounds of a histogram
    buckets: tuple[float, ...] = ()

    @property
    def shown(self) -> str:
        """Return the name that Prometheus shows."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusMetric(ObservedMetric):
    """A metric whose values come from the status."""

    # yields an item of the status and the labels of its sample
    items: Callable[[PipelineStatus], Iterable[tuple[Any, ...]]]
    # returns an item's value, None if it is unknown
    value: Callable[[Any], float | None]

    def read(self, status: PipelineStatus) -> Iterator[tuple[dict[str, str], float]]:
        """Yield labels and value of the known samples."""
        for item, *labels in self.items(status):
            value = self.value(item)
            if value is not None:
                # a table's name can have any character
                shown = map(printable, labels)
                yield dict(zip(self.labels, shown, strict=True)), float(value)


class _Items(NamedTuple):
    """Parts of the status that have samples of their own."""

    labels: tuple[str, ...]
    read: Callable[[PipelineStatus], Iterable[tuple[Any, ...]]]


def _labelled(
    *labels: str,
) -> Callable[[Callable[[PipelineStatus], Iterable[tuple[Any, ...]]]], _Items]:
    return lambda read: _Items(labels, read)


@_labelled()
def _whole(status: PipelineStatus) -> Iterator[tuple[Any]]:
    yield (status,)


@_labelled()
def _slot(status: PipelineStatus) -> Iterator[tuple[Any]]:
    if status.slot is not None:
        yield (status.slot,)


@_labelled("limit")
def _limit(status: PipelineStatus) -> Iterator[tuple[Any, str]]:
    if status.slot is not None:
        yield status.slot, status.slot.limit_kind


@_labelled()
def _last_event(status: PipelineStatus) -> Iterator[tuple[Any]]:
    if status.last_event is not None:
        yield (status.last_event,)


@_labelled("state")
def _states(status: PipelineStatus) -> Iterator[tuple[bool, str]]:
    for state in STATES:
        yield state == status.state, state


@_labelled("transform")
def _filtered(status: PipelineStatus) -> Iterator[tuple[int, str]]:
    sums: dict[str, int] = {}
    # a transform can come more than once, but a metric needs distinct labels
    for name, events in status.filtered:
        sums[name] = sums.get(name, 0) + events
    for name, events in sums.items():
        yield events, name


@_labelled("partition")
def _partitions(status: PipelineStatus) -> Iterator[tuple[Any, str]]:
    for partition in status.partitions:
        yield partition, partition.name


@_labelled("partition", "point")
def _points(status: PipelineStatus) -> Iterator[tuple[int | None, str, str]]:
    for partition in status.partitions:
        yield partition.received_lsn, partition.name, "received"
        yield partition.written.end_lsn, partition.name, "written"
        yield partition.durable.end_lsn, partition.name, "durable"
        yield partition.confirmed_lsn, partition.name, "confirmed"
        yield partition.server_lsn, partition.name, "server"


@_labelled("table")
def _tables(status: PipelineStatus) -> Iterator[tuple[Any, str]]:
    """Yield the tables with the most events."""
    # waltap.metrics.tables bounds how many tables have metrics
    for table in nlargest(status.metric_tables, status.tables, key=attrgetter("events")):
        yield table, table.table


@_labelled("table", "op")
def _operations(status: PipelineStatus) -> Iterator[tuple[int | None, str, str]]:
    for table, name in _tables.read(status):
        yield table.creates or None, name, "c"
        yield table.updates or None, name, "u"
        yield table.deletes or None, name, "d"
        yield table.truncates or None, name, "t"
        yield table.reads or None, name, "r"


@_labelled("state")
def _snapshot_states(status: PipelineStatus) -> Iterator[tuple[bool, str]]:
    run = status.snapshot_run
    state = "" if run is None else run.state
    # as Debezium's SnapshotSkipped: the run streams and has read no snapshot
    if run is None and status.state == "streaming":
        state = "skipped"
    for each in SNAPSHOT_STATES:
        yield each == state, each


@_labelled()
def _snapshot_run(status: PipelineStatus) -> Iterator[tuple[Any]]:
    if status.snapshot_run is not None:
        yield (status.snapshot_run,)


@_labelled("table")
def _snapshot_tables(status: PipelineStatus) -> Iterator[tuple[Any, str]]:
    """Yield unfinished tables first, then the largest."""
    found = nlargest(
        status.metric_tables, status.snapshot, key=lambda table: (not table.complete, table.rows)
    )
    for table in found:
        yield table, table.table


@_labelled("stage")
def _stages(status: PipelineStatus) -> Iterator[tuple[Any, str]]:
    for stage in status.onward:
        yield stage, stage.stage


@_labelled("stage")
def _stage_lags(status: PipelineStatus) -> Iterator[tuple[int | None, str]]:
    for stage in status.onward:
        yield stage.lag_ms(status.at_ms), stage.stage


@_labelled("stage", "table")
def _stage_tables(status: PipelineStatus) -> Iterator[tuple[Any, str, str]]:
    """Yield all suspended tables, then those with the most waiting rows."""
    for stage in status.onward:
        failed = [table for table in stage.tables if table.failed]
        others = [table for table in stage.tables if not table.failed]
        left = max(0, status.metric_tables - len(failed))
        for table in (*failed, *nlargest(left, others, key=lambda each: each.waiting_rows or 0)):
            yield table, stage.stage, table.table


def _itself(value: float | None) -> float | None:
    return value


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000


def _snapshot_table_count(status: PipelineStatus) -> int:
    run = status.snapshot_run
    # an initial snapshot reads all captured tables, also those that it has not begun
    captured = len(status.captured_tables) if run is not None and run.kind == "initial" else 0
    waiting = 0 if status.incremental is None else status.incremental.queued
    return max(captured, len(status.snapshot) + waiting)


def _tables_not_read(status: PipelineStatus) -> int:
    return _snapshot_table_count(status) - sum(table.complete for table in status.snapshot)


def gauge(
    name: str,
    value: str | Callable[[Any], float | None],
    summary: str,
    items: _Items = _whole,
    kind: Literal["counter", "gauge"] = "gauge",
) -> StatusMetric:
    """Declare a gauge whose ``value`` is an attribute of an item, or made of it."""
    return StatusMetric(
        name=name,
        kind=kind,
        summary=summary,
        labels=items.labels,
        items=items.read,
        value=attrgetter(value) if isinstance(value, str) else value,
    )


counter = partial(gauge, kind="counter")

METRICS: tuple[StatusMetric, ...] = (
    gauge(
        "waltap_state",
        _itself,
        "1 for the state that the pipeline is in, 0 for the others.",
        _states,
    ),
    gauge(
        "waltap_connected",
        lambda status: status.state in {"streaming", "snapshot"},
        "Whether the pipeline streams or reads a snapshot.",
    ),
    gauge(
        "waltap_start_time_seconds",
        lambda status: status.started_ms / 1000,
        "When the run began, since 1970 UTC.",
    ),
    counter("waltap_events", "events", "Changes and snapshot rows that the sink took."),
    counter(
        "waltap_records", "records", "Records that the format made, for sinks that take records."
    ),
    counter("waltap_snapshot_rows", "snapshot_rows", "Rows of snapshots that the sink took."),
    counter(
        "waltap_transactions", "transactions", "Transactions that ended in what the sink took."
    ),
    counter("waltap_batches", "batches", "Batches that the sink took."),
    counter("waltap_filtered_events", _itself, "Events that a transform left out.", _filtered),
    counter("waltap_reconnects", "reconnects", "Number of reconnects of the pipeline."),
    counter(
        "waltap_batch_retries", "batch_retries", "Times that a batch was given to the sink again."
    ),
    counter(
        "waltap_events_left_out",
        "left_out",
        "Events that could not be delivered, and were left out.",
    ),
    counter(
        "waltap_dead_letters",
        "dead_letters",
        "Events that could not be delivered, and were written to the dead letters.",
    ),
    counter(
        "waltap_notifications_lost", "notifications_lost", "Notifications that a channel gave up."
    ),
    gauge(
        "waltap_lsn",
        _itself,
        "How far the pipeline has come, as bytes of WAL: received of the server, written to the "
        "sink, durable and stored, confirmed to the server; and the end of the server's WAL.",
        _points,
    ),
    gauge(
        "waltap_lag_bytes",
        "lag_bytes",
        "WAL that is not durable at the sink, when the server was last queried.",
        _partitions,
    ),
    gauge(
        "waltap_lag_seconds",
        lambda partition: _seconds(partition.lag_ms),
        "Age of the last change when the sink took it; while the sink stalls or the server is not "
        "connected, age of the oldest change that is not durable.",
        _partitions,
    ),
    gauge(
        "waltap_slot_retained_bytes",
        "retained_bytes",
        "WAL that the server keeps for the slot.",
        _slot,
    ),
    gauge(
        "waltap_slot_limit_bytes",
        "limit_bytes",
        "WAL that the server may keep for the slot, by the tightest of max_slot_wal_keep_size "
        "(slot), waltap.wal.budget (budget) and the server's disk (disk).",
        _limit,
    ),
    gauge(
        "waltap_slot_left_bytes",
        "left_bytes",
        "WAL that the server may still keep: the limit less what it keeps.",
        _slot,
    ),
    gauge(
        "waltap_slot_growth_bytes_per_second",
        "growth_per_s",
        "Growth of the kept WAL, as the mean of the last 15 minutes.",
        _slot,
    ),
    gauge(
        "waltap_slot_full_seconds",
        "seconds_left",
        "Forecast: time until the limit at the present growth; none without growth.",
        _slot,
    ),
    gauge(
        "waltap_slot_stalled_full_seconds",
        "stalled_seconds_left",
        "Forecast: time until the limit if nothing is confirmed from now on.",
        _slot,
    ),
    gauge(
        "waltap_slot_invalidated",
        lambda slot: bool(slot.invalidation),
        "Whether the server invalidated the slot.",
        _slot,
    ),
    gauge(
        "waltap_orphan_slots",
        lambda slot: len(slot.orphans),
        "Inactive slots of the database that belong to no pipeline of waltap.state.dir.",
        _slot,
    ),
    gauge(
        "waltap_open_gaps",
        "open_gaps",
        "Gap certificates that are open: `waltap repair` closes them.",
    ),
    gauge(
        "waltap_queued_events", "queued_events", "Changes that are gathered and not yet written."
    ),
    gauge(
        "waltap_queue_capacity_events",
        "queue_events",
        "Most changes that may be gathered: max.batch.size.",
    ),
    gauge(
        "waltap_held_memory_limit_bytes",
        "spill_memory_bytes",
        "Memory for transactions that wait for their end: waltap.spill.memory.bytes.",
    ),
    gauge(
        "waltap_last_transaction_id",
        "last_transaction",
        "Number of the last transaction that the sink took.",
    ),
    gauge(
        "waltap_lag_min_seconds",
        lambda status: _seconds(status.lag_least_ms),
        "Least age of a change when the sink took it, in this run.",
    ),
    gauge(
        "waltap_lag_max_seconds",
        lambda status: _seconds(status.lag_most_ms),
        "Greatest age of a change when the sink took it, in this run.",
    ),
    gauge(
        "waltap_unflushed_seconds",
        lambda status: _seconds(status.unflushed_ms),
        "How long the oldest batch has waited for its flush.",
    ),
    gauge(
        "waltap_write_in_flight_seconds",
        lambda status: (status.write_ms or 0) / 1000,
        "How long the sink has been at a write or flush, or has owed the acknowledgement of a "
        "batch; 0 where it does neither.",
    ),
    gauge(
        "waltap_open_transactions",
        "open_transactions",
        "Transactions that have begun and have not ended.",
    ),
    gauge("waltap_held_bytes", "held_bytes", "Size of transactions that wait for their end."),
    gauge(
        "waltap_spilled_bytes",
        "spilled_bytes",
        "Size of waiting transactions that is in spill files.",
    ),
    gauge(
        "waltap_captured_tables",
        lambda status: len(status.captured_tables),
        "Tables that are captured.",
    ),
    counter(
        "waltap_table_events",
        _itself,
        "Events of a table, by operation: c, u, d, t, and r for rows of snapshots.",
        _operations,
    ),
    gauge(
        "waltap_table_lsn",
        lambda table: table.commit_lsn or None,
        "Commit LSN of the last transaction that changed the table.",
        _tables,
    ),
    gauge(
        "waltap_table_last_commit_time_seconds",
        lambda table: _seconds(table.committed_ms or None),
        "Commit time of the last transaction that changed the table, since 1970 UTC.",
        _tables,
    ),
    gauge(
        "waltap_last_event_time_seconds",
        lambda event: event.at_ms / 1000,
        "When the last event was written, since 1970 UTC.",
        _last_event,
    ),
    gauge(
        "waltap_snapshot_state",
        _itself,
        "1 for the state of this run's last snapshot: running, paused, completed, aborted; skipped: "
        "none was taken.",
        _snapshot_states,
    ),
    gauge(
        "waltap_snapshot_duration_seconds",
        "seconds",
        "Duration of the last snapshot.",
        _snapshot_run,
    ),
    gauge(
        "waltap_snapshot_paused_seconds",
        "paused_seconds",
        "Time for which the last snapshot was paused.",
        _snapshot_run,
    ),
    gauge("waltap_snapshot_tables", _snapshot_table_count, "Tables of the last snapshot."),
    gauge(
        "waltap_snapshot_tables_remaining",
        _tables_not_read,
        "Tables of the last snapshot that are not completely read.",
    ),
    gauge(
        "waltap_snapshot_table_rows",
        "rows",
        "Rows of a table that the last snapshot has read.",
        _snapshot_tables,
    ),
    gauge(
        "waltap_snapshot_table_rows_estimate",
        "estimate",
        "The planner's estimate of all rows of a table.",
        _snapshot_tables,
    ),
    gauge(
        "waltap_onward_lsn",
        lambda stage: stage.lsn or None,
        "Position of a stage after the engine: spark, or one of several sinks.",
        _stages,
    ),
    gauge(
        "waltap_onward_lag_bytes",
        "lag_bytes",
        "WAL that the engine has passed on and the stage has not applied.",
        _stages,
    ),
    gauge(
        "waltap_onward_lag_seconds",
        _seconds,
        "Age of the stage's last transaction while others wait; 0 if none waits.",
        _stage_lags,
    ),
    gauge(
        "waltap_onward_problem",
        lambda stage: bool(stage.problem),
        "Whether a problem keeps the stage from new changes now.",
        _stages,
    ),
    gauge(
        "waltap_onward_table_lsn",
        "lsn",
        "LSN up to which the stage has applied all of a table.",
        _stage_tables,
    ),
    gauge(
        "waltap_onward_table_stopped",
        lambda table: bool(table.failed),
        "Whether the table is suspended at the stage while others continue.",
        _stage_tables,
    ),
)
"""Metrics that are read from the status."""

FAILURES = ObservedMetric(
    name="waltap_failures",
    kind="counter",
    summary="Failures by error code, and whether the run retried.",
    labels=("code", "retried"),
)
SCHEMA_CHANGES = ObservedMetric(
    name="waltap_schema_changes",
    kind="counter",
    summary="Changes of tables' columns that were seen in the stream.",
)
BATCH_SECONDS = ObservedMetric(
    name="waltap_batch_seconds",
    kind="histogram",
    summary="Time to render and write a batch.",
    buckets=(0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 60),
)
BATCH_EVENTS = ObservedMetric(
    name="waltap_batch_events",
    kind="histogram",
    summary="Events of a batch.",
    buckets=(1, 10, 100, 1000, 10_000, 100_000),
)
FLUSH_SECONDS = ObservedMetric(
    name="waltap_flush_seconds",
    kind="histogram",
    summary="Time to make what was written durable at the sink.",
    buckets=(0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 60),
)
EVENT_LAG = ObservedMetric(
    name="waltap_event_lag_seconds",
    kind="histogram",
    summary="How old the last change of a batch was when the sink had taken it.",
    buckets=(0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600, 86_400),
)
OBSERVED = (FAILURES, SCHEMA_CHANGES, BATCH_SECONDS, BATCH_EVENTS, FLUSH_SECONDS, EVENT_LAG)
"""Metrics that only observers such as `MetricsExposition` can count."""
