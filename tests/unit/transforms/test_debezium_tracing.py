"""Spans of events: those that EventRouter and ActivateTracingSpan make, and the headers that go on."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.harness.change_records import outbox_records
from waltap.capture.capture import Capture, CaptureProperties
from waltap.format.connect_record import ConnectRecord
from waltap.format.record_transform import RecordTransformContext, RecordUnfit
from waltap.mapping.connect_schema import Field, Kind, Schema
from waltap_transforms.debezium import DEBEZIUM

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CONTEXT = f"#comment\ntraceparent=00-{TRACE}-{SPAN}-01\n"


def made(name: str, **given: str) -> Any:
    (spec,) = (each for each in DEBEZIUM if each.name == name)
    assert spec.properties is not None
    context = RecordTransformContext(
        label="t", capture=Capture(CaptureProperties.model_validate({"topic.prefix": "server"}))
    )
    config = {key.replace("__", "."): value for key, value in given.items()}
    return spec.factory(spec.properties.model_validate(config), context)


def event(context: str | None) -> ConnectRecord:
    """Return the event of a new row of an outbox that has a column for the context of a span."""
    record = next(each for each in outbox_records(1, 20) if each.value["op"] == "c")
    assert record.value_schema is not None
    row = record.value_schema.fields[1].schema
    column = Field("tracingspancontext", Schema(kind=Kind.STRING, optional=True))
    row = msgspec.structs.replace(row, fields=(*row.fields, column))
    fields = tuple(
        Field(field.name, row) if field.name in ("before", "after") else field
        for field in record.value_schema.fields
    )
    return msgspec.structs.replace(
        record,
        value_schema=msgspec.structs.replace(record.value_schema, fields=fields),
        value={**record.value, "after": {**record.value["after"], "tracingspancontext": context}},
    )


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    yield exporter
    provider.shutdown()


def named(spans: InMemorySpanExporter, name: str) -> ReadableSpan:
    (found,) = (span for span in spans.get_finished_spans() if span.name == name)
    return found


@pytest.mark.parametrize("name", ["event-router", "activate-tracing-span"])
def test_spans_stand_below_the_one_that_wrote_the_row(
    spans: InMemorySpanExporter, name: str
) -> None:
    (record,) = made(name)([event(CONTEXT)])
    written, read = named(spans, "db-log-write"), named(spans, "debezium-read")
    assert written.context is not None
    assert written.parent is not None
    assert read.parent is not None
    assert f"{written.context.trace_id:032x}" == TRACE
    assert f"{written.parent.span_id:016x}" == SPAN
    assert read.parent.span_id == written.context.span_id
    assert written.start_time == event(CONTEXT).value["source"]["ts_ms"] * 1_000_000
    attributes = dict(written.attributes or {})
    assert attributes["db.instance"] == "shop"
    assert attributes["db.type"] == "postgresql"
    assert attributes["db.cdc-name"] == "server"
    assert attributes["db.table"] == "outbox"
    assert dict(read.attributes or {})["op"] == "c"
    headers = {header: value for header, _, value in record.headers}
    assert headers["traceparent"] == f"00-{TRACE}-{written.context.span_id:016x}-01"


def test_an_outbox_traces_only_what_has_a_context_unless_told(spans: InMemorySpanExporter) -> None:
    made("event-router")([event(None)])
    assert spans.get_finished_spans() == ()
    made("event-router", tracing__with__context__field__only="false")([event(None)])
    assert named(spans, "db-log-write").parent is None


def test_a_header_of_before_is_replaced(spans: InMemorySpanExporter) -> None:
    old = ("traceparent", Schema(kind=Kind.STRING), "old")
    record = msgspec.structs.replace(event(CONTEXT), headers=(old,))
    (found,) = made("activate-tracing-span", tracing__operation__name="read")([record])
    assert [name for name, _, _ in found.headers].count("traceparent") == 1
    assert found.headers[0][2] != "old"
    assert named(spans, "read")


def test_a_context_of_another_form_is_refused(spans: InMemorySpanExporter) -> None:
    with pytest.raises(RecordUnfit, match=r"java\.util\.Properties"):
        made("activate-tracing-span")([event("a=\\uZZZZ")])


def test_nothing_happens_where_nobody_configured_tracing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "get_tracer_provider", trace.ProxyTracerProvider)
    record = event(CONTEXT)
    (found,) = made("activate-tracing-span")([record])
    assert found.headers == record.headers
