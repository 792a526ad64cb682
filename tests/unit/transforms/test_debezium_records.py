"""Debezium's transforms of records: what they refuse, what the comparison with Debezium cannot show, and their spans."""

import struct as packing
from collections.abc import Iterator
from dataclasses import replace as changed
from typing import Any

import msgspec
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic import ValidationError
from tests.harness.change_records import PIPELINE, change_records, outbox_records, transform
from tests.harness.schemas import BYTES, MAYBE_TEXT, TEXT, of, struct

from waltap.changes.mapping.connect_schema import DECIMAL, ConnectKind, Field, Schema
from waltap.encoders.format.record_transform import ConnectRecord, RecordUnfit
from waltap_transforms.debezium.data_types import swapped, with_srid, without_srid
from waltap_transforms.debezium.timezone_converter import (
    NamedZone,
    instant_of,
    moved_time,
    moved_timestamp,
)
from waltap_transforms.specs import MAX_WARNINGS, warnings


def event(op: str) -> ConnectRecord:
    """Return a change of a table."""
    return next(
        each
        for each in change_records(1, 80)
        if isinstance(each.value, dict) and each.value.get("op") == op and "after" in each.value
    )


def message(content: bytes | None) -> ConnectRecord:
    record = next(each for each in change_records(1, 200) if each.topic == "server.message")
    value = {**record.value, "message": {"prefix": "p", "content": content}}
    return msgspec.structs.replace(record, value=value)


def outbox(**row: Any) -> ConnectRecord:
    record = next(each for each in outbox_records(1, 20) if each.value["op"] == "c")
    value = {**record.value, "after": {**record.value["after"], **row}}
    return msgspec.structs.replace(record, value=value)


def test_a_record_that_is_too_large_loses_text_and_no_decimal():
    """Debezium takes the decimal for a buffer, and fails."""
    decimal = of("bytes", DECIMAL, 1, parameters=(("scale", "2"),))
    row = struct(
        {"number": decimal, "data": BYTES, "none": MAYBE_TEXT, "short": TEXT, "text": TEXT}
    )
    schema = struct({"before": row, "after": row}, "t.Envelope")
    held = {"number": b"9" * 500, "text": "\U0001f600" * 500, "data": b"x" * 500, "short": "x" * 50}
    record = ConnectRecord("t", None, None, schema, {"before": None, "after": held})
    cut = transform("enforce-record-size", max__bytes="3486", min__field__size="50")
    (made,) = cut([record])
    text, data = "\U0001f600" * 299 + "\ud83d", b"x" * 299
    assert made.value["after"] == {**held, "text": text, "data": data}
    assert record.value["after"] is held
    assert cut([made]) == [made]
    assert transform("enforce-record-size", max__bytes="4087")([record]) == [record]


def test_geometries_of_rows_are_found_by_the_name_of_their_schema():
    point = packing.pack("<BIdd", 1, 1, 2.0, 3.0)
    geometry = Schema(
        kind=ConnectKind.STRUCT,
        name="io.debezium.data.geometry.Geometry",
        fields=(
            Field("wkb", Schema(kind=ConnectKind.BYTES)),
            Field("srid", Schema(kind=ConnectKind.INT32, optional=True)),
        ),
    )
    row = Schema(kind=ConnectKind.STRUCT, fields=(Field("place", geometry),))
    record = ConnectRecord("t", None, None, row, {"place": {"wkb": point, "srid": 4326}})
    (turned,) = transform("swap-geometry-coordinates")([record])
    (extended,) = transform("geometry-format")([record])
    assert turned.value["place"]["wkb"] == packing.pack("<BIdd", 1, 1, 3.0, 2.0)
    assert extended.value["place"]["wkb"] == with_srid(point, 4326)


def of_outbox(op: str) -> ConnectRecord:
    record = outbox()
    after = None if op == "t" else record.value["after"]
    return msgspec.structs.replace(record, value={**record.value, "op": op, "after": after})


