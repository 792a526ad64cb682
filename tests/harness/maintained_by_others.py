"""Tables of a table format whose files their user compacts, and whose old versions he removes."""

from collections.abc import Callable

import pytest
from tests.harness.changelog import relation
from tests.harness.spark import Rig

from waltap_spark.apply import applier
from waltap_spark.read.live import LiveTables
from waltap_spark.state.output import TargetTable

COLUMNS = [("id", "int4"), ("note", "text")]
QUIET = relation("public.quiet", COLUMNS)
TOUCHED = relation("public.touched", COLUMNS)


def targets(rig: Rig, name: str) -> dict[str, TargetTable]:
    stored_table = rig.output.table(name).stored_table
    assert stored_table.targets
    return stored_table.targets


def a_table_at_rest_outlives_its_version(
    rig: Rig,
    monkeypatch: pytest.MonkeyPatch,
    compact: Callable[[str], object],
    clear: Callable[[str], object],
) -> None:
    """One table is compacted alone: its version goes, and changes come. Of another somebody took a row
    out before: it is suspended, as before.

    ``compact``, ``clear``: what a user does with a table, as SQL calls it.
    """
    monkeypatch.setattr(applier, "REST_S", 0.0)
    for number in ("1", "2"):  # two files
        for table in (QUIET, TOUCHED):
            rig.db.insert(table, [number, "a"])
        rig.follow()
    rig.check(QUIET, TOUCHED)
    before = {name: targets(rig, name) for name in ("quiet", "touched")}
    rig.spark.sql(f"DELETE FROM {before['touched']['current'].at} WHERE id = 1")
    for each in before.values():
        for target in each.values():
            compact(target.at)
    rig.apply()
    for what, target in before["quiet"].items():
        assert targets(rig, "quiet")[what].version != target.version
    assert targets(rig, "touched")["current"] == before["touched"]["current"]
    for target in before["quiet"].values():
        clear(target.at)
    rig.check(QUIET, TOUCHED)
    now = rig.output.state()
    assert now is not None
    assert LiveTables(rig.spark, rig.output).at(now.log_position).current("quiet").count() == 2
    for table in (QUIET, TOUCHED):
        rig.db.update(table, ["1"], note="b")
        rig.db.insert(table, ["3", "c"])
    rig.follow(QUIET)
    assert rig.output.table("quiet").failed == ""
    assert "WT-5235" in rig.output.table("touched").failed

    for target in before["quiet"].values():  # nobody looks in between
        compact(target.at)
        clear(target.at)
    rig.reopen()
    rig.db.update(QUIET, ["2"], unsent=["note"])
    rig.db.insert(QUIET, ["4", "e"])
    rig.follow()
    assert rig.output.table("quiet").failed == ""
    rig.check(QUIET)
