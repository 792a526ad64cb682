"""The metrics of a run: each is declared once, with the name that Debezium's MBeans have for it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from waltap.guardian.health import SlotHealth
from waltap.pipeline.status import Status

__all__ = [
    "BATCH_EVENTS",
    "BATCH_SECONDS",
    "FAILURES",
    "LAST_EVENT",
    "METRICS",
    "OBSERVED",
    "SCHEMA_CHANGES",
    "STATES",
    "TABLE_EVENTS",
    "Metric",
    "Observed",
    "Sample",
]

STATES = (
    "checking", "standby", "snapshot", "streaming", "reconnecting", "stopping", "stopped", "failed",
)  # fmt: skip

Sample = tuple[dict[str, str], float]
"""(labels, value)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """A metric that observers keep. ``name`` has no suffix ``_total``; ``mbean`` is the attribute of
    Debezium's, or ""; ``buckets`` are a histogram's."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    summary: str
    mbean: str = ""
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def shown(self) -> str:
        """Return its name as Prometheus has it."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric(Observed):
    """A metric that is read off a status; ``samples`` gives its values, without those nobody knows."""

    samples: Callable[[Status], Iterator[Sample]]


def _one(value: Callable[[Status], float | None]) -> Callable[[Status], Iterator[Sample]]:
    def samples(status: Status) -> Iterator[Sample]:
        found = value(status)
        if found is not None:
            yield {}, float(found)

    return samples


def _lsns(status: Status) -> Iterator[Sample]:
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


def _lag_bytes(status: Status) -> Iterator[Sample]:
    for partition in status.partitions:
        if partition.lag_bytes is not None:
            yield {"partition": partition.name}, float(partition.lag_bytes)


def _lag_seconds(status: Status) -> Iterator[Sample]:
    for partition in status.partitions:
        if partition.lag_ms is not None:
            yield {"partition": partition.name}, partition.lag_ms / 1000


def _states(status: Status) -> Iterator[Sample]:
    for state in STATES:
        yield {"state": state}, float(state == status.state)


def _filtered(status: Status) -> Iterator[Sample]:
    sums: dict[str, int] = {}
    for name, events in status.filtered:
        sums[name] = sums.get(name, 0) + events
    for name, events in sums.items():
        yield {"transform": name}, float(events)


def _table_rows(status: Status) -> Iterator[Sample]:
    for table in status.snapshot:
        yield {"table": table.table}, float(table.rows)


def _table_estimates(status: Status) -> Iterator[Sample]:
    for table in status.snapshot:
        if table.estimate is not None:
            yield {"table": table.table}, float(table.estimate)


def _limits(status: Status) -> Iterator[Sample]:
    slot = status.slot
    if slot is not None and slot.limit_bytes is not None:
        yield {"limit": slot.limit_kind}, float(slot.limit_bytes)


def _of_slot(value: Callable[[SlotHealth], float | None]) -> Callable[[Status], Iterator[Sample]]:
    return _one(lambda status: None if status.slot is None else value(status.slot))


