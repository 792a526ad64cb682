"""What tables are called in a catalogue, how their files are divided, and columns that the source drops."""

from pathlib import Path
from typing import Any

import pytest

from waltap_spark import session
from waltap_spark.formats.choice import FormatChoice
from waltap_spark.live import LiveTables

from tests.rigs.changelog import relation
from tests.rigs.spark import Rig

COLUMNS = [("id", "int4"), ("region", "text"), ("note", "text")]


pytestmark = pytest.mark.usefixtures("quick_plans")


def named(name: str) -> Any:
    return relation(f"targets.{name}", COLUMNS, numbers=(1, 2, 3), oid=70_000 + len(name))


ORDERS, CHANGES, AUDIT = named("orders"), named("orders_changes"), named("order_audit")
UPPER = relation("targets.ORDERS", COLUMNS, numbers=(1, 2, 3), oid=71_000)


def catalogue(**values: str) -> FormatChoice:
    own = {f"format.{name.replace('_', '.')}": value for name, value in values.items()}
    return FormatChoice("delta", {"format.catalog": "spark_catalog", **own})


def test_two_tables_never_share_a_target_and_a_rule_tells_them_apart(
    delta: Any, tmp_path: Path
) -> None:
    """A table that is called as another's history, and one whose name differs by case alone, in one commit
    with it; whichever comes first has the name. Nothing of the others is written until they have one."""
    rig = Rig(tmp_path, delta, catalogue(), parallel=2)
    tables = (ORDERS, CHANGES, UPPER)
    rig.db.insert(ORDERS, ["1", "eu", ORDERS.name])
    rig.commit()
    rig.apply()
    for table in tables:
        rig.db.insert(table, ["2", "eu", table.name])
    rig.commit()
    rig.apply()
    rig.check(ORDERS)
    for table in (CHANGES, UPPER):
        failed = rig.output.table(table.name).failed
        assert "WT-5246" in failed
        assert "targets.orders's already" in failed
        assert f"format.names = {table.name.replace('.', chr(92) + '.')}:NAME" in failed
    shown = {row["tableName"] for row in rig.spark.sql("SHOW TABLES IN targets").collect()}
    assert {"orders", "orders_changes"} == {name for name in shown if name.startswith("orders")}
    rig.choice = catalogue(
        names=r"targets\.(orders_changes):other.as_$1,targets\.ORDERS:other.upper"
    )
    rig.reopen()
    for table in tables:
        rig.db.update(table, ["2"], unsent=["note"], region="us")
    rig.commit()
    rig.apply()
    rig.check(*tables)
    held = rig.output.table(CHANGES.name).held
    assert held is not None
    assert held.targets["changes"].at == "`spark_catalog`.`other`.`as_orders_changes_changes`"
    rig.applier.close()
    rig.sink.close()


def test_a_table_that_was_there_before_is_not_taken(delta: Any, tmp_path: Path) -> None:
    """Neither somebody else's, nor that of another output of ours."""
    delta.sql("CREATE SCHEMA IF NOT EXISTS targets")
    delta.sql("CREATE TABLE targets.order_audit_changes (id int) USING delta")
    rig = Rig(tmp_path, delta, catalogue(), parallel=1)
    rig.db.insert(AUDIT, ["1", "eu", None])
    rig.commit()
    rig.apply()
    failed = rig.output.table(AUDIT.name).failed
    assert "WT-5246" in failed
    assert "is somebody else's" in failed
    assert delta.catalog.tableExists("targets.order_audit") is False
    rig.applier.close()
    rig.sink.close()


