"""Tables in Delta Lake: kept by MERGE, one cut over all, exactly once whatever happens between, and whoever writes them."""

import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.errors import PySparkException
from tests.harness.changelog import relation
from tests.harness.failing_steps import (
    merging_alone,
    steps_that_fail_are_taken_once,
    upkeep_that_fails_takes_nothing_back,
)
from tests.harness.maintained_by_others import a_table_at_rest_outlives_its_version
from tests.harness.remade_tables import COURSES as REMADE
from tests.harness.spark import Rig, folder_of
from tests.integration.test_spark_applier import PEOPLE

from waltap_spark.apply import applier
from waltap_spark.config.properties import SparkProperties
from waltap_spark.driver.follower import LogFollower
from waltap_spark.errors import TargetChanged, VersionGone
from waltap_spark.formats import delta as delta_format
from waltap_spark.formats.work import TableWriter
from waltap_spark.read.live import LiveTables
from waltap_spark.state.modes import ModeRules

# --- commits --------------------------------------------------------------------------------------

LEFT = relation("public.left", [("id", "int4"), ("amount", "int8"), ("note", "text")])
RIGHT = relation("public.right", [("id", "int4"), ("amount", "int8"), ("note", "text")])


@pytest.fixture
def rig(delta, tmp_path) -> Rig:
    return Rig(tmp_path, delta, "delta", parallel=2)


CODES = relation(
    "public.codes",
    [("small", "int2"), ("large", "int8"), ("code", "text"), ("name", "text"), ("note", "text")],
    key=("small", "large", "code"),
)


def test_rows_are_found_by_keys_whatever_is_in_them(rig, monkeypatch):
    """Few keys are listed in SQL: of each type the least value, quotes, and what Spark replaces there."""
    monkeypatch.setattr(delta_format, "SMALL_TABLE", 0)
    odd = ("-32768", "-9223372036854775808", "it's \\' ${spark.app.name}\n\u00e9\U0001d11e%_")
    rows = [
        odd,
        ("1", "2", odd[2]),
        ("1", "2", ""),
        ("1", "3", "x"),
        ("2", "2", "x"),
        ("5", "5", "5"),
    ]
    rig.db.insert(CODES, *[[*key, "old", "long"] for key in rows])
    rig.follow()
    rig.db.update(CODES, odd, ["note"], name="new")
    rig.db.update(CODES, rows[1], ["note"], large="3")
    rig.db.delete(CODES, rows[3])
    rig.db.update(CODES, rows[4], ["note"], code=odd[2], small=odd[0])
    rig.db.insert(CODES, ["9", "9", "${env:PATH}", "new", None])
    rig.follow()
    rig.check(CODES)
    operations = rig.spark.sql(f"DESCRIBE HISTORY {rig.target(CODES).at}")
    assert {row.operation for row in operations.collect()} == {"CREATE TABLE", "WRITE"}


def test_a_small_table_is_rewritten_unless_its_change_data_feed_shows_each_row(rig):
    rig.insert(LEFT, *[[str(number), None, "x"] for number in range(5)])
    at = rig.target(LEFT).at
    rig.spark.sql(f"ALTER TABLE {at} SET TBLPROPERTIES (delta.enableChangeDataFeed = true)")
    rig.insert(LEFT, ["9", None, "x"])
    since = rig.target(LEFT).version + 1
    rig.update(LEFT, ["1"], note="z")
    feed = rig.spark.read.format("delta").option("readChangeFeed", "true")
    path = at.removeprefix("delta.`").removesuffix("`")
    assert feed.option("startingVersion", since).load(path).count() == 2
    rig.check(LEFT)


def test_changes_that_leave_no_row_are_a_step_too(rig):
    """Delta records no commit without files unless its session asks for one; the table was suspended then."""
    rig.insert(LEFT, *[[str(number), "1", "old"] for number in range(1000)])
    for rows in (1, 300):
        for number in range(2000, 2000 + rows):
            rig.db.insert(LEFT, [str(number), "1", "passes"])
            rig.db.delete(LEFT, (str(number),))
        rig.follow()
    rig.insert(LEFT, ["5000", "1", "stays"])
    rig.check(LEFT)


