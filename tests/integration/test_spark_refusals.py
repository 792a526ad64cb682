"""What cannot be applied is refused before Spark starts, and nobody waits for Spark because of it."""

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.harness.changelog import Database, batch, context, relation
from tests.harness.command import waltap
from typer.testing import CliRunner

from waltap.errors import ConfigurationError, WaltapError
from waltap_sinks.changelog import ChangeLog
from waltap_sinks.changelog.errors import ChangeLogMissing
from waltap_spark import driver
from waltap_spark.commands import application
from waltap_spark.errors import OutputInUse
from waltap_spark.output import SparkOutput
from waltap_spark.properties import SparkProperties
from waltap_spark.settings import apply_options, follow_options, pairs_of, properties_of
from waltap_spark.sink import SparkSink

NUMBERS = relation("public.odd", [("id", "int4"), ("v", "int4")])
HOLD = """
import sys
from pathlib import Path
from waltap.offsets.lock_file import LockFile
lock = LockFile(Path(sys.argv[1]))
assert lock.take() is None
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def no_spark(java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        pytest.fail("Spark was started")

    monkeypatch.setattr(driver, "start_session", refuse)


def apply(*arguments: object) -> WaltapError:
    found = CliRunner().invoke(application, ["apply", *map(str, arguments)])
    assert isinstance(found.exception, WaltapError), found.output
    return found.exception


@pytest.mark.usefixtures("no_spark")
def test_a_change_log_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    error = apply("--changelog", tmp_path / "none", "--output", tmp_path / "out", "--once")
    assert isinstance(error, ChangeLogMissing)
    assert "WT-5108" in str(error)
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("no_spark")
def test_the_folder_above_a_change_log_is_told_from_it(tmp_path: Path) -> None:
    (tmp_path / "lake" / "changelog" / "manifests").mkdir(parents=True)
    error = apply("--changelog", tmp_path / "lake", "--output", tmp_path / "out", "--once")
    assert f"{tmp_path}/lake/changelog is one" in str(error)


@pytest.mark.usefixtures("no_spark")
def test_every_wrong_setting_is_named_at_once(tmp_path: Path) -> None:
    pairs = ["fold.max.sets=none", "fold.shard=1", "sparks.x=1", "just words", "path=elsewhere"]
    words = [word for pair in pairs for word in ("--set", pair)]
    error = apply("--changelog", tmp_path, "--output", tmp_path, "--type-change", "explode", *words)
    assert isinstance(error, ConfigurationError)
    said = str(error)
    for told in ("fold.max.sets", "did you mean", "sparks.x", "just words", "path", "type.change"):
        assert told in said, told


def lacks_jars(told: "subprocess.CompletedProcess[str]", *words: str) -> None:
    assert told.returncode == 1, told.stderr
    assert "Traceback" not in told.stderr
    said = " ".join(told.stderr.split())
    for word in ("error: WT-5232", "spark.jars.packages=io.delta:delta-spark_4", *words):
        assert word in said, said


@pytest.mark.usefixtures("java")
def test_jars_that_are_missing_are_named_by_the_command_that_applies(tmp_path: Path) -> None:
    (tmp_path / "log" / "manifests").mkdir(parents=True)
    places = ["--changelog", tmp_path / "log", "--output", tmp_path / "out"]
    told = waltap("spark", "apply", *places, "--once", "--set", "format=delta")
    lacks_jars(told, "commands take --set spark.jars.packages=")
    assert [path.name for path in (tmp_path / "out").iterdir()] == [".lock"]


@pytest.mark.usefixtures("java")
def test_jars_that_are_missing_end_a_run_before_anything_is_made(
    database: Any, tmp_path: Path
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    names = {"slot.name": database.name, "publication.name": database.name}
    source = "\n".join(
        f'"{k}" = {json.dumps(v)}' for k, v in {**database.properties(), **names}.items()
    )
    sink = '[sink]\ntype = "spark"\npath = "lake"\nformat = "delta"\n'
    (tmp_path / "p.toml").write_text(f'[source]\ntype = "postgres"\n{source}\n{sink}')
    lacks_jars(waltap("run", "p.toml", "--until-idle", "0.3", cwd=tmp_path), "In the profile:")
    assert not (tmp_path / "lake").exists()
    assert database.slots() == {}


@pytest.mark.usefixtures("java")
@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("spark.driver.memory=lots", "lots"),
        ("spark.jars.packages=no.such:jar", "no.such:jar"),
    ],
)
def test_a_jvm_that_does_not_start_is_told_with_its_last_words(
    tmp_path: Path, setting: str, told: str
) -> None:
    tables = SparkOutput(str(tmp_path / "out"))
    state = tables.open("log", "id")
    tables.commit(msgspec.structs.replace(state, number=1))
    tables.close()
    done = waltap("spark", "sql", tmp_path / "out", "SELECT 1", "--set", setting)
    said = " ".join(done.stderr.split())
    assert done.returncode == 1, said
    assert "error: WT-5268" in said, said
    assert "Spark's JVM did not start: " in said
    assert told in said.partition("did not start: ")[2]
    assert "Traceback" not in said


def test_what_a_profile_says_of_folds_and_grace_reaches_the_driver(tmp_path: Path) -> None:
    said = {"fold.min.rows": 7, "fold.share": 0.5, "fold.max.sets": 3, "merge.sets": 4}
    said |= {"file.max.rows": 9, "grace.seconds": 1.5, "apply.parallel": 2, "batch.max.rows": 11}
    said |= {"changelog.retention.hours": 0.25, "trigger.interval.ms": 30, "type.change": "string"}
    said |= {"spark.*": {"spark.driver.memory": "512m"}, "spark.master": "local[2]"}
    profile = SparkProperties.model_validate({"path": str(tmp_path), **said})
    pairs = pairs_of(profile)
    there = properties_of(pairs, str(tmp_path))
    assert there == profile
    found = apply_options(there)
    assert (found.fold_rows, found.fold_share, found.fold_sets, found.merge_sets) == (7, 0.5, 3, 4)
    assert (found.file_rows, found.grace_s, found.parallel) == (9, 1.5, 2)
    assert found.type_change == "string"
    followed = follow_options(there)
    assert (followed.batch_rows, followed.retention_h, followed.trigger_ms) == (11, 0.25, 30)


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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(driver, "PREDECESSOR_S", 0.0)
    monkeypatch.setattr(driver, "TELL_S", 0.0)
    (tmp_path / "log" / "manifests").mkdir(parents=True)
    other = hold(tmp_path / "out")
    tables, log = SparkOutput(str(tmp_path / "out")), ChangeLog(str(tmp_path / "log"))
    taking = threading.Thread(target=driver._take, args=(tables, log, lambda: False, 0.0))
    with caplog.at_level("INFO"):
        taking.start()
        until(lambda: len([r for r in caplog.records if str(other.pid) in r.getMessage()]) > 2)
    assert taking.is_alive()
    other.kill()
    other.communicate()
    taking.join(60)
    assert not taking.is_alive()
    tables.close()


def test_a_successor_that_is_told_to_end_says_who_has_the_tables(tmp_path: Path) -> None:
    (tmp_path / "log" / "manifests").mkdir(parents=True)
    other = hold(tmp_path / "out")
    tables, log = SparkOutput(str(tmp_path / "out")), ChangeLog(str(tmp_path / "log"))
    with pytest.raises(OutputInUse, match=str(other.pid)):
        driver._take(tables, log, lambda: True, 0.0)
    other.communicate()


def sink(folder: Path) -> SparkSink:
    settings = SparkProperties.model_validate(
        {"path": str(folder / "lake"), "spark.master": "local[2]"}
    )
    return SparkSink(settings, context(folder / "state", resumes=True))


@pytest.mark.usefixtures("java")
def test_a_start_that_is_refused_does_not_wait_for_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any) -> None:
        pytest.fail("Spark was waited for")

    monkeypatch.setattr("waltap_spark.process.DriverProcess._wait", never)
    made = sink(tmp_path)
    made.open()
    child = made._driver._child  # type: ignore[union-attr]
    made.close()  # as when a configuration is refused after the sink was opened
    assert child is not None
    assert child.poll() is not None, "there is nothing for it to do"
    db, writes = Database(), sink(tmp_path)
    writes._log.open()
    db.insert(NUMBERS, ["1", "1"])
    writes._log.write(batch(db.commit()))
    writes._log.flush()
    writes._log.close()
    again = sink(tmp_path)
    again.open()
    child = again._driver._child  # type: ignore[union-attr]
    try:
        raise ConfigurationError([])
    except ConfigurationError:
        again.close()
    assert child is not None
    assert child.poll() is None, "the log has something to apply"
    assert child.wait(400) == 0
    state = SparkOutput(str(tmp_path / "lake" / "tables")).state()
    assert state is not None
    assert state.rows_applied == 1


@pytest.mark.usefixtures("java")
def test_a_driver_that_dies_while_nothing_comes_is_started_again(tmp_path: Path) -> None:
    made = sink(tmp_path)
    made.open()
    assert made._driver is not None
    first = made._driver.pid
    made._driver._child.kill()  # type: ignore[union-attr]
    until(lambda: made.tend() or made._driver.pid not in (None, first))  # type: ignore[func-returns-value,union-attr]
    made._driver.abandon()
    made.close()


def until(condition: Any, seconds: float = 90.0) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "nothing happened for too long"
        time.sleep(0.02)
