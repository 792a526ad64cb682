"""`waltap run --all FOLDER`: many pipelines, each a process of its own."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.harness.json_lines import records
from tests.harness.pipeline import until
from tests.harness.servers.postgres import Database


@pytest.fixture
def folder(database: Database, tmp_path: Path) -> Path:
    database.execute(
        "CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY);"
        "INSERT INTO a VALUES (1); INSERT INTO b VALUES (1)"
    )
    return tmp_path


def write(folder: Path, database: Database, name: str, **more: object) -> Path:
    settings = {
        "type": "postgres",
        **database.properties(),
        "slot.name": f"{name}_{database.name[-20:]}",
        "publication.name": f"{name}_{database.name[-20:]}",
        "table.include.list": f"public.{name}",
        "publication.autocreate.mode": "filtered",
        "offset.flush.interval.ms": 0,
        **more,
    }
    lines = "\n".join(f'"{key}" = {json.dumps(value)}' for key, value in settings.items())
    path = folder / f"{name}.toml"
    path.write_text(
        f'name = "{name}"\n[source]\n{lines}\n[sink]\ntype = "jsonl"\npath = "{name}.jsonl"\n'
    )
    return path


@contextmanager
def running(folder: Path, *arguments: str) -> Iterator["subprocess.Popen[bytes]"]:
    log = (folder / "log").open("wb")
    process = subprocess.Popen(
        [sys.executable, "-m", "waltap", "run", "--all", str(folder), *arguments],
        stderr=log,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)
        log.close()


def ids(folder: Path, name: str) -> list[int]:
    path = folder / f"{name}.jsonl"
    return [each["value"]["after"]["id"] for each in records(path)] if path.exists() else []


def test_a_folder_is_run_read_again_and_stopped(database: Database, folder: Path) -> None:
    write(folder, database, "a")
    (folder / "notes.toml").write_text("no = 'profile'\n")
    with running(folder) as process:
        until(lambda: ids(folder, "a") == [1], "the rows of a")
        write(folder, database, "b")
        process.send_signal(signal.SIGHUP)
        until(lambda: ids(folder, "b") == [1], "the rows of b")
        (folder / "a.toml").unlink()
        process.send_signal(signal.SIGHUP)
        until(lambda: "a.toml is gone" in (folder / "log").read_text(), "the end of a")
        database.execute("INSERT INTO b VALUES (2)")
        until(lambda: ids(folder, "b") == [1, 2], "the change of b")
        process.terminate()
        assert process.wait(60) == 0
    assert ids(folder, "a") == [1]


def test_one_that_is_killed_starts_again_and_one_that_is_faulty_waits(
    database: Database, folder: Path
) -> None:
    write(folder, database, "a")
    faulty = write(folder, database, "b", **{"no.such.property": 1})
    with running(folder) as process:
        until(lambda: ids(folder, "a") == [1], "the rows of a")
        text = (folder / "log").read_text
        until(lambda: "b.toml has a faulty profile" in text(), "the fault of b")
        started = re.search(r"a\.toml: process (\d+)", text())
        assert started is not None
        os.kill(int(started[1]), signal.SIGKILL)
        until(lambda: "starts again" in text(), "another start")
        database.execute("INSERT INTO a VALUES (2)")
        until(lambda: ids(folder, "a")[-1:] == [2], "the change of a")
        faulty.unlink()
        write(folder, database, "b")
        process.send_signal(signal.SIGHUP)
        until(lambda: ids(folder, "b") == [1], "the rows of b")


def test_it_ends_when_all_are_done(database: Database, folder: Path) -> None:
    write(folder, database, "a")
    write(folder, database, "b", **{"snapshot.mode": "initial_only"})
    with running(folder, "--max-records", "1") as process:
        assert process.wait(120) == 0
    assert ids(folder, "a") == ids(folder, "b") == [1]


def test_what_is_of_one_pipeline_is_refused(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "waltap", "run", "--all", str(tmp_path), "--http", "127.0.0.1:0"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    assert "--http is of one pipeline" in done.stderr
    assert "finds no profile" in done.stderr