STATE, OUTBOX, DECODED = "extract-new-record-state", "event-router", "decode-message-content"
VERSION = "table.field.event.schema.version"
PLACED = "table.fields.additional.placement"
PARTITIONED = {"partition.payload.fields": "after.kind", "partition.topic.num": "3"}
MOVED = {"headers": "a", "operation": "move"}
WITH_HEADER = ConnectRecord("t", None, None, struct({"n": TEXT}), {"n": "x"}, (("a", TEXT, "v"),))
BARE_TEXT = msgspec.structs.replace(WITH_HEADER, value_schema=TEXT, value="x")
REFUSED = [
    (STATE, event("c"), {"add.fields": "nowhere.x"}, "nowhere is no struct of"),
    (STATE, event("c"), {"add.headers": "ts_ms.x"}, "ts_ms is no struct of"),
    (STATE, event("c"), {"add.fields": "source"}, "source is a struct"),
    (STATE, event("c"), {"add.fields": "op:kind", "add.fields.prefix": ""}, "two fields kind"),
    (STATE, event("c"), {"route.by.field": "absent"}, "route.by.field: .* has no field absent"),
    (STATE, event("c"), {"route.by.field": "id"}, "id of .* is int32, not string"),
    (
        OUTBOX,
        outbox(),
        {"table.field.event.id": "absent"},
        "table.field.event.id: .* no field absent",
    ),
    (OUTBOX, outbox(), {"table.field.event.payload": "absent"}, "table.field.event.payload"),
    (OUTBOX, outbox(), {"table.field.event.timestamp": "n"}, "n of .* is int32, not int64"),
    (OUTBOX, outbox(), {"table.field.event.timestamp": "kind"}, "kind of .* is string, not int64"),
    (OUTBOX, outbox(), {PLACED: "absent:header"}, "no field absent"),
    (OUTBOX, outbox(), {PLACED: "kind:partition"}, "string, not int32"),
    (OUTBOX, outbox(), {VERSION: "kind", PLACED: "kind:envelope"}, "string, not int32"),
    (OUTBOX, outbox(), {"route.by.field": "n"}, "n of .* is int32, not string"),
    (OUTBOX, of_outbox("t"), {}, "without a row"),
    (OUTBOX, of_outbox("u"), {"table.op.invalid.behavior": "fatal"}, "updated"),
    (OUTBOX, outbox(aggregatetype=None), {}, "there is no topic"),
    *((DECODED, message(c), {}, "content") for c in (b"text", b"[1]", b"{", b"\xff", b"", None)),
    ("partition-routing", event("d"), PARTITIONED, "after is null"),
    ("extract-schema", event("c"), {}, "column.propagate.source.type"),
    (
        "header-to-value",
        WITH_HEADER,
        {"fields": "n.x", **MOVED},
        "n is string: it can have no field x",
    ),
    ("header-to-value", BARE_TEXT, {"fields": "x", **MOVED}, "no struct"),
]
"""A transform, a record, properties, and what the refusal says."""


@pytest.mark.parametrize(("name", "record", "given", "said"), REFUSED)
def test_a_record_that_lacks_what_was_asked_for_is_refused(name, record, given, said):
    with pytest.raises(RecordUnfit, match=said):
        transform(name, **given)([record])


