"""Destinations that fail, are taken away or exchanged: nothing unwritten is confirmed, nothing left out without a word."""

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.harness.changelog import logged_ids
from tests.harness.json_lines import records
from tests.harness.pipeline import PipelineRig
from tests.harness.servers.postgres import Database

from waltap.changes.transactions.position import parse_lsn
from waltap.errors import SinkError, WaltapError
from waltap.ports.sink.jsonl import LinesFileTruncated
from waltap_sinks.changelog.errors import ChangeLogGone

pytestmark = pytest.mark.pipeline(sql="CREATE TABLE t (id int PRIMARY KEY)")


def committed(database: Database, statement: str) -> int:
    """Execute and commit; return where the WAL ended behind that: a slot before it has not confirmed it."""
    with database.connect() as connection:
        connection.execute(statement.encode())
        ((lsn,),) = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchall()
    return parse_lsn(lsn)


# --- files of lines ---------------------------------------------------------------------------------


@pytest.fixture
def lines(pipeline, tmp_path) -> Iterator[Path]:
    pipeline.settings |= {"sink.type": "jsonl", "sink.path": str(tmp_path / "out.jsonl")}
    return tmp_path / "out.jsonl"


def ids(*paths: Path) -> list[int]:
    return [record["value"]["after"]["id"] for path in paths for record in records(path)]


def confirmed(pipeline: PipelineRig) -> Callable[[], bool]:
    lsn = pipeline.database.wal_end()
    return lambda: pipeline.slot_lsns()[0] >= lsn


def test_a_file_of_lines_that_is_rotated_by_rename_is_opened_anew(
    pipeline, database, lines, tmp_path
):
    moved = []
    with pipeline.running() as run:
        for turn in range(4):
            database.execute(f"INSERT INTO t VALUES ({turn})")
            run.until(confirmed(pipeline), "the row to be confirmed")
            moved.append(lines.rename(tmp_path / f"out.{turn}"))
            if turn % 2:
                lines.touch()  # as logrotate's create does
            database.execute(f"INSERT INTO t VALUES ({turn + 10})")
            run.until(confirmed(pipeline), "the next row to be confirmed")
        database.execute("INSERT INTO t VALUES (99)")
        run.until(lambda: ids(lines) == [99], "the new file")
        assert run.notices.failures == []
    assert sorted(ids(*moved, lines)) == [0, 1, 2, 3, 10, 11, 12, 13, 99]


def test_a_file_of_lines_that_is_cut_is_written_again_from_the_last_confirmed_row(pipeline, lines):
    """The flush at the end finds it: it confirms nothing, and the next run gives everything again."""
    database, seldom = pipeline.database, {"offset.flush.interval.ms": 3_600_000}
    pipeline.catch_up()
    with pytest.raises(LinesFileTruncated), pipeline.running(**seldom) as run:
        behind = committed(database, "INSERT INTO t SELECT generate_series(1, 1000)")
        run.until(lambda: len(ids(lines)) == 1000, "the rows")
        os.truncate(lines, 0)
    assert pipeline.slot_lsns()[0] < behind
    pipeline.catch_up()
    assert ids(lines) == list(range(1, 1001))


def test_a_file_of_lines_that_is_cut_in_mid_run_is_written_again_in_the_same_run(
    pipeline, database, lines
):
    with pipeline.running() as run:
        database.execute("INSERT INTO t VALUES (1)")
        run.until(confirmed(pipeline), "the first row")
        os.truncate(lines, 0)
        database.execute("INSERT INTO t VALUES (2)")
        run.until(confirmed(pipeline), "the second row")
        assert [error.code for error, _ in run.notices.failures] == ["WT-5002"]
    assert ids(lines) in ([2], [2, 2])


def test_a_failed_fsync_of_lines_confirms_nothing(pipeline, lines, monkeypatch):
    database, real, refused = pipeline.database, os.fsync, list[int]()
    pipeline.catch_up()

    def sync(fd: int) -> None:
        if os.path.samestat(os.fstat(fd), lines.stat()) and not refused:
            refused.append(fd)
            raise OSError(errno.EIO, "Input/output error")
        real(fd)

    monkeypatch.setattr(os, "fsync", sync)
    with pytest.raises(SinkError, match="WT-5001"), pipeline.running() as run:
        behind = committed(database, "INSERT INTO t VALUES (1)")
        run.join()
    assert len(refused) == 1
    assert pipeline.slot_lsns()[0] < behind
    pipeline.catch_up()
    assert ids(lines) == [1, 1]


