"""Declare the metrics of a run."""

from collections.abc import Callable, Iterator

from waltap.monitor.metric import ObservedMetric, Sample, StatusMetric, one
from waltap.monitor.table_metrics import ONWARD, SNAPSHOT, TABLES
from waltap.pipeline.status import PipelineStatus
from waltap.slot_monitor.health import SlotHealth

__all__ = [
    "BATCH_EVENTS",
    "BATCH_SECONDS",
    "EVENT_LAG",
    "FAILURES",
    "FLUSH_SECONDS",
    "METRICS",
    "OBSERVED",
    "SCHEMA_CHANGES",
    "STATES",
]

STATES = (
    "checking", "standby", "snapshot", "streaming", "reconnecting", "stopping", "stopped", "failed",
)  # fmt: skip


def _lsns(status: PipelineStatus) -> Iterator[Sample]:
    for partition in status.partitions:
        found = {
            "received": partition.received_lsn,
            "written": partition.written.end_lsn,
            "durable": partition.durable.end_lsn,
            "confirmed": partition.confirmed_lsn,
            "server": partition.server_lsn,
        }
        for point, lsn in found.items():
            if lsn is not None:
                yield {"partition": partition.name, "point": point}, float(lsn)


def _lag_bytes(status: PipelineStatus) -> Iterator[Sample]:
    for partition in status.partitions:
        if partition.lag_bytes is not None:
            yield {"partition": partition.name}, float(partition.lag_bytes)


def _lag_seconds(status: PipelineStatus) -> Iterator[Sample]:
    for partition in status.partitions:
        if partition.lag_ms is not None:
            yield {"partition": partition.name}, partition.lag_ms / 1000


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000


def _states(status: PipelineStatus) -> Iterator[Sample]:
    for state in STATES:
        yield {"state": state}, float(state == status.state)


def _filtered(status: PipelineStatus) -> Iterator[Sample]:
    sums: dict[str, int] = {}
    # a transform can come more than once, but a metric needs distinct labels
    for name, events in status.filtered:
        sums[name] = sums.get(name, 0) + events
    for name, events in sums.items():
        yield {"transform": name}, float(events)


def _limits(status: PipelineStatus) -> Iterator[Sample]:
    slot = status.slot
    if slot is not None and slot.limit_bytes is not None:
        yield {"limit": slot.limit_kind}, float(slot.limit_bytes)


def _of_slot(
    value: Callable[[SlotHealth], float | None],
) -> Callable[[PipelineStatus], Iterator[Sample]]:
    return one(lambda status: None if status.slot is None else value(status.slot))


