"""Columns by the number that the source gives them, whatever their names are."""

from typing import Any

from waltap_sinks.changelog.manifest import ColumnEntry
from waltap_spark.planning.column_identity import file_column, identify, replaced
from waltap_spark.planning.plan import SegmentGroup
from waltap_spark.state.output import BasePart, TableState


def group(*columns: tuple[str, int], **more: Any) -> SegmentGroup:
    entries = tuple(ColumnEntry(name=n, type="int4", arrow="int32", number=i) for n, i in columns)
    return SegmentGroup("f", 1, ("id",), entries, oid=7, streamed=True, **more)


def table(**more: Any) -> TableState:
    """Return a table of two columns, with rows of both in a file."""
    ids = {"id": 1, "v": 2}
    columns = dict.fromkeys(ids, "int")
    part = BasePart(path="p", rows=1, epoch=1, columns=columns, ids=ids)
    made = TableState(
        schema="public",
        table="t",
        columns=columns,
        ids=ids,
        base=(part,),
        oid=7,
        key=("id",),
        **more,
    )
    return identify(made, group(("id", 1), ("v", 2)), {})[0]


def test_a_column_of_a_former_table_is_read_once_from_its_files():
    """That table dropped v, and added another v; the present one has none."""
    kinds = {"id": '"integer"', "v": '"string"', "v@2": '"string"'}
    state = TableState(
        schema="public", table="t", columns=kinds, ids={"id": 10_001, "v@2": 2}, incarnation=1
    )
    for ids, found in (({"id": 1, "v": 2}, ["v", None]), ({"id": 1, "v": 3}, [None, "v"])):
        has = dict.fromkeys(ids, '"string"')
        assert [file_column(state, has, ids, name) for name in ("v@2", "v")] == found


def test_a_column_that_was_left_out_for_a_while_needs_a_new_snapshot():
    without, reasons = identify(table(), group(("id", 1)), {})
    assert reasons == ()
    _again, reasons = identify(without, group(("id", 1), ("v", 2)), {})
    assert reasons == ("v was not captured for a while",)
    another, _reasons = identify(replaced(table(), keeps_rows=True), group(("id", 1)), {})
    _new, reasons = identify(another, group(("id", 1), ("v", 2)), {})
    assert reasons == (), "the v that is there was a former table's"
