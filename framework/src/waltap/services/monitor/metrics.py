"""Read the metrics of a run: ``metrics.toml`` declares them."""

import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import nlargest
from importlib.resources import files
from operator import attrgetter
from typing import Any, Final, Literal

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
    items: "_Read"
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


_Read = Callable[[PipelineStatus], Iterable[tuple[Any, ...]]]


def _filtered(status: PipelineStatus) -> Iterable[tuple[int, str]]:
    sums: dict[str, int] = {}
    # a transform can come more than once, but a metric needs distinct labels
    for name, events in status.filtered:
        sums[name] = sums.get(name, 0) + events
    return ((events, name) for name, events in sums.items())


def _points(status: PipelineStatus) -> Iterator[tuple[int | None, str, str]]:
    for partition in status.partitions:
        yield partition.received_lsn, partition.name, "received"
        yield partition.written.end_lsn, partition.name, "written"
        yield partition.durable.end_lsn, partition.name, "durable"
        yield partition.confirmed_lsn, partition.name, "confirmed"
        yield partition.server_lsn, partition.name, "server"


def _tables(status: PipelineStatus) -> Iterable[tuple[Any, str]]:
    """Return the tables with the most events."""
    # waltap.metrics.tables bounds how many tables have metrics
    found = nlargest(status.metric_tables, status.tables, key=attrgetter("events"))
    return ((table, table.table) for table in found)


def _operations(status: PipelineStatus) -> Iterator[tuple[int | None, str, str]]:
    for table, name in _tables(status):
        for operation in ("creates", "updates", "deletes", "truncates", "reads"):
            yield getattr(table, operation) or None, name, operation[0]


def _snapshot_states(status: PipelineStatus) -> Iterable[tuple[bool, str]]:
    run = status.snapshot_run
    state = "" if run is None else run.state
    # as Debezium's SnapshotSkipped: the run streams and has read no snapshot
    if run is None and status.state == "streaming":
        state = "skipped"
    return ((each == state, each) for each in SNAPSHOT_STATES)


def _snapshot_tables(status: PipelineStatus) -> Iterable[tuple[Any, str]]:
    """Return unfinished tables first, then the largest."""
    found = nlargest(
        status.metric_tables, status.snapshot, key=lambda table: (not table.complete, table.rows)
    )
    return ((table, table.table) for table in found)


def _stage_tables(status: PipelineStatus) -> Iterator[tuple[Any, str, str]]:
    """Yield all suspended tables, then those with the most waiting rows."""
    for stage in status.downstream:
        failed = [table for table in stage.tables if table.failed]
        others = [table for table in stage.tables if not table.failed]
        spare = max(0, status.metric_tables - len(failed))
        for table in (*failed, *nlargest(spare, others, key=lambda each: each.waiting_rows or 0)):
            yield table, stage.stage, table.table


def _part(name: str) -> _Read:
    """Return the reader of an optional part of the status."""
    return lambda status: [(found,)] if (found := getattr(status, name)) is not None else []


# Parts of the status that have samples of their own, by their name in the table: labels and items.
_ITEMS: Final[Mapping[str, tuple[tuple[str, ...], _Read]]] = {
    "status": ((), lambda status: [(status,)]),
    "slot": ((), _part("slot")),
    "last_event": ((), _part("last_event")),
    "snapshot_run": ((), _part("snapshot_run")),
    "limit": (("limit",), lambda status: [(s, s.limit_kind) for (s,) in _part("slot")(status)]),
    "states": (("state",), lambda status: [(each == status.state, each) for each in STATES]),
    "filtered": (("transform",), _filtered),
    "partitions": (("partition",), lambda status: [(p, p.name) for p in status.partitions]),
    "points": (("partition", "point"), _points),
    "tables": (("table",), _tables),
    "operations": (("table", "op"), _operations),
    "snapshot_states": (("state",), _snapshot_states),
    "snapshot_tables": (("table",), _snapshot_tables),
    "stages": (("stage",), lambda status: [(s, s.stage) for s in status.downstream]),
    "stage_lags": (
        ("stage",),
        lambda status: [(s.lag_ms(status.at_ms), s.stage) for s in status.downstream],
    ),
    "stage_tables": (("stage", "table"), _stage_tables),
}


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000


def _snapshot_table_count(status: PipelineStatus) -> int:
    run = status.snapshot_run
    # an initial snapshot reads all captured tables, also those that it has not begun
    captured = len(status.captured_tables) if run is not None and run.kind == "initial" else 0
    waiting = 0 if status.incremental is None else status.incremental.queued
    return max(captured, len(status.snapshot) + waiting)


# Values of metrics that are more than one attribute of an item.
VALUES: Final[Mapping[str, Callable[[Any], float | None]]] = {
    "waltap_connected": lambda status: status.state in {"streaming", "snapshot"},
    "waltap_write_in_flight_seconds": lambda status: (status.write_ms or 0) / 1000,
    "waltap_table_lsn": lambda table: table.commit_lsn or None,
    "waltap_table_last_commit_time_seconds": lambda table: _seconds(table.committed_ms or None),
    "waltap_snapshot_tables": _snapshot_table_count,
    "waltap_snapshot_tables_remaining": lambda status: (
        _snapshot_table_count(status) - sum(table.complete for table in status.snapshot)
    ),
    "waltap_downstream_lsn": lambda stage: stage.lsn or None,
    "waltap_downstream_lag_seconds": _seconds,
}

# How a row of the table names the attribute that has its value.
FORMS: Final[Mapping[str, Callable[[Any], float | None]]] = {
    "value": lambda value: value,
    "ms": _seconds,
    "flag": bool,
    "count": len,
}


def _value_of(name: str, row: Mapping[str, Any]) -> Callable[[Any], float | None]:
    for form, make in FORMS.items():
        if form in row:
            attribute = attrgetter(row[form])
            return lambda item: make(attribute(item))
    return VALUES.get(name, FORMS["value"])


def _status_metric(name: str, row: Mapping[str, Any]) -> StatusMetric:
    labels, items = _ITEMS[row.get("items", "status")]
    return StatusMetric(
        name=name,
        kind=row.get("kind", "gauge"),
        summary=row["summary"],
        labels=labels,
        items=items,
        value=_value_of(name, row),
    )


_TABLE: Final[Mapping[str, Any]] = tomllib.loads(
    files("waltap.services.monitor").joinpath("metrics.toml").read_text(encoding="utf-8")
)

METRICS: Final = tuple(_status_metric(*row) for row in _TABLE["status"].items())
"""Metrics that are read from the status."""

OBSERVED: Final = tuple(
    ObservedMetric(name=name, **row | {n: tuple(row.get(n, ())) for n in ("labels", "buckets")})
    for name, row in _TABLE["observed"].items()
)
"""Metrics that only observers such as `MetricsExposition` can count."""

FAILURES, SCHEMA_CHANGES, BATCH_SECONDS, BATCH_EVENTS, FLUSH_SECONDS, EVENT_LAG = OBSERVED
