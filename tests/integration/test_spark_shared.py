"""Tables of several sources in one target: each source's rows are its own, whatever becomes of the others."""

from pathlib import Path
from typing import Any

import pytest
from tests.harness.changelog import relation
from tests.harness.shared_outputs import write_one_target
from tests.harness.shared_sources import INTO, RULES, run
from tests.harness.spark import Rig

from waltap_spark.formats.choice import FormatChoice
from waltap_spark.live import LiveTables
from waltap_spark.shared_targets import TargetMappings

pytestmark = pytest.mark.usefixtures("quick_plans")


def test_sources_of_one_target_keep_to_themselves_in_every_mode(spark: Any, tmp_path: Path) -> None:
    run(Rig(
        tmp_path, spark, "parquet", fold_rows=0, fold_sets=3, merge_sets=3, parallel=3,
        modes=RULES, places=INTO,
    ))  # fmt: skip


def test_so_they_do_where_the_target_is_one_table_of_delta_lake(delta: Any, tmp_path: Path) -> None:
    run(Rig(tmp_path, delta, "delta", parallel=3, modes=RULES, places=INTO))


def test_pipelines_share_targets_of_a_catalogue(
    delta: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choice = FormatChoice("delta", {"format.catalog": "spark_catalog"})
    try:
        write_one_target(tmp_path, delta, choice, "spark_catalog.`all`.{}", monkeypatch)
    finally:
        delta.sql("DROP SCHEMA IF EXISTS spark_catalog.`all` CASCADE")


def test_a_table_that_a_rule_gave_no_name_has_the_place_that_a_mended_one_gives(
    spark: Any, tmp_path: Path
) -> None:
    rig = Rig(tmp_path, spark, places=TargetMappings((r"t(\d)?\.(.*):all.$2@$1",)))
    table = relation("t.orders", [("id", "int4")])
    rig.db.insert(table, ["1"])
    rig.commit()
    rig.apply()
    failed = rig.output.table("t.orders").failed
    assert "WT-5261" in failed
    assert "t.orders no name" in failed
    rig.reopen(places=TargetMappings((r"t\.(.*):all.$1@only",)))
    rig.db.insert(table, ["2"])
    rig.commit()
    rig.apply()
    rows = LiveTables(rig.spark, rig.output).current("all.orders").collect()
    assert sorted((row["id"], row["_source"]) for row in rows) == [(1, "only"), (2, "only")]
    rig.applier.close()
    rig.sink.close()
