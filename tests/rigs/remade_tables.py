"""A table that is dropped and made anew, with a column of the same name and another type."""

from waltap_spark.live import LiveTables

from tests.rigs.changelog import relation
from tests.rigs.spark import Rig

NAME = "public.remade"


def the_history_of_the_one_before_stays(rig: Rig) -> None:
    """Values of both are read of the history, also where the name is taken once more."""
    rows: list[tuple[int, object, object, object]] = []
    kinds = (("text", "abc"), ("int4", "7"), ("bool", "t"))
    for at, (kind, value) in enumerate(kinds):
        table = relation(NAME, [("id", "int4"), ("v", kind)], numbers=(1, 2), oid=70_000 + at)
        rig.db.rows[NAME] = []
        rig.db.insert(table, ["1", value])
        rig.commit()
        rig.apply()
        state = rig.output.table("remade")
        assert state.failed == ""
        found = LiveTables(rig.spark, rig.output).current("remade").collect()
        assert [(row["id"], str(row["v"])) for row in found] == [(1, ("abc", "7", "True")[at])]
    rig.reopen()
    frame = LiveTables(rig.spark, rig.output).changes("remade").orderBy("_commit_lsn")
    rows = [(row["id"], row["v@2"], row["v@2'"], row["v"]) for row in frame.collect()]
    assert rows == [(1, "abc", None, None), (1, None, 7, None), (1, None, None, True)]