def test_a_driver_that_died_before_a_tables_first_version_leaves_no_table(rig):
    (rig.folder / "out/tables/public/left/delta/current/_delta_log/_staged_commits").mkdir(
        parents=True
    )
    rig.insert(LEFT, ["1", "1", "x"])
    rig.check(LEFT)


def test_steps_that_fail_are_taken_once(rig):
    steps_that_fail_are_taken_once(rig)


def test_upkeep_that_fails_takes_nothing_back(rig):
    upkeep_that_fails_takes_nothing_back(rig)


def test_a_table_whose_log_forgot_the_version_that_counts_goes_on(rig):
    """Delta removes what is older than its retention as it writes a checkpoint, which may be our next commit."""
    rig.insert(PEOPLE, ["1", "a", None])
    stored_table = rig.output.table("people").stored_table
    for target in stored_table.targets.values():
        rig.spark.sql(
            f"ALTER TABLE {target.at} SET TBLPROPERTIES ('delta.checkpointInterval' = '1', "
            "'delta.logRetentionDuration' = 'interval 7 days')"
        )
    rig.insert(PEOPLE, ["2", "b", None])
    long_ago = time.time() - 10 * 24 * 3600
    logs = list(Path(rig.output.location).glob("tables/*/*/delta/*/_delta_log/*"))
    for path in logs:
        os.utime(path, (long_ago, long_ago))
    rig.insert(PEOPLE, ["3", "c", None])
    assert rig.output.table("people").failed == ""
    assert logs
    assert not any(path.exists() for path in logs if path.suffix == ".json")
    rig.check(PEOPLE)


def test_a_table_writes_its_checkpoints_at_its_interval_also_when_it_is_rewritten(
    delta, tmp_path, monkeypatch
):
    monkeypatch.setattr(delta_format, "CHECKPOINT", 2)
    rig = Rig(tmp_path, delta, "delta", type_change="string", modes=ModeRules(history=("none",)))
    rewritten = relation("public.left", [("id", "int4"), ("amount", "text"), ("note", "text")])
    for number, table in enumerate((LEFT, rewritten, rewritten)):
        rig.insert(table, [str(number), "1", "x"])
    target = rig.target(LEFT)
    properties = dict(rig.spark.sql(f"SHOW TBLPROPERTIES {target.at}").collect())
    interval = delta_format.checkpoint_interval(target.at)
    assert properties["delta.checkpointInterval"] == str(interval)
    logs = (folder_of(target) / "_delta_log").glob("*.checkpoint.parquet")
    made = {int(path.name[:20]) for path in logs}
    assert made
    assert not any(version % interval for version in made)


def test_a_session_may_have_an_interval_of_its_own(rig):
    """Settings of its start are in each session of the driver, as in the one that is asked here."""
    assert "checkpointInterval" in delta_format.table_properties(rig.spark, "delta.`/t`")
    rig.spark.conf.set(delta_format.INTERVALS, "50")
    assert "checkpointInterval" not in delta_format.table_properties(rig.spark, "delta.`/t`")


def test_a_table_that_is_compacted_and_cleared_by_its_user_goes_on(rig, monkeypatch):
    check = "spark.databricks.delta.retentionDurationCheck.enabled"
    rig.spark.conf.set(check, "false")
    # VACUUM lists a folder by ten thousand tasks otherwise
    rig.spark.conf.set("spark.sql.sources.parallelPartitionDiscovery.parallelism", "2")
    a_table_at_rest_outlives_its_version(
        rig,
        monkeypatch,
        lambda at: rig.spark.sql(f"OPTIMIZE {at}").collect(),
        lambda at: rig.spark.sql(f"VACUUM {at} RETAIN 0 HOURS").collect(),
    )


@pytest.mark.parametrize("course", REMADE, ids=lambda course: course.__name__)
def test_a_table_that_is_made_anew(rig, course):
    course(rig)


def test_an_attempt_that_is_made_again_may_be_longer_than_what_a_young_driver_takes(rig):
    """The driver that died had taken three manifests at once; its successor begins with one."""
    rig.insert(PEOPLE, ["1", "a", "n"])
    for number in range(3):
        rig.db.update(PEOPLE, ["1"], name=str(number))
        rig.db.insert(PEOPLE, [str(10 + number), "b", None])
        rig.commit()
    rig.apply_and_die()
    rig.db.update(PEOPLE, ["1"], name="last")
    rig.commit()
    properties = SparkProperties(path="", batch_rows=1)
    LogFollower(rig.log, rig.applier, properties).catch_up()
    assert rig.applier.state.number == 3, (
        "what was begun is one commit, and what came since another"
    )
    rig.check(PEOPLE)
    assert LiveTables(rig.spark, rig.output).changes("people").count() == 1 + 3 * 2 + 1


