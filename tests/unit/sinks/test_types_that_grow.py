"""A composite type gets an attribute while the change log is written, and nobody announces its table."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
from tests.harness.changelog import WrittenLog, relation

from waltap.changes.decode.relation import DataType, Relation, TypeKind
from waltap.changes.mapping.type_mapping import TypeOptions
from waltap.changes.mapping.type_registry import TypeRegistry
from waltap_postgres.types import TYPE_SPECS

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


def written(
    folder: Path, types_then: Sequence[tuple[str, ...]], *batches: Sequence[str]
) -> tuple[list[object], int]:
    """Return what the log has of the values in ``batches``, and how often the types were asked for anew;
    ``types_then``: the attributes that there are when it is asked, the last ever after."""
    table = with_place(relation("public.t", [("id", "text"), ("at", "text")]), "x", "y")
    asked: list[Relation] = []

    def renew(described: Relation) -> Relation:
        now, known = (
            types_then[min(len(asked), len(types_then) - 1)],
            described.columns[1].data_type,
        )
        asked.append(described)
        same = now == tuple(name for name, _type, _typmod in known.attributes)
        return described if same else with_place(described, *now)

    types = TypeRegistry(TYPE_SPECS, TypeOptions(composite_types="struct"))
    log = WrittenLog(folder)
    with log.open(types=types, renew=renew):
        for values in batches:
            parts = []
            for value in values:
                parts.append(log.db.inserted(table, [value, value]))
            log.write(*parts)
        log.flush()
    return [row["at"] for row in log.rows("t")], len(asked)


def test_values_that_never_fit_are_null_and_ask_once_a_batch(tmp_path):
    values = ["(1,2)", "(3,4,5)", "(6,7,8)", "(9,)"], ["(3,4,5)", "(6,7,8)"], ["(1,2)"]
    found, asked = written(tmp_path, [("x", "y")], *values)
    fits, short = {"x": 1, "y": 2}, {"x": 9, "y": None}
    assert (found, asked) == ([fits, None, None, short, None, None, fits], 2)


def test_a_type_that_grows_after_a_value_that_did_not_fit_is_asked_for_again(tmp_path):
    """Another value did not fit before: of a type that had lost an attribute when it was asked for."""
    then = [("x", "y"), ("x", "y", "w")]
    found, asked = written(tmp_path, then, ["(1,2)", "(3,4,5)"], ["(6,7,8)"], ["(9,1,2)"])
    assert found[:2] == [{"x": 1, "y": 2}, None]
    assert found[2:] == [{"x": 6, "y": 7, "w": 8}, {"x": 9, "y": 1, "w": 2}]
    assert asked == 2
