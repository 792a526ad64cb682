"""Debezium's Filter and ContentBasedRouter: expressions in CEL and Python, and what they get of a record."""

from typing import Any

import pytest
from pydantic import ValidationError
from tests.harness.change_records import change_records
from tests.harness.schemas import INT32, MAYBE_TEXT, TEXT, of, struct

from waltap.encoders.format.record_transform import ConnectRecord, RecordUnfit
from waltap_transforms.debezium.scripting import (
    ContentBasedRouterProperties,
    RecordFilterProperties,
    cel_expression,
    compiled,
    content_based_router,
    members,
    record_filter,
)

DECIMAL = of(
    "bytes", "org.apache.kafka.connect.data.Decimal", optional=True, parameters=(("scale", "2"),)
)
FIELDS = {"id": INT32, "name": MAYBE_TEXT, "amount": DECIMAL}
ROW, IMAGE = struct(FIELDS, "s.t.Value"), struct(FIELDS, "s.t.Value", optional=True)
EVENT = struct({"before": IMAGE, "after": IMAGE, "op": TEXT}, "s.t.Envelope", version=2)


def event(**row: Any) -> ConnectRecord:
    value = {"before": None, "after": {"id": 2, "name": "bolt", **row}, "op": "c"}
    header = ("color", TEXT, "red")
    return ConnectRecord("s.t", ROW, {"id": 2}, EVENT, value, (header,))


def tombstone() -> ConnectRecord:
    return ConnectRecord("s.t", ROW, {"id": 2}, None, None)


def stays(record: ConnectRecord, condition: str, **given: str) -> bool:
    config = {"condition": condition, **{k.replace("__", "."): v for k, v in given.items()}}
    return bool(record_filter(RecordFilterProperties.model_validate(config))([record]))


def routed(record: ConnectRecord, expression: str, **given: str) -> list[str]:
    config = {"topic.expression": expression, **{k.replace("__", "."): v for k, v in given.items()}}
    router = content_based_router(ContentBasedRouterProperties.model_validate(config))
    return [each.topic for each in router([record])]


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("value.op == 'c' && value.after.id == 2", True),
        ("value.op == 'u' && value.before.id == 2", False),
        ("value.before == null", True),
        ("value.after.amount > 12.0", True),
        ("value.after.amount == null || value.after.amount < 1.0", False),
        ("value.after.name.startsWith('b') && size(value.after.name) == 4", True),
        ("value['after']['name'].matches('^b.*t$')", True),
        ("key.id in [1, 2]", True),
        ("topic == 's.t' && keySchema.name == 's.t.Value'", True),
        ("valueSchema.version == 2 && 'op' in valueSchema.fields", True),
        ("header['color'].value == 'red'", True),
        ("'colour' in header", False),
        ("has(value.source)", False),
        ("value.after.exists(k, k == 'amount')", True),
        ("size(value.after) == 3", True),
        ("value.op == 'value.before.id' // isn't it value.op", False),
    ],
)
def test_conditions_in_cel(condition, expected):
    assert stays(event(amount=b"\x04\xd3"), condition) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("value.op == 'c'", {"op": {}}),
        (
            "value.op == 'c' && value.after.id > value.after.n.x",
            {"op": {}, "after": {"id": {}, "n": {}}},
        ),
        ("value.after == null || value.after.id > 1", {"after": {}}),
        ("value.after.id > 1 || value.after == null", {"after": {}}),
        ("value.after.size() > 1", {"after": {}}),
        ("value.size() > 1", {}),
        ("value['after'].id > 1 && value.op == 'c'", {}),
        ("x.value.op && value.op", {"op": {}}),
        ("[1].all(value, value > 0) && value.op == 'c'", {}),
        ("topic == 'value.op'", {}),
        ("header['it\\'s'].value == value.op", {}),
    ],
)
def test_members_that_an_expression_looks_at(text, expected):
    assert members(text, "value") == expected


@pytest.mark.parametrize(
    "text",
    [
        "value.op in ['c', 'u'] ? value.after.id : -1",
        "has(value.after) && value.after != null && value.after.kind == 'a'",
        "value.before == value.after",
        "value . after == null || value.after.id == value.source.lsn",
        "value.source.table + topic",
    ],
)
def test_what_is_left_away_changes_no_answer(text):
    """Against the same program with the whole value."""
    program, checked = compiled(text), 0
    evaluate = cel_expression(text)
    for record in change_records(5, 80):
        if record.value_schema is None or not (record.value_schema.name or "").endswith("Envelope"):
            continue
        whole = program.execute({"value": record.value, "topic": record.topic})
        assert evaluate(record) == whole
        checked += 1
    assert checked > 40


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        ("value.after.absent == 1", "'absent'"),
        ("value.before.id == 1", "fails"),
        ("value.after.id", "the condition is of the type int"),
        ("value.before", "the condition is null"),
        ("value.after.id + 'x' == ''", "TypeError"),
    ],
)
def test_a_condition_that_cannot_be_evaluated_stops_there(condition, said):
    with pytest.raises(RecordUnfit, match=said):
        stays(event(), condition)


def test_no_value_of_a_row_is_in_what_is_reported():
    with pytest.raises(RecordUnfit) as raised:
        stays(event(name="secret"), "value.after.name > 1")
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"condition": "value.op =="}, "not a CEL expression"),
        ({"condition": "record.op == 'c'"}, "nothing is called record"),
        ({"condition": "true", "language": "jsr223.groovy"}, "Write the expression in CEL"),
        ({"condition": "true", "language": "wasm.chicory"}, "there is no Java here"),
        ({"condition": "nowhere:x", "language": "python"}, "cannot be imported"),
        ({"condition": ".bad:f", "language": "python"}, "'.bad:f' cannot be imported: TypeError"),
        ({"condition": "math:pi", "language": "python"}, "not a function"),
        ({"condition": "nowhere", "language": "python"}, "entry point of waltap.expressions"),
        ({"condition": "true", "topic.regex": "("}, "not a regular expression"),
    ],
)
def test_what_cannot_work_is_refused_at_once(given, said):
    with pytest.raises(ValidationError, match=said):
        RecordFilterProperties.model_validate(given)


@pytest.mark.parametrize(
    ("handling", "expected"), [("keep", True), ("drop", False), ("evaluate", True)]
)
def test_records_without_a_value(handling, expected):
    assert stays(tombstone(), "value == null", null__handling__mode=handling) is expected


def test_other_topics_pass():
    assert stays(event(), "false", topic__regex="s")
    assert not stays(event(), "false", topic__regex="s..")
    assert routed(event(), "'x'", topic__regex="t") == ["s.t"]


def test_topics_in_cel():
    assert routed(event(), "value.op == 'c' ? topic + '.new' : null") == ["s.t.new"]
    assert routed(event(), "value.op == 'u' ? topic + '.new' : null") == ["s.t"]
    assert routed(tombstone(), "'x'", null__handling__mode="drop") == []
    with pytest.raises(RecordUnfit, match="the topic is of the type int"):
        routed(event(), "value.after.id")


def is_bolt(record: ConnectRecord) -> bool:
    return bool(record.value["after"]["name"] == "bolt")


def fails(_record: ConnectRecord) -> bool:
    raise KeyError("secret")


def test_functions_of_ones_own():
    here = "tests.unit.transforms.test_debezium_expressions"
    assert stays(event(), f"{here}:is_bolt", language="python")
    assert not stays(event(name="nut"), f"{here}:is_bolt", language="Python")
    with pytest.raises(RecordUnfit, match="raised KeyError"):
        stays(event(), f"{here}:fails", language="python")
