"""Files of tables: folded, merged, removed, written in vain; lakes that were moved."""

import shutil
import threading
import time
from datetime import UTC, datetime
from typing import Any, ClassVar

import pytest
from tests.harness.changelog import relation
from tests.harness.pipeline import WAIT_S
from tests.harness.spark import Rig

from waltap_sinks.changelog import ChangeLog
from waltap_spark.apply import applier
from waltap_spark.apply.applier import OutputApplier
from waltap_spark.apply.compaction_worker import CompactionWorker
from waltap_spark.apply.maintenance import maintain, take
from waltap_spark.compact import small_sets
from waltap_spark.errors import CommitBegun, OutputInUse, OutputMismatch, RowsAwaited
from waltap_spark.formats import CommitContext, TableFormatContext, merging
from waltap_spark.formats.choice import FormatChoice
from waltap_spark.formats.parquet import ParquetFormat
from waltap_spark.read.live import LiveTables
from waltap_spark.session.session import prepare
from waltap_spark.state.modes import ModeRules
from waltap_spark.state.output import CommitIntent, SparkOutput, TableState

# --- by hand --------------------------------------------------------------------------------------

LEFT = relation("public.left", [("id", "int4"), ("note", "text")])


@pytest.mark.parametrize("table_format", ["parquet", "delta"])
def test_maintenance_makes_few_files_and_changes_no_row(delta, tmp_path, table_format):
    """Not while somebody writes, nor where a commit is half done. In place the version that counts is then
    the compacted one, and a table goes on from there."""
    values = {"format.retention.hours": "0"} if table_format == "delta" else {}
    rig = Rig(tmp_path, delta, FormatChoice(table_format, values), parallel=1, retention_s=0.0)
    for number in range(4):
        rig.db.insert(LEFT, [str(number), "x"])
        if number:
            rig.db.update(LEFT, ["0"], note=str(number))
        rig.follow()
    with pytest.raises(OutputInUse, match="WT-5203"):
        take(SparkOutput(rig.output.location))
    rig.applier.close()
    (reported,) = maintain(rig.spark, SparkOutput(rig.output.location), retention_s=0.0)
    assert (reported.table, reported.skipped) == (LEFT.name, "")
    if table_format == "parquet":
        assert rig.output.table(LEFT.name).pending == ()
    else:
        assert reported.after < reported.before
    rig.check(LEFT)
    rig.reopen()
    rig.update(LEFT, ["1"], note="after")
    rig.check(LEFT)
    tables = LiveTables(rig.spark, rig.output)
    assert tables.changes(LEFT.name).count() == 8
    assert tables.at(datetime.now(UTC)).current(LEFT.name).count() == 4
    rig.applier.close()
    state = rig.applier.state
    rig.output.intend(
        CommitIntent(
            number=state.number + 1, log_position=state.log_position, identity=state.identity
        )
    )
    with pytest.raises(CommitBegun, match="WT-5247"):
        next(maintain(rig.spark, SparkOutput(rig.output.location)))
    rig.sink.close()


def test_files_of_the_last_commit_stay_until_the_next_one_is_there(delta, tmp_path, monkeypatch):
    """However long ago a compaction put others in their place, here by somebody else; and the version that
    our own compaction makes is that of the commit."""
    monkeypatch.setattr(merging, "VACUUM_S", 0.0)
    choice = FormatChoice("delta", {"format.retention.hours": "0"})
    rig = Rig(tmp_path, delta, choice, parallel=1)
    for number in range(3):
        rig.insert(LEFT, [str(number), "x"])
    then = list(rig.db.rows[LEFT.name])
    stored_table = rig.output.table(LEFT.name).stored_table
    for target in stored_table.targets.values():
        rig.spark.sql(f"OPTIMIZE {target.at}")
    rig.db.update(LEFT, ["0"], note="y")
    rig.commit()
    rig.apply_and_die()
    now, rig.db.rows[LEFT.name] = rig.db.rows[LEFT.name], then
    rig.check(LEFT)
    rig.db.rows[LEFT.name] = now
    monkeypatch.setattr(merging, "COMPACT_STEPS", 1)
    rig.apply(LEFT)
    assert LiveTables(rig.spark, rig.output).changes(LEFT.name).count() == 4
    stored_table = rig.output.table(LEFT.name).stored_table
    for target in stored_table.targets.values():
        reported = rig.spark.sql(f"DESCRIBE HISTORY {target.at}").collect()
        assert "VACUUM END" in {row["operation"] for row in reported}
        (stands,) = (row["operation"] for row in reported if row["version"] == target.version)
        assert stands in {"OPTIMIZE", "VACUUM END"}  # a table at rest goes on behind it


