"""Files of tables are tended by hand: few large ones, old ones gone, rows and past as they were."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.harness.changelog import relation
from tests.harness.spark import Rig

from waltap_spark.errors import CommitBegun, OutputInUse
from waltap_spark.formats import merging
from waltap_spark.formats.choice import FormatChoice
from waltap_spark.live import LiveTables
from waltap_spark.maintenance import maintain, take
from waltap_spark.output import CommitIntent, SparkOutput

pytestmark = pytest.mark.usefixtures("quick_plans")

LEFT = relation("public.left", [("id", "int4"), ("note", "text")])


@pytest.mark.parametrize("table_format", ["parquet", "delta"])
def test_maintenance_makes_few_files_and_changes_no_row(
    delta: Any, tmp_path: Path, table_format: str
) -> None:
    """Not while somebody writes, nor where a commit is half done. In place the version that counts is then
    the compacted one, and a table goes on from there."""
    values = {"format.retention.hours": "0"} if table_format == "delta" else {}
    rig = Rig(tmp_path, delta, FormatChoice(table_format, values), parallel=1, grace_s=0.0)
    for number in range(4):
        rig.db.insert(LEFT, [str(number), "x"])
        if number:
            rig.db.update(LEFT, ["0"], note=str(number))
        rig.commit()
        rig.apply()
    with pytest.raises(OutputInUse, match="WT-5203"):
        take(SparkOutput(rig.output.location))
    rig.applier.close()
    (told,) = maintain(rig.spark, SparkOutput(rig.output.location), grace_s=0.0)
    assert (told.table, told.skipped) == (LEFT.name, "")
    if table_format == "parquet":
        assert rig.output.table(LEFT.name).pending == ()
    else:
        assert told.after < told.before
    rig.check(LEFT)
    rig.reopen()
    rig.db.update(LEFT, ["1"], note="after")
    rig.commit()
    rig.apply()
    rig.check(LEFT)
    tables = LiveTables(rig.spark, rig.output)
    assert tables.changes(LEFT.name).count() == 8
    assert tables.at(datetime.now(UTC)).current(LEFT.name).count() == 4
    rig.applier.close()
    state = rig.applier.state
    rig.output.intend(
        CommitIntent(number=state.number + 1, mark=state.mark, identity=state.identity)
    )
    with pytest.raises(CommitBegun, match="WT-5247"):
        next(maintain(rig.spark, SparkOutput(rig.output.location)))
    rig.sink.close()


def test_files_of_the_last_commit_stay_until_the_next_one_is_there(
    delta: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long ago a compaction put others in their place, here by somebody else; and the version that
    our own compaction makes is that of the commit."""
    monkeypatch.setattr(merging, "VACUUM_S", 0.0)
    choice = FormatChoice("delta", {"format.retention.hours": "0"})
    rig = Rig(tmp_path, delta, choice, parallel=1)
    for number in range(3):
        rig.db.insert(LEFT, [str(number), "x"])
        rig.commit()
        rig.apply()
    then = list(rig.db.rows[LEFT.name])
    held = rig.output.table(LEFT.name).held
    assert held is not None
    for target in held.targets.values():
        rig.spark.sql(f"OPTIMIZE {target.at}")
    rig.db.update(LEFT, ["0"], note="y")
    rig.commit()
    rig.apply_and_die()
    now, rig.db.rows[LEFT.name] = rig.db.rows[LEFT.name], then
    rig.check(LEFT)
    rig.db.rows[LEFT.name] = now
    monkeypatch.setattr(merging, "COMPACT_STEPS", 1)
    rig.apply()
    rig.check(LEFT)
    assert LiveTables(rig.spark, rig.output).changes(LEFT.name).count() == 4
    held = rig.output.table(LEFT.name).held
    assert held is not None
    for target in held.targets.values():
        told = rig.spark.sql(f"DESCRIBE HISTORY {target.at}").collect()
        assert "VACUUM END" in {row["operation"] for row in told}
        (stands,) = (row["operation"] for row in told if row["version"] == target.version)
        assert stands in {"OPTIMIZE", "VACUUM END"}  # a table at rest goes on behind it
    rig.applier.close()
    rig.sink.close()
