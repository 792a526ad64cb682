"""Tables in Apache Iceberg while they are written: files that are maintained, and a comparison with the source."""

import pytest
from tests.fault.test_spark_executor_kills import ON_A_CLUSTER, banks, each_dies_in_turn
from tests.harness.busy_lake import looks_right_while_it_runs
from tests.harness.changelog import relation
from tests.harness.failing_steps import (
    steps_that_fail_are_taken_once,
    upkeep_that_fails_takes_nothing_back,
)
from tests.harness.lake import Lake
from tests.harness.maintained_by_others import a_table_at_rest_outlives_its_version
from tests.harness.remade_tables import COURSES as REMADE
from tests.harness.renamed_tables import COURSES as RENAMED
from tests.harness.renamed_tables import names_are_the_tables_own
from tests.harness.servers import spark_jars
from tests.harness.shared_outputs import sources_keep_to_themselves
from tests.harness.spark import Rig
from tests.integration.test_spark_lake import OPTIONS, SOURCE, nested_values_follow, site
from tests.integration.test_spark_modes import rows_have_columns_of_their_changes
from tests.integration.test_spark_renames import tables_follow_the_renames_of_a_server
from tests.integration.test_spark_snapshots import Tables, die_between_two_steps
from tests.integration.test_spark_tables import GROUPS, NAMED, play

from waltap_spark.apply.maintenance import maintain
from waltap_spark.formats.choice import FormatChoice
from waltap_spark.read.live import LiveTables
from waltap_spark.state.modes import ModeRules
from waltap_spark.state.output import SparkOutput

LEFT = relation("public.left", [("id", "int4"), ("amount", "int8"), ("note", "text")])
__all__ = ["banks", "site"]


@pytest.fixture
def rig(iceberg, tmp_path) -> Rig:
    return Rig(tmp_path, iceberg, "iceberg", parallel=2, retention_s=0.0)


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("columns that come and go within a transaction", "rows"),
        ("tables without a row, read and emptied", "rows"),
        ("rows of a snapshot that breaks off, in every way in which it goes on", "past"),
        ("what comes again lacks a column that was added", "alone"),
    ],
)
def test_tables_follow_their_source(iceberg, tmp_path, name, group):
    play(tmp_path, iceberg, GROUPS[group], NAMED[name][1], "iceberg")


def test_sources_of_one_target_keep_to_themselves(iceberg, tmp_path):
    sources_keep_to_themselves(tmp_path, iceberg, "iceberg")


def test_steps_that_fail_are_taken_once(rig):
    steps_that_fail_are_taken_once(rig)


def test_upkeep_that_fails_takes_nothing_back(rig):
    upkeep_that_fails_takes_nothing_back(rig)


def test_maintenance_makes_few_files_and_who_reads_an_older_version_goes_on(rig):
    rig.insert(LEFT, ["1", "5", "n"])
    for number in range(4):
        rig.db.insert(LEFT, [str(number + 2), "5", "n"])
        rig.db.update(LEFT, ["1"], amount=str(number))
        rig.follow()
    tables = LiveTables(rig.spark, rig.output)
    end, _rows = rig.db.history[1]
    reader = tables.at(end).current(LEFT.name).orderBy("id")
    rig.applier.close()
    (reported,) = maintain(rig.spark, SparkOutput(rig.output.location), retention_s=0.0)
    assert reported.skipped == ""
    assert reported.after < reported.before
    assert [tuple(row) for row in reader.collect()] == [(1, 0, "n"), (2, 5, "n")]
    rig.check(LEFT)
    rig.reopen()
    rig.update(LEFT, ["1"], amount="9", unsent=["note"])
    rig.check(LEFT)


def test_a_table_that_is_compacted_and_cleared_by_its_user_goes_on(rig, monkeypatch):
    def call(procedure: str, at: str, options: str) -> None:
        name = at.replace("`", "")
        rig.spark.sql(
            f"CALL waltap_iceberg.system.{procedure}(table => '{name}', {options})"
        ).collect()

    later = "TIMESTAMP '2100-01-01 00:00:00'"
    a_table_at_rest_outlives_its_version(
        rig,
        monkeypatch,
        lambda at: call("rewrite_data_files", at, "options => map('rewrite-all', 'true')"),
        lambda at: call("expire_snapshots", at, f"older_than => {later}, retain_last => 1"),
    )


@pytest.mark.parametrize("course", [*REMADE, *RENAMED], ids=lambda course: course.__name__)
def test_a_table_that_is_made_anew_or_renamed(rig, course):
    course(rig)


@pytest.mark.parametrize("course", RENAMED, ids=lambda course: course.__name__)
def test_a_table_in_a_catalogue_is_renamed_there(iceberg, tmp_path, course):
    own = course.__name__
    values = {"format.catalog": "lake", "format.names": rf"public\.(.*):{own}.$1"}
    rig = Rig(tmp_path, iceberg, FormatChoice("iceberg", values), parallel=2)
    course(rig)
    names_are_the_tables_own(rig, f"lake.{own}")


def test_tables_follow_the_renames_of_a_server(database, iceberg, tmp_path):
    tables_follow_the_renames_of_a_server(Lake(database, tmp_path, iceberg, "iceberg"))


def test_deleted_rows_stay_under_a_flag_that_iceberg_has_no_name_for(iceberg, tmp_path):
    """`_deleted` is a column of Iceberg's own; several sessions apply, and each has the catalogue."""
    kept = ModeRules(deletes=("soft",))
    rig = Rig(tmp_path, iceberg, "iceberg", parallel=3, modes=kept)
    rig.insert(LEFT, ["1", "5", "n"], ["2", "6", "m"])
    rig.db.delete(LEFT, ["1"])
    rig.follow()
    tables = LiveTables(rig.spark, rig.output)
    flags = {row["id"]: row["_deleted"] for row in tables.current(LEFT.name).collect()}
    assert flags == {1: True, 2: False}
    assert [row["id"] for row in tables.live_rows(LEFT.name).collect()] == [2]
    stored_table = rig.output.table(LEFT.name).stored_table
    stored = rig.spark.sql(f"SELECT id FROM {stored_table.targets['current'].at} WHERE _is_deleted")
    assert [row["id"] for row in stored.collect()] == [1]


def test_extra_columns_are_what_the_log_has_of_the_change_that_made_a_row(iceberg, tmp_path):
    rows_have_columns_of_their_changes(tmp_path, iceberg, "iceberg")


def test_a_snapshot_that_tasks_read_has_one_set_of_rows_whoever_dies(iceberg, tmp_path):
    die_between_two_steps(Tables(tmp_path, iceberg, "iceberg"))


def test_nested_values_follow_the_source_and_their_types_grow(iceberg, database, tmp_path, site):
    nested_values_follow(
        Lake(database, tmp_path, iceberg, "iceberg", source=SOURCE, plugins=site, **OPTIONS)
    )


def test_who_looks_while_both_sides_are_written_finds_what_is_so(iceberg, database, tmp_path):
    looks_right_while_it_runs(database, tmp_path, iceberg, "iceberg")


@pytest.mark.timeout(1500)  # five starts of Spark, on a machine that may have much to do
def test_executor_driver_and_engine_are_killed_while_tasks_read(banks, request):
    bank = banks({**ON_A_CLUSTER, "format": "iceberg", "spark.jars": spark_jars.iceberg()})
    each_dies_in_turn(bank, lambda: request.getfixturevalue("iceberg"))
