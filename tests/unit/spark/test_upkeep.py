"""What was folded or merged beside the commits takes its place in a table that went on meanwhile."""

import msgspec

from waltap_spark.compaction_worker import CompactionResult, grafted
from waltap_spark.output import BasePart, ChangeSet, TableState


def sets(*names: str) -> tuple[ChangeSet, ...]:
    return tuple(ChangeSet(path=name, fingerprint="f", rows=1) for name in names)


def base(*names: str) -> tuple[BasePart, ...]:
    return tuple(BasePart(path=name, rows=9, columns={}, epoch=1) for name in names)


def table(
    parts: tuple[BasePart, ...], pending: tuple[ChangeSet, ...], key: tuple[str, ...] = ("id",)
) -> TableState:
    return TableState(
        schema="s", table="t", key=key, base=parts, pending=pending, changes=(*sets("0"), *pending)
    )


def paths(found: TableState | None) -> list[list[str]]:
    assert found is not None
    return [[each.path for each in some] for some in (found.base, found.pending, found.changes)]


BEFORE = table(base("b"), sets("1", "2"))
FOLDED = msgspec.structs.replace(BEFORE, base=base("b2"), pending=())


def test_changes_that_came_while_it_was_folded_stay_pending() -> None:
    now = table(base("b"), sets("1", "2", "3"))
    assert paths(grafted(now, CompactionResult(BEFORE, FOLDED))) == [
        ["b2"],
        ["3"],
        ["0", "1", "2", "3"],
    ]


def test_a_fold_of_a_table_that_got_another_base_or_key_counts_no_more() -> None:
    """By a snapshot, a truncate, or since its columns changed their names."""
    for now in (
        table(base("new"), sets("1", "2", "3")),
        table((), ()),
        table(base("b"), sets("3")),
        table(base("b"), sets("1", "2"), key=("other",)),
    ):
        assert grafted(now, CompactionResult(BEFORE, FOLDED)) is None


def test_merged_sets_stand_where_those_were_that_they_were_made_of() -> None:
    before = table(base("b"), sets("1", "2", "3"))
    merged = table(base("b"), sets("m", "3"))
    now = table(base("b"), sets("1", "2", "3", "4"))
    assert paths(grafted(now, CompactionResult(before, merged))) == [
        ["b"],
        ["m", "3", "4"],
        ["0", "m", "3", "4"],
    ]


def test_a_base_that_grew_by_added_rows_keeps_them() -> None:
    before = msgspec.structs.replace(table(base("1", "2"), ()), changes=sets("1", "2"))
    after = msgspec.structs.replace(before, base=base("m"), changes=sets("m"))
    now = msgspec.structs.replace(
        before, base=base("1", "2", "3"), changes=sets("1", "2", "3"), columns={"more": '"long"'}
    )
    found = grafted(now, CompactionResult(before, after))
    assert paths(found) == [["m", "3"], [], ["m", "3"]]
    assert found is not None
    assert found.columns == {"more": '"long"'}
