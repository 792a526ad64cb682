"""``waltap status`` and ``waltap top`` of pipelines that run: what their processes say."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.pipeline import PipelineRig
from tests.harness.servers.postgres import Database


class Shop:
    """A pipeline, and a profile of it."""

    def __init__(self, database: Database, folder: Path) -> None:
        self.database, self.folder = database, folder
        database.psql("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1), (2)")
        self.pipeline = PipelineRig(database, folder)
        chosen = {**self.pipeline.settings, "waltap.state.dir": str(folder / "state")}
        lines = [f"{json.dumps(k)} = {json.dumps(v)}" for k, v in chosen.items() if k != "type"]
        source = "\n".join(["[source]", 'type = "postgres"', *lines])
        (folder / "p.toml").write_text(f'name = "p"\n{source}\n[sink]\ntype = "null"\n')

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "waltap", *words], cwd=self.folder,
            env={**os.environ, "COLUMNS": "160"}, capture_output=True, text=True, timeout=90, check=False,
        )  # fmt: skip


@pytest.fixture
def shop(database: Database, tmp_path: Path) -> Iterator[Shop]:
    yield Shop(database, tmp_path)


def test_the_process_that_runs_a_pipeline_is_asked(shop: Shop) -> None:
    with shop.pipeline.running() as run:
        shop.database.execute("INSERT INTO t VALUES (3)")
        run.until(lambda: run.engine.status().events == 3, "the change")
        one = shop.run("status", "p.toml", "--json")
        told = shop.run("status", "p.toml")
        folder = shop.run("status", ".", "--json")
        top = shop.run("top", ".", "--once", "--sort", "lag")
        states = json.loads(shop.run("top", "state", "--json").stdout)
        shown = run.engine.status()
    assert one.returncode == 0, one.stderr
    document = json.loads(one.stdout)
    assert document["offset"]["snapshot"] == "complete"
    found = document["run"]
    assert (found["pipeline"], found["state"], found["events"]) == ("p", "streaming", 3)
    assert found["captured_tables"] == list(shown.captured_tables) == ["public.t"]
    assert "streaming for" in told.stdout
    assert "3 events, 2 of them of snapshots" in told.stdout
    assert [each["run"]["events"] for each in json.loads(folder.stdout)] == [3]
    assert "streaming" in top.stdout
    assert [(each["pipeline"], each["run"]["state"]) for each in states] == [("p", "streaming")]
    (after,) = json.loads(shop.run("status", ".", "--json").stdout)
    assert (after["run"], after["stored_ms"] is not None) == (None, True)


def test_a_database_that_is_down_hides_nothing_of_the_run(shop: Shop) -> None:
    with shop.pipeline.running():
        done = shop.run("status", "p.toml", "--set", "database.port=1")
    assert done.returncode == 0
    assert "streaming for" in done.stdout
    assert "WT-2002" in done.stdout
    assert shop.run("status", "p.toml", "--set", "database.port=1").returncode != 0


def test_orphans_are_named(shop: Shop) -> None:
    shop.pipeline.catch_up()
    left = f"{shop.pipeline.slot[:55]}_left"
    shop.database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", left)
    assert json.loads(shop.run("status", "p.toml", "--json").stdout)["orphans"] == [left]
    assert left in shop.run("status", "p.toml").stdout


def test_watching_draws_until_interrupted(shop: Shop) -> None:
    with shop.pipeline.running():
        command = [sys.executable, "-m", "waltap", "top", ".", "--every", "0.2"]
        with subprocess.Popen(
            command,
            cwd=shop.folder,
            stdout=subprocess.PIPE,
            text=True,
            # a shell has what it starts in the background ignore Ctrl-C
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        ) as watching:
            assert watching.stdout is not None
            seen = 0
            while seen < 3:
                seen += "streaming" in watching.stdout.readline()
            watching.send_signal(signal.SIGINT)
            watching.stdout.read()
            assert watching.wait(60) == 0
    empty = shop.folder / "empty"
    empty.mkdir()
    assert shop.run("top", "empty").returncode == 1