METRICS: tuple[Metric, ...] = (
    Metric(
        name="waltap_state",
        kind="gauge",
        summary="1 for the state that the pipeline is in, 0 for the others.",
        samples=_states,
        labels=("state",),
    ),
    Metric(
        name="waltap_connected",
        kind="gauge",
        summary="Whether the pipeline streams or reads a snapshot.",
        samples=_one(lambda status: status.state in {"streaming", "snapshot"}),
        mbean="Connected",
    ),
    Metric(
        name="waltap_start_time_seconds",
        kind="gauge",
        summary="When the run began, since 1970 UTC.",
        samples=_one(lambda status: status.started_ms / 1000),
    ),
    Metric(
        name="waltap_events",
        kind="counter",
        summary="Changes and snapshot rows that the sink took.",
        samples=_one(lambda status: status.events),
        mbean="TotalNumberOfEventsSeen",
    ),
    Metric(
        name="waltap_records",
        kind="counter",
        summary="Records that the format made, for sinks that take records.",
        samples=_one(lambda status: status.records),
    ),
    Metric(
        name="waltap_snapshot_rows",
        kind="counter",
        summary="Rows of snapshots that the sink took.",
        samples=_one(lambda status: status.snapshot_rows),
    ),
    Metric(
        name="waltap_transactions",
        kind="counter",
        summary="Transactions that ended in what the sink took.",
        samples=_one(lambda status: status.transactions),
        mbean="NumberOfCommittedTransactions",
    ),
    Metric(
        name="waltap_batches",
        kind="counter",
        summary="Batches that the sink took.",
        samples=_one(lambda status: status.batches),
    ),
    Metric(
        name="waltap_filtered_events",
        kind="counter",
        summary="Events that a transform left out.",
        samples=_filtered,
        mbean="NumberOfEventsFiltered",
        labels=("transform",),
    ),
    Metric(
        name="waltap_reconnects",
        kind="counter",
        summary="Times that the pipeline connected anew.",
        samples=_one(lambda status: status.reconnects),
    ),
    Metric(
        name="waltap_batch_retries",
        kind="counter",
        summary="Times that a batch was given to the sink again.",
        samples=_one(lambda status: status.batch_retries),
    ),
    Metric(
        name="waltap_events_left_out",
        kind="counter",
        summary="Events that could not be delivered, and were left out.",
        samples=_one(lambda status: status.left_out),
    ),
    Metric(
        name="waltap_dead_letters",
        kind="counter",
        summary="Events that could not be delivered, and were written to the dead letters.",
        samples=_one(lambda status: status.dead_letters),
    ),
    Metric(
        name="waltap_notifications_lost",
        kind="counter",
        summary="Notifications that a channel gave up.",
        samples=_one(lambda status: status.notifications_lost),
    ),
    Metric(
        name="waltap_lsn",
        kind="gauge",
        summary="How far the pipeline has come, as bytes of WAL: received of the server, written to the "
        "sink, durable and stored, confirmed to the server; and the end of the server's WAL.",
        samples=_lsns,
        mbean="SourceEventPosition",
        labels=("partition", "point"),
    ),
    Metric(
        name="waltap_lag_bytes",
        kind="gauge",
        summary="WAL that is not durable at the sink, as of the last look at the server.",
        samples=_lag_bytes,
        labels=("partition",),
    ),
    Metric(
        name="waltap_lag_seconds",
        kind="gauge",
        summary="How old the last change was when the sink took it.",
        samples=_lag_seconds,
        mbean="MilliSecondsBehindSource",
        labels=("partition",),
    ),
    Metric(
        name="waltap_slot_retained_bytes",
        kind="gauge",
        summary="WAL that the server keeps for the slot.",
        samples=_of_slot(lambda slot: slot.retained_bytes),
    ),
    Metric(
        name="waltap_slot_limit_bytes",
        kind="gauge",
        summary="WAL that it may keep: by the tightest of max_slot_wal_keep_size (slot), "
        "waltap.wal.budget (budget) and the server's disk (disk).",
        samples=_limits,
        labels=("limit",),
    ),
    Metric(
        name="waltap_slot_left_bytes",
        kind="gauge",
        summary="WAL that it may keep beyond what it does.",
        samples=_of_slot(lambda slot: slot.left_bytes),
    ),
    Metric(
        name="waltap_slot_growth_bytes_per_second",
        kind="gauge",
        summary="By how much more WAL is kept, over the last 15 minutes.",
        samples=_of_slot(lambda slot: slot.growth_per_s),
    ),
    Metric(
        name="waltap_slot_full_seconds",
        kind="gauge",
        summary="Forecast: time until the limit as things go; none while it is not approached.",
        samples=_of_slot(lambda slot: slot.seconds_left),
    ),
    Metric(
        name="waltap_slot_stalled_full_seconds",
        kind="gauge",
        summary="Forecast: time until the limit were nothing confirmed from now on.",
        samples=_of_slot(lambda slot: slot.stalled_seconds_left),
    ),
    Metric(
        name="waltap_slot_invalidated",
        kind="gauge",
        summary="Whether the server gave the slot up.",
        samples=_of_slot(lambda slot: bool(slot.invalidation)),
    ),
    Metric(
        name="waltap_orphan_slots",
        kind="gauge",
        summary="Slots of the database that nobody reads and no pipeline of the state folder has.",
        samples=_of_slot(lambda slot: len(slot.orphans)),
    ),
    Metric(
        name="waltap_open_gaps",
        kind="gauge",
        summary="Gap certificates that are open: `waltap repair` closes them.",
        samples=_one(lambda status: status.open_gaps),
    ),
    Metric(
        name="waltap_queued_events",
        kind="gauge",
        summary="Changes that are gathered and not yet written.",
        samples=_one(lambda status: status.queued_events),
        mbean="QueueTotalCapacity - QueueRemainingCapacity",
    ),
    Metric(
        name="waltap_unflushed_seconds",
        kind="gauge",
        summary="How long the oldest batch has waited for its flush.",
        samples=_one(
            lambda status: None if status.unflushed_ms is None else status.unflushed_ms / 1000
        ),
    ),
    Metric(
        name="waltap_open_transactions",
        kind="gauge",
        summary="Transactions that have begun and have not ended.",
        samples=_one(lambda status: status.open_transactions),
    ),
    Metric(
        name="waltap_held_bytes",
        kind="gauge",
        summary="Size of transactions that wait for their end.",
        samples=_one(lambda status: status.held_bytes),
    ),
    Metric(
        name="waltap_spilled_bytes",
        kind="gauge",
        summary="How much of that is in files.",
        samples=_one(lambda status: status.spilled_bytes),
    ),
    Metric(
        name="waltap_captured_tables",
        kind="gauge",
        summary="Tables that are captured.",
        samples=_one(lambda status: len(status.captured_tables)),
        mbean="CapturedTables",
    ),
    Metric(
        name="waltap_snapshot_tables",
        kind="gauge",
        summary="Tables of the initial snapshot that have begun to be read.",
        samples=_one(lambda status: len(status.snapshot)),
        mbean="TotalTableCount",
    ),
    Metric(
        name="waltap_snapshot_tables_completed",
        kind="gauge",
        summary="Of these, those that were read.",
        samples=_one(lambda status: sum(table.complete for table in status.snapshot)),
        mbean="TotalTableCount - RemainingTableCount",
    ),
    Metric(
        name="waltap_snapshot_table_rows",
        kind="gauge",
        summary="Rows of a table that the initial snapshot has read.",
        samples=_table_rows,
        mbean="RowsScanned",
        labels=("table",),
    ),
    Metric(
        name="waltap_snapshot_table_rows_estimate",
        kind="gauge",
        summary="The planner's estimate of all.",
        samples=_table_estimates,
        labels=("table",),
    ),
)
"""What is read off a status."""

