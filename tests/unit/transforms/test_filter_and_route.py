"""Transforms of batches."""

import textwrap

import msgspec
import pytest
from pydantic import ValidationError
from tests.harness.json_events import NOW, Server, events, json_format, part, table, values

import waltap_testing
from waltap.changes.decode import (
    Column,
    Delete,
    Insert,
    LogicalMessage,
    OldTuple,
    Relation,
    Truncate,
    Update,
)
from waltap.changes.decode.tuple_image import ABSENT, UNCHANGED
from waltap.changes.transactions.position import Position
from waltap.changes.transactions.transaction import Batch, TransactionPart
from waltap.config.layers import read_tables
from waltap.config.resolve import survey
from waltap.errors import ConfigurationError
from waltap.plugins.host import Host
from waltap.ports.specs import TransformSpec
from waltap.ports.transforms import SnapshotRows, rewrite_columns
from waltap.ports.transforms.applied import transformed
from waltap.ports.transforms.filter import FilterFailed, FilterProperties, TableFilter
from waltap.ports.transforms.rewrite import RouteProperties, RowView, table_router

A = table("a", "id int4 not null", "n numeric(6,2)", "v text", "ok bool")
B = table("b", "id int4 not null")


def batch() -> Batch:
    s = Server()
    s.insert(A, ("1", "1.50", "keep", "t"), ("2", None, "drop", "f"))
    s.insert(B, ("7",))
    s.update(A, ("1", "2.50", "keep", "t"))
    s.delete(A, ("2", None, "drop", "f"))
    s.truncate(A, B)
    s.message("m", b"x")
    s.snapshot(A, [("5", "1", "keep", None), ("6", "1", "drop", None)], "first", "last")
    return Batch(parts=s.parts, position=Position(9), events=9)


def test_a_transform_that_replaces_parts_alone_keeps_numbers_and_count():
    def without_deletes(given: Batch) -> Batch:
        parts = [
            msgspec.structs.replace(
                each, changes=[c for c in each.changes if not isinstance(c, Delete)]
            )
            if isinstance(each, TransactionPart)
            else each
            for each in given.parts
        ]
        return msgspec.structs.replace(given, parts=parts)

    s = Server()
    s.insert(B, ("1",), ("2",))
    s.begin()
    s.delete(B, ("1",))
    s.insert(B, ("3",))
    s.commit()
    given = Batch(parts=s.parts, position=Position(9), events=4)
    made = transformed(without_deletes, given)
    assert made.events == 3
    assert [[*each.numbers()] for each in made.parts] == [[0, 1], [1]]


def kept(**properties: str) -> list[str]:
    out = transformed(TableFilter(FilterProperties.model_validate(properties)), batch())
    shape = {"skipped.operations": "none", "tombstones.on.delete": "false"}
    found = values(json_format(shape).render(out.parts, NOW))
    assert out.events == len(found) - sum(v["op"] == "t" for v in found) // 2
    rows = [(v, v.get("after") or v.get("before") or {}) for v in found]
    return [f"{v['op']}{v['source']['table']}{row.get('id', '')}" for v, row in rows]


ALL = ["ca1", "ca2", "cb7", "ua1", "da2", "ta", "tb", "m", "ra5", "ra6"]


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({"tables": "public.b"}, [e for e in ALL if e[1:2] != "b"]),
        ({"operations": "d,r"}, [e for e in ALL if e[0] not in "dr"]),
        (
            {"tables": r"PUBLIC\.a", "operations": "c,t"},
            [e for e in ALL if e[:2] not in ("ca", "ta")],
        ),
        ({"operations": "m"}, [e for e in ALL if e != "m"]),
        ({"tables": "nothing.such"}, ALL),
    ],
)
def test_filter_leaves_out_what_it_concerns_and_nothing_else(properties, expected):
    assert kept(**properties) == expected


def test_a_filter_without_conditions_is_refused():
    tables = {"source": {"type": "postgres", "database.dbname": "d"}, "sink": {"type": "null"}}
    raw = read_tables({**tables, "transforms": [{"type": "filter"}]})
    [problem] = survey(raw, Host()).problems
    assert problem.property == "transform 1 filter"
    assert "tables, operations or function is missing" in problem.what


@pytest.fixture
def predicates(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "filters_of_this_test.py").write_text(
        textwrap.dedent("""
            def wanted(change):
                row = change.after or change.before
                return change.table != "a" or row["id"] == 1 or row.get("v") == "keep"

            def broken(change):
                return change.after["no such column"]
        """)
    )


@pytest.mark.usefixtures("predicates")
def test_predicate_sees_typed_rows_and_leaves_truncates_and_messages_alone():
    found = kept(function="filters_of_this_test:wanted")
    assert found == ["ca1", "cb7", "ua1", "ta", "tb", "m", "ra5"]