# --- beside the commits ---------------------------------------------------------------------------

PEOPLE = relation("public.people", [("id", "int4"), ("name", "text"), ("note", "text")])
KEYED = relation(
    "public.people", [("id", "int4"), ("name", "text"), ("note", "text")], key=("id", "name")
)
OTHER = relation("public.others", [("id", "int4"), ("name", "text")])


def test_commits_and_compactions_of_the_same_tables_go_on_beside_each_other(spark, tmp_path):
    """Every commit is followed by a fold of what it left; truncates and other keys make some of them
    void."""
    rig = Rig(tmp_path, spark, compact_rows=0, compact_share=0.0, merge_sets=2)
    rig.applier.keep_up()
    rig.applier.keep_up()  # as if by two: one thread

    def commit() -> None:
        rig.commit()
        rig.applier.apply(list(rig.log.manifests(rig.applier.state.log_position)))

    people = PEOPLE
    for number in range(1, 15):
        if number == 6:
            rig.db.truncate(OTHER)
        if number == 9:
            people = KEYED
        rig.db.insert(people, [str(number), "new", "x"])
        rig.db.insert(OTHER, [str(number), "new"])
        if number % 2 == 0:
            rig.db.update(
                people, [*("1", "new")[: len(people.primary_key or ())]], note=str(number)
            )
            rig.db.update(OTHER, [str(number)], name="changed")
        commit()
    limit = time.monotonic() + WAIT_S
    while any(table.pending for table in rig.applier.state.tables.values()):
        assert time.monotonic() < limit, "nothing is folded"
        rig.applier.apply([])
        time.sleep(0.05)
    rig.check(people, OTHER)
    tables = LiveTables(rig.spark, rig.output)
    assert tables.changes("people").count() == 14 + 7
    assert tables.changes("others").count() == 14 + 7 + 1
    rig.reopen()
    assert rig.folders() == rig.named_folders(), "what was made in vain is gone"
    rig.check(people, OTHER)


def test_versions_that_ended_are_not_written_again(spark, tmp_path):
    rules = ModeRules(modes=("scd2",))
    rig = Rig(tmp_path, spark, compact_rows=0, compact_share=0.0, merge_sets=3, modes=rules)
    rig.db.insert(OTHER, ["1", "0"], ["2", "0"])
    seen: set[str] = set()
    for number in range(1, 6):
        rig.update(OTHER, ["1"], name=str(number))
        base = rig.output.table("others").base
        ended = {part.path: part.rows for part in base if part.closed}
        assert sum(ended.values()) == max(0, number - 1)
        assert sum(part.rows for part in base) == number + 1
        assert len(ended) < 3
        assert seen <= ended.keys() or len(seen) == 2, "but where small parts are made one"
        seen = set(ended)
    rows = LiveTables(rig.spark, rig.output).current("others").where("id = 1")
    assert sorted(row["name"] for row in rows.collect()) == ["1", "2", "3", "4", "5"]
    assert [row["name"] for row in rows.where("_current").collect()] == ["5"]
    rig.reopen()
    assert rig.folders() == rig.named_folders()


class Endless(ParquetFormat):
    """Its compaction is a job of Spark's that nobody sees the end of."""

    begun: ClassVar[threading.Event] = threading.Event()

    def maintain(self, commit: CommitContext, table: TableState) -> TableState:
        self.begun.set()
        commit.spark.range(10**14).selectExpr("sum(id % 7)").collect()
        return table


def test_an_end_cancels_what_is_being_compacted(spark, tmp_path):
    rig = Rig(tmp_path, spark)
    rig.insert(OTHER, ["1", "new"])
    output = SparkOutput(str(tmp_path / "out"))
    context = TableFormatContext(output=output, options=rig.options, identity=lambda: "")
    worker = CompactionWorker(lambda: prepare(spark), output, Endless(context))
    worker.wake(rig.applier.state)
    worker.start()
    assert Endless.begun.wait(WAIT_S)
    worker.stop(WAIT_S)
    assert "waltap-compaction" not in [each.name for each in threading.enumerate()]
    assert worker.done() == []
    rig.insert(OTHER, ["2", "new"])
    rig.check(OTHER)


