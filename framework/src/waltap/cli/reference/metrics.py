"""Generate the page of metrics and of Debezium's MBeans."""

from collections.abc import Mapping
from typing import Final

from waltap.base.text import GENERATED, table
from waltap.services.monitor.metrics import METRICS, OBSERVED

__all__ = [
    "SNAPSHOT",
    "STREAMING",
    "metrics_page",
]


# Map Debezium's MBean attributes to metrics of waltap.
#
# The attributes are those of Debezium 3.6 for PostgreSQL.

_NOTIFIED: Final = "notifications of snapshots: the values are keys of rows, which no metric has"

# attributes of both contexts
_EVENTS: Final[Mapping[str, str]] = {
    "LastEvent": "`last_event` of `/api/status`: operation, table, transaction, LSN",
    "MilliSecondsSinceLastEvent": "`time() - waltap_last_event_time_seconds`",
    "TotalNumberOfEventsSeen": "`waltap_events_total`, and `waltap_filtered_events_total`",
    "TotalNumberOfCreateEventsSeen": '`sum(waltap_table_events_total{op="c"})`',
    "TotalNumberOfUpdateEventsSeen": '`sum(waltap_table_events_total{op="u"})`',
    "TotalNumberOfDeleteEventsSeen": '`sum(waltap_table_events_total{op="d"})`',
    "NumberOfEventsFiltered": "`waltap_filtered_events_total`",
    "NumberOfErroneousEvents": "`waltap_events_left_out_total`; failures: `waltap_failures_total`",
    "QueueTotalCapacity": "`waltap_queue_capacity_events`",
    "QueueRemainingCapacity": "`waltap_queue_capacity_events - waltap_queued_events`",
    "MaxQueueSizeInBytes": "`waltap_held_memory_limit_bytes`",
    "CurrentQueueSizeInBytes": "`waltap_held_bytes - waltap_spilled_bytes`",
    "CapturedTables": "`waltap_captured_tables`, and their names in `/api/status`",
}

SNAPSHOT: Final[Mapping[str, str]] = {
    **_EVENTS,
    "TotalTableCount": "`waltap_snapshot_tables`",
    "RemainingTableCount": "`waltap_snapshot_tables_remaining`",
    "SnapshotRunning": '`waltap_snapshot_state{state="running"}`',
    "SnapshotPaused": '`waltap_snapshot_state{state="paused"}`',
    "SnapshotCompleted": '`waltap_snapshot_state{state="completed"}`',
    "SnapshotAborted": '`waltap_snapshot_state{state="aborted"}`',
    "SnapshotSkipped": '`waltap_snapshot_state{state="skipped"}`',
    "SnapshotDurationInSeconds": "`waltap_snapshot_duration_seconds`",
    "SnapshotPausedDurationInSeconds": "`waltap_snapshot_paused_seconds`",
    "RowsScanned": "`waltap_snapshot_table_rows`",
    "ChunkId": _NOTIFIED,
    "ChunkFrom": _NOTIFIED,
    "ChunkTo": _NOTIFIED,
    "TableFrom": _NOTIFIED,
    "TableTo": _NOTIFIED,
    "TableChunkCounts": "`waltap_snapshot_table_rows_estimate`: progress is told in rows",
    "TableChunksCompletedCounts": "`waltap_snapshot_table_rows`: progress is told in rows",
}
"""Attribute of ``type=connector-metrics,context=snapshot`` → its counterpart here."""

STREAMING: Final[Mapping[str, str]] = {
    **_EVENTS,
    "Connected": "`waltap_connected`",
    "SourceEventPosition": "`waltap_lsn`",
    "MilliSecondsBehindSource": "`1000 * waltap_lag_seconds`",
    "MilliSecondsBehindSourceMinValue": "`1000 * waltap_lag_min_seconds`",
    "MilliSecondsBehindSourceMaxValue": "`1000 * waltap_lag_max_seconds`",
    "MilliSecondsBehindSourceAverageValue": "`1000 * waltap_event_lag_seconds_sum / "
    "waltap_event_lag_seconds_count`",
    "MilliSecondsBehindSourceP50": "`1000 * histogram_quantile(0.5, "
    "rate(waltap_event_lag_seconds_bucket[5m]))`",
    "MilliSecondsBehindSourceP95": "`1000 * histogram_quantile(0.95, "
    "rate(waltap_event_lag_seconds_bucket[5m]))`",
    "MilliSecondsBehindSourceP99": "`1000 * histogram_quantile(0.99, "
    "rate(waltap_event_lag_seconds_bucket[5m]))`",
    "NumberOfCommittedTransactions": "`waltap_transactions_total`",
    "LastTransactionId": "`waltap_last_transaction_id`",
    "NumberOfUnchangedEventsSkipped": "not counted apart; left out before anything counts them",
    "NumberOfCreateEventsSeen": '`waltap_table_events_total{op="c"}`',
    "NumberOfUpdateEventsSeen": '`waltap_table_events_total{op="u"}`',
    "NumberOfDeleteEventsSeen": '`waltap_table_events_total{op="d"}`',
    "NumberOfTruncateEventsSeen": '`waltap_table_events_total{op="t"}`',
}
"""Attribute of ``type=connector-metrics,context=streaming`` → its counterpart here."""


INTRODUCTION = """\
What `/metrics` of `waltap run FILE --http HOST:PORT` gives, in Prometheus' text form. Every metric has the
label `pipeline`. Counters begin at 0 with each run. [Dashboard and alert rules](../howto/monitoring.md)
use them."""

OF_DEBEZIUM = """\
Each attribute of the MBeans of Debezium 3.6's connector for PostgreSQL, as its JMX exporter gives them,
and what tells the same here. Labels `pipeline` and others narrow the expressions."""


def metrics_page() -> str:
    """Return the page."""
    rows = (
        (f"`{each.shown}`", each.kind, ", ".join(each.labels), each.summary)
        for each in (*METRICS, *OBSERVED)
    )
    lines = ["# Metrics", "", GENERATED, "", INTRODUCTION, ""]
    lines += table(("metric", "kind", "labels", "meaning"), rows)
    lines += ["", "## Coming from Debezium", "", OF_DEBEZIUM]
    for name, mapping in (("streaming", STREAMING), ("snapshot", SNAPSHOT)):
        lines += ["", f"### `context={name}`", ""]
        lines += table(("attribute", "here"), mapping.items())
    return "\n".join(lines).rstrip() + "\n"