def merge_fails(patch: pytest.MonkeyPatch, *times: bool) -> None:
    """Let the merge of people fail, or not, as ``times`` say, and then no more."""
    left = iter(times)

    def merge(work: TableWriter, compacted: Any, original: Any = TableWriter.merge) -> None:
        if work.table.table == PEOPLE.table and next(left, False):
            raise PySparkException("out of order")
        original(work, compacted)

    patch.setattr(TableWriter, "merge", merge)


def both_begin(rig: Rig) -> None:
    for table in (PEOPLE, LEFT):
        rig.db.insert(table, ["1", "1", None])
    rig.follow()


def both_change(rig: Rig, name: str) -> None:
    rig.db.update(PEOPLE, ["1"], name=name)
    rig.db.insert(LEFT, [name, "1", None])
    rig.commit()


def test_a_table_that_was_tried_in_a_commit_that_failed_is_tried_again_with_it(rig, monkeypatch):
    """What was written of it then is found again: a later try would take more rows for the same step."""
    monkeypatch.setattr(applier, "RETRY_S", 3600.0)
    merge_fails(monkeypatch, True, False, True)
    merging_alone(monkeypatch, rig)
    both_begin(rig)
    for name in ("2", "3", "4"):
        both_change(rig, name)
        if name == "3":
            with monkeypatch.context() as patch:
                patch.setattr(rig.output, "commit", no_space)
                patch.setattr(applier, "RETRY_S", 0.0)
                with pytest.raises(OSError, match="no space"):
                    rig.apply()
        else:
            rig.apply()
    with monkeypatch.context() as patch:
        patch.setattr(applier, "RETRY_S", 0.0)
        rig.apply(PEOPLE, LEFT)
    assert LiveTables(rig.spark, rig.output).changes("people").count() == 1 + 3


@pytest.mark.parametrize("dies", [False, True])
def test_a_try_that_fails_early_forgets_no_step_of_those_before(rig, monkeypatch, dies):
    """One try writes history up to the second position; the next one fails at what is before the first mark,
    also where it repeats a commit of a driver that died. Then there is more."""
    monkeypatch.setattr(applier, "RETRY_S", 0.0)

    def away(_spark: Any, target: Any) -> None:
        raise PySparkException(f"{target.at} is away")

    both_begin(rig)
    for name, times in (("2", [True]), ("3", [False, True])):
        both_change(rig, name)
        with monkeypatch.context() as patch:
            merging_alone(patch, rig)
            merge_fails(patch, *times)
            if dies and name == "3":
                rig.apply_and_die()
            else:
                rig.apply()
    if not dies:
        both_change(rig, "4")
    with monkeypatch.context() as patch:
        patch.setattr(rig.applier.format, "commits", away)
        rig.apply()
    assert "is away" in rig.output.table("people").failed
    both_change(rig, "5")
    rig.apply(PEOPLE, LEFT)
    assert LiveTables(rig.spark, rig.output).changes("people").count() == (4 if dies else 5)


def test_a_log_that_is_cut_off_stops_its_own_table_alone(rig, monkeypatch):
    monkeypatch.setattr(applier, "REST_S", 0.0)
    for table in (LEFT, RIGHT):
        rig.db.insert(table, ["1", "1", None])
    rig.follow()
    target = rig.target(LEFT)
    (folder_of(target) / "_delta_log" / f"{target.version + 1:020d}.json").write_bytes(
        b'{"commitInfo": {"userMeta'
    )
    rig.apply()
    rig.insert(RIGHT, ["2", "2", None])
    rig.check(RIGHT)
    for table in (LEFT, RIGHT):
        rig.db.insert(table, ["3", "3", None])
    rig.follow()
    assert rig.output.table("left").failed.startswith("WT-52")
    rig.check(RIGHT)