LOGICAL = "by-logical-table-router"
NO_PROPERTIES = [
    (STATE, {"delete.tombstone.handling.mode": "keep"}),
    (STATE, {"add.fields": "op:a:b"}),
    (STATE, {"drop.tombstones": "maybe"}),
    (OUTBOX, {PLACED: "type:nowhere"}),
    (OUTBOX, {PLACED: "type"}),
    (OUTBOX, {PLACED: ""}),
    (OUTBOX, {"route.topic.regex": "("}),
    (OUTBOX, {"route.topic.replacement": "${absent}"}),
    (LOGICAL, {"topic.regex": "(.*)"}),
    (LOGICAL, {"topic.regex": "a", "topic.replacement": "$1"}),
    (LOGICAL, {"topic.regex": "a", "topic.replacement": "b", "key.field.regex": "c"}),
    ("header-to-value", {"headers": "a,b", "fields": "x", "operation": "move"}),
    ("header-to-value", {"headers": "a", "fields": "x y", "operation": "move"}),
    ("header-to-value", {"headers": "a", "fields": "x"}),
    ("header-to-value", {"headers": "a", "fields": ",x", "operation": "move"}),
    ("partition-routing", {"partition.payload.fields": "op"}),
    ("partition-routing", {"partition.payload.fields": ",source.table", "partition.topic.num": "2"}),
    ("partition-routing", {"partition.payload.fields": "op", "partition.topic.num": "0"}),
    ("timezone-converter", {}),
    ("timezone-converter", {"converted.timezone": "Nowhere/Town"}),
    ("timezone-converter", {"converted.timezone": "UTC", "include.list": "orders"}),
    ("timezone-converter", {"converted.timezone": "UTC", "include.list": "t:a", "exclude.list": "t:b"}),
    ("schema-change-filter", {"schema.change.event.exclude.list": "RENAME"}),
    ("schema-change-filter", {}),
    ("swap-geometry-coordinates", {"srids": "WGS84"}),
    ("geometry-format", {"format": "wkt"}),
    ("enforce-record-size", {"max.bytes": "0"}),
    ("enforce-record-size", {"max.bytes": "1", "compression.ratio": "0"}),
    ("enforce-record-size", {"max.bytes": "1", "min.field.size": "-1"}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "given"), NO_PROPERTIES)
def test_properties_that_cannot_work_are_refused_at_once(name, given):
    with pytest.raises(ValidationError):
        transform(name, **given)


def test_an_update_of_the_outbox_is_reported_once():
    reported: list[str] = []
    warned = changed(PIPELINE, warn=reported.append)
    assert transform("event-router", warned)([of_outbox("u")] * 2) == []
    assert len(reported) == 1


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param('[{"a": 1}]', id="array"),
        pytest.param("[]", id="empty array"),
        pytest.param('{"a": 99999999999999999999}', id="more than 64 bits"),
        pytest.param('{"a": [{"b": 1}, {"b": "x"}]}', id="two types"),
        pytest.param('{"a": [{"b": 1}, {"c": 1}, null]}', id="null among objects that differ"),
        pytest.param('{"a": NaN}', id="no JSON"),
        pytest.param('{"a": 1e999}', id="too large"),
        pytest.param('{"a":' * 5000, id="too deep"),
        pytest.param('{"a":' * 51 + "1" + "}" * 51, id="too deep for a JSON Schema"),
        pytest.param('{"a":' + "[" * 600 + "1" + "]" * 600 + "}", id="too deep for Python's stack"),
        pytest.param('{"\\ud800": 1}', id="a name that is no text"),
        pytest.param('{"a": {"": 1}}', id="no name"),
    ],
)
def test_a_payload_that_has_no_schema_stays_text_with_the_schema_of_text(payload):
    record = outbox(payload=payload)
    (event,) = transform("event-router", table__expand__json__payload="true")([record])
    assert event.value == payload
    assert event.value_schema.kind is ConnectKind.STRING


def test_schema_changes_are_left_out_by_their_type():
    schema = struct({}, "io.debezium.connector.x.SchemaChangeValue")

    def change(*types: str) -> ConnectRecord:
        changes = {"tableChanges": [{"type": t} for t in types]}
        return ConnectRecord("t", None, None, schema, changes)

    given = [change("CREATE"), change("ALTER"), change(), change("DROP", "ALTER")]
    left_out = transform(
        "schema-change-filter", schema__change__event__exclude__list="alter,DATABASE"
    )
    kept = left_out([*given, *change_records(1, 5)])
    assert [len(each.value["tableChanges"]) for each in kept[:2]] == [1, 2]
    assert len(kept) >= 7


@pytest.mark.parametrize("end", [0, 4, 8, 20])
def test_a_geometry_that_ends_early_is_refused(end):
    wkb = bytes.fromhex("0101000020e6100000000000000000f03f0000000000000040")
    with pytest.raises(RecordUnfit):
        swapped(wkb[:end])
    assert swapped(swapped(wkb)) == wkb
    assert with_srid(without_srid(wkb), 4326) == wkb


