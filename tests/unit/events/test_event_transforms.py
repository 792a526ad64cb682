"""Transforms of events: what they see, and what is written of what they change."""

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.harness.json_events import BARE, NOW, Server, json_format, table

from waltap.changes.decode.tuple_image import UNCHANGED
from waltap.changes.events import ChangeEvent, EventTransform
from waltap.changes.mapping.connect_schema import ConnectKind, Schema
from waltap.encoders.json.event_format import EventTransformFailed, JsonEventFormat

ITEMS = table("items", "id int4 not null", "name text", "price float8", "large text", identity="f")
SECRET = {"column.mask.with.3.chars": r"public\.items\.name"}


def workload() -> Server:
    server = Server()
    server.insert(ITEMS, ("1", "bolt", "1.5", None))
    server.update(ITEMS, ("1", "nut", "2.5", UNCHANGED), ("1", "bolt", "1.5", "x" * 9))
    server.update(ITEMS, ("2", "nut", "2.5", None), ("1", "nut", "2.5", None))
    server.delete(ITEMS, ("2", "nut", "2.5", None))
    return server


def rendered(transform: EventTransform, **properties: str):
    plain = json_format({**BARE, **properties})
    form = JsonEventFormat(
        plain._tables._properties, replace(plain._tables._format, transforms=[("mine", transform)])
    )
    return form.render(workload().parts, NOW)


def each(do: Callable[[ChangeEvent], object]) -> EventTransform:
    """Return a transform that does something with each event, and keeps all."""
    return lambda events: [event for event in events if (do(event), True)]


def values(transform: EventTransform, **properties: str):
    return [json.loads(record.value or b"null") for record in rendered(transform, **properties)]


def test_events_are_typed_and_in_order():
    seen: list[tuple[object, ...]] = []

    def look(e: ChangeEvent) -> None:
        row = e.after if e.after is not None else e.before
        seen.append((e.op, e.tombstone, dict(e.key), None if row is None else dict(row)))

    rendered(each(look))
    first = {"id": 1, "name": "bolt", "price": 1.5, "large": None}
    moved = {"id": 2, "name": "nut", "price": 2.5, "large": None}
    gone = {**moved, "id": 1}
    assert seen == [
        ("c", False, {"id": 1}, first),
        ("u", False, {"id": 1}, {"id": 1, "name": "nut", "price": 2.5, "large": "x" * 9}),
        ("d", False, {"id": 1}, gone),
        ("d", True, {"id": 1}, None),
        ("c", False, {"id": 2}, moved),
        ("d", False, {"id": 2}, moved),
        ("d", True, {"id": 2}, None),
    ]


def test_masked_values_are_masked_for_transforms_too():
    seen: list[object] = []
    rendered(
        each(lambda e: seen.append(e.after["name"]) if e.after is not None else None), **SECRET
    )
    assert set(seen) == {"***"}


def test_fields_are_replaced_renamed_added_and_dropped():
    def change(event: ChangeEvent) -> None:
        if event.after is not None:
            event.after["name"] = str(event.after["name"]).upper()
            event.after["cheap"] = event.after["price"] < 2
            event.after.rename("price", "cost")
            del event.after["large"]

    first = values(each(change))[0]
    assert first["after"] == {"id": 1, "name": "BOLT", "cost": 1.5, "cheap": True}
    assert list(first["after"]) == ["id", "name", "cost", "cheap"]


def test_the_schema_follows_the_fields():
    def change(event: ChangeEvent) -> None:
        if event.after is not None:
            event.after.rename("price", "cost")
            event.after.put("tag", 7, Schema(kind=ConnectKind.INT16, name="tag"))
        if event.key is not None:
            event.key.rename("id", "item")

    (record, *_) = rendered(each(change), **{name: "true" for name in BARE})
    key, value = json.loads(record.key), json.loads(record.value)
    after = next(f for f in value["schema"]["fields"] if f["field"] == "after")
    found = {field["field"]: field["type"] for field in after["fields"]}
    assert found == {
        "id": "int32", "name": "string", "cost": "double", "large": "string", "tag": "int16",
    }  # fmt: skip
    assert [field["field"] for field in key["schema"]["fields"]] == ["item"]
    assert (key["payload"], value["payload"]["after"]["tag"]) == ({"item": 1}, 7)


def test_events_may_be_dropped_sent_elsewhere_and_get_headers():
    def change(events: list[ChangeEvent]) -> list[ChangeEvent]:
        for event in events:
            event.topic += ".copy"
            event.headers.append(("op", event.op))
        return [event for event in events if not event.tombstone]

    records = rendered(change)
    assert [record.headers[-5][0] if len(record.headers) > 5 else record.headers[0][0]
            for record in records] == ["op", "op", "op", "op", "op"]  # fmt: skip
    assert {record.topic for record in records} == {"t.public.items.copy"}
    assert [json.loads(record.value)["op"] for record in records] == ["c", "u", "d", "c", "d"]


@pytest.mark.parametrize(
    ("transform", "what"),
    [
        pytest.param(lambda events: 1 / 0, "raised ZeroDivisionError", id="raises"),
        pytest.param(lambda events: events[::-1], "another order", id="turns-them-round"),
        pytest.param(lambda events: [*events, events[0]], "another order", id="repeats-one"),
    ],
)
def test_a_transform_that_breaks_its_contract_is_named(transform, what):
    with pytest.raises(EventTransformFailed, match=f"mine .*{what}") as failed:
        rendered(transform)
    assert "Correct the transform mine" in str(failed.value)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [("name", 5, "name, of type string, a int"), ("id", True, "id, of type int32, a bool")],
)
def test_a_value_that_cannot_be_written_is_reported(field, value, said):
    change = each(lambda event: event.after is None or event.after.__setitem__(field, value))
    with pytest.raises(EventTransformFailed, match=f"mine gave the field {said}"):
        rendered(change)