def test_a_version_that_is_gone_is_reported_with_a_code(rig):
    rig.insert(LEFT, ["1", "1", None])
    table = rig.output.table("left")
    assert table.stored_table.targets
    target = msgspec.structs.replace(table.stored_table.targets["current"], version=99)
    with pytest.raises(VersionGone, match="no longer has version 99"):
        rig.applier.format.at_version(rig.spark, target)
    tables = LiveTables(rig.spark, rig.output)
    with pytest.raises(VersionGone, match="was not applied yet"):
        tables.at(rig.db.lsn + 1_000_000)
    with pytest.raises(VersionGone, match="WT-5236"):
        tables.at("0/10")
    shutil.rmtree(folder_of(target))
    rig.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    with pytest.raises(TargetChanged, match="WT-5235"):
        tables.current(LEFT.name)


def no_space(_state: object) -> None:
    raise OSError("no space")


# --- tables that somebody else wrote and brought back ---------------------------------------------


@pytest.fixture
def foreign(delta, tmp_path, monkeypatch) -> Iterator[Rig]:
    monkeypatch.setattr(applier, "RETRY_S", 0.0)
    made = Rig(tmp_path, delta, "delta", parallel=1)
    made.insert(PEOPLE, ["1", "Ann", "x"], ["2", "Bob", "y"])
    return made


def current_target(foreign: Rig) -> tuple[str, int]:
    stored_table = foreign.output.table("people").stored_table
    target = stored_table.targets["current"]
    return target.at, target.version


def named(foreign: Rig) -> int:
    """Return the version that the error names."""
    found = re.search(
        r"restore version (\d+), the last one without its writes",
        foreign.output.table("people").failed,
    )
    assert found is not None, foreign.output.table("people").failed
    return int(found[1])


def restore(foreign: Rig, version: int) -> None:
    foreign.spark.sql(f"RESTORE TABLE {current_target(foreign)[0]} TO VERSION AS OF {version}")


def check_restored(foreign: Rig, changes: int) -> None:
    """Rows of the newest version are right, and so is everything after one more commit."""
    assert foreign.output.table("people").failed == ""
    foreign.insert(PEOPLE, ["90", "more", None])
    check_newest(foreign)
    foreign.check(PEOPLE)
    assert LiveTables(foreign.spark, foreign.output).changes("people").count() == changes + 1


def check_newest(foreign: Rig) -> None:
    assert foreign.output.table("people").failed == ""
    names = ", ".join(f"cast({each.name} as string)" for each in PEOPLE.columns)
    newest = foreign.spark.sql(f"SELECT {names} FROM {current_target(foreign)[0]}").collect()
    assert sorted(map(tuple, newest), key=str) == sorted(foreign.db.rows[PEOPLE.name], key=str)


@pytest.mark.parametrize("to_commit", [False, True])
def test_what_a_driver_that_died_wrote_is_not_lost_where_the_table_is_brought_back(
    foreign, to_commit
):
    """The error names the version that has it. Where the table is brought back to that of the last commit,
    it is written again."""
    at, committed = current_target(foreign)
    foreign.db.insert(PEOPLE, ["3", "Cid", "z"])
    foreign.commit()
    foreign.apply_and_die()
    foreign.spark.sql(f"DELETE FROM {at}")
    foreign.apply()
    assert named(foreign) > committed
    restore(foreign, committed if to_commit else named(foreign))
    foreign.apply()
    check_restored(foreign, 3)


@pytest.mark.parametrize(("reopened", "update"), [(False, True), (True, False)])
def test_what_a_driver_wrote_on_foreign_rows_is_written_again(foreign, reopened, update):
    """It had looked before they came. Delta remembers the step, also where its rows are gone."""
    at, committed = current_target(foreign)
    for turn in range(2):
        foreign.spark.sql(f"DELETE FROM {at}")
        if update:
            foreign.db.update(PEOPLE, ["1"], name=f"Eve {turn}")
        else:
            foreign.db.insert(PEOPLE, [str(3 + turn), "Cid", "z"])
        foreign.follow()
        assert named(foreign) == committed
        restore(foreign, committed)
        if reopened:
            foreign.reopen()
        foreign.apply()
        assert foreign.output.table("people").failed == ""
        committed = current_target(foreign)[1]
    restore(foreign, committed)  # to what it is
    foreign.write(PEOPLE, ["7", "Dan", "z"])
    foreign.reopen()
    foreign.apply()
    check_restored(foreign, 5)


