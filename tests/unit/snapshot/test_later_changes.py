"""Changes that a blocking snapshot does not contain: its rows get them, or another snapshot is opened."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from tests.harness.json_events import IDENTITIES, table

from waltap.changes.decode.message import Change, Delete, Insert, OldTuple, Truncate, Update
from waltap.changes.decode.relation import Relation
from waltap.changes.decode.tuple_image import ABSENT, UNCHANGED, Tuple
from waltap.changes.transactions.transaction import SnapshotRows, TransactionPart
from waltap.ports.signals.signal import SnapshotRequest
from waltap.ports.snapshot import later_changes
from waltap.ports.snapshot.later_changes import LaterChanges

UNTIL = 1000
T = table("t", "id text", "v text", "large text", key=("id",))
OTHER = table("other", "id text", key=("id",))
BAG = table("bag", "v text", key=(), identity="f")
RENAMED = msgspec.structs.replace(T, table="renamed")
ROWS: list[Tuple] = [("1", "a", "x"), ("2", "b", "y"), ("3", "c", "z")]


def numbered(*names: str) -> Relation:
    """Return `T` with other names, and with numbers that tell whose they are."""
    columns = (
        msgspec.structs.replace(column, name=name, number=n)
        for n, (name, column) in enumerate(zip(names, T.columns, strict=True), 1)
    )
    return msgspec.structs.replace(T, columns=tuple(columns), primary_key=names[:1])


class Reading:
    """Contains transactions below 10."""

    def __init__(self, *relations: Relation) -> None:
        self.relations = {each.name: each for each in relations}
        self.until: int | None = UNTIL

    def saw(self, xid: int, _commit_lsn: int) -> bool:
        return xid < 10

    def pieces(self) -> Iterator[SnapshotRows]:
        yield from ()

    def close(self) -> None:
        pass


def part(*changes: Change, xid: int = 10) -> TransactionPart:
    return TransactionPart(xid=xid, begin_lsn=1, commit_lsn=1, commit_ts=0, changes=changes)


def request(of: Relation, *, whole: bool = True) -> SnapshotRequest:
    condition = None if whole else "SELECT"
    return SnapshotRequest(schema=of.schema, table=of.table, signal="s", condition=condition)


def later(*changes: Change, whole: bool = True, of: Relation = T, xid: int = 10) -> LaterChanges:
    made = LaterChanges(
        Reading(of),
        [request(of, whole=whole)],
        lambda each: IDENTITIES[each.identity](each).identifying,
    )
    parts = [part(*changes, xid=xid)]
    assert made.split(parts) == (parts, [])
    return made


def rows(made: LaterChanges, *given: Tuple, of: Relation = T) -> list[Tuple]:
    """Return the rows of two pieces."""
    found: list[Tuple] = []
    for some, complete in ((given[:1], False), (given[1:], True)):
        piece = SnapshotRows(relation=of, rows=list(some), ts=0, lsn=1, xid=None, complete=complete)
        found += made.apply(piece).rows
    return found


CHANGES: list[Change] = [
    Update(T, 1, ("1", "new", UNCHANGED)),
    Delete(T, 1, ("2", ABSENT, ABSENT), OldTuple.KEY),
    Update(T, 1, ("2", "moved", UNCHANGED), ("1", ABSENT, ABSENT), OldTuple.KEY),
    Insert(T, 1, ("1", "again", "w")),
    Insert(OTHER, 1, ("1",)),
]


SENT = table("t", "large text", "id text", key=("id",))
OF_CHOSEN = [Update(T, 1, ("1", "new", UNCHANGED)), Update(T, 1, ("2", "b", "w"))]
APPLIED: dict[str, tuple[dict[str, Any], list[Change], list[Tuple], list[Tuple]]] = {
    "in their order": ({}, CHANGES, ROWS, [("3", "c", "z"), ("2", "moved", "x"), ("1", "again", "w")]),
    "none of transactions in the snapshot": ({"xid": 9}, CHANGES, ROWS, ROWS),
    "of chosen rows those that the stream sent are left out": (
        {"whole": False}, OF_CHOSEN, ROWS, [("3", "c", "z"), ("1", "new", "x")],
    ),
    "columns that are read and not sent, as generated ones, keep their values": (
        {}, [Update(SENT, 1, ("w", "1")), Insert(SENT, 1, ("v", "4"))], ROWS,
        [*ROWS[1:], ("1", "a", "w"), ("4", None, "v")],
    ),
    "a table without a key gets new rows": (
        {"of": BAG}, [Insert(BAG, 1, ("x",))] * 2, [("x",), ("y",)], [("x",), ("y",), ("x",), ("x",)],
    ),
}  # fmt: skip
"""How the changes come, which they are, the rows of the snapshot, and what they become."""


@pytest.mark.parametrize("case", APPLIED)
def test_rows_have_the_changes(case):
    how, changes, given, found = APPLIED[case]
    made = later(*changes, **how)
    assert made.usable
    assert rows(made, *given, of=how.get("of", T)) == found


@pytest.mark.parametrize(
    ("change", "of"),
    [
        (Truncate((OTHER, RENAMED), 1), T),
        (Update(RENAMED, 1, ("1", "new", "x")), T),
        (Insert(msgspec.structs.replace(OTHER, table="t"), 1, ("1",)), T),
        (Insert(table("t", "id text", "dropped text", key=("id",)), 1, ("1", "x")), T),
        (Insert(numbered("v", "id", "large"), 1, ("1", "x", "")), numbered("id", "v", "large")),
        (Delete(BAG, 1, ("x",), OldTuple.FULL), BAG),
        (Delete(T, 1, (ABSENT, "a", ABSENT), OldTuple.KEY), T),
    ],
)
def test_a_change_that_no_row_can_get_needs_another_snapshot(change, of):
    assert not later(change, of=of).usable


def test_too_many_changes_need_another_snapshot(monkeypatch):
    monkeypatch.setattr(later_changes, "MANY", 3)
    insert = Insert(T, 1, ("1", "a", "b"))
    assert later(insert, insert, insert).usable
    assert not later(insert, insert, insert, insert).usable
