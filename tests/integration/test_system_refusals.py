"""What the operating system refuses is told as that, wherever it is met, with what fixes it."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.servers.postgres import Database

SINKS = ("jsonl", "changelog")


def profile(database: Database, folder: Path, sink: str, **engine: str) -> Path:
    settings = {**database.properties(), "waltap.spill.memory.bytes": "1024", **engine}
    source = "\n".join(f"{json.dumps(k)} = {json.dumps(v)}" for k, v in settings.items())
    path = folder / "p.toml"
    path.write_text(
        f'[source]\ntype = "postgres"\n{source}\n[sink]\ntype = "{sink}"\npath = "out"\n'
    )
    return path


def run(path: Path, *, files: int = 0) -> subprocess.CompletedProcess[str]:
    def limit() -> None:
        if files:
            resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))

    return subprocess.run(
        [sys.executable, "-m", "waltap", "run", str(path), "--until-idle", "0"],
        cwd=path.parent, capture_output=True, text=True, timeout=90, preexec_fn=limit,
        env={**os.environ, "COLUMNS": "200", "WALTAP_LOG": "text"},
    )  # fmt: skip


@pytest.mark.parametrize("sink", SINKS)
def test_used_up_file_descriptors_are_told_as_that(
    database: Database, tmp_path: Path, sink: str
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    path = profile(database, tmp_path, sink)
    told = 0
    for files in (6, 8, 9, 11):
        done = run(path, files=files)
        text = done.stdout + done.stderr
        assert "Traceback" not in text, text
        if done.returncode:
            told += 1
            assert "ulimit -n" in text, (files, text)
            assert "WT-9000" not in text
            assert "WT-1108" not in text
    assert told >= 2
    assert run(path).returncode == 0


@pytest.mark.parametrize("sink", SINKS)
def test_a_name_that_is_too_long_is_told_as_that(
    database: Database, tmp_path: Path, sink: str
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    state = profile(database, tmp_path, sink, **{"waltap.state.dir": "s" * 300})
    done = run(state)
    assert done.returncode == 1
    assert "WT-6005" in done.stderr
    assert "shorter name" in done.stderr
    path = profile(database, tmp_path, sink)
    path.write_text(path.read_text().replace('"out"', f'"{"o" * 300}"'))
    done = run(path)
    assert done.returncode
    assert "shorter name" in done.stderr
