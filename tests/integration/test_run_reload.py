"""SIGHUP of `waltap run`: what may change in a run changes, the rest is named; and its log as a file."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.harness.json_lines import records
from tests.harness.pipeline import until
from tests.harness.servers.jars import MissingProgram
from tests.harness.servers.linters import logrotate
from tests.harness.servers.postgres import Database

LOGROTATE = Path(__file__).parents[2] / "examples/deploy/waltap.logrotate"


def write(folder: Path, database: Database, name: str = "shop", **more: object) -> Path:
    settings = {
        "type": "postgres",
        **database.properties(),
        "slot.name": f"{name}_{database.name[-20:]}",
        "snapshot.mode": "no_data",
        "offset.flush.interval.ms": 0,
        "topic.heartbeat.prefix": "__beat",
        **more,
    }
    lines = "\n".join(f'"{key}" = {json.dumps(value)}' for key, value in settings.items())
    path = folder / f"{name}.toml"
    path.write_text(
        f'name = "{name}"\n[source]\n{lines}\n[sink]\ntype = "jsonl"\npath = "{name}.jsonl"\n'
    )
    return path


@contextmanager
def running(*arguments: str, folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    with (folder / "stderr").open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "waltap", "run", *arguments], stderr=errors
        )
        try:
            yield process
        finally:
            process.terminate()
            process.wait(60)


def said(path: Path) -> list[dict[str, Any]]:
    """Return the whole lines of a log; the last one may be on its way."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.split("\n")[:-1]]


def told(path: Path, words: str) -> bool:
    return any(words in line["message"] for line in said(path))


def ids(folder: Path, name: str = "shop") -> list[int]:
    path = folder / f"{name}.jsonl"
    found = records(path) if path.exists() else []
    return [each["value"]["after"]["id"] for each in found if "after" in each["value"]]


def beats(folder: Path) -> int:
    return sum("ts_ms" in each["value"] for each in records(folder / "shop.jsonl")) - len(
        ids(folder)
    )


@pytest.fixture
def folder(database: Database, tmp_path: Path) -> Path:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    return tmp_path


def test_a_run_takes_its_profile_anew(database: Database, folder: Path) -> None:
    profile, first, second = write(folder, database), folder / "stderr", folder / "second.log"
    with running(str(profile), folder=folder) as process:
        until(lambda: told(first, "streaming"), "the stream")

        profile.write_text("this is [no profile")
        process.send_signal(signal.SIGHUP)
        until(lambda: told(first, "is refused"), "the refusal")
        (refused,) = [line for line in said(first) if "is refused" in line["message"]]
        assert refused["error_code"] == "WT-1001"
        database.execute("INSERT INTO t VALUES (1)")
        until(lambda: ids(folder) == [1], "a change after a bad profile")

        write(folder, database, **{"table.include.list": "public.other", "max.batch.size": 5})
        process.send_signal(signal.SIGHUP)
        until(lambda: told(first, "needs a restart"), "what needs a restart")
        (named,) = [line for line in said(first) if "needs a restart" in line["message"]]
        assert named["message"].endswith(": max.batch.size, table.include.list")

        write(folder, database, **{
            "heartbeat.interval.ms": 20, "waltap.log.file": "second.log", "waltap.log.level": "debug",
            "waltap.wal.budget": "1GB",
        })  # fmt: skip
        process.send_signal(signal.SIGHUP)
        until(lambda: told(second, "was read again"), "another log")
        (done,) = [line for line in said(second) if "was read again" in line["message"]]
        assert done["message"].endswith(
            ": heartbeat.interval.ms, waltap.log.level, waltap.log.file, waltap.wal.budget"
        )
        database.execute("INSERT INTO t VALUES (2)")
        until(lambda: ids(folder) == [1, 2], "a change of a table that is captured as before")
        until(lambda: beats(folder) > 2, "heartbeats")
        process.terminate()
        assert process.wait(60) == 0
    assert told(second, "stopped")


def test_a_log_is_rotated_under_a_run(database: Database, folder: Path) -> None:
    log, profile = folder / "waltap.log", write(folder, database)
    with running(str(profile), "--log-file", str(log), folder=folder) as process:
        until(lambda: told(log, "streaming"), "the stream")
        before = said(log)
        _rotate(log, folder)
        process.send_signal(signal.SIGHUP)
        until(lambda: told(log, "nothing to change"), "a line in the new file")
        process.terminate()
        assert process.wait(60) == 0
    (kept,) = folder.glob("waltap.log.1")
    assert said(kept)[: len(before)] == before
    assert not [line for line in said(kept) if line in said(log)], "each line is in one of the two"
    assert not told(log, "streaming")
    assert (folder / "stderr").read_text() == ""


def _rotate(log: Path, folder: Path) -> None:
    """Rotate with logrotate where it is, as our file has it; else as it does it."""
    try:
        program = logrotate()
    except MissingProgram:
        log.rename(f"{log}.1")
        return
    ours = LOGROTATE.read_text().replace("/var/log/waltap/*.log", str(log))
    ours = "\n".join(line for line in ours.splitlines() if line.strip() != "su waltap waltap")
    rules = folder / "logrotate.conf"
    rules.write_text(ours)
    rules.chmod(0o644)
    done = subprocess.run(
        [*program, "--force", "--state", str(folder / "logrotate.state"), str(rules)],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_those_of_a_folder_take_theirs_and_start_anew_where_they_must(
    database: Database, folder: Path
) -> None:
    log = folder / "all.log"
    profiles = folder / "profiles"
    profiles.mkdir()
    write(profiles, database)
    with running("--all", str(profiles), "--log-file", str(log), folder=folder) as process:
        until(lambda: told(log, "streaming"), "the stream")
        write(profiles, database, **{"heartbeat.interval.ms": 60000})
        process.send_signal(signal.SIGHUP)
        until(lambda: told(log, "read again: heartbeat.interval.ms"), "the profile")
        assert _processes(log) == 1
        write(profiles, database, **{"max.batch.size": 5})
        process.send_signal(signal.SIGHUP)
        until(lambda: _processes(log) == 2, "a new process")
        database.execute("INSERT INTO t VALUES (1)")
        until(lambda: ids(profiles) == [1], "its change")
        process.terminate()
        assert process.wait(60) == 0


def _processes(log: Path) -> int:
    return sum(line["message"].startswith("shop.toml: process") for line in said(log))
