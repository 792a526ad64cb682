"""The window: which rows of a chunk survive what streams by."""

from hypothesis import given, settings
from hypothesis import strategies as st
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


def after(*changes: Change, of: Relation = T, rows: list[Tuple] = ROWS) -> list[Tuple]:
    key = IDENTITIES[of.identity](of).identifying
    window = SnapshotWindow("w", of, list(rows), key)
    for change in changes:
        window.see(change)
    return window.rows()


def test_changes_of_other_tables_and_rows_do_not_matter():
    other = Relation(oid=2, schema="other", table="t", columns=T.columns, primary_key=("id",))
    assert (
        after(Delete(other, 1, ("2", "b", "y"), OldTuple.FULL), Insert(T, 1, ("7", "", ""))) == ROWS
    )


def test_truncate_of_the_table_drops_all():
    other = Relation(oid=2, schema="other", table="t", columns=())
    assert after(Truncate((other,), 1)) == ROWS
    assert after(Truncate((other, T), 1)) == []


def test_columns_are_known_by_name_over_versions_of_the_table():
    newer = relation("extra", "large", "id")
    assert after(Delete(newer, 1, (ABSENT, ABSENT, "2"), OldTuple.KEY)) == [ROWS[0], ROWS[2]]
    completed = after(Update(newer, 1, ("e", UNCHANGED, "2")))
    assert completed[-1] == ("2", "b", "y")


def test_the_key_of_an_index_identity_is_the_index():
    by_index = relation("id", "v", "large", identity="i", flagged=("v",))
    deleted = Delete(by_index, 1, (ABSENT, "b", ABSENT), OldTuple.KEY)
    assert after(deleted, of=by_index) == [ROWS[0], ROWS[2]]


def test_an_image_without_the_whole_key_finds_its_row_by_what_it_has():
    wide = relation("id", "v", "large", key=("id", "v"))
    assert after(Delete(wide, 1, ("2", ABSENT, ABSENT), OldTuple.KEY), of=wide) == [
        ROWS[0],
        ROWS[2],
    ]
    assert after(Delete(wide, 1, (ABSENT, ABSENT, ABSENT), OldTuple.KEY), of=wide) == ROWS


def test_without_a_key_one_equal_row_goes_for_each_that_went():
    keyless = relation("id", "v", key=(), identity="f")
    rows: list[Tuple] = [("1", "a"), ("1", "a"), ("2", "b")]
    gone = Delete(keyless, 1, ("1", "a"), OldTuple.FULL)
    assert after(gone, of=keyless, rows=rows) == [("1", "a"), ("2", "b")]
    assert after(gone, gone, gone, of=keyless, rows=rows) == [("2", "b")]
    changed = Update(keyless, 1, ("2", "c"), ("2", "b"), OldTuple.FULL)
    assert after(changed, of=keyless, rows=rows) == [("1", "a"), ("1", "a")]
    partly = Update(keyless, 1, ("3", UNCHANGED), ("2", "b"), OldTuple.FULL)
    assert after(partly, of=keyless, rows=rows) == [("1", "a"), ("1", "a"), ("3", "b")]
    assert after(Insert(keyless, 1, ("2", "b")), of=keyless, rows=rows) == rows


@settings(max_examples=500)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["insert", "update", "partial", "delete", "move"]),
            st.integers(0, 5),
            st.integers(0, 5),
            st.integers(0, 99),
        ),
        max_size=30,
    ),
    st.integers(0, 30),
)
def test_a_consumer_that_takes_changes_and_then_the_chunk_has_the_table(steps, read_at):
    """The table changes step by step; the chunk is read at one moment. All changes reach the consumer,
    those after that moment the window, too."""
    table: dict[str, Tuple] = {str(n): (str(n), "old", f"large {n}") for n in range(4)}
    chunk: list[Tuple] | None = None
    stream: list[Change] = []
    for number, (what, key, target, value) in enumerate(steps):
        if number == read_at:
            chunk = list(table.values())
        k, t, v = str(key), str(target), str(value)
        if what == "insert" and k not in table:
            table[k] = (k, v, f"inserted {v}")
            stream.append(Insert(T, number, table[k]))
        elif what == "update" and k in table:
            table[k] = (k, v, f"updated {v}")
            stream.append(Update(T, number, table[k]))
        elif what == "partial" and k in table:
            table[k] = (k, v, table[k][2])
            stream.append(Update(T, number, (k, v, UNCHANGED)))
        elif what == "delete" and k in table:
            del table[k]
            stream.append(Delete(T, number, (k, ABSENT, ABSENT), OldTuple.KEY))
        elif what == "move" and k in table and t not in table:
            old = table.pop(k)
            table[t] = (t, v, old[2])
            stream.append(Update(T, number, (t, v, UNCHANGED), (k, ABSENT, ABSENT), OldTuple.KEY))
    if chunk is None:
        chunk = list(table.values())
    window, seen = SnapshotWindow("w", T, chunk, (0,)), [c for c in stream if c.lsn >= read_at]
    has: dict[str, Tuple] = {}
    for change in stream:
        if change in seen:
            window.see(change)
        if isinstance(change, Delete):
            has.pop(str(change.old[0]), None)
        elif isinstance(change, Insert | Update):
            place = str(change.new[0])
            before = (
                has.pop(str(change.old[0]), None) if getattr(change, "old", ()) else has.get(place)
            )
            large = change.new[2]
            if large is UNCHANGED:
                large = before[2] if before else UNCHANGED
            has[place] = (place, change.new[1], large)
    for row in window.rows():
        has[str(row[0])] = row
    assert has == table
