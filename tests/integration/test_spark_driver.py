"""The Spark sink and its driver: starts that are refused, ends that wait, a process that is looked after, and a change
log that is followed by position and by a streaming query."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyarrow.parquet import ParquetFile
from tests.harness.changelog import Database, batch, context, relation
from tests.harness.command import waltap
from tests.harness.pipeline import until
from tests.harness.shop import Shop
from tests.harness.spark import Rig
from typer.testing import CliRunner

from waltap.changes.transactions.position import Position
from waltap.errors import ConfigurationError, WaltapError
from waltap_sinks.changelog import ChangeLog
from waltap_sinks.changelog.errors import ChangeLogMissing
from waltap_spark.apply.applier import OutputApplier
from waltap_spark.cli.commands import application
from waltap_spark.config.options import ApplyOptions
from waltap_spark.config.properties import SparkProperties
from waltap_spark.driver import driver
from waltap_spark.driver.follower import LogFollower
from waltap_spark.errors import (
    ApplierFailed,
    FormatDiffers,
    OutputInUse,
    OutputMismatch,
    TablesSuspended,
)
from waltap_spark.read.live import LiveTables
from waltap_spark.session.session import prepare
from waltap_spark.sink.sink import SparkSink
from waltap_spark.state.output import SparkOutput

# --- what is refused before Spark starts ----------------------------------------------------------

NUMBERS = relation("public.odd", [("id", "int4"), ("v", "int4")])
WIDE = relation("public.wide", [("id", "int4"), ("v", "text")])
TEXTS = relation("public.odd", [("id", "int4"), ("v", "text")])
HOLD = """
import sys
from pathlib import Path
from waltap.base.files.lock_file import LockFile
lock = LockFile(Path(sys.argv[1]))
assert lock.take() is None
print("held", flush=True)
sys.stdin.read()
"""


def sink(folder: Path, **properties: Any) -> SparkSink:
    settings = SparkProperties(
        path=str(folder / "lake"),
        master="local[2]",
        settings={"spark.driver.memory": "512m"},
        **properties,
    )
    return SparkSink(settings, context(folder / "state", has_offset=True))


@pytest.fixture
def no_spark(java, monkeypatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        pytest.fail("Spark was started")

    monkeypatch.setattr(driver, "start_session", refuse)


def apply(*arguments: object) -> WaltapError:
    found = CliRunner().invoke(application, ["apply", *map(str, arguments)])
    assert isinstance(found.exception, WaltapError), found.output
    return found.exception


@pytest.mark.usefixtures("no_spark")
def test_a_change_log_that_does_not_exist_is_an_error(tmp_path):
    """The folder above one is told from it."""
    error = apply("--changelog", tmp_path / "none", "--output", tmp_path / "out", "--once")
    assert isinstance(error, ChangeLogMissing)
    assert "WT-5108" in str(error)
    assert not (tmp_path / "out").exists()
    (tmp_path / "lake" / "changelog" / "manifests").mkdir(parents=True)
    error = apply("--changelog", tmp_path / "lake", "--output", tmp_path / "out", "--once")
    assert f"{tmp_path}/lake/changelog is one" in str(error)


@pytest.mark.usefixtures("no_spark")
def test_every_wrong_setting_is_named_at_once(tmp_path):
    pairs = [
        "compaction.max.sets=none",
        "compaction.shard=1",
        "sparks.x=1",
        "just words",
        "path=elsewhere",
    ]
    words = [word for pair in pairs for word in ("--set", pair)]
    error = apply("--changelog", tmp_path, "--output", tmp_path, "--type-change", "explode", *words)
    assert isinstance(error, ConfigurationError)
    named = ("compaction.max.sets", "did you mean", "sparks.x", "just words", "path", "type.change")
    for reported in named:
        assert reported in str(error), reported


@pytest.mark.usefixtures("java")
def test_jars_that_are_missing_end_a_run_before_anything_is_made(database, tmp_path):
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    shop = Shop(tmp_path, database)
    shop.sink = {"type": "spark", "path": "lake", "format": "delta"}
    said = shop.run(code=1)
    for word in ("error: WT-5232", "spark.jars.packages=io.delta:delta-spark_4", "In the profile:"):
        assert word in said, said
    assert not (tmp_path / "lake").exists()
    assert database.slots() == {}


@pytest.mark.usefixtures("java")
def test_an_output_in_another_format_is_refused_before_spark_starts(tmp_path):
    made = sink(tmp_path)
    tables = SparkOutput(made._spark.tables)
    state = tables.open("log", "id")
    tables.commit(msgspec.structs.replace(state, number=1, format="delta"))
    tables.close()
    for call in (made.check, made.open):
        with pytest.raises(FormatDiffers, match="delta, not in parquet"):
            call()
    made.close()


@pytest.mark.usefixtures("java")
@pytest.mark.parametrize(
    ("setting", "reported"),
    [
        ("spark.driver.memory=lots", "lots"),
        pytest.param(
            "spark.jars.packages=no.such:jar", "no.such:jar", marks=pytest.mark.exhaustive
        ),
    ],
)
def test_a_jvm_that_does_not_start_is_reported_with_its_last_words(tmp_path, setting, reported):
    tables = SparkOutput(str(tmp_path / "out"))
    state = tables.open("log", "id")
    tables.commit(msgspec.structs.replace(state, number=1))
    tables.close()
    done = waltap("spark", "sql", tmp_path / "out", "SELECT 1", "--set", setting)
    said = " ".join(done.stderr.split())
    assert done.returncode == 1, said
    assert "error: WT-5268" in said, said
    assert "Spark's JVM did not start: " in said
    assert reported in said.partition("did not start: ")[2]
    assert "Traceback" not in said


def hold(folder: Path) -> "subprocess.Popen[str]":
    folder.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder / ".lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_successor_waits_as_long_as_the_other_lives_and_goes_on_when_it_is_gone(
    tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(driver, "PREDECESSOR_S", 0.0)
    monkeypatch.setattr(driver, "REPORT_EVERY_S", 0.0)
    (tmp_path / "log" / "manifests").mkdir(parents=True)
    other = hold(tmp_path / "out")
    tables, log = SparkOutput(str(tmp_path / "out")), ChangeLog(str(tmp_path / "log"))
    taking = threading.Thread(target=driver._take, args=(tables, log, lambda: False, 0.0))
    with caplog.at_level("INFO"):
        taking.start()
        until(
            lambda: len([r for r in caplog.records if str(other.pid) in r.getMessage()]) > 2,
            "three messages of the wait",
        )
    assert taking.is_alive()
    other.kill()
    other.communicate()
    taking.join(120)
    assert not taking.is_alive()
    tables.close()


def test_a_successor_that_is_reported_to_end_says_who_has_the_tables(tmp_path):
    (tmp_path / "log" / "manifests").mkdir(parents=True)
    other = hold(tmp_path / "out")
    tables, log = SparkOutput(str(tmp_path / "out")), ChangeLog(str(tmp_path / "log"))
    with pytest.raises(OutputInUse, match=str(other.pid)):
        driver._take(tables, log, lambda: True, 0.0)
    other.communicate()


@pytest.mark.usefixtures("java")
def test_an_end_while_another_process_uses_the_tables_leaves_the_rest_to_the_next_start(
    tmp_path, caplog
):
    """As the Spark process of an engine that was killed does."""
    (tmp_path / "lake").mkdir()
    other = hold(tmp_path / "lake" / "tables")
    made = sink(tmp_path, drain_ms=0)
    made.open()  # a process that waits for the other no longer than this
    made._driver._properties = sink(tmp_path)._driver._properties  # type: ignore[union-attr]
    made.write(batch(Database().inserted(NUMBERS, ["1", "1"])))
    made.flush()
    with caplog.at_level("WARNING"):
        made.close()
    other.communicate()
    assert f"process {other.pid}" in caplog.text
    assert "the next start applies the rest of the change log" in caplog.text


@pytest.mark.usefixtures("java")
def test_a_stop_does_not_wait_longer_for_spark_than_the_operator_does(database, tmp_path):
    """The process that uses the tables stands for a commit that takes minutes."""
    database.psql("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    shop = Shop(tmp_path, database, **{"waltap.stop.timeout.ms": 1500})
    shop.sink = {"type": "spark", "path": "lake", "spark.master": "local[2]"}
    (tmp_path / "lake").mkdir()
    other = hold(tmp_path / "lake" / "tables")
    with shop.process("run FILE", ready=True) as process:
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=120) == 0
    assert "spark is still applying changes" in (tmp_path / "stderr").read_text()
    output = SparkOutput(str(tmp_path / "lake" / "tables"))
    other.communicate()
    until(lambda: getattr(output.state(), "tables", {}), "the rest of the change log")


@pytest.mark.usefixtures("java")
def test_a_start_that_is_refused_does_not_wait_for_spark(tmp_path, monkeypatch):
    def never(*_: Any) -> None:
        pytest.fail("Spark was waited for")

    monkeypatch.setattr("waltap_spark.sink.process.DriverProcess._wait", never)
    made = sink(tmp_path)
    made.open()
    child = made._driver._child  # type: ignore[union-attr]
    made.close()  # as when a configuration is refused after the sink was opened
    assert child.poll() is not None, "there is nothing for it to do"
    writes = sink(tmp_path, applier="none")
    writes.open()
    writes.write(batch(Database().inserted(NUMBERS, ["1", "1"])))
    writes.flush()
    writes.close()
    again = sink(tmp_path)
    again.open()
    child = again._driver._child  # type: ignore[union-attr]
    try:
        raise ConfigurationError([])
    except ConfigurationError:
        again.close()
    assert child.poll() is None, "the log has something to apply"
    child.kill()
    child.wait()


# --- the sink and its process ---------------------------------------------------------------------


def flushed(made: SparkSink) -> bool:
    """Flush, which looks at the process; return True."""
    made.flush()
    return True


def of_another_log(folder: Path) -> None:
    """Let the tables be made from another change log, which no driver gets over."""
    output = SparkOutput(str(folder / "lake/tables"))
    output.commit(msgspec.structs.replace(output.open("elsewhere"), number=1))
    output.close()


@pytest.mark.usefixtures("java")
def test_a_driver_is_looked_after_and_has_applied_everything_when_its_sink_is_closed(
    tmp_path, caplog, monkeypatch
):
    """One that dies while nothing comes is started again; of a table that cannot follow is reported, and others go on."""
    monkeypatch.setattr("waltap_spark.sink.process.POLL_S", 0.1)
    db, made = Database(), sink(tmp_path)
    assert made.open() is None
    driver_process = made._driver
    assert driver_process is not None
    first = driver_process.pid
    driver_process._child.kill()  # type: ignore[union-attr]
    until(
        lambda: made.maintain() or driver_process.pid not in (None, first),  # type: ignore[func-returns-value]
        "another driver",
    )
    made.write(batch(db.inserted(NUMBERS, ["1", "1"])))
    made.write(batch(db.inserted(TEXTS, ["2", "two"])))
    made.flush()
    until(lambda: flushed(made) and "public.odd is suspended" in caplog.text, "it", within=300.0)
    for number in range(3):
        part = db.inserted(WIDE, [str(number), "1"])
        made.write(batch(part))
        assert made.flush() == Position(part.end_lsn)
    made.close()
    made.close()
    (reported,) = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
    assert "WT-5208 not applied: public.odd: WT-5205 column v of public.odd changed" in reported
    assert "type.change = string" in reported
    state = SparkOutput(str(tmp_path / "lake/tables")).state()
    assert state.log_position.end_lsn == part.end_lsn
    assert sum(each.rows for each in state.tables["public.wide"].changes) == 3
    again = sink(tmp_path, applier="none")
    assert again.open() == Position(part.end_lsn)
    again.close()


def test_an_error_that_spark_cannot_get_over_is_the_runs(java, tmp_path, caplog):
    """While the sink is flushed, or closed; but for a run that ends by another, of which it is reported."""
    of_another_log(tmp_path)
    db = Database()
    for moment in ("a flush", "the end", "an end by another"):
        made = sink(tmp_path)
        made.open()
        last = db.inserted(NUMBERS, ["1", "1"])
        made.write(batch(last))
        made.flush()
        reported = r"WT-5202 .*WT-5206 .* made from .* elsewhere, not .*"
        if moment == "a flush":
            with pytest.raises(ApplierFailed, match=reported):
                until(lambda made=made: flushed(made) and False, "the error", within=300.0)
        elif moment == "the end":
            with pytest.raises(ApplierFailed, match=reported):
                made.close()
        else:
            with pytest.raises(KeyboardInterrupt):
                try:
                    raise KeyboardInterrupt
                finally:
                    made.close()
        made.close()
        log_position = ChangeLog(str(tmp_path / "lake/changelog")).last().log_position
        assert log_position.end_lsn == last.end_lsn, "what was published stays"
    (error,) = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
    assert "WT-5202" in error


def test_long_rows_need_no_memory_for_all_of_them(spark, java, tmp_path):
    """Spark reads 4096 rows at once: the log, and what Spark writes, have them in pages and groups of few."""
    db, made = Database(), sink(tmp_path)
    made.open()
    made.write(batch(db.inserted(NUMBERS, ["1", "1"])))
    text = os.urandom(500_000).hex()  # 300 rows of one megabyte
    for number in range(300):
        db.insert(WIDE, [str(number), text[number:] + text[:number]])
    made.write(batch(db.commit()))
    made.flush()
    made.close()
    (changes,) = tmp_path.glob("lake/tables/**/wide/**/part-*.parquet")
    written = ParquetFile(changes).metadata
    groups = [written.row_group(n).total_byte_size for n in range(written.num_row_groups)]
    assert max(groups) < 40 << 20
    tables = LiveTables(prepare(spark), SparkOutput(str(tmp_path / "lake/tables")))
    assert [tables.current(name).count() for name in ("odd", "wide")] == [1, 300]


# --- a log that is followed -----------------------------------------------------------------------

PEOPLE = relation("public.people", [("id", "int4"), ("name", "text")])


class Followed(Rig):
    """Tables that follow a log of people."""

    def work(self, count: int) -> None:
        for _ in range(count):
            self.db.insert(PEOPLE, [str(self.db.lsn), "new"])
            self.db.update(PEOPLE, [self.db.rows[PEOPLE.name][0][0]], name=f"at {self.db.lsn}")
            self.commit()

    def check_rows(self) -> None:
        self.check(PEOPLE)

    def check_all(self) -> None:
        self.check_rows()
        logged = sum(manifest.rows for manifest in self.log.manifests())
        assert LiveTables(self.spark, self.output).changes("people").count() == logged


@pytest.fixture
def rig(spark, tmp_path) -> Followed:
    return Followed(tmp_path, spark)


def test_a_follower_applies_what_there_is_when_it_is_reported_to_stop(rig):
    """Also amid a long wait."""
    answers = [False, False, True, True]
    follower = LogFollower(
        rig.log,
        rig.applier,
        SparkProperties(path="", trigger_ms=60_000),
    )

    def stopping() -> bool:
        rig.work(2)
        return answers.pop(0)

    follower.follow(stopping)
    assert answers == []
    assert rig.applier.state.number == 2
    rig.check_all()


def test_a_run_to_the_end_fails_while_tables_stand_still(rig, tmp_path):
    """Each of them, with anything new or without; others are up to date then. It ends well once none does."""

    def run(applier: OutputApplier) -> None:
        LogFollower(rig.log, applier).once()

    rig.db.insert(NUMBERS, ["1", "5"])
    rig.work(1)
    run(rig.applier)
    rig.db.insert(TEXTS, ["2", "five"])
    rig.work(2)
    with pytest.raises(TablesSuspended, match=r"public\.odd: WT-5205"):
        run(rig.applier)
    rig.check_rows()
    with pytest.raises(TablesSuspended, match=r"public\.odd: WT-5205"):
        run(rig.applier)
    rig.work(1)
    with pytest.raises(TablesSuspended, match=r"public\.odd: WT-5205"):
        run(rig.applier)
    rig.check_rows()
    rig.applier.close()
    options = ApplyOptions(type_change="string")
    rig.applier = OutputApplier(rig.spark, rig.log, SparkOutput(str(tmp_path / "out")), options)
    rig.applier.open()
    run(rig.applier)
    rig.check_rows()
    assert LiveTables(rig.spark, rig.output, allow_stale=True).current("odd").count() == 2


def test_what_a_run_to_the_end_applied_leaves_the_log(rig):
    # as if it were two hours later
    properties = SparkProperties(path="").model_copy(update={"retention_hours": -2.0})
    for _ in range(2):
        rig.work(3)
        LogFollower(rig.log, rig.applier, properties).once()
        first, last = rig.log.first(), rig.log.last()
        assert first is not None
        assert first == last, "the newest stays"
        rig.check_rows()


def test_another_log_in_the_place_of_the_followed_one_is_not_expired(rig):
    properties = SparkProperties(path="").model_copy(update={"retention_hours": -2.0})
    rig.work(3)
    (Path(rig.log.store.path("")) / "log.json").write_text('{"id": "another"}')
    before = [each.log_position for each in rig.log.manifests()]
    with pytest.raises(OutputMismatch, match="another change log"):
        LogFollower(rig.log, rig.applier, properties).once()
    assert [each.log_position for each in rig.log.manifests()] == before
