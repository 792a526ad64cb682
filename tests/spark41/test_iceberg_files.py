"""Rows of Iceberg tables that the driver writes without Spark; Spark reads what the model has."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.harness.spark import Rig
from tests.harness.spark_cost import counted
from tests.integration.test_spark_delta_files import LEFT, SKIPPED, _equals, listed, many
from tests.integration.test_spark_delta_replace import (  # noqa: F401 - pytest runs them with the rig below
    left,
    replaced,
    test_a_commit_beside_a_compaction_is_made_again,
    test_a_driver_that_dies_at_its_commit_loses_and_doubles_nothing,
    test_a_snapshot_is_written_without_a_job_and_removes_the_earlier_rows,
    test_files_are_older_than_the_columns,
    test_random_changes_of_a_key_of_two_columns,
)

from waltap_spark.config.targets import FileLayout
from waltap_spark.formats import merging
from waltap_spark.formats.iceberg import OWN
from waltap_spark.formats.small_files import iceberg as iceberg_files
from waltap_spark.formats.small_files.iceberg import DataFile, IcebergTable
from waltap_spark.formats.stepwise import CommitNote
from waltap_spark.schema.expression import GONE
from waltap_spark.state.output import TargetTable

NOTE = CommitNote(waltap="test", step=1)


@pytest.fixture
def rig(iceberg, tmp_path) -> Rig:
    made = Rig(tmp_path, iceberg, "iceberg", parallel=1)
    # the session of the tests has the catalogue once the format has looked for a table
    assert made.applier.format.commits(made.spark, TargetTable(at=f"{OWN}.public.none")) is None
    return made


@pytest.fixture
def typed(rig) -> Iterator[TargetTable]:
    """A table with a column of each type, and a note for the versions that a test makes."""
    left(rig, 1)
    at = rig.target(LEFT).at.replace("left", "typed")
    form = rig.applier.format
    with form.noted(rig.spark, NOTE):
        form.create(rig.spark, at, listed(), FileLayout())
        yield TargetTable(at=at)


def texts(rig: Rig, at: str) -> list[tuple[Any, ...]]:
    there = rig.spark.table(at)
    cast = [f"cast(`{name.replace('`', '``')}` as string)" for name in there.columns]
    return sorted(map(tuple, there.selectExpr(*cast).collect()), key=str)


def test_every_type_reads_back_as_spark_wrote_it_and_no_row_is_skipped(rig, typed):
    """A file of each row, so that statistics of one row decide, and one of all rows."""
    rows = many()
    for part in (rows, *(rows.slice(n, 1) for n in range(rows.num_rows))):
        with counted(rig.spark) as cost:
            assert rig.applier.format.write_here(rig.spark, typed, part, replaces=False)
        assert not cost.data_jobs
    ours, there = texts(rig, typed.at), rig.spark.table(typed.at)
    frame = rig.spark.createDataFrame(rows, there.schema)
    values = frame.selectExpr("id", *(f"cast(`{name}` as string) as `{name}`" for name in SKIPPED))
    for row in values.collect():
        # Iceberg skips a file that one of them rules out
        equal = [_equals(name, row[name], rows.column(name)[row.id].as_py()) for name in SKIPPED]
        assert there.where(" AND ".join([f"id = {row.id}", *equal])).count() == 2
    frame.createOrReplaceTempView("rows_of_spark")
    rig.spark.sql(f"INSERT OVERWRITE {typed.at} SELECT * FROM rows_of_spark")
    assert ours == sorted(2 * texts(rig, typed.at), key=str)


def test_rows_of_spark_are_the_same_in_a_file_that_is_written_again(rig, typed):
    form, gone = rig.applier.format, pa.array([True])
    rig.spark.createDataFrame(many(), rig.spark.table(typed.at).schema).coalesce(
        1
    ).createOrReplaceTempView("rows_of_spark")
    rig.spark.sql(f"INSERT INTO {typed.at} SELECT * FROM rows_of_spark")
    net = many().select(["id"]).slice(3).append_column(GONE, gone)
    # Spark's file has another name for a field with a space
    assert form.replacing(rig.spark, typed, ["id"], lambda: net) is None
    rig.spark.sql(f"ALTER TABLE {typed.at} DROP COLUMN r")
    before = texts(rig, typed.at)
    write = form.replacing(rig.spark, typed, ["id"], lambda: net)
    assert write is not None
    write()
    assert texts(rig, typed.at) == before[:3]


def test_a_field_that_is_dropped_and_added_again_has_no_values(rig, typed):
    assert rig.applier.format.write_here(rig.spark, typed, many(), replaces=False)
    before = IcebergTable(rig.spark, typed.at)
    files = before.files()
    assert files
    assert before.rows(files[0]) is not None
    rig.spark.sql(f"ALTER TABLE {typed.at} DROP COLUMN r.`x y`")
    rig.spark.sql(f"ALTER TABLE {typed.at} ADD COLUMN r.`x y` int FIRST")
    assert IcebergTable(rig.spark, typed.at).rows(files[0]) is None
    net = many().select(["id"]).slice(3).append_column(GONE, pa.array([True]))
    assert rig.applier.format.replacing(rig.spark, typed, ["id"], lambda: net) is None


def deletes(rig: Rig) -> list[DataFile]:
    files = IcebergTable(rig.spark, rig.target(LEFT).at).files()
    assert files
    return [file for file in files if file.deletes != ()]


def test_rows_that_spark_marked_as_deleted_stay_away(rig, monkeypatch):
    left(rig)
    with monkeypatch.context() as patch:
        patch.setattr(iceberg_files, "SMALL_TABLE", 0)
        rig.update(LEFT, ["1"], amount="100")
        rig.update(LEFT, ["2"], amount="200")
        rig.db.delete(LEFT, ["0"])
        rig.follow()
    assert deletes(rig)
    rig.db.update(LEFT, ["3"], amount="300")
    replaced(rig)
    rig.check(LEFT)
    assert not deletes(rig)


def test_a_table_whose_rows_have_ids_is_left_to_spark(rig):
    left(rig)
    at = rig.target(LEFT).at
    rig.spark.sql(f"ALTER TABLE {at} SET TBLPROPERTIES ('format-version' = '3')")
    assert IcebergTable(rig.spark, at).schema is None
    rig.db.update(LEFT, ["1"], amount="100")
    rig.follow(LEFT)


@pytest.mark.parametrize("large", [False, True], ids=["small files", "large files"])
def test_files_are_joined_and_no_row_changes(rig, monkeypatch, *, large):
    monkeypatch.setattr(merging, "COMPACT_STEPS", 6)
    if large:
        monkeypatch.setattr(iceberg_files, "SMALL_FILE", 0)
        monkeypatch.setattr(iceberg_files, "FILES", 2)
    left(rig, 2)
    jobs = 0
    for number in range(3, 13):
        rig.write(LEFT, [str(number), "1", None])
        with counted(rig.spark) as cost:
            rig.apply()
        jobs += len(cost.data_jobs)
    assert bool(jobs) == large
    rig.check(LEFT)
    for target in rig.output.table("left").stored_table.targets.values():
        assert rig.applier.format.files(rig.spark, target.at) <= 7
        found = rig.spark.sql(f"SELECT operation FROM {target.at}.snapshots").collect()
        assert "replace" in {row["operation"] for row in found}


def rig_files(rig: Rig) -> list[Path]:
    return list((rig.folder / "out").glob("iceberg/public/left/current/data/*.parquet"))


def test_a_commit_of_another_program_in_between_loses_nothing(rig, monkeypatch):
    left(rig)
    replace = IcebergTable.replace

    def late(table: IcebergTable, *arguments: Any) -> int:
        rig.spark.sql(f"DELETE FROM {rig.target(LEFT).at} WHERE id = 5")
        return replace(table, *arguments)

    data = len(rig_files(rig))
    with monkeypatch.context() as patch:
        patch.setattr(IcebergTable, "replace", late)
        rig.db.update(LEFT, ["1"], amount="5")
        rig.follow()
    assert "was written by another program (delete" in rig.output.table("left").failed
    assert len(rig_files(rig)) == data + 1  # the mark of Spark's; the file of the commit is removed
    at = rig.target(LEFT)
    catalog, _, name = at.at.partition(".")
    rig.spark.sql(f"CALL {catalog}.system.rollback_to_snapshot('{name}', {at.version})")
    rig.reopen()
    rig.apply(LEFT)