def test_geometries_inside_of_geometries_are_swapped_in_their_own_byte_order():
    point = bytes.fromhex("0101000000") + b"\0" * 7 + b"\1" + b"\0" * 7 + b"\2"
    big = bytes.fromhex("0000000001") + b"\1" + b"\0" * 7 + b"\2" + b"\0" * 7
    collection = bytes.fromhex("010700000002000000") + point + big
    turned = swapped(collection)
    assert turned[9 + 5 : 9 + 21] == b"\0" * 7 + b"\2" + b"\0" * 7 + b"\1"
    assert turned[9 + 21 + 5 :] == b"\2" + b"\0" * 7 + b"\1" + b"\0" * 7


@pytest.mark.parametrize("text", ["infinity", "", "2026-01-01", "2026-01-01T00:00:00"])
def test_what_is_no_timestamp_is_refused(text):
    with pytest.raises(RecordUnfit):
        moved_timestamp(text, NamedZone("UTC"))
    with pytest.raises(RecordUnfit):
        moved_time(text, 0)


def test_times_far_away_and_in_gaps():
    zone = NamedZone("Europe/Vienna")
    assert moved_timestamp("2026-07-01T00:00:00.100Z", zone) == "2026-07-01T02:00:00.1+02:00"
    assert moved_timestamp("+294276-12-31T23:59:59Z", zone) == "+294277-01-01T00:59:59+01:00"
    assert (
        moved_timestamp("-4712-01-01T00:00:00Z", NamedZone("-00:30"))
        == "-4713-12-31T23:30:00-00:30"
    )
    assert moved_time("00:30:00Z", -3600) == "23:30:00-01:00"
    # -infinity: this is the answer of Java's class.
    assert instant_of(-9223372036832400000, zone, 10**6) == 9223372032956151616


def test_an_infinite_time_stays_as_it_is_and_is_reported_once():
    row = struct({"at": of("string", "io.debezium.time.ZonedTimestamp", 1)})
    schema = struct({"before": row, "after": row}, "t.Envelope")
    reported: list[str] = []
    convert = transform(
        "timezone-converter", changed(PIPELINE, warn=reported.append), converted__timezone="+01:00"
    )
    texts = ["infinity", "2026-07-01T00:00:00Z", "infinity"]
    records = [
        ConnectRecord("t", None, None, schema, {"before": None, "after": {"at": text}})
        for text in texts
    ]
    assert [made.value["after"]["at"] for made in convert(records)] == [
        "infinity",
        "2026-07-01T01:00:00+01:00",
        "infinity",
    ]
    assert len(reported) == 1


def test_warnings_of_ever_more_tables_take_bounded_memory():
    warn = warnings(changed(PIPELINE, warn=lambda _text: None))
    for number in range(2 * MAX_WARNINGS):
        warn(f"table {number}")
    assert warn.cache_info().currsize == MAX_WARNINGS  # type: ignore[attr-defined]


TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SPAN_CONTEXT = f"#comment\ntraceparent=00-{TRACE}-{SPAN}-01\n"


def traced(context: str | None) -> ConnectRecord:
    """Return the event of a new row of an outbox that has a column for the context of a span."""
    record = next(each for each in outbox_records(1, 20) if each.value["op"] == "c")
    assert record.value_schema is not None
    row = record.value_schema.fields[1].schema
    column = Field("tracingspancontext", MAYBE_TEXT)
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
def spans(monkeypatch) -> Iterator[InMemorySpanExporter]:
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
def test_spans_stand_below_the_one_that_wrote_the_row(spans, name):
    (record,) = transform(name)([traced(SPAN_CONTEXT)])
    written, read = named(spans, "db-log-write"), named(spans, "debezium-read")
    assert written.context is not None
    assert written.parent is not None
    assert read.parent is not None
    assert f"{written.context.trace_id:032x}" == TRACE
    assert f"{written.parent.span_id:016x}" == SPAN
    assert read.parent.span_id == written.context.span_id
    assert written.start_time == traced(SPAN_CONTEXT).value["source"]["ts_ms"] * 1_000_000
    attributes = dict(written.attributes or {})
    assert attributes["db.instance"] == "shop"
    assert attributes["db.type"] == "postgresql"
    assert attributes["db.cdc-name"] == "server"
    assert attributes["db.table"] == "outbox"
    assert dict(read.attributes or {})["op"] == "c"
    headers = {header: value for header, _, value in record.headers}
    assert headers["traceparent"] == f"00-{TRACE}-{written.context.span_id:016x}-01"