METRICS: tuple[StatusMetric, ...] = (
    StatusMetric(
        name="waltap_state",
        kind="gauge",
        summary="1 for the state that the pipeline is in, 0 for the others.",
        samples=_states,
        labels=("state",),
    ),
    StatusMetric(
        name="waltap_connected",
        kind="gauge",
        summary="Whether the pipeline streams or reads a snapshot.",
        samples=one(lambda status: status.state in {"streaming", "snapshot"}),
    ),
    StatusMetric(
        name="waltap_start_time_seconds",
        kind="gauge",
        summary="When the run began, since 1970 UTC.",
        samples=one(lambda status: status.started_ms / 1000),
    ),
    StatusMetric(
        name="waltap_events",
        kind="counter",
        summary="Changes and snapshot rows that the sink took.",
        samples=one(lambda status: status.events),
    ),
    StatusMetric(
        name="waltap_records",
        kind="counter",
        summary="Records that the format made, for sinks that take records.",
        samples=one(lambda status: status.records),
    ),
    StatusMetric(
        name="waltap_snapshot_rows",
        kind="counter",
        summary="Rows of snapshots that the sink took.",
        samples=one(lambda status: status.snapshot_rows),
    ),
    StatusMetric(
        name="waltap_transactions",
        kind="counter",
        summary="Transactions that ended in what the sink took.",
        samples=one(lambda status: status.transactions),
    ),
    StatusMetric(
        name="waltap_batches",
        kind="counter",
        summary="Batches that the sink took.",
        samples=one(lambda status: status.batches),
    ),
    StatusMetric(
        name="waltap_filtered_events",
        kind="counter",
        summary="Events that a transform left out.",
        samples=_filtered,
        labels=("transform",),
    ),
    StatusMetric(
        name="waltap_reconnects",
        kind="counter",
        summary="Times that the pipeline connected anew.",
        samples=one(lambda status: status.reconnects),
    ),
    StatusMetric(
        name="waltap_batch_retries",
        kind="counter",
        summary="Times that a batch was given to the sink again.",
        samples=one(lambda status: status.batch_retries),
    ),
    StatusMetric(
        name="waltap_events_left_out",
        kind="counter",
        summary="Events that could not be delivered, and were left out.",
        samples=one(lambda status: status.left_out),
    ),
    StatusMetric(
        name="waltap_dead_letters",
        kind="counter",
        summary="Events that could not be delivered, and were written to the dead letters.",
        samples=one(lambda status: status.dead_letters),
    ),
    StatusMetric(
        name="waltap_notifications_lost",
        kind="counter",
        summary="Notifications that a channel gave up.",
        samples=one(lambda status: status.notifications_lost),
    ),
    StatusMetric(
        name="waltap_lsn",
        kind="gauge",
        summary="How far the pipeline has come, as bytes of WAL: received of the server, written to the "
        "sink, durable and stored, confirmed to the server; and the end of the server's WAL.",
        samples=_lsns,
        labels=("partition", "point"),
    ),
    StatusMetric(
        name="waltap_lag_bytes",
        kind="gauge",
        summary="WAL that is not durable at the sink, as of the last look at the server.",
        samples=_lag_bytes,
        labels=("partition",),
    ),
    StatusMetric(
        name="waltap_lag_seconds",
        kind="gauge",
        summary="How old the last change was when the sink took it; while the sink does not come to an "
        "end with one, how old the oldest is that is not durable.",
        samples=_lag_seconds,
        labels=("partition",),
    ),
    StatusMetric(
        name="waltap_slot_retained_bytes",
        kind="gauge",
        summary="WAL that the server keeps for the slot.",
        samples=_of_slot(lambda slot: slot.retained_bytes),
    ),
    StatusMetric(
        name="waltap_slot_limit_bytes",
        kind="gauge",
        summary="WAL that it may keep: by the tightest of max_slot_wal_keep_size (slot), "
        "waltap.wal.budget (budget) and the server's disk (disk).",
        samples=_limits,
        labels=("limit",),
    ),
    StatusMetric(
        name="waltap_slot_left_bytes",
        kind="gauge",
        summary="WAL that it may keep beyond what it does.",
        samples=_of_slot(lambda slot: slot.left_bytes),
    ),
    StatusMetric(
        name="waltap_slot_growth_bytes_per_second",
        kind="gauge",
        summary="By how much more WAL is kept, over the last 15 minutes.",
        samples=_of_slot(lambda slot: slot.growth_per_s),
    ),
    StatusMetric(
        name="waltap_slot_full_seconds",
        kind="gauge",
        summary="Forecast: time until the limit as things go; none while it is not approached.",
        samples=_of_slot(lambda slot: slot.seconds_left),
    ),
    StatusMetric(
        name="waltap_slot_stalled_full_seconds",
        kind="gauge",
        summary="Forecast: time until the limit were nothing confirmed from now on.",
        samples=_of_slot(lambda slot: slot.stalled_seconds_left),
    ),
    StatusMetric(
        name="waltap_slot_invalidated",
        kind="gauge",
        summary="Whether the server gave the slot up.",
        samples=_of_slot(lambda slot: bool(slot.invalidation)),
    ),
    StatusMetric(
        name="waltap_orphan_slots",
        kind="gauge",
        summary="Slots of the database that nobody reads and no pipeline of the state folder has.",
        samples=_of_slot(lambda slot: len(slot.orphans)),
    ),
    StatusMetric(
        name="waltap_open_gaps",
        kind="gauge",
        summary="Gap certificates that are open: `waltap repair` closes them.",
        samples=one(lambda status: status.open_gaps),
    ),
    StatusMetric(
        name="waltap_queued_events",
        kind="gauge",
        summary="Changes that are gathered and not yet written.",
        samples=one(lambda status: status.queued_events),
    ),
    StatusMetric(
        name="waltap_queue_capacity_events",
        kind="gauge",
        summary="How many may be: max.batch.size.",
        samples=one(lambda status: status.queue_events),
    ),
    StatusMetric(
        name="waltap_held_memory_limit_bytes",
        kind="gauge",
        summary="Memory for transactions that wait for their end: waltap.spill.memory.bytes.",
        samples=one(lambda status: status.spill_memory_bytes),
    ),
    StatusMetric(
        name="waltap_last_transaction_id",
        kind="gauge",
        summary="Number of the last transaction that the sink took.",
        samples=one(lambda status: status.last_transaction),
    ),
    StatusMetric(
        name="waltap_lag_min_seconds",
        kind="gauge",
        summary="Least age of a change when the sink took it, in this run.",
        samples=one(lambda status: _seconds(status.lag_least_ms)),
    ),
    StatusMetric(
        name="waltap_lag_max_seconds",
        kind="gauge",
        summary="Greatest age of a change when the sink took it, in this run.",
        samples=one(lambda status: _seconds(status.lag_most_ms)),
    ),
    StatusMetric(
        name="waltap_unflushed_seconds",
        kind="gauge",
        summary="How long the oldest batch has waited for its flush.",
        samples=one(
            lambda status: None if status.unflushed_ms is None else status.unflushed_ms / 1000
        ),
    ),
    StatusMetric(
        name="waltap_write_in_flight_seconds",
        kind="gauge",
        summary="How long the sink has been at a write or flush, or has owed the acknowledgement of a "
        "batch; 0 where it does neither.",
        samples=one(lambda status: (status.write_ms or 0) / 1000),
    ),
    StatusMetric(
        name="waltap_open_transactions",
        kind="gauge",
        summary="Transactions that have begun and have not ended.",
        samples=one(lambda status: status.open_transactions),
    ),
    StatusMetric(
        name="waltap_held_bytes",
        kind="gauge",
        summary="Size of transactions that wait for their end.",
        samples=one(lambda status: status.held_bytes),
    ),
    StatusMetric(
        name="waltap_spilled_bytes",
        kind="gauge",
        summary="How much of that is in files.",
        samples=one(lambda status: status.spilled_bytes),
    ),
    StatusMetric(
        name="waltap_captured_tables",
        kind="gauge",
        summary="Tables that are captured.",
        samples=one(lambda status: len(status.captured_tables)),
    ),
    *TABLES,
    *SNAPSHOT,
    *ONWARD,
)
"""Metrics that are read from the status."""

FAILURES = ObservedMetric(
    name="waltap_failures",
    kind="counter",
    summary="What went wrong, by error code, and whether the run went on.",
    labels=("code", "retried"),
)
SCHEMA_CHANGES = ObservedMetric(
    name="waltap_schema_changes",
    kind="counter",
    summary="Relations that were seen in another shape.",
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
