"""``waltap slot list``, and what status and doctor say of a slot that is not free or not fit."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from waltap.cli.connection import connected
from waltap.offsets.offset import Offset, OffsetStore
from waltap.pipeline.preflight import checks

from tests.harness.command import waltap
from tests.harness.pipeline import PipelineRig, Run
from tests.harness.servers.postgres import Database


class Shop:
    """Two pipelines in one state folder, and commands on the first one's profile."""

    def __init__(self, database: Database, folder: Path) -> None:
        self.database, self.folder = database, folder
        database.execute("CREATE TABLE t (id int PRIMARY KEY)")
        self.pipeline = PipelineRig(database, folder)
        self.pipeline.catch_up()

    def run(self, *words: str, **settings: Any) -> subprocess.CompletedProcess[str]:
        chosen = {
            **self.pipeline.settings,
            "waltap.state.dir": str(self.folder / "state"),
        } | settings
        lines = [f"{json.dumps(k)} = {json.dumps(v)}" for k, v in chosen.items() if k != "type"]
        path = self.folder / "p.toml"
        path.write_text(
            "\n".join(
                ['name = "p"', "[source]", 'type = "postgres"', *lines, "[sink]", 'type = "null"']
            )
        )
        return waltap(*words, path)

    def listed(self, *options: str) -> tuple[dict[str, Any], int]:
        done = self.run("slot", "list", "--json", *options)
        return {each["slot"]: each for each in json.loads(done.stdout)}, done.returncode


@pytest.fixture
def shop(database: Database, tmp_path: Path) -> Shop:
    return Shop(database, tmp_path)


def test_slots_are_listed_with_whose_they_are(shop: Shop) -> None:
    left = f"{shop.pipeline.slot[:55]}_left"
    create = "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')"
    shop.database.execute(create, left)
    found, code = shop.listed()
    assert code == 0
    assert {name: each["pipeline"] for name, each in found.items()} == {
        shop.pipeline.slot: "p",
        left: None,
    }
    orphans, code = shop.listed("--orphans")
    assert (list(orphans), code) == ([left], 1)
    told = shop.run("slot", "list", "--orphans")
    assert f"SELECT pg_drop_replication_slot('{left}');" in told.stdout
    shop.database.execute("SELECT pg_drop_replication_slot(%s)", left)
    assert shop.listed("--orphans") == ({}, 0)
    assert "there is no orphan" in shop.run("slot", "list", "--orphans").stdout


def test_a_slot_that_is_read_is_no_orphan(shop: Shop) -> None:
    with shop.pipeline.running() as run:
        run.until(lambda: is_read(shop), "the slot to be read")
        shop.pipeline.offset_file.rename(shop.folder / "kept")
        found, _ = shop.listed("--orphans")
        (shop.folder / "kept").rename(shop.pipeline.offset_file)
    assert found == {}


def test_status_says_that_the_slot_is_of_another_plugin(shop: Shop) -> None:
    done = shop.run("status", **{"plugin.name": "wal2json"})
    assert done.returncode == 1
    assert "WT-2105" in done.stdout
    assert shop.run("status").returncode == 0


def test_a_slot_that_moves_while_it_is_looked_at_has_lost_nothing(shop: Shop) -> None:
    """The run stores and confirms more between the two readings of doctor: offset, then slot."""

    def moved(run: Run, store: OffsetStore) -> OffsetStore:
        load, confirmed = store.load, shop.pipeline.slot_lsns()[0]

        def load_and_wait() -> Offset | None:
            offset = load()
            if not turns:
                turns.append(offset)
                shop.database.execute("INSERT INTO t VALUES (1)")
                run.until(lambda: shop.pipeline.slot_lsns()[0] > confirmed, "the confirmation")
            return offset

        store.load = load_and_wait  # type: ignore[method-assign]
        return store

    turns: list[Offset | None] = []
    with shop.pipeline.running() as run:
        run.until(lambda: is_read(shop), "the slot to be read")
        host, _ = shop.pipeline.host()
        with connected(shop.pipeline.profile(host), host) as (connector, stages):
            moved(run, stages.store)
            found = {each.name: each for each in checks(stages, connector, locked=False)}
    assert turns
    assert "start" not in found or found["start"].verdict == "ok"
    assert "this pipeline, which runs" in found["replication slot"].found


def is_read(shop: Shop) -> bool:
    ((read,),) = shop.database.execute(
        "SELECT active FROM pg_replication_slots WHERE slot_name = %s", shop.pipeline.slot
    )
    return bool(read)


def test_doctor_advises_nobody_to_end_the_pipeline_that_runs(shop: Shop) -> None:
    with shop.pipeline.running() as run:
        run.until(lambda: is_read(shop), "the slot to be read")
        told = shop.run("doctor").stdout
    assert "the pipeline runs as pid" in " ".join(told.split())
    assert "pg_terminate_backend" not in told
    assert "this pipeline, which runs" in " ".join(told.split())