def test_files_are_divided_as_the_profile_says_also_after_a_rewrite(
    delta: Any, tmp_path: Path
) -> None:
    divided = FormatChoice(
        "delta",
        {
            "format.partition.by": r"targets\.by_region:region;targets\.lacks:absent",
            "format.cluster.by": r"targets\.by_note:region,id;.*/changes:_op",
        },
    )
    rig = Rig(tmp_path, delta, divided, parallel=2, type_change="string")
    by_region, by_note, lacks = named("by_region"), named("by_note"), named("lacks")
    for table in (by_region, by_note, lacks):
        rig.db.insert(table, ["1", "eu", "x"], ["2", "us", "y"])
    rig.commit()
    rig.apply()
    failed = rig.output.table(lacks.name).failed
    assert "WT-5234" in failed
    assert "divided by absent" in failed
    for table in (by_region, by_note):
        rig.db.update(table, ["1"], unsent=["note"], region="us")
    rig.commit()
    rig.apply()
    rig.check(by_region, by_note)
    text = relation(
        by_region.name, [("id", "text"), *COLUMNS[1:]], numbers=(1, 2, 3), oid=by_region.oid
    )
    rig.db.insert(text, ["three", "eu", None])
    rig.commit()
    rig.apply()
    rig.check(text)

    def detail(name: str, what: str) -> tuple[list[str], list[str]]:
        held = rig.output.table(name).held
        assert held is not None
        row = rig.spark.sql(f"DESCRIBE DETAIL {held.targets[what].at}").collect()[0]
        return row["partitionColumns"], row["clusteringColumns"]

    assert detail(by_region.name, "current") == (["region"], [])
    assert detail(by_region.name, "changes") == ([], ["_op"])
    assert detail(by_note.name, "current") == ([], ["region", "id"])
    rig.applier.close()
    rig.sink.close()


@pytest.mark.parametrize("table_format", ["parquet", "delta"])
def test_a_column_that_the_source_drops_goes_where_it_is_said_and_comes_back_empty(
    delta: Any, tmp_path: Path, table_format: str
) -> None:
    """One that files are divided by stays, and takes another name when it comes back."""
    in_place = table_format == "delta"
    by_note = {"format.partition.by": r"targets\.divided:note"} if in_place else {}
    rules = (r"targets\.(forgets|divided):drop", "keep")
    rig = Rig(tmp_path, delta, FormatChoice(table_format, by_note), parallel=1, dropped=rules)
    names = ("forgets", "keeps", "divided") if in_place else ("forgets", "keeps")
    for name in names:
        rig.db.insert(named(name), ["1", "eu", "old"], ["2", "us", "older"])
    rig.commit()
    rig.apply()
    for name in names:
        rig.db.update(named(name), ["1"], unsent=["note"], region="us")
    rig.commit()
    rig.apply()
    for name in names:
        less = relation(f"targets.{name}", COLUMNS[:2], numbers=(1, 2), oid=70_000 + len(name))
        rig.db.rows[less.name] = [row[:2] for row in rig.db.rows[less.name]]
        rig.db.insert(less, ["3", "eu"])
    rig.commit()
    rig.apply()
    tables = LiveTables(rig.spark, rig.output)
    assert tables.current("targets.forgets").columns == ["id", "region"]
    assert "note" not in tables.changes("targets.forgets").columns
    for name in names[1:]:
        assert "note" in tables.current(f"targets.{name}").columns
    rig.check(less)
    for name in names:
        anew = relation(
            f"targets.{name}",
            [*COLUMNS[:2], ("note", "int8")],
            numbers=(1, 2, 4),
            oid=70_000 + len(name),
        )
        rig.db.rows[anew.name] = [(*row, None) for row in rig.db.rows[anew.name]]
        rig.db.insert(anew, ["4", "eu", "4000000000"])
    rig.commit()
    rig.apply()
    for name in names:
        assert rig.output.table(name).failed == ""
        table = LiveTables(rig.spark, rig.output).current(f"targets.{name}")
        found = {row["id"]: row["note"] for row in table.collect()}
        assert found == {1: None, 2: None, 3: None, 4: 4_000_000_000}
    rig.applier.close()
    rig.sink.close()
