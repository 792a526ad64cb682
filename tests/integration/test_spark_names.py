"""Columns that are called otherwise than in the source: keys, versions, renames and what was not sent."""

from pathlib import Path
from typing import Any

import pytest

from waltap_spark import small_sets
from waltap_spark.column_names import ColumnNames
from waltap_spark.live import LiveTables
from waltap_spark.modes import ModeRules

from tests.rigs.changelog import relation
from tests.rigs.spark import Rig

pytestmark = pytest.mark.usefixtures("quick_plans")

NAMES = ColumnNames(("snake",), (r"public\..*\.Note__c:remark",))
RULES = ModeRules(modes=(r"public\.versions:scd2", "scd1"))
COLUMNS = [("OrderID", "int4"), ("Full Name", "text"), ("Note__c", "text")]


@pytest.mark.parametrize(("table_format", "most"), [("parquet", 20_000), ("delta", 0)])
def test_columns_are_called_by_rules_through_all_that_becomes_of_a_table(
    delta: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table_format: str, most: int
) -> None:
    """Few rows are written by this process or by Spark, which both have to call columns so."""
    monkeypatch.setattr(small_sets, "SMALL_ROWS", most)
    rig = Rig(tmp_path, delta, table_format, modes=RULES, names=NAMES, fold_rows=0)
    tables = [
        relation(f"public.{name}", COLUMNS, numbers=(1, 2, 3), key=("OrderID",))
        for name in ("plain", "versions")
    ]
    clash = relation("public.clash", [("id", "int4"), ("userID", "text"), ("user_id", "text")])
    taken = relation("public.taken", [("id", "int4"), ("CommitLsn", "text"), ("_Op", "text")])
    rig.db.insert(clash, ["1", "a", "b"])
    rig.db.insert(taken, ["1", "a", "b"])
    for table in tables:
        rig.db.insert(table, ["1", "Ann", "long"], ["2", "Bob", "far"], ["3", "Eve", None])
    rig.commit()
    rig.apply()
    for table in tables:
        rig.db.update(table, ["1"], ["Note__c"], **{"Full Name": "Anna"})
        rig.db.update(table, ["2"], ["Note__c"], OrderID="20")
        rig.db.delete(table, ["3"])
    rig.commit()
    rig.apply()
    later = [("OrderID", "int8"), ("LastName", "text"), ("Note__c", "text")]
    for table in tables:  # ALTER TABLE … RENAME "Full Name" TO "LastName", and a wider key
        now = relation(table.name, later, numbers=(1, 2, 3), key=("OrderID",))
        rig.db.update(now, ["20"], ["Note__c"], LastName="Bobby")
    rig.commit()
    rig.apply()
    failed = {each.table: each.failed for each in rig.applier.state.tables.values() if each.failed}
    assert set(failed) == {"clash", "taken"}
    assert "WT-5259" in failed["clash"]
    assert "userID and user_id of public.clash would both be called user_id" in failed["clash"]
    assert "column _Op of public.taken" in failed["taken"]
    live = LiveTables(rig.spark, rig.output)
    for table in tables:
        frame = live.standing(table.name).select("order_id", "last_name", "remark")
        rows = sorted(tuple(row) for row in frame.collect())
        assert rows == [(1, "Anna", "long"), (20, "Bobby", "far")], table.name
        told = live.changes(table.name).where("size(_unchanged) > 0").selectExpr("_unchanged")
        assert {name for row in told.collect() for name in row[0]} == {"remark"}
    assert rig.output.table("plain").key == ("order_id",)
    rig.applier.close()
    rig.sink.close()