def test_an_outbox_traces_only_what_has_a_context_unless_reported(spans):
    transform("event-router")([traced(None)])
    assert spans.get_finished_spans() == ()
    transform("event-router", tracing__with__context__field__only="false")([traced(None)])
    assert named(spans, "db-log-write").parent is None


def test_a_header_of_before_is_replaced_where_somebody_traces(spans, monkeypatch):
    record = msgspec.structs.replace(traced(SPAN_CONTEXT), headers=(("traceparent", TEXT, "old"),))
    (found,) = transform("activate-tracing-span", tracing__operation__name="read")([record])
    assert [name for name, _, _ in found.headers].count("traceparent") == 1
    assert found.headers[0][2] != "old"
    assert named(spans, "read")
    with pytest.raises(RecordUnfit, match=r"java\.util\.Properties"):
        transform("activate-tracing-span")([traced("a=\\uZZZZ")])
    monkeypatch.setattr(trace, "get_tracer_provider", trace.ProxyTracerProvider)
    (found,) = transform("activate-tracing-span")([record])
    assert found.headers == record.headers


@pytest.mark.parametrize(
    ("style", "topic", "expected"),
    [
        ("default", "public.Orders_1", "public.Orders_1"),
        ("snake_case", "public.camelCaseName", "public_camel_case_name"),
        ("snake_case", "123NumbersExample9", "123_numbers_example_9"),
        ("camel_case", "public.order_LINES__7.", "publicOrderLines7"),
        ("camel_case", "_lead.\U00010428a", "Lead\U00010428a"),
        ("camel_case", "_", ""),
        ("UPPER_CASE", "public.order_lines", "PUBLIC.ORDER_LINES"),
        ("Lower_Case", "public.ORDER_lines", "public.order_lines"),
    ],
)
def test_topics_get_another_style(style, topic, expected):
    """The answers are those of the Java class, which is in Debezium's JDBC sink connector."""
    given = {"collection__naming__prefix": "a", "collection__naming__suffix": "b"}
    renamed = transform("collection-name", collection__naming__style=style, **given)
    record = ConnectRecord(topic, None, None, TEXT, "v", (("h", TEXT, "x"),), 3, 5)
    (made,) = renamed([record])
    assert msgspec.structs.astuple(made) == (f"a{expected}b", *msgspec.structs.astuple(record)[1:])


def test_fields_of_keys_and_rows_get_another_style():
    key, inner = struct({"docId": TEXT}, "t.Key"), struct({"innerField": TEXT})
    row = struct({"docId": TEXT, "anObject": inner}, "t.Value")
    schema = struct({"before": row, "after": row, "eventName": TEXT}, "t.Envelope")
    old = {"docId": "1", "anObject": {"innerField": "x"}}
    new = {"DOCID": "1", "ANOBJECT": {"innerField": "x"}}
    renamed = transform("field-name", column__naming__style="UPPER_CASE")
    event = {"before": None, "after": old, "eventName": "e"}
    tombstone = ConnectRecord("t", key, {"docId": "1"}, None, None)
    change, flat, same = renamed(
        [
            ConnectRecord("t", key, {"docId": "1"}, schema, event),
            ConnectRecord("t", None, None, row, old),
            tombstone,
        ]
    )
    assert change.key == {"DOCID": "1"}
    assert [field.name for field in change.key_schema.fields] == ["DOCID"]
    assert change.value == {"before": None, "after": new, "eventName": "e"}
    assert flat.value == new
    assert flat.value_schema is change.value_schema.fields[1].schema
    assert same is tombstone
    twice = struct({"a": TEXT, "A": TEXT}, "t.Value")
    with pytest.raises(RecordUnfit, match="would have two fields A"):
        renamed([ConnectRecord("t", None, None, twice, {"a": "1", "A": "2"})])
