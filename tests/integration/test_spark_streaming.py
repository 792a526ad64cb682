"""The change log followed: by position, and by a streaming query; both apply everything once."""

import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from tests.harness.changelog import Database, batch, context, relation

from waltap_sinks.changelog import ChangeLog, ChangeLogProperties, ChangeLogSink
from waltap_spark.applier import ApplyOptions, OutputApplier
from waltap_spark.errors import TablesStandStill
from waltap_spark.follower import FollowOptions, LogFollower
from waltap_spark.live import LiveTables
from waltap_spark.output import SparkOutput
from waltap_spark.session import prepare
from waltap_spark.streaming import start_query

PEOPLE = relation("public.people", [("id", "int4"), ("name", "text")])


class Rig:
    def __init__(self, folder: Path, spark: Any) -> None:
        self.db, self.spark = Database(), prepare(spark)
        self.sink = ChangeLogSink(
            ChangeLogProperties(path=str(folder / "log")), context(folder, resumes=True)
        )
        self.sink.open()
        self.log, self.output = ChangeLog(str(folder / "log")), SparkOutput(str(folder / "out"))
        self.applier = OutputApplier(self.spark, self.log, self.output)
        self.applier.open()

    def work(self, count: int) -> None:
        for _ in range(count):
            self.db.insert(PEOPLE, [str(self.db.lsn), "new"])
            self.db.update(PEOPLE, [self.db.rows[PEOPLE.name][0][0]], name=f"at {self.db.lsn}")
            self.sink.write(batch(self.db.commit()))
            self.sink.flush()

    def check_rows(self) -> None:
        tables = LiveTables(self.spark, self.output)
        rows = [(str(row[0]), row[1]) for row in tables.current("people").collect()]
        assert sorted(rows) == sorted(self.db.rows[PEOPLE.name])

    def check(self) -> None:
        self.check_rows()
        tables = LiveTables(self.spark, self.output)
        logged = sum(manifest.rows for manifest in self.log.manifests())
        assert tables.changes("people").count() == logged


@pytest.fixture
def rig(spark: Any, tmp_path: Path) -> Any:
    made = Rig(tmp_path, spark)
    yield made
    made.applier.close()
    made.sink.close()


def test_a_follower_applies_what_there_is_when_it_is_told_to_stop(rig: Rig) -> None:
    answers = [False, False, True]
    follower = LogFollower(rig.log, rig.applier, FollowOptions(trigger_ms=10))

    def stopping() -> bool:
        rig.work(2)
        return answers.pop(0)

    follower.follow(stopping)
    assert answers == []
    assert rig.applier.state.number == 3
    rig.check()


def test_a_commit_takes_no_more_rows_than_allowed(rig: Rig) -> None:
    rig.work(6)  # of two rows each
    LogFollower(rig.log, rig.applier, FollowOptions(batch_rows=4)).catch_up()
    assert rig.applier.state.number == 3
    rig.check()


def test_a_streaming_query_applies_everything_once_though_its_checkpoint_is_lost(
    rig: Rig, tmp_path: Path
) -> None:
    rig.work(3)
    for checkpoint in ("one", "one", "lost"):
        query = start_query(
            rig.spark, rig.log, rig.applier, str(tmp_path / checkpoint), available_now=True
        )
        assert query.awaitTermination(180)
        rig.check()
        rig.work(2)
    query = start_query(
        rig.spark, rig.log, rig.applier, str(tmp_path / "one"), FollowOptions(trigger_ms=20)
    )
    rig.work(2)
    last = rig.log.last()
    assert last is not None
    limit = time.monotonic() + 180
    while rig.applier.state.mark < last.mark:
        assert query.isActive, query.exception()
        assert time.monotonic() < limit
        time.sleep(0.05)
    query.stop()
    rig.check()


def test_manifests_that_spark_did_not_give_are_read_from_the_log(rig: Rig, tmp_path: Path) -> None:
    """The checkpoint says that some were given out; the output knows that they never arrived."""
    rig.work(2)
    query = start_query(
        rig.spark, rig.log, rig.applier, str(tmp_path / "checkpoint"), available_now=True
    )
    assert query.awaitTermination(180)
    rig.applier.close()
    rig.output = SparkOutput(str(tmp_path / "fresh"))
    rig.applier = OutputApplier(rig.spark, rig.log, rig.output)
    rig.applier.open()
    rig.work(1)
    query = start_query(
        rig.spark, rig.log, rig.applier, str(tmp_path / "checkpoint"), available_now=True
    )
    assert query.awaitTermination(180)
    rig.check()


def test_a_run_to_the_end_fails_while_tables_stand_still(rig: Rig, tmp_path: Path) -> None:
    """Each of them, with anything new or without; others are up to date then. It ends well once none does."""
    number = relation("public.odd", [("id", "int4"), ("v", "int4")])
    text = relation("public.odd", [("id", "int4"), ("v", "text")])

    def run(applier: OutputApplier) -> None:
        query = start_query(rig.spark, rig.log, applier, str(tmp_path / "one"), available_now=True)
        assert query.awaitTermination(180)

    rig.db.insert(number, ["1", "5"])
    rig.work(1)
    run(rig.applier)
    rig.db.insert(text, ["2", "five"])
    rig.work(2)
    with pytest.raises(StreamingQueryException, match=r"public\.odd: WT-5205"):
        run(rig.applier)
    rig.check_rows()
    with pytest.raises(TablesStandStill, match=r"public\.odd: WT-5205"):
        run(rig.applier)
    rig.work(1)
    with pytest.raises(StreamingQueryException, match=r"public\.odd: WT-5205"):
        run(rig.applier)
    rig.check_rows()
    rig.applier.close()
    options = ApplyOptions(type_change="string")
    rig.applier = OutputApplier(rig.spark, rig.log, SparkOutput(str(tmp_path / "out")), options)
    rig.applier.open()
    run(rig.applier)
    rig.check_rows()
    assert LiveTables(rig.spark, rig.output).current("odd").count() == 2


def test_what_a_query_applied_leaves_the_log(rig: Rig, tmp_path: Path) -> None:
    options = FollowOptions(retention_h=-2.0)  # as if it were two hours later
    for _ in range(2):
        rig.work(3)
        query = start_query(
            rig.spark, rig.log, rig.applier, str(tmp_path / "one"), options, available_now=True
        )
        assert query.awaitTermination(180)
        first, last = rig.log.first(), rig.log.last()
        assert first is not None
        assert first == last, "the newest stays"
        rig.check_rows()
