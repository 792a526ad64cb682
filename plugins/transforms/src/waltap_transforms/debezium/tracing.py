"""ActivateTracingSpan: OpenTelemetry spans of events, below that of the application that wrote the row.

The application writes the context of its span into a column, as ``java.util.Properties``; records get the
headers of a span below it (``traceparent``). Without the package ``opentelemetry``, or where nobody has
configured it, there are no spans and no headers, as in Debezium.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from waltap.config.java_properties import parse_properties
from waltap.config.property import Properties, declare
from waltap.format.connect_record import ConnectHeader, ConnectRecord
from waltap.format.record_transform import RecordTransformContext, RecordUnfit
from waltap.format.schema_memory import SchemaMemory
from waltap.mapping.connect_schema import ConnectKind, Schema
from waltap_transforms.debezium.structure import StructMember, field_of, is_envelope, member

if TYPE_CHECKING:
    from opentelemetry.trace import Span

__all__ = ["ActivateTracingSpan", "EventTracing", "TracingProperties"]

SCOPE = "waltap_transforms.debezium.tracing"
_TEXT = Schema(kind=ConnectKind.STRING)
_NAMES = {"db": "db.instance", "connector": "db.type", "name": "db.cdc-name"}
"""Attributes of fields of the source block that have other names than ``db.FIELD``."""


class TracingProperties(Properties):
    """Which events are traced, and how."""

    span_context: str = declare(
        "tracing.span.context.field",
        default="tracingspancontext",
        summary="Column with the context of the span in which the row was written, as "
        "`java.util.Properties`.",
    )
    operation: str = declare(
        "tracing.operation.name",
        default="debezium-read",
        summary="Name of the span of reading.",
    )
    required: bool = declare(
        "tracing.with.context.field.only",
        default=False,
        summary="Trace only events that have such a context.",
    )


class EventTracing:
    """Makes the spans of an event, and the headers that go on with it."""

    def __init__(
        self, column: str, operation: str, *, required: bool, tell: Callable[[str], None]
    ) -> None:
        self._column, self._operation, self._required, self._tell = (
            column, operation, required, tell,
        )  # fmt: skip
        self._known = SchemaMemory(self._columns)

    def headers(self, record: ConnectRecord) -> tuple[ConnectHeader, ...]:
        """Return the headers of ``record``, a change event, with those of its span.

        Raises: RecordUnfit for a context that is no text, or none of its form.
        """
        assert record.value_schema is not None
        column, source = self._known.of(record.value_schema)
        event, carried = record.value, None
        row = event.get("after")
        if column is not None and row is not None:
            carried = column.raw(row)
        if carried is None and self._required:
            return record.headers
        added = self._traced(event, carried, source)
        kept = tuple(each for each in record.headers if each[0] not in added)
        return kept + tuple((name, _TEXT, value) for name, value in added.items())

    def _columns(self, envelope: Schema) -> tuple[StructMember | None, tuple[StructMember, ...]]:
        row, source = field_of(envelope, "after"), field_of(envelope, "source")
        column = None
        if row is not None and field_of(row.schema, self._column) is not None:
            column = member(
                row.schema, self._column, "tracing.span.context.field", ConnectKind.STRING
            )
        fields = () if source is None else source.schema.fields
        return column, tuple(StructMember(field.name, field.schema) for field in fields)

    def _traced(
        self, event: Mapping[str, Any], carried: str | None, source: tuple[StructMember, ...]
    ) -> dict[str, str]:
        """Make the spans of ``event``; return what a receiver needs to make others below them."""
        try:
            from opentelemetry import propagate, trace
        except ImportError:
            self._tell("there is no tracing: pip install 'waltap-transforms[tracing]'")
            return {}
        if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
            return {}  # nobody has configured it
        tracer = trace.get_tracer(SCOPE)
        parent = None if carried is None else propagate.extract(_carrier(carried))
        block = event.get("source") or {}
        span = tracer.start_span(
            "db-log-write", context=parent, start_time=_nanoseconds(block.get("ts_ms"))
        )
        for field in source:
            _describe(span, _NAMES.get(field.name, f"db.{field.name}"), field.of(block))
        below = trace.set_span_in_context(span)
        read = tracer.start_span(
            self._operation, context=below, start_time=_nanoseconds(event.get("ts_ms"))
        )
        for name in ("op", "ts_ms"):
            _describe(read, name, event.get(name))
        read.end()
        added: dict[str, str] = {}
        propagate.inject(added, context=below)
        span.end()
        return added


class ActivateTracingSpan:
    """Takes a batch's records, in order, and gives them with the headers of their spans."""

    def __init__(self, properties: TracingProperties, context: RecordTransformContext) -> None:
        told: set[str] = set()

        def tell(text: str) -> None:
            if text not in told:
                told.add(text)
                context.warn(f"{context.label}: {text}")

        self._tracing = EventTracing(
            properties.span_context, properties.operation, required=properties.required, tell=tell
        )

    def __call__(self, records: list[ConnectRecord]) -> list[ConnectRecord]:
        """Return what ``records`` become. Raises: RecordUnfit."""
        return [
            msgspec.structs.replace(record, headers=self._tracing.headers(record))
            if record.value is not None and is_envelope(record)
            else record
            for record in records
        ]


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
