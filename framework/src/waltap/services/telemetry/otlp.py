"""Send traces and metrics to an OpenTelemetry collector.

This needs an extra. A delivery, from its first batch to its confirmation, is one span. Each batch and
the flush are spans within it; a row never has a span. The metrics have the names of `/metrics`.
"""

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Self

from waltap.base.plugin_errors import needing
from waltap.changes.transactions.position import Positions, lsn_text
from waltap.changes.transactions.transaction import Batch
from waltap.errors import WaltapError
from waltap.plugins.hookspecs import hookimpl
from waltap.services.monitor.metrics import (
    BATCH_EVENTS,
    BATCH_SECONDS,
    FAILURES,
    FLUSH_SECONDS,
    METRICS,
    ObservedMetric,
    StatusMetric,
)
from waltap.services.monitor.status import PipelineStatus
from waltap.version import VERSION

if TYPE_CHECKING:
    from opentelemetry.trace import Span


SCOPE = "waltap"
END_S = 5
"""Time for one request to the collector, also at the end of a run."""

# Each metric has a callback: within this time all callbacks of one export share one status.
ONE_EXPORT_S = 0.5


class OtlpObserver:
    """Observe one run for OpenTelemetry.

    ``endpoint`` is the address of OTLP over HTTP without ``/v1/traces`` and ``/v1/metrics``. The
    variables of OpenTelemetry (``OTEL_…``) set the rest, such as headers and the sampler.
    """

    def __init__(
        self, pipeline: str, status: Callable[[], PipelineStatus], endpoint: str, interval_ms: int
    ) -> None:
        """Start the exporters. Raises: LibraryMissing."""
        with needing("waltap.otel.endpoint needs OpenTelemetry", extra="otel"):
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.metrics import MeterProvider
            from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        self._pipeline, self._status = pipeline, status
        self._seen: PipelineStatus | None = None
        self._seen_at = 0.0
        base = endpoint.rstrip("/")
        resource = Resource.create(
            {"service.name": "waltap", "service.version": VERSION, "waltap.pipeline": pipeline}
        )
        self._traces = TracerProvider(resource=resource, shutdown_on_exit=False)
        exporter = OTLPSpanExporter(endpoint=f"{base}/v1/traces", timeout=END_S)
        self._traces.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._traces.get_tracer(SCOPE, VERSION)
        reader = PeriodicExportingMetricReader(
            OTLPMetricExporter(endpoint=f"{base}/v1/metrics", timeout=END_S),
            export_interval_millis=interval_ms,
            export_timeout_millis=END_S * 1000,
        )
        self._metrics = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
        meter = self._metrics.get_meter(SCOPE, VERSION)
        for metric in METRICS:
            make = (
                meter.create_observable_counter
                if metric.kind == "counter"
                else meter.create_observable_gauge
            )
            make(metric.name, callbacks=[self._reader(metric)], description=metric.summary)

        def histogram(metric: ObservedMetric) -> Any:
            return meter.create_histogram(
                metric.name,
                description=metric.summary,
                explicit_bucket_boundaries_advisory=list(metric.buckets),
            )

        self._batch_seconds, self._batch_events = histogram(BATCH_SECONDS), histogram(BATCH_EVENTS)
        self._flush_seconds = histogram(FLUSH_SECONDS)
        self._failures = meter.create_counter(FAILURES.name, description=FAILURES.summary)
        self._root: Span | None = None
        self._events = 0
        self._ends_ns: int | None = None
        """End of the current delivery's last flush, None before it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_details: object) -> None:
        """Export the remaining data and shut down."""
        self._end()
        self._traces.force_flush(END_S * 1000)
        self._traces.shutdown()
        self._metrics.shutdown(END_S * 1000)

    def _now(self) -> PipelineStatus:
        now = time.monotonic()
        if self._seen is None or now - self._seen_at > ONE_EXPORT_S:
            self._seen, self._seen_at = self._status(), now
        return self._seen

    def _reader(self, metric: StatusMetric) -> Callable[[Any], Iterable[Any]]:
        from opentelemetry.metrics import Observation

        def read(_options: object) -> Iterable[Any]:
            mine = {"pipeline": self._pipeline}
            return [
                Observation(value, {**mine, **labels}) for labels, value in metric.read(self._now())
            ]

        return read

    # --- spans -----------------------------------------------------------------------------------

    def _end(self) -> None:
        if self._root is not None:
            self._root.set_attribute("waltap.changes.events", self._events)
            self._root.end(self._ends_ns or time.time_ns())
        self._root, self._events, self._ends_ns = None, 0, None

    def _part(self, name: str, start_ns: int, end_ns: int, **attributes: str | int) -> None:
        """Add a span to the current delivery."""
        from opentelemetry.trace import set_span_in_context

        if self._root is None:
            self._root = self._tracer.start_span(
                "waltap.delivery",
                start_time=start_ns,
                attributes={"waltap.pipeline": self._pipeline},
            )
        span = self._tracer.start_span(
            name,
            context=set_span_in_context(self._root),
            start_time=start_ns,
            attributes={f"waltap.{key}": value for key, value in attributes.items()},
        )
        span.end(end_ns)

    @hookimpl
    def on_batch(self, batch: Batch, seconds: float) -> None:
        # a batch after a flush begins the next delivery, also without a confirmation
        if self._ends_ns is not None:
            self._end()
        now = time.time_ns()
        lsn = lsn_text(batch.position.end_lsn)
        start = now - int(seconds * 1e9)
        self._part("waltap.batch", start, now, events=batch.events, lsn=lsn, parts=len(batch.parts))
        self._events += batch.events
        mine = {"pipeline": self._pipeline}
        self._batch_seconds.record(seconds, mine)
        self._batch_events.record(batch.events, mine)

    @hookimpl
    def on_flush(self, durable: Positions, seconds: float) -> None:
        """Add the span of a flush.

        The delivery ends here, or at its confirmation.
        """
        now = time.time_ns()
        self._part("waltap.flush", now - int(seconds * 1e9), now, durable=str(durable))
        self._ends_ns = now
        self._flush_seconds.record(seconds, {"pipeline": self._pipeline})

    @hookimpl
    def on_slot(self, event: str, slot: str, lsn: int) -> None:
        """End the delivery at its confirmation."""
        if event != "confirmed" or self._ends_ns is None:
            return
        now = time.time_ns()
        self._part("waltap.commit", self._ends_ns, now, slot=slot, lsn=lsn_text(lsn))
        self._ends_ns = now
        self._end()

    @hookimpl
    def on_failure(self, error: Exception, retried: bool) -> None:
        """Mark the failed delivery with problem and code.

        The event never has a row.
        """
        from opentelemetry.trace import Status as SpanStatus
        from opentelemetry.trace import StatusCode

        code = error.code if isinstance(error, WaltapError) else WaltapError.code
        text = error.problem if isinstance(error, WaltapError) else type(error).__name__
        now = time.time_ns()
        # a failure outside a delivery gets a span of its own
        root = self._root or self._tracer.start_span("waltap.failure", start_time=now)
        root.add_event("failure", {"waltap.code": code, "waltap.retried": retried}, now)
        root.set_status(SpanStatus(StatusCode.ERROR, f"{code} {text}"))
        if self._root is None:
            root.end(now)
        else:
            self._end()
        known = {"pipeline": self._pipeline, "code": code, "retried": str(retried).lower()}
        self._failures.add(1, known)