# --- steps that are repeated ----------------------------------------------------------------------


def test_a_step_that_two_drivers_wrote_suspends_the_table_until_it_is_brought_back(foreign):
    """The driver that was believed dead wrote it just after its successor had looked for it."""
    foreign.write(PEOPLE, ["3", "Cid", "z"])
    foreign.apply_and_die()
    with pytest.MonkeyPatch.context() as patch:
        made, steps_of = foreign.applier.format, foreign.applier.format._steps_of

        def looked_before(*_of: Any) -> dict[int, Any]:
            patch.setattr(made, "_steps_of", steps_of)
            return {}

        patch.setattr(made, "_steps_of", looked_before)
        foreign.apply()
    table = foreign.output.table("people")
    assert "WT-5235" in table.failed
    assert "once more" in table.failed
    at = table.stored_table.targets["changes"].at
    foreign.spark.sql(f"RESTORE TABLE {at} TO VERSION AS OF {named(foreign)}")
    foreign.apply()
    check_restored(foreign, 3)


HAD = [("id", "int4"), ("name", "text"), ("note", "text")]
WITH = relation("public.people", HAD, numbers=(1, 2, 3))
WITHOUT = relation("public.people", HAD[:2], numbers=(1, 2))


@pytest.fixture
def repeated(delta, tmp_path, monkeypatch) -> Iterator[Rig]:
    monkeypatch.setattr(applier, "RETRY_S", 0.0)
    made = Rig(tmp_path, delta, "delta", parallel=1, dropped=("drop",))
    made.insert(WITH, ["1", "Ann", "x"])
    return made


@pytest.mark.parametrize("brought_back", [False, True])
def test_a_rule_that_changes_while_a_commit_is_half_done_stops_the_table(repeated, brought_back):
    """Else a column's removal counts as the writing of rows. It goes on under the old rule, or from the
    versions of the last commit."""
    stored_table = repeated.output.table("people").stored_table
    assert stored_table.targets
    repeated.db.rows[WITH.name] = [("1", "Ann")]
    repeated.db.insert(WITHOUT, ["2", "Bob"])
    repeated.commit()
    repeated.apply_and_die()
    repeated.reopen(parallel=1, dropped=("keep",))
    repeated.apply()
    failed = repeated.output.table("people").failed
    assert "WT-5267" in failed
    assert "drop note" in failed
    if brought_back:
        for target in stored_table.targets.values():
            repeated.spark.sql(f"RESTORE TABLE {target.at} TO VERSION AS OF {target.version}")
        assert str(stored_table.targets["changes"].version) in failed
    if not brought_back:  # the same process sees it where the table was brought back
        repeated.reopen(parallel=1, dropped=("drop",))
    for more in (0, 1):
        if more:
            repeated.db.insert(WITHOUT, ["3", "Cid"])
            repeated.commit()
        repeated.apply()
        assert repeated.output.table("people").failed == ""
        repeated.check(WITHOUT)
        tables = LiveTables(repeated.spark, repeated.output)
        assert tables.changes("people").count() == 2 + more
        assert ("note" in tables.current("people").columns) == brought_back


RENAMED = relation("public.people", [*HAD[:2], ("remark", "text")], numbers=(1, 2, 3))


def test_a_commit_with_a_rename_is_repeated_by_its_notes(repeated):
    """Also after a vacuum, without the versions of before."""
    repeated.update(WITH, ["1"], ["note"], name="Anna")
    repeated.db.insert(RENAMED, ["2", "Bob", "y"])
    repeated.commit()
    repeated.apply_and_die()
    target = repeated.target(WITH, "changes")
    needed = {Path(uri).name for uri in repeated.spark.table(target.at).inputFiles()}
    for file in folder_of(target).rglob("part-*.parquet"):  # as a vacuum does
        if file.name not in needed:
            file.unlink()
    repeated.apply()
    assert repeated.output.table("people").failed == ""
    repeated.check(RENAMED)
    changes = LiveTables(repeated.spark, repeated.output).changes("people").where("_op = 'u'")
    assert [row["_unchanged"] for row in changes.collect()] == [["remark"]]
