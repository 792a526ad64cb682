"""Runs: a batch's changes in order, cut where kind or relation change."""

from hypothesis import given
from hypothesis import strategies as st
from tests.harness.json_events import table

from waltap.changes.decode.message import Delete, Insert, LogicalMessage, OldTuple, Truncate, Update
from waltap.changes.events import (
    CHANGED,
    DELETES,
    INSERTS,
    MESSAGES,
    OPERATIONS,
    TRUNCATES,
    UPDATES,
    runs,
)

A, B = table("a", "id int4 not null"), table("b", "id int4 not null")
MADE = {
    INSERTS: lambda relation: Insert(relation, 1, ("1",)),
    UPDATES: lambda relation: Update(relation, 1, ("1",)),
    CHANGED: lambda relation: Update(relation, 1, ("1",), ("2",), OldTuple.KEY),
    DELETES: lambda relation: Delete(relation, 1, ("1",), OldTuple.KEY),
    TRUNCATES: lambda relation: Truncate((relation,), 1),
    MESSAGES: lambda relation: LogicalMessage(1, True, "p", b""),
}
CHANGES = st.lists(st.tuples(st.sampled_from(list(MADE)), st.sampled_from([A, B])), max_size=40)


def test_every_kind_has_an_operation():
    assert set(OPERATIONS) == set(MADE)


@given(CHANGES)
def test_runs_hold_every_change_in_order_and_are_as_long_as_can_be(kinds):
    changes = [MADE[kind](relation) for kind, relation in kinds]
    found = runs(changes)
    assert [change for _, _, run in found for change in run] == changes
    named = [(kind, relation) for kind, relation, run in found for _ in run]
    without = (TRUNCATES, MESSAGES)
    assert named == [(k, None if k in without else relation) for k, relation in kinds]
    heads = [(kind, relation) for kind, relation, _ in found]
    assert all(one != next_ for one, next_ in zip(heads, heads[1:], strict=False))


@given(st.integers(1, 100), st.sampled_from([A, B]))
def test_inserts_into_one_table_are_one_run_whatever_their_number(count, relation):
    changes = [Insert(relation, n, (str(n),)) for n in range(count)]
    assert runs(changes) == [(INSERTS, relation, changes)]