TABLE_EVENTS = Observed(
    name="waltap_table_events",
    kind="counter",
    summary="Events of a table, by operation: c, u, d, r, t, m.",
    labels=("table", "op"),
    mbean="NumberOfCreateEventsSeen and the like",
)
FAILURES = Observed(
    name="waltap_failures",
    kind="counter",
    summary="What went wrong, by error code, and whether the run went on.",
    labels=("code", "retried"),
    mbean="NumberOfErroneousEvents",
)
SCHEMA_CHANGES = Observed(
    name="waltap_schema_changes",
    kind="counter",
    summary="Relations that were seen in another shape.",
)
BATCH_SECONDS = Observed(
    name="waltap_batch_seconds",
    kind="histogram",
    summary="Time to render and write a batch.",
    buckets=(0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 60),
)
BATCH_EVENTS = Observed(
    name="waltap_batch_events",
    kind="histogram",
    summary="Events of a batch.",
    buckets=(1, 10, 100, 1000, 10_000, 100_000),
)
LAST_EVENT = Observed(
    name="waltap_last_event_time_seconds",
    kind="gauge",
    summary="When the last event was written, since 1970 UTC.",
    mbean="MilliSecondsSinceLastEvent, from time()",
)
OBSERVED = (TABLE_EVENTS, FAILURES, SCHEMA_CHANGES, BATCH_SECONDS, BATCH_EVENTS, LAST_EVENT)
"""What only observers know; `Exposition` is one."""
