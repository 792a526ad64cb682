"""A composite type gets an attribute while the change log is written, and nobody announces its table."""

import dataclasses
from pathlib import Path

import msgspec

from waltap.decode.relation import DataType, Relation, TypeKind
from waltap.mapping.type_mapping import TypeOptions
from waltap.mapping.type_registry import TypeRegistry
from waltap_postgres.types import TYPE_SPECS
from waltap_sinks.changelog import ChangeLog, ChangeLogProperties, ChangeLogSink

from tests.rigs.changelog import Database, batch, context, relation

INT = DataType(oid=23, schema="pg_catalog", name="int4")


def with_place(table: Relation, *attributes: str) -> Relation:
    made = DataType(
        oid=70_000, schema="public", name="place", kind=TypeKind.COMPOSITE,
        attributes=tuple((name, INT, -1) for name in attributes),
    )  # fmt: skip
    key, at = table.columns
    return msgspec.structs.replace(
        table, columns=(key, msgspec.structs.replace(at, data_type=made, type_text="place"))
    )


def written(folder: Path, now: tuple[str, ...], *values: str) -> tuple[list[object], int]:
    """Return what the log has of ``values``, and how often the types were asked for anew."""
    table = with_place(relation("public.t", [("id", "int4"), ("at", "text")]), "x", "y")
    asked: list[Relation] = []

    def renew(described: Relation) -> Relation:
        asked.append(described)
        return described if now == ("x", "y") else with_place(described, *now)

    types = TypeRegistry(TYPE_SPECS, TypeOptions(composite_types="struct"))
    made = dataclasses.replace(context(folder), types=types, renew=renew)
    sink, db = ChangeLogSink(ChangeLogProperties(path=str(folder / "log")), made), Database()
    sink.open()
    for number, value in enumerate(values):
        db.insert(table, [str(number), value])
        sink.write(batch(db.commit()))
    sink.flush()
    sink.close()
    parts = ChangeLog(str(folder / "log")).rows("public", "t")
    return [row for part in parts for row in part.column("at").to_pylist()], len(asked)


def test_values_with_more_attributes_begin_another_version_of_the_table(tmp_path: Path) -> None:
    found, asked = written(tmp_path, ("x", "y", "z"), "(1,2)", "(3,4,5)", "(6,)", "(7,8,9)")
    assert asked == 1
    assert found[0] == {"x": 1, "y": 2}
    assert found[1:] == [
        {"x": 3, "y": 4, "z": 5}, {"x": 6, "y": None, "z": None}, {"x": 7, "y": 8, "z": 9},
    ]  # fmt: skip


def test_values_that_never_fit_are_null_and_ask_once(tmp_path: Path) -> None:
    found, asked = written(tmp_path, ("x", "y"), "(1,2)", "(3,4,5)", "(6,7,8)", "(9,)")
    assert (found, asked) == ([{"x": 1, "y": 2}, None, None, {"x": 9, "y": None}], 1)
