"""The small interface for transforms of columns."""

import pytest
from tests.harness.json_events import part, table

import waltap_testing
from waltap.changes.decode import (
    ABSENT,
    UNCHANGED,
    Column,
    Delete,
    Insert,
    LogicalMessage,
    OldTuple,
    Relation,
    Truncate,
    Update,
)
from waltap.ports.source import Position
from waltap.ports.specs import TransformSpec
from waltap.ports.transforms import Batch, SnapshotRows, rewrite_columns

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
