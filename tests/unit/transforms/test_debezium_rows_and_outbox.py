"""Debezium's ExtractNewRecordState, EventRouter and ByLogicalTableRouter: what they refuse, and what the comparison
with Debezium cannot show."""

from dataclasses import replace as changed
from typing import Any

import msgspec
import pytest
from pydantic import ValidationError

from tests.harness.change_records import change_records, outbox_records
from waltap.capture.capture import Capture, CaptureProperties
from waltap.format.connect_record import ConnectRecord
from waltap.format.record_transform import RecordTransformContext, RecordUnfit
from waltap.mapping.connect_schema import Field, Kind, Schema
from waltap_transforms.debezium import DEBEZIUM
from waltap_transforms.debezium.json_payload import JsonPayload, NotExpanded

SPECS = {spec.name: spec for spec in DEBEZIUM}
CONTEXT = RecordTransformContext(
    label="t", capture=Capture(CaptureProperties.model_validate({"topic.prefix": "server"}))
)


def made(name: str, context: RecordTransformContext = CONTEXT, /, **given: str) -> Any:
    properties = SPECS[name].properties
    assert properties is not None
    config = {key.replace("__", "."): value for key, value in given.items()}
    return SPECS[name].factory(properties.model_validate(config), context)  # type: ignore[call-arg]


def events(op: str, seed: int = 1) -> list[ConnectRecord]:
    return [
        each
        for each in change_records(seed, 60)
        if isinstance(each.value, dict) and each.value.get("op") == op and "after" in each.value
    ]


def outbox(**row: Any) -> ConnectRecord:
    """Return the event of a new row of an outbox."""
    record = next(each for each in outbox_records(1, 20) if each.value["op"] == "c")
    value = {**record.value, "after": {**record.value["after"], **row}}
    return msgspec.structs.replace(record, value=value)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["extract-new-record-state", "by-logical-table-router"])
def test_schemas_are_one_object_per_schema_and_records_stay_as_they_were(
    name: str, seed: int
) -> None:
    given = {"topic__regex": "(.*)", "topic__replacement": "x"} if name.startswith("by") else {}
    transform, records = made(name, **given), change_records(seed, 40)
    before = msgspec.json.encode([each.value for each in records])
    first, second = transform(records), transform(records)
    assert [id(each.value_schema) for each in first] == [id(each.value_schema) for each in second]
    assert [id(each.key_schema) for each in first] == [id(each.key_schema) for each in second]
    assert msgspec.json.encode([each.value for each in records]) == before


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"add__fields": "nowhere.x"}, "nowhere is no struct of"),
        ({"add__headers": "ts_ms.x"}, "ts_ms is no struct of"),
        ({"add__fields": "source"}, "source is a struct"),
        ({"add__fields": "op:kind", "add__fields__prefix": ""}, "two fields kind"),
        ({"route__by__field": "absent"}, "route.by.field: .* has no field absent"),
        ({"route__by__field": "id"}, "id of .* is int32, not string"),
    ],
)
def test_rows_that_lack_what_was_asked_for_are_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(RecordUnfit, match=said):
        made("extract-new-record-state", **given)(events("c"))


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("extract-new-record-state", {"delete__tombstone__handling__mode": "keep"}),
        ("extract-new-record-state", {"add__fields": "op:a:b"}),
        ("extract-new-record-state", {"drop__tombstones": "maybe"}),
        ("event-router", {"table__fields__additional__placement": "type:nowhere"}),
        ("event-router", {"table__fields__additional__placement": "type"}),
        ("event-router", {"route__topic__regex": "("}),
        ("event-router", {"route__topic__replacement": "${absent}"}),
        ("by-logical-table-router", {"topic__regex": "(.*)"}),
        ("by-logical-table-router", {"topic__regex": "a", "topic__replacement": "$1"}),
        (
            "by-logical-table-router",
            {"topic__regex": "a", "topic__replacement": "b", "key__field__regex": "c"},
        ),
    ],
)
def test_properties_that_cannot_work_are_refused_at_once(name: str, given: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        made(name, **given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"table__field__event__id": "absent"}, "table.field.event.id: .* no field absent"),
        ({"table__field__event__payload": "absent"}, "table.field.event.payload"),
        ({"table__field__event__timestamp": "n"}, "n of .* is int32, not int64"),
        ({"table__field__event__timestamp": "kind"}, "kind of .* is string, not int64"),
        ({"table__fields__additional__placement": "absent:header"}, "no field absent"),
        ({"table__fields__additional__placement": "kind:partition"}, "string, not int32"),
        ({"table__field__event__schema__version": "kind"}, "string, not int32"),
        ({"route__by__field": "n"}, "n of .* is int32, not string"),
    ],
)
def test_outbox_tables_that_lack_what_was_asked_for_are_refused(
    given: dict[str, str], said: str
) -> None:
    with pytest.raises(RecordUnfit, match=said):
        made("event-router", **given)([outbox()])


def test_an_update_of_the_outbox_stops_the_pipeline_where_that_was_asked_for() -> None:
    record = outbox()
    update = msgspec.structs.replace(record, value={**record.value, "op": "u"})
    told: list[str] = []
    warned = changed(CONTEXT, warn=told.append)
    assert made("event-router", warned)([update, update]) == []
    assert len(told) == 1
    with pytest.raises(RecordUnfit, match="updated"):
        made("event-router", table__op__invalid__behavior="fatal")([update])


def test_a_truncate_and_a_null_route_are_refused() -> None:
    record = outbox()
    truncate = msgspec.structs.replace(record, value={**record.value, "op": "t", "after": None})
    with pytest.raises(RecordUnfit, match="without a row"):
        made("event-router")([truncate])
    with pytest.raises(RecordUnfit, match="there is no topic"):
        made("event-router")([outbox(aggregatetype=None)])


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
    ],
)
def test_a_payload_that_has_no_schema_stays_text_with_the_schema_of_text(payload: str) -> None:
    record = outbox(payload=payload)
    (event,) = made("event-router", table__expand__json__payload="true")([record])
    assert event.value == payload
    assert event.value_schema.kind is Kind.STRING


def test_documents_of_one_shape_have_one_schema() -> None:
    payloads = JsonPayload(nulls=False)
    one, value = payloads.expanded('{"a": [{"b": 1}], "c": "x"}', "payload")
    other, _ = payloads.expanded('{"a": [{"b": 2}, {"b": 3}], "c": "", "d": null}', "payload")
    assert one is other
    assert value == {"a": [{"b": 1}], "c": "x"}
    assert one.fields[1] == Field("c", Schema(kind=Kind.STRING, optional=True))
    with pytest.raises(NotExpanded):
        payloads.expanded("12", "payload")