# --- change logs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("taken", ["moved", "deleted"])
def test_a_change_log_that_is_taken_away_stops_the_pipeline_until_it_is_back(
    pipeline, database, tmp_path, taken
):
    log, aside = tmp_path / "log", tmp_path / "aside"
    settings: dict[str, Any] = {"sink.type": "changelog", "sink.path": str(log)}
    database.execute("INSERT INTO t VALUES (1)")
    with (
        pytest.raises(ChangeLogGone, match="moved or deleted"),
        pipeline.running(**settings) as run,
    ):
        run.until(confirmed(pipeline), "the snapshot")
        shutil.copytree(log, aside)
        if taken == "moved":
            log.rename(tmp_path / "elsewhere")
        else:
            shutil.rmtree(log)
        behind = committed(database, "INSERT INTO t VALUES (2)")
        run.join()
    assert pipeline.slot_lsns()[0] < behind
    with pytest.raises(ChangeLogGone, match="is empty"):
        pipeline.catch_up(**settings)
    shutil.rmtree(log, ignore_errors=True)  # a start that is refused makes none
    aside.rename(log)
    pipeline.catch_up(**settings)
    assert logged_ids(log) == [1, 2]


# --- two pipelines and one destination, one pipeline and two -------------------------------------------


one_row = pytest.mark.pipeline(sql="INSERT INTO t VALUES (1)")


@one_row
def test_a_change_log_of_another_pipeline_is_refused(pipeline, tmp_path):
    """Of two that take turns each would take what lies below the other's mark for delivered."""
    log, slot = tmp_path / "log", pipeline.slot[:55]
    pipeline.settings |= {"sink.type": "changelog", "sink.path": str(log)}

    def named(name: str) -> None:
        pipeline.tables = {"name": name}
        pipeline.settings |= {"slot.name": f"{slot}_{name}", "publication.name": f"{slot}_{name}"}

    named("mine")
    pipeline.catch_up()
    named("theirs")
    assert "written by pipeline 'mine'" in str(pipeline.doctor())
    with pytest.raises(WaltapError, match="WT-5110"):
        pipeline.catch_up()
    assert list(pipeline.database.slots()) == [f"{slot}_mine"]
    log.rename(tmp_path / "away")  # as the remedy says
    pipeline.catch_up()
    named("mine")
    with pytest.raises(WaltapError, match="WT-5110"):
        pipeline.catch_up()
    log.rename(tmp_path / "theirs")
    (tmp_path / "away").rename(log)
    pipeline.deliver("INSERT INTO t VALUES (2)")
    assert logged_ids(log) == [1, 2]


@one_row
def test_a_sink_that_takes_the_place_of_another_is_reported(pipeline, tmp_path, caplog):
    def said(**settings: str) -> str:
        caplog.clear()
        pipeline.catch_up(**settings)
        return caplog.text

    lines, log = str(tmp_path / "out.jsonl"), str(tmp_path / "look")
    pipeline.settings |= {"sink.type": "jsonl", "sink.path": lines}
    for _ in range(2):
        assert "went to" not in said()
    pipeline.database.execute("INSERT INTO t VALUES (2)")
    look = {"sink.type": "changelog", "sink.path": log}
    reported = f"changes up to the stored offset went to jsonl:{lines}; changelog:{log}"
    assert reported in said(**look)
    assert "went to" not in said(**look)
    assert "snapshot.mode=always" in str(pipeline.doctor())
    assert f"went to changelog:{log}; jsonl:{lines}" in said(**{"snapshot.mode": "always"})
    assert [each["value"]["after"]["id"] for each in records(Path(lines))] == [1, 1, 2]
    assert "went to" not in said()


@one_row
def test_a_change_log_that_was_moved_lacks_nothing_and_an_older_copy_is_reported(
    pipeline, tmp_path, caplog
):
    def run(place: str) -> None:
        pipeline.settings |= {"sink.type": "changelog", "sink.path": str(tmp_path / place)}
        pipeline.catch_up()

    run("log")
    shutil.copytree(tmp_path / "log", tmp_path / "copy")
    pipeline.database.execute("INSERT INTO t VALUES (2)")
    run("log")
    (tmp_path / "log").rename(tmp_path / "moved")
    pipeline.database.execute("INSERT INTO t VALUES (3)")
    run("moved")
    assert "went to" not in caplog.text
    assert logged_ids(tmp_path / "moved") == [1, 2, 3]
    with pytest.raises(WaltapError, match="WT-5109"):
        run("copy")
    run("other")
    assert f"went to changelog:{tmp_path}/moved; changelog:{tmp_path}/other" in caplog.text