@pytest.mark.usefixtures("predicates")
def test_predicate_that_raises_stops_with_its_name_and_without_the_row():
    with pytest.raises(FilterFailed, match="filters_of_this_test:broken raised KeyError") as caught:
        kept(function="filters_of_this_test:broken")
    assert "keep" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("no_such_module_here:f", "cannot be imported: ModuleNotFoundError: No module named"),
        ("json:no_such_name", "cannot be imported: AttributeError"),
        (".json:loads", "cannot be imported: TypeError"),
        ("json:__name__", "is not a function"),
        ("fails_on_import:f", "cannot be imported: NameError: name 'undefined' is not defined"),
        ("exits_on_import:f", "cannot be imported: SystemExit"),
        ("no_python:f", "cannot be imported: SyntaxError"),
    ],
)
def test_predicate_that_is_no_function_is_a_configuration_error(path, said, tmp_path, monkeypatch):
    """Whatever its module does is not a bug of waltap."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "fails_on_import.py").write_text("undefined")
    (tmp_path / "exits_on_import.py").write_text("raise SystemExit")
    (tmp_path / "no_python.py").write_text("def f(:")
    with pytest.raises(ConfigurationError, match="function") as caught:
        TableFilter(FilterProperties(function=path))
    assert f"'{path}' {said}" in str(caught.value)


@pytest.mark.parametrize(
    ("model", "properties", "named"),
    [
        (FilterProperties, {"function": "nocolon"}, "module:name"),
        (FilterProperties, {"tables": "a("}, r"a\("),
        (FilterProperties, {"operations": "c,x"}, "no such word: x"),
        (RouteProperties, {"regex": "a(", "replacement": "t"}, r"a\("),
        (RouteProperties, {"regex": "a", "replacement": "$1"}, "replacement"),
    ],
)
def test_wrong_properties_are_named(model, properties, named):
    with pytest.raises(ValidationError, match=named):
        model.model_validate(properties)


def test_route_changes_the_topic_and_nothing_else():
    plain = batch()
    route = table_router(RouteProperties(regex=r"public\.(a)", replacement="all $1"))
    routed = route(plain)
    assert routed.events == plain.events
    shape = {"skipped.operations": "none"}
    before = events(json_format(shape).render(plain.parts, NOW))
    after = events(json_format(shape).render(routed.parts, NOW))
    assert {e["topic"] for e in after} == {"all_a", "t.public.b", "t.message"}
    for old, new in zip(before, after, strict=True):
        if old["topic"] == "t.public.a":
            old["topic"] = "all_a"
        for event in (old, new):  # schemas are named after the topic
            event["key"] = (event["key"] or {}).get("payload")
            event["value"] = (event["value"] or {}).get("payload")
        assert old == new


def test_row_view_decodes_on_reading():
    view = RowView(A, ("3", "1.50", UNCHANGED, ABSENT))
    assert dict(view) == {"id": 3, "n": __import__("decimal").Decimal("1.50"), "v": UNCHANGED}
    assert "ok" not in view
    assert len(view) == 3
    assert view.raw("ok") is ABSENT


# --- the small interface for transforms of columns ------------------------------------------------


TABLE = table("t", "id int4", "v text")
OTHER = Relation(oid=2, schema="public", table="u", columns=TABLE.columns)


def loud(relation: Relation, column: Column):
    """Return what makes texts of ``t.v`` loud, and sees whole columns."""
    if (relation.table, column.name) != ("t", "v"):
        return None
    return lambda values: [value.upper() if isinstance(value, str) else value for value in values]


def rewritten(*parts, of_column=loud):
    batch = Batch(parts=list(parts), position=Position(24), events=3)
    return rewrite_columns(of_column)(batch).parts


def test_every_image_of_a_chosen_column_is_rewritten_and_nothing_else():
    truncate, message = Truncate((TABLE,), 15), LogicalMessage(15, True, "p", b"x")
    rows = SnapshotRows(relation=TABLE, rows=[("7", "x"), ("8", None)], ts=1, lsn=1, xid=None)
    read, found = rewritten(
        rows,
        part(
            Insert(TABLE, 16, ("a", "new")),
            truncate,
            Update(TABLE, 17, ("a", "new"), ("b", "old"), OldTuple.FULL, 9),
            Insert(OTHER, 18, ("a", "new")),
            message,
            Delete(TABLE, 19, ("b", "old"), OldTuple.KEY),
        ),
    )
    assert read.rows == [("7", "X"), ("8", None)]
    assert rows.rows[0] == ("7", "x")
    insert, second, update, other, fifth, delete = found.changes
    assert (second, fifth) == (truncate, message)
    assert insert.new == ("a", "NEW")
    assert (update.new, update.old, update.xid) == (("a", "NEW"), ("b", "OLD"), 9)
    assert other.new == ("a", "new")
    assert (delete.old, delete.old_kind) == (("b", "OLD"), OldTuple.KEY)
    assert insert.relation is update.relation is TABLE


def test_what_was_not_sent_and_null_are_never_asked_about():
    asked = []

    def of_column(_relation, column):
        return (lambda values: asked.extend(values) or values) if column.name == "v" else None

    (found,) = rewritten(
        part(
            Insert(TABLE, 16, ("1", None)),
            Update(TABLE, 17, ("1", UNCHANGED), ("1", ABSENT), OldTuple.KEY),
            Update(TABLE, 18, ("1", "x")),
            Delete(TABLE, 19, (), OldTuple.NONE),
        ),
        of_column=of_column,
    )
    assert asked == ["x"]
    assert [change.relation for change in found.changes] == [TABLE] * 4
    assert found.changes[1].new[1] is UNCHANGED
    assert found.changes[1].old[1] is ABSENT
    assert found.changes[3].old == ()


def test_fewer_values_than_were_given_are_no_answer():
    with pytest.raises(ValueError, match="shorter"):
        rewritten(part(Insert(TABLE, 16, ("a", "b"))), of_column=lambda _r, _c: lambda _v: [])


class TestColumnsRewritten(waltap_testing.TransformSuite):
    @pytest.fixture
    def rig(self):
        def every(_relation, _column):
            return lambda values: ["*"] * len(values)

        spec = TransformSpec(
            name="stars", summary="Stars.", factory=lambda _: rewrite_columns(every)
        )
        return waltap_testing.TransformRig(spec)
