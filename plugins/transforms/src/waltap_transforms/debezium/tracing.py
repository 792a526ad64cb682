"""ActivateTracingSpan: create OpenTelemetry spans for events.

The application that writes a row puts the context of its span into a column, as
``java.util.Properties``. Records get the headers of a child span (``traceparent``). As in Debezium,
there are no spans and no headers if the package ``opentelemetry`` is missing or is not configured.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from waltap.base.java_properties import parse_properties
from waltap.base.property import Properties, declare
from waltap.changes.mapping.connect_schema import ConnectKind, Field, Schema
from waltap.encoders.format.record_transform import (
    ConnectHeader,
    ConnectRecord,
    RecordTransform,
    RecordTransformContext,
    RecordUnfit,
    SchemaMemory,
)
from waltap_transforms.structs import field_of, member, value_of

if TYPE_CHECKING:
    from opentelemetry.trace import Span

from waltap_transforms.specs import debezium_spec, each_event, warnings

SCOPE = "waltap_transforms.debezium.tracing"
_TEXT = Schema(kind=ConnectKind.STRING)
# Field of the source block → name of its span attribute; for all others it is ``db.FIELD``.
_NAMES = {"db": "db.instance", "connector": "db.type", "name": "db.cdc-name"}


class TracingProperties(Properties):
    """Events to trace, and names of their spans."""

    span_context: str = declare(
        "tracing.span.context.field",
        default="tracingspancontext",
        summary="Column with the context of the span in which the row was written, as "
        "`java.util.Properties`.",
    )
    span_operation: str = declare(
        "tracing.operation.name", default="debezium-read", summary="Name of the span of reading."
    )
    span_required: bool = declare(
        "tracing.with.context.field.only",
        default=False,
        summary="Trace only events that have such a context.",
    )


class EventTracing:
    """Create the spans of an event, and the headers for its record."""

    def __init__(self, properties: TracingProperties, report: Callable[[str], None]) -> None:
        self._of, self._report = properties, report
        self._known = SchemaMemory(self._columns)

    def headers(self, record: ConnectRecord) -> tuple[ConnectHeader, ...]:
        """Return the headers of a change event with its span's headers.

        Raises: RecordUnfit for a context that is not text in the form of ``java.util.Properties``.
        """
        assert record.value_schema is not None
        column, source = self._known.of(record.value_schema)
        event, carried = record.value, None
        row = event.get("after")
        if column is not None and row is not None:
            carried = row.get(column.name)
        if carried is None and self._of.span_required:
            return record.headers
        added = self._traced(event, carried, source)
        # Headers of an earlier span are replaced.
        others = tuple(each for each in record.headers if each[0] not in added)
        return others + tuple((name, _TEXT, value) for name, value in added.items())

    def _columns(self, envelope: Schema) -> tuple[Field | None, tuple[Field, ...]]:
        row, source = field_of(envelope, "after"), field_of(envelope, "source")
        column = None
        name = self._of.span_context
        if row is not None and field_of(row.schema, name) is not None:
            column = member(row.schema, name, "tracing.span.context.field", ConnectKind.STRING)
        return column, () if source is None else source.schema.fields

    def _traced(
        self, event: Mapping[str, Any], carried: str | None, source: tuple[Field, ...]
    ) -> dict[str, str]:
        """Create the spans of ``event``, and return their headers.

        A consumer continues the trace from these headers.
        """
        # The package is optional, and a profile without tracing must not pay for the import.
        try:
            from opentelemetry import propagate, trace
        except ImportError:
            self._report("there is no tracing: pip install 'waltap-transforms[tracing]'")
            return {}
        if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
            return {}  # the process has not configured OpenTelemetry
        tracer = trace.get_tracer(SCOPE)
        parent = None if carried is None else propagate.extract(_carrier(carried))
        block = event.get("source") or {}
        span = tracer.start_span(
            "db-log-write", context=parent, start_time=_nanoseconds(block.get("ts_ms"))
        )
        for field in source:
            _describe(span, _NAMES.get(field.name, f"db.{field.name}"), value_of(field, block))
        below = trace.set_span_in_context(span)
        read = tracer.start_span(
            self._of.span_operation, context=below, start_time=_nanoseconds(event.get("ts_ms"))
        )
        for name in ("op", "ts_ms"):
            _describe(read, name, event.get(name))
        read.end()
        added: dict[str, str] = {}
        propagate.inject(added, context=below)
        span.end()
        return added


def _activate_tracing_span(
    properties: TracingProperties, context: RecordTransformContext
) -> RecordTransform:
    tracing = EventTracing(properties, warnings(context))
    return each_event(lambda r: msgspec.structs.replace(r, headers=tracing.headers(r)))


def _carrier(text: str) -> dict[str, str]:
    try:
        return parse_properties(text)
    except ValueError as cause:
        raise RecordUnfit("the context of a span is not written as java.util.Properties") from cause


def _nanoseconds(milliseconds: int | None) -> int | None:
    return None if milliseconds is None else milliseconds * 1_000_000


def _describe(span: "Span", name: str, value: Any) -> None:
    if value is not None:
        span.set_attribute(name, str(value).lower() if isinstance(value, bool) else str(value))


TRACING = debezium_spec(
    "tracing.ActivateTracingSpan",
    "Makes OpenTelemetry spans of events, and writes their headers.",
    TracingProperties,
    _activate_tracing_span,
)
