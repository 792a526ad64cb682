"""Columns by the number that the source gives them, whatever their names are."""

from typing import Any

from waltap_sinks.changelog.manifest import ColumnEntry
from waltap_spark.column_identity import file_column, identify, renames
from waltap_spark.output import BasePart, TableState
from waltap_spark.plan import Group


def group(*columns: tuple[str, int], **more: Any) -> Group:
    entries = tuple(ColumnEntry(name=n, type="int4", arrow="int32", number=i) for n, i in columns)
    return Group("f", 1, ("id",), entries, oid=7, streamed=True, **more)


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
    return identify(made, group(("id", 1), ("v", 2))).table


def test_a_renamed_column_is_read_from_older_files_by_its_number() -> None:
    renamed = group(("id", 1), ("w", 2))
    assert renames(table(), renamed) == {"v": "w"}
    found = identify(table(), renamed).table
    (part,) = found.base
    assert file_column(found, part.columns, part.ids, "w") == "v"


def test_another_column_under_an_old_name_is_not_in_older_files() -> None:
    taken = group(("id", 1), ("w", 2), ("v", 3))
    found = identify(table(), taken).table
    (part,) = found.base
    assert file_column(found, part.columns, part.ids, "w") == "v"
    assert file_column(found, part.columns, part.ids, "v") is None


def test_a_column_that_was_left_out_for_a_while_needs_a_new_snapshot() -> None:
    without = identify(table(), group(("id", 1)))
    assert without.doubts == ()
    again = identify(without.table, group(("id", 1), ("v", 2)))
    assert again.doubts == ("v was not captured for a while",)
