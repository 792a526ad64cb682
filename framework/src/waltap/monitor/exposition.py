"""Metrics in Prometheus' form, of one engine."""

from collections.abc import Callable, Iterator
from time import time
from typing import TYPE_CHECKING, Any

from waltap.hookspecs import hookimpl
from waltap.monitor.metric import ObservedMetric
from waltap.monitor.metrics import (
    BATCH_EVENTS,
    BATCH_SECONDS,
    EVENT_LAG,
    FAILURES,
    FLUSH_SECONDS,
    METRICS,
    SCHEMA_CHANGES,
)
from waltap.pipeline.status import PipelineStatus
from waltap.plugin_errors import LibraryMissing
from waltap.source.position import Positions
from waltap.transactions.transaction import Batch, TransactionPart

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

__all__ = ["MetricsExposition"]


class MetricsExposition:
    """An observer that counts per batch, and a collector that asks ``status`` when it is scraped."""

    def __init__(self, pipeline: str, status: Callable[[], PipelineStatus]) -> None:
        """Raises: LibraryMissing."""
        try:
            from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
        except ImportError as cause:
            raise LibraryMissing("metrics need prometheus-client", extra="monitor") from cause
        self._pipeline, self._status = pipeline, status
        self.registry = registry = CollectorRegistry()

        kinds: dict[str, Any] = {"counter": Counter, "gauge": Gauge, "histogram": Histogram}

        def made(metric: ObservedMetric) -> Any:
            more = {"buckets": metric.buckets} if metric.buckets else {}
            labels = ("pipeline", *metric.labels)
            found = kinds[metric.kind](
                metric.name, metric.summary, labels, registry=registry, **more
            )
            return found if metric.labels else found.labels(pipeline)

        self._failures, self._changes = made(FAILURES), made(SCHEMA_CHANGES)
        self._write, self._size = made(BATCH_SECONDS), made(BATCH_EVENTS)
        self._flush, self._late = made(FLUSH_SECONDS), made(EVENT_LAG)
        registry.register(self)  # a collector is what has `collect`

    def text(self) -> bytes:
        """Return the metrics as they are now, in the text form."""
        from prometheus_client import generate_latest

        return generate_latest(self.registry)

    def collect(self) -> "Iterator[Family]":
        """Give the metrics of the status (called by the registry)."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        status = self._status()
        for metric in METRICS:
            kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            family = kind(metric.name, metric.summary, labels=("pipeline", *metric.labels))
            for labels, value in metric.read(status):
                family.add_metric(
                    [self._pipeline, *(labels[name] for name in metric.labels)], value
                )
            yield family

    @hookimpl
    def on_batch(self, batch: Batch, seconds: float) -> None:
        """Count what a batch held."""
        self._write.observe(seconds)
        self._size.observe(batch.events)
        last = batch.parts[-1] if batch.parts else None
        if isinstance(last, TransactionPart) and last.commit_ts:
            self._late.observe(max(0.0, time() - last.commit_ts / 1_000_000))

    @hookimpl
    def on_flush(self, durable: Positions, seconds: float) -> None:
        """Keep how long a flush took."""
        self._flush.observe(seconds)

    @hookimpl
    def on_failure(self, error: Exception, retried: bool) -> None:
        """Count a failure by its code."""
        code = getattr(error, "code", "WT-9000")
        self._failures.labels(self._pipeline, code, str(retried).lower()).inc()

    @hookimpl
    def on_schema_change(self, old: object) -> None:
        """Count a relation that changed."""
        if old is not None:
            self._changes.inc()
