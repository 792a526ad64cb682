"""Cells of value and set, as YugabyteDB's decoder yboutput has them, on its recorded output.

Source of what is expected: Debezium's fork for YugabyteDB, whose cells are structs ``{"value", "set"}``:
null where a column was not sent, ``{"value": null, "set": true}`` for NULL.
"""

import json

import msgspec
import pytest
from tests.harness.captures import context as decoder_context
from tests.harness.json_events import NOW, json_format
from tests.harness.json_events import part as transaction
from tests.harness.yboutput_recording import recorded

from waltap.changes.decode.message import Change, Delete, Insert, Update
from waltap.changes.decode.relation import DataType, Relation, TypeKind
from waltap.changes.events import PLAIN, VALUE_AND_SET, CellShape, ReplicaIdentities
from waltap_decoders.yboutput import YbOutput
from waltap_postgres.identity import REPLICA_IDENTITIES as POSTGRES
from waltap_yugabyte.identity import REPLICA_IDENTITIES as YUGABYTE

KINDS = {23: ("int4", TypeKind.BASE), 25: ("text", TypeKind.BASE)}


def described(relation: Relation, *required: str) -> Relation:
    """Return the relation as the catalogue would complete it: the tables' key is id, NOT NULL like
    ``required``."""
    columns = tuple(
        msgspec.structs.replace(
            column,
            nullable=column.name not in ("id", *required),
            data_type=DataType(
                oid=column.type_oid,
                schema="pg_catalog" if column.type_oid in KINDS else "public",
                name=KINDS.get(column.type_oid, ("mood", TypeKind.ENUM))[0],
                kind=KINDS.get(column.type_oid, ("mood", TypeKind.ENUM))[1],
                labels=() if column.type_oid in KINDS else ("sad", "ok"),
            ),
        )
        for column in relation.columns
    )
    return msgspec.structs.replace(relation, columns=columns, primary_key=("id",))


def rendered(part: str, table: str, cell: CellShape, *required: str, schemas: bool = False):
    """Return (key, value) of the records of one table of one part of the recorded workload."""
    recording = recorded()[f"text: {part}"]
    messages = YbOutput(decoder_context(version=recording.version_num)).feed(recording.frames)
    changes: list[Change] = [
        message
        for message in messages
        if isinstance(message, Insert | Update | Delete) and message.relation.table == table
    ]
    enabled = {
        f"{side}.converter.schemas.enable": str(schemas).lower() for side in ("key", "value")
    }
    identities = ReplicaIdentities((*POSTGRES, *YUGABYTE))
    form = json_format(
        enabled,
        describe=lambda relation: described(relation, *required),
        identity=lambda relation: identities.of(described(relation)),
        cell=cell,
    )
    return [
        (json.loads(record.key), record.value and json.loads(record.value))
        for record in form.render([transaction(*changes)], NOW)
    ]


def cell(value: object) -> dict[str, object]:
    return {"value": value, "set": True}


def images(part: str, table: str, shape: CellShape = VALUE_AND_SET):
    return [
        (key, value and (value["op"], value["before"], value["after"]))
        for key, value in rendered(part, table, shape)
    ]


def test_inserted_values_and_nulls_are_cells():
    rows = [(1, "a", 10, "ok"), (2, None, None, None)]
    names = ("id", "name", "aura", "m")
    for table in ("by_change", "by_default", "by_full"):
        assert images("insert", table) == [
            ({"id": cell(row[0])}, ("c", None, dict(zip(names, map(cell, row), strict=True))))
            for row in rows
        ]


def test_columns_that_were_not_sent_are_null_and_never_a_placeholder():
    (_, first), (_, second), *_ = images("update", "by_change")
    unsent = {"id": cell(1), "name": None, "m": None}
    assert first == ("u", None, {**unsent, "aura": cell(99)})
    assert second == ("u", None, {**unsent, "aura": cell(None)})


def test_a_delete_has_its_key_and_cells_without_value():
    (key, (op, before, after)), (tombstone_key, tombstone) = images("delete", "by_change")
    others = dict.fromkeys(("name", "aura", "m"), cell(None))
    assert (op, before, after) == ("d", {"id": cell(1), **others}, None)
    assert (key, tombstone_key, tombstone) == ({"id": cell(1)}, {"id": cell(1)}, None)


def test_schemas_are_structs_named_after_the_column_optional_as_it_is():
    ((key, value), *_) = rendered("insert", "by_change", VALUE_AND_SET, schemas=True)
    after = next(field for field in value["schema"]["fields"] if field["field"] == "after")
    by_name = {field["field"]: field for field in after["fields"]}
    assert by_name["aura"] == {
        "type": "struct", "optional": True, "name": "aura", "field": "aura",
        "fields": [
            {"type": "int32", "optional": True, "field": "value"},
            {"type": "boolean", "optional": False, "field": "set"},
        ],
    }  # fmt: skip
    assert not by_name["id"]["optional"]
    assert not any(member["optional"] for member in by_name["id"]["fields"])
    assert [field["name"] for field in key["schema"]["fields"]] == ["id"]


@pytest.mark.parametrize(("table", "optional"), [("by_change", True), ("by_default", False)])
def test_what_is_never_null_can_be_missing_where_updates_are_partial(table, optional):
    ((_, value), *_) = rendered("update", table, VALUE_AND_SET, "name", schemas=True)
    after = next(field for field in value["schema"]["fields"] if field["field"] == "after")
    by_name = {field["field"]: field["optional"] for field in after["fields"]}
    assert (by_name["id"], by_name["name"]) == (False, optional)


@pytest.mark.parametrize("part", ["insert", "update", "delete"])
def test_cells_hold_the_values_that_plain_events_have(part):
    def plain(row):
        return row and {name: value and value["value"] for name, value in row.items()}

    celled, bare = images(part, "by_full"), images(part, "by_full", PLAIN)
    assert [
        (plain(key), event and (event[0], plain(event[1]), plain(event[2])))
        for key, event in celled
    ] == bare


def test_events_are_plain_unless_reported_otherwise():
    assert json_format()._tables._context.cell is PLAIN
