"""The record stage: which records transforms get, in which order, and what a failure says."""

import pytest
from msgspec.structs import replace
from tests.harness.json_events import NOW, Server, format_context, split_properties, table

from waltap.changes.mapping.connect_schema import ConnectKind, Schema
from waltap.changes.transactions.transaction import Heartbeat, Notification
from waltap.encoders.format.conversion import json_records
from waltap.encoders.format.record_stage import RecordStage, RecordStep, RecordTransformFailed
from waltap.encoders.format.record_transform import ConnectRecord, RecordUnfit, SchemaMemory
from waltap.errors import SinkError, StopRequested
from waltap.ports.transforms.predicates import PREDICATES

BY_NAME = {spec.name: spec for spec in PREDICATES}
TEXT = Schema(kind=ConnectKind.STRING)


def record(
    topic: str, value: object = "v", lsn: int | None = None, **more: object
) -> ConnectRecord:
    if lsn is not None:
        value = {"source": {"lsn": lsn}}
    return ConnectRecord(topic, TEXT, f"key of {topic}", TEXT, value, **more)


def topics(records: list[ConnectRecord]) -> list[str]:
    return [each.topic for each in records]


def marked(mark: str):
    def transform(records):
        assert records, "a transform is never called with nothing"
        return [record(f"{each.topic}{mark}", each.value, headers=each.headers) for each in records]

    return transform


def predicate(name: str, /, **given: str):
    spec = BY_NAME[name]
    return spec.factory(None if spec.properties is None else spec.properties(**given))


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        (predicate("TopicNameMatches", pattern="a.*"), ["ab!", "b", "ac!", "Ab", "dead"]),
        (predicate("TopicNameMatches", pattern="a"), ["ab", "b", "ac", "Ab", "dead"]),
        (predicate("TopicNameMatches", pattern=" a.* "), ["ab!", "b", "ac!", "Ab", "dead"]),
        (predicate("RecordIsTombstone"), ["ab", "b", "ac", "Ab", "dead!"]),
        (predicate("HasHeaderKey", name="h"), ["ab", "b!", "ac", "Ab", "dead"]),
    ],
)
def test_predicates_choose_records_and_order_stays(test, expected):
    records = [
        record("ab"),
        record("b", headers=(("g", None, 1), ("h", None, 1))),
        record("ac", headers=(("H", None, 1),)),
        record("Ab"),
        record("dead", None),
    ]
    step = RecordStep(label="t", transform=marked("!"), predicate=test)
    assert topics(RecordStage([step]).transformed(records)) == expected
    other = RecordStep(label="t", transform=marked("!"), predicate=test, negate=True)
    negated = [topic[:-1] if topic.endswith("!") else f"{topic}!" for topic in expected]
    assert topics(RecordStage([other]).transformed(records)) == negated


def broken(topic: str, error: Exception):
    def transform(records):
        if any(each.topic == topic for each in records):
            raise error
        return records

    return transform


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RecordUnfit("the field x is no number"), "the field x is no number"),
        (KeyError("a value of the row"), "raised KeyError"),
    ],
)
def test_a_failure_names_transform_and_record_and_no_value_that_code_raised(error, said):
    stage = RecordStage(
        [
            RecordStep(label="first", transform=list),
            RecordStep(label="second (x)", transform=broken("y", error)),
        ]
    )
    with pytest.raises(RecordTransformFailed) as raised:
        stage.transformed([record("x", lsn=16), record("y", lsn=0x1_0000_0020), record("z")])
    text = str(raised.value)
    assert said in text
    assert "second (x)" in text
    assert 'topic y, key "key of y", LSN 1/20' in text
    assert "a value of the row" not in text
    assert raised.value.__cause__ is error


def test_a_failure_of_a_batch_as_a_whole_names_its_range():
    def never_more_than_one(records):
        if len(records) > 1:
            raise RuntimeError
        return records

    stage = RecordStage([RecordStep(label="t", transform=never_more_than_one)])
    with pytest.raises(RecordTransformFailed, match=r"2 records for x, y, LSN 0/1 to LSN 0/2"):
        stage.transformed([record("x", lsn=1), record("y", lsn=2)])


@pytest.mark.parametrize("given", [None, [b"bytes"]])
def test_what_is_no_list_of_records_is_reported(given):
    stage = RecordStage([RecordStep(label="t", transform=lambda _: given)])
    with pytest.raises(RecordTransformFailed, match="it returned"):
        stage.transformed([record("x")])


@pytest.mark.parametrize("error", [SinkError("away"), StopRequested()])
def test_what_is_ours_already_goes_through(error):
    stage = RecordStage([RecordStep(label="t", transform=broken("x", error))])
    with pytest.raises(type(error)) as raised:
        stage.transformed([record("x")])
    assert raised.value is error


def test_everything_that_is_written_goes_through():
    """As in Kafka Connect: notifications, heartbeats, transaction metadata and messages too."""
    met: list[str] = []

    def note(records):
        met.extend(each.topic for each in records)
        return [replace(each, topic=f"to.{each.topic}") for each in records]

    given = {
        "topic.prefix": "t",
        "provide.transaction.metadata": "true",
        "skipped.operations": "none",
    }
    steps = [RecordStep(label="note", transform=note)]
    form = json_records(split_properties(given)[1], format_context(given, record_steps=steps))
    items = table("items", "id int4 not null", "name text")
    server = Server()
    server.begin()
    server.insert(items, ("1", "a"))
    server.delete(items, ("1", "a"))
    server.truncate(items)
    server.message("prefix", b"text")
    server.commit()
    server.snapshot(items, [("2", "b"), ("3", None)], "first", "last")
    server.parts.append(Heartbeat(ts=1))
    reported = Notification(identifier="1", aggregate_type="Initial Snapshot", kind="STARTED")
    written = [*form.render(server.parts, NOW), *form.notifications([reported], "reported")]
    wanted = ["t.transaction", *["t.public.items"] * 4, "t.message", "t.transaction"]
    wanted += ["t.public.items", "t.public.items", "__debezium-heartbeat.t", "reported"]
    assert met == wanted
    assert [each.topic for each in written] == [f"to.{topic}" for topic in wanted]
    assert written[-2].partition == 0


def test_each_schema_is_asked_for_once_and_equal_ones_apart():
    made: list[Schema] = []

    def make(schema: Schema) -> int:
        made.append(schema)
        return len(made)

    memory = SchemaMemory(make, most=2)
    one, other = Schema(kind=ConnectKind.INT8), Schema(kind=ConnectKind.INT8)
    assert [memory.of(s) for s in (one, other, one, other)] == [1, 2, 1, 2]
    assert memory.of(Schema(kind=ConnectKind.INT16)) == 3
    assert memory.of(one) == 4, "it was full, and is made anew"