# --- written in vain ------------------------------------------------------------------------------

NUMBER = relation("public.odd", [("id", "int4"), ("v", "int4")])
TEXT = relation("public.odd", [("id", "int4"), ("v", "text")])
OTHERS = relation("public.others", [("id", "int4"), ("name", "text")])


@pytest.fixture
def rig(spark, tmp_path, monkeypatch) -> Rig:
    """Tables that are suspended are tried with every commit."""
    monkeypatch.setattr(applier, "RETRY_S", 0.0)
    return Rig(tmp_path, spark, compact_rows=0, compact_share=0.0)


def test_each_try_of_a_table_that_stands_still_takes_its_files_away(rig, monkeypatch):
    """As Spark writes them, and so does this process."""
    monkeypatch.setattr(small_sets, "SMALL_ROWS", 0)
    rig.insert(NUMBER, ["1", "5"])
    rig.db.update(NUMBER, ["1"], id="2")  # applied, and folded at once, before what does not fit
    rig.commit()
    rig.write(TEXT, ["3", "five"])
    for tries in range(3):
        rig.insert(OTHERS, [str(tries), "goes on"])
        assert "from integer to string" in rig.output.table("odd").failed
        assert rig.folders() == rig.named_folders()
    rig.check(OTHERS)
    rig.reopen(type_change="string")
    rig.apply(TEXT, OTHERS)


def test_a_commit_that_cannot_be_made_takes_the_files_of_all_tables_away(rig, monkeypatch):
    rig.write(NUMBER, ["1", "5"])
    original = OutputApplier._attempt

    def attempt(self: OutputApplier, *arguments: Any) -> Any:
        original(self, *arguments)
        raise RowsAwaited("nobody has them", changelog="", nobody=False)

    with monkeypatch.context() as patch:
        patch.setattr(OutputApplier, "_attempt", attempt)
        with pytest.raises(RowsAwaited):
            rig.apply()
    assert rig.folders() == set()
    rig.apply(NUMBER)


def test_what_a_commit_itself_does_not_need_goes_with_it(spark, tmp_path):
    """Without a history changes that were folded in the commit that brought them are nothing."""
    rig = Rig(tmp_path, spark, modes=ModeRules(history=("none",)))
    for number in range(3):
        rig.db.insert(OTHERS, [str(number), "x"])
        rig.update(OTHERS, [str(number)], id=str(number + 100))
        assert rig.folders() == rig.named_folders()
    rig.check(OTHERS)


def test_compaction_that_fails_leaves_nothing(rig, monkeypatch):
    rig.insert(OTHERS, ["1", "x"])
    rig.db.update(OTHERS, ["1"], name="y")
    rig.commit()
    rig.applier.apply(list(rig.log.manifests(rig.applier.state.log_position)))
    maintained: list[set[str]] = []

    def fail(*_arguments: Any) -> Any:
        maintained.append(rig.folders() - rig.named_folders())
        raise ArithmeticError

    with monkeypatch.context() as patch:
        patch.setattr(ParquetFormat, "_merge", fail)
        with pytest.raises(ArithmeticError):
            rig.applier.maintain()
    assert [len(each) for each in maintained] == [1], "what was folded"
    assert rig.folders() == rig.named_folders()
    rig.apply(OTHERS)


# --- moved ----------------------------------------------------------------------------------------


def test_a_lake_that_was_moved_goes_on_and_another_log_in_the_old_place_is_refused(spark, tmp_path):
    here, there = tmp_path / "lake", tmp_path / "moved"
    here.mkdir()
    rig = Rig(here, spark)
    rig.insert(OTHERS, ["1", "Ann"])
    rig.write(OTHERS, ["2", "Bob"])
    rig.applier.close()
    rig.sink.close()
    shutil.copytree(here, there)
    shutil.rmtree(here / "log")
    rig.start_sink()
    rig.applier = OutputApplier(spark, ChangeLog(str(here / "log")), rig.output)
    with pytest.raises(OutputMismatch, match="WT-5206"):
        rig.applier.open()
    rig.log, output = ChangeLog(f"{there}/log/"), SparkOutput(f"{there}/out/")
    moved = OutputApplier(spark, rig.log, output)
    moved.open()
    moved.apply(list(rig.log.manifests(moved.state.log_position)))
    moved.close()
    rig.output = output
    rig.check(OTHERS)
    assert SparkOutput(f"{there}/out").state().changelog == f"{there}/log/"
