"""The window: which rows of a chunk survive what streams by."""

import msgspec
import pytest
from tests.harness.json_events import IDENTITIES, table

from waltap.changes.decode.message import Change, Delete, Insert, OldTuple, Truncate, Update
from waltap.changes.decode.relation import Relation
from waltap.changes.decode.tuple_image import ABSENT, UNCHANGED, Tuple
from waltap.ports.snapshot.window import SnapshotWindow


def relation(
    *names: str, key: tuple[str, ...] = ("id",), identity: str = "d", flagged: tuple[str, ...] = ()
) -> Relation:
    return table("t", *(f"{n} text" for n in names), key=key, identity=identity, index=flagged)


T = relation("id", "v", "large")
ROWS: list[Tuple] = [("1", "a", "x"), ("2", "b", "y"), ("3", "c", "z")]
OTHER = Relation(oid=2, schema="other", table="t", columns=T.columns, primary_key=("id",))
NEWER = relation("extra", "large", "id")
BY_INDEX = relation("id", "v", "large", identity="i", flagged=("v",))
WIDE = relation("id", "v", "large", key=("id", "v"))
KEYLESS = relation("id", "v", key=(), identity="f")
TWICE: list[Tuple] = [("1", "a"), ("1", "a"), ("2", "b")]
GONE = Delete(KEYLESS, 1, ("1", "a"), OldTuple.FULL)
FIRST_AND_LAST = [ROWS[0], ROWS[2]]

WINDOWS: dict[str, tuple[Relation, list[Tuple], list[Change], list[Tuple]]] = {
    "changes of other tables and rows do not matter": (
        T, ROWS, [Delete(OTHER, 1, ("2", "b", "y"), OldTuple.FULL), Insert(T, 1, ("7", "", ""))], ROWS,
    ),
    "nor does a truncate of another table": (T, ROWS, [Truncate((OTHER,), 1)], ROWS),
    "a truncate of the table drops all": (T, ROWS, [Truncate((OTHER, T), 1)], []),
    "columns are known by name over versions of the table": (
        T, ROWS, [Delete(NEWER, 1, (ABSENT, ABSENT, "2"), OldTuple.KEY)], FIRST_AND_LAST,
    ),
    "also those that were not sent": (
        T, ROWS, [Update(NEWER, 1, ("e", UNCHANGED, "2"))], [*FIRST_AND_LAST, ("2", "b", "y")],
    ),
    "the key of an index identity is the index": (
        BY_INDEX, ROWS, [Delete(BY_INDEX, 1, (ABSENT, "b", ABSENT), OldTuple.KEY)], FIRST_AND_LAST,
    ),
    "an image without the whole key finds its row by what it has": (
        WIDE, ROWS, [Delete(WIDE, 1, ("2", ABSENT, ABSENT), OldTuple.KEY)], FIRST_AND_LAST,
    ),
    "and none by nothing": (WIDE, ROWS, [Delete(WIDE, 1, (ABSENT, ABSENT, ABSENT), OldTuple.KEY)], ROWS),
    "without a key one equal row goes for each that went": (KEYLESS, TWICE, [GONE], TWICE[1:]),
    "and no more than there are": (KEYLESS, TWICE, [GONE, GONE, GONE], TWICE[2:]),
    "an update takes its row out": (
        KEYLESS, TWICE, [Update(KEYLESS, 1, ("2", "c"), ("2", "b"), OldTuple.FULL)], TWICE[:2],
    ),
    "and puts it back with what was not sent": (
        KEYLESS, TWICE, [Update(KEYLESS, 1, ("3", UNCHANGED), ("2", "b"), OldTuple.FULL)], [*TWICE[:2], ("3", "b")],
    ),
    "an insert takes none out": (KEYLESS, TWICE, [Insert(KEYLESS, 1, ("2", "b"))], TWICE),
}  # fmt: skip
"""The table, the rows of a chunk, what streams by, and what is left."""


@pytest.mark.parametrize("case", WINDOWS)
def test_rows_that_a_change_concerns_leave_the_window(case):
    of, rows, changes, left = WINDOWS[case]
    window = SnapshotWindow("w", of, list(rows), IDENTITIES[of.identity](of).identifying)
    for change in changes:
        window.see(change)
    assert window.rows() == left


@pytest.mark.parametrize("names", [("ident", "v", "large"), ("v", "id", "large"), ("id", "v", "l")])
def test_a_chunk_is_read_again_when_a_column_has_another_name(names):
    """Images of the row have its key, or a value that the row is to keep, under a name that the chunk lacks."""
    before, after = (
        msgspec.structs.replace(
            each,
            columns=tuple(
                msgspec.structs.replace(column, number=n)
                for n, column in enumerate(each.columns, 1)
            ),
        )
        for each in (T, relation(*names, key=names[:1]))
    )
    window = SnapshotWindow("w", before, list(ROWS), (0,))
    window.see(Update(before, 1, ("1", "new", "x")))
    assert window.rows() == ROWS[1:]
    window.see(Delete(after, 2, ("2", ABSENT, ABSENT), OldTuple.KEY))
    assert (window.renamed, window.rows()) == (True, [])
