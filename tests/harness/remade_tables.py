"""A table that is dropped and made anew, under whose name are other columns, or others of their names."""

from typing import Any

from tests.harness.changelog import relation
from tests.harness.spark import Rig

from waltap.changes.decode.relation import Relation
from waltap_spark.read.live import LiveTables
from waltap_spark.state.modes import ModeRules

NAME = "public.remade"


def the_history_of_the_one_before_stays(rig: Rig) -> None:
    """Values of both are read of the history, also where the name is taken once more."""
    rows: list[tuple[int, object, object, object]] = []
    kinds = (("text", "abc"), ("int4", "7"), ("bool", "t"))
    for at, (kind, value) in enumerate(kinds):
        table = relation(NAME, [("id", "int4"), ("v", kind)], numbers=(1, 2), oid=70_000 + at)
        begins(rig, table, ["1", value])
        found = current(rig)
        assert [(row["id"], str(row["v"])) for row in found] == [(1, ("abc", "7", "True")[at])]
    rig.reopen()
    rows = [(row["id"], row["v@2"], row["v@2'"], row["v"]) for row in history(rig)]
    assert rows == [(1, "abc", None, None), (1, None, 7, None), (1, None, None, True)]


def a_column_that_is_added_later_has_its_default(rig: Rig) -> None:
    """Rows of the new table have it that were folded beside columns of the old one."""
    rig.reopen(compact_sets=1)
    first = relation(NAME, [("id", "int4"), ("v", "text")], numbers=(1, 2), oid=70_000)
    second = relation(NAME, [("id", "int4"), ("v", "int4")], numbers=(1, 2), oid=70_001)
    begins(rig, first, ["1", "abc"])
    begins(rig, second, ["1", "10"], ["2", "20"])
    rig.db.update(second, ["1"], v="11")
    applied(rig)
    more = {"w": {"default": "5", "missing": "5"}}
    added = [("id", "int4"), ("v", "int4"), ("w", "int4")]
    third = relation(NAME, added, numbers=(1, 2, 3), oid=70_001, more=more)
    rig.db.rows[NAME] = [("1", "11", "5"), ("2", "20", "5")]
    rig.db.update(third, ["2"], v="21")
    applied(rig)
    rig.check(third)


def a_default_need_not_fit_the_type_of_a_former_column(rig: Rig) -> None:
    with_it = [("id", "int4"), ("w", "int4")]
    begins(rig, relation(NAME, with_it, numbers=(1, 2), oid=70_000), ["1", "3"])
    begins(rig, relation(NAME, [("id", "int4")], numbers=(1,), oid=70_001), ["1"])
    big = "5000000000"
    more = {"w": {"default": big, "missing": big}}
    added = [("id", "int4"), ("w", "int8")]
    table = relation(NAME, added, numbers=(1, 2), oid=70_001, more=more)
    rig.db.rows[NAME] = [("1", big)]
    rig.db.insert(table, ["2", "6"])
    applied(rig)
    rig.check(table)


def a_default_of_a_name_that_the_one_before_had_is_in_older_rows_or_in_doubt(rig: Rig) -> None:
    """Rows may be stored with that column, as null."""
    rig.reopen(compact_sets=1)
    wide, narrow = [("id", "int4"), ("w", "int4")], [("id", "int4")]
    begins(rig, relation(NAME, wide, numbers=(1, 2), oid=70_000), ["1", "3"])
    begins(rig, relation(NAME, narrow, numbers=(1,), oid=70_001), ["1"], ["2"])
    rig.update(relation(NAME, narrow, numbers=(1,), oid=70_001), ["1"], id="3")
    more = {"w": {"default": "5", "missing": "5"}}
    rig.insert(relation(NAME, wide, numbers=(1, 2), oid=70_001, more=more), ["4", "6"])
    found = dict(LiveTables(rig.spark, rig.output, allow_stale=True).current("remade").collect())
    assert found == {2: 5, 3: 5, 4: 6} or "w was added with a default" in doubts(rig)


def values_that_the_new_type_cannot_hold_stay(rig: Rig) -> None:
    """The column has the type that holds both, in the rows and in the history."""
    kinds = (("int8", "numeric(12,4)", "float8"), ("int4", "numeric(12,2)", "float4"))
    values = (["1", "5000000000", "1.2345", "0.1"], ["1", "7", "2.50", "0.5"])
    for at, row in enumerate(values):
        columns = [("id", "int4"), *zip("npd", kinds[at], strict=True)]
        begins(rig, relation(NAME, columns, numbers=range(1, 5), oid=70_000 + at), row)
    rig.reopen()
    found = [(row["n"], str(row["p"]), row["d"]) for row in history(rig)]
    assert found == [(5_000_000_000, "1.2345", 0.1), (7, "2.5000", 0.5)]
    assert [(row["n"], str(row["p"]), row["d"]) for row in current(rig)] == found[1:]


def a_column_that_was_renamed_before_keeps_its_history(rig: Rig) -> None:
    """Under the name that it had at last, also where the new table has its first one, or lacks it."""
    names = ((("a", "b"), (2, 3)), (("b", "c"), (2, 3)), (("b", "a"), (2, 3)))
    for at, (called, numbers) in enumerate(names):
        columns = [("id", "int4"), *((name, "text") for name in called)]
        oid = 70_000 if at < 2 else 70_001
        table = relation(NAME, columns, numbers=(1, *numbers), oid=oid)
        begins(rig, table, [str(at), f"{called[0]}{at}", f"{called[1]}{at}"])
    rig.reopen()
    found = [(row["b"], row["c"], row["a"]) for row in history(rig)]
    assert found == [("a0", "b0", None), ("b1", "c1", None), ("b2", None, "a2")]


def types_that_no_cast_makes_of_the_old_ones_are_taken_without_a_history(rig: Rig) -> None:
    """Nothing of the one before has to be kept."""
    rig.reopen(modes=ModeRules(history=("none",)))
    for at, kinds in enumerate((("text", "date", "_date"), ("_int4", "bool", "_int4"))):
        columns = [("id", "int4"), *zip("abc", kinds, strict=True)]
        table = relation(NAME, columns, numbers=range(1, 5), oid=70_000 + at)
        begins(rig, table, ["1", *(("x", "2024-02-29", None), ("{1}", "t", "{2}"))[at]])
    assert [tuple(row) for row in current(rig)] == [(1, [1], True, [2])]


COURSES = (
    the_history_of_the_one_before_stays,
    a_column_that_is_added_later_has_its_default,
    a_default_of_a_name_that_the_one_before_had_is_in_older_rows_or_in_doubt,
    values_that_the_new_type_cannot_hold_stay,
    a_column_that_was_renamed_before_keeps_its_history,
    types_that_no_cast_makes_of_the_old_ones_are_taken_without_a_history,
)


def begins(rig: Rig, table: Relation, *rows: list[str | None]) -> None:
    """Let ``table`` have ``rows``, and nothing that was there before."""
    rig.db.rows[NAME] = []
    rig.db.insert(table, *rows)
    applied(rig)


def applied(rig: Rig) -> None:
    rig.follow()
    assert rig.output.table("remade").failed == ""


def doubts(rig: Rig) -> str:
    return "; ".join(rig.output.table("remade").stale)


def current(rig: Rig) -> list[Any]:
    return LiveTables(rig.spark, rig.output).current("remade").collect()


def history(rig: Rig) -> list[Any]:
    frame = LiveTables(rig.spark, rig.output).changes("remade")
    return sorted(frame.collect(), key=lambda row: row["_commit_lsn"])
