"""Two pipelines and one destination, one pipeline and two: nothing is left out without a word."""

import functools
import json
import shutil
from pathlib import Path

import pytest
from tests.harness import command
from tests.harness.servers.postgres import Database

from waltap_sinks.changelog import ChangeLog

waltap = functools.partial(command.waltap, COLUMNS="300")


@pytest.fixture
def source(database: Database) -> str:
    """Return a [source] table of a database with one table."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    given = "\n".join(f'"{k}" = {json.dumps(v)}' for k, v in database.properties().items())
    return f'[source]\ntype = "postgres"\n{given}\n'


def test_a_change_log_of_another_pipeline_is_refused(
    source: str, database: Database, tmp_path: Path
) -> None:
    """Of two that take turns each would take what lies below the other's mark for delivered."""
    sink = '[sink]\ntype = "changelog"\npath = "log"\n'
    mine, theirs = (f"{database.name}_{letter}" for letter in "ab")
    for name in (mine, theirs):
        (tmp_path / f"{name}.toml").write_text(f'name = "{name}"\n{source}{sink}')
    run = ("--until-idle", 0.3)
    assert waltap("run", f"{mine}.toml", *run, cwd=tmp_path).returncode == 0
    doctor = waltap("doctor", f"{theirs}.toml", cwd=tmp_path)
    assert (doctor.returncode, f"written by pipeline '{mine}'" in doctor.stdout) == (1, True)
    refused = waltap("run", f"{theirs}.toml", *run, cwd=tmp_path)
    assert (refused.returncode, "WT-5110" in refused.stderr) == (1, True)
    assert list(database.slots()) == [mine]
    (tmp_path / "log").rename(tmp_path / "away")  # as the remedy says
    assert waltap("run", f"{theirs}.toml", *run, cwd=tmp_path).returncode == 0
    again = waltap("run", f"{mine}.toml", *run, cwd=tmp_path)
    assert (again.returncode, "WT-5110" in again.stderr) == (1, True)
    (tmp_path / "log").rename(tmp_path / "theirs")
    (tmp_path / "away").rename(tmp_path / "log")
    database.execute("INSERT INTO t VALUES (2)")
    assert waltap("run", f"{mine}.toml", *run, cwd=tmp_path).returncode == 0
    found = ChangeLog(str(tmp_path / "log")).rows("public", "t")
    assert [row for part in found for row in part["id"].to_pylist()] == [1, 2]


def test_a_sink_that_takes_the_place_of_another_is_told_of(
    source: str, database: Database, tmp_path: Path
) -> None:
    profile = tmp_path / f"{database.name}.toml"
    profile.write_text(f'{source}[sink]\ntype = "jsonl"\npath = "out.jsonl"\n')

    def run(*more: object) -> str:
        done = waltap("run", profile, "--until-idle", 0.3, *more, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stderr

    for _ in range(2):
        assert "went to" not in run()
    database.execute("INSERT INTO t VALUES (2)")
    look = ("--sink", "changelog:look")
    assert "captured up to the stored offset went to jsonl:out.jsonl; changelog:look" in run(*look)
    assert "went to" not in run(*look)
    doctor = waltap("doctor", profile, cwd=tmp_path)
    remedy = "snapshot.mode=always"
    assert (doctor.returncode, remedy in doctor.stdout) == (0, True), doctor.stdout
    assert "went to changelog:look; jsonl:out.jsonl" in run("--set", remedy)
    values = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    assert [value["value"]["after"]["id"] for value in values] == [1, 1, 2]
    assert "went to" not in run()


def test_a_change_log_that_was_moved_lacks_nothing_and_an_older_copy_is_told(
    source: str, database: Database, tmp_path: Path
) -> None:
    profile = tmp_path / f"{database.name}.toml"

    def run(place: str) -> tuple[int, str]:
        profile.write_text(f'{source}[sink]\ntype = "changelog"\npath = "{place}"\n')
        done = waltap("run", profile, "--until-idle", 0.3, cwd=tmp_path)
        return done.returncode, done.stderr

    assert run("log")[0] == 0
    shutil.copytree(tmp_path / "log", tmp_path / "copy")
    database.execute("INSERT INTO t VALUES (2)")
    assert run("log")[0] == 0
    (tmp_path / "log").rename(tmp_path / "moved")
    database.execute("INSERT INTO t VALUES (3)")
    code, said = run("moved")
    assert (code, "went to" in said) == (0, False)
    found = ChangeLog(str(tmp_path / "moved")).rows("public", "t")
    assert [row for part in found for row in part["id"].to_pylist()] == [1, 2, 3]
    code, said = run("copy")
    assert (code, "WT-5109" in said) == (1, True), said
    code, said = run("other")
    assert (code, "went to changelog:moved; changelog:other" in said) == (0, True)
