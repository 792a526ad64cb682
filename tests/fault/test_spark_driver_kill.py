"""The Spark driver is killed with SIGKILL while it applies; no row is lost, none is doubled."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.harness.changelog import Database, batch, context, relation
from tests.harness.pipeline import until
from tests.harness.servers.delta import spark_jars

from waltap_sinks.changelog import ChangeLog, ChangeLogProperties, ChangeLogSink
from waltap_spark.apply.applier import OutputApplier
from waltap_spark.formats.choice import FormatChoice
from waltap_spark.read.live import LiveTables
from waltap_spark.session.session import prepare
from waltap_spark.state.output import SparkOutput

ITEMS = relation("public.items", [("id", "int4"), ("state", "text"), ("note", "text")])
TICKS = relation("public.ticks", [("kind", "text")], key=(), identity="f")


def driver(folder: Path, *settings: str) -> "subprocess.Popen[bytes]":
    with (folder / "driver.log").open("ab") as log:
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "waltap_spark.driver.driver", "--with-parent"),
                *("--changelog", str(folder / "log"), "--output", str(folder / "out")),
                *("--set", "spark.master=local[2]", "--set", "trigger.interval.ms=50"),
                # a thread folds and merges all the time, and dies with it
                *(
                    "--set",
                    "compaction.min.rows=0",
                    "--set",
                    "compaction.share=0",
                    "--set",
                    "compaction.merge.sets=2",
                ),
                *(word for each in settings for word in ("--set", each)),
            ],
            stdin=subprocess.PIPE,
            stderr=log,
        )


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("kind", ["parquet", "delta"])
@pytest.mark.parametrize("kills", [1, pytest.param(6, marks=pytest.mark.exhaustive)])
def test_a_killed_driver_goes_on_from_its_last_commit(
    delta: Any, tmp_path: Path, kills: int, kind: str
) -> None:
    settings = ("format=delta", f"spark.jars={spark_jars()}") if kind == "delta" else ()
    briefly = (kills, kind) == (1, "delta")  # what Delta Lake has to load takes longest here
    tables = (ITEMS,) if briefly else (ITEMS, TICKS)
    chance = random.Random(20130101)
    db, output = Database(), SparkOutput(str(tmp_path / "out"))
    log = ChangeLogSink(ChangeLogProperties(path=str(tmp_path / "log")), context(tmp_path))
    log.open()

    def work(count: int) -> None:
        for _ in range(count):
            number = str(db.lsn)
            db.insert(ITEMS, [number, "new", "kept"])
            if TICKS in tables:
                db.insert(TICKS, [chance.choice("abc")])
            older = chance.choice(db.rows[ITEMS.name])[0]
            db.update(ITEMS, [older], state=f"at {db.lsn}", unsent=["note"])
            if chance.random() < 0.3:
                db.delete(ITEMS, [chance.choice(db.rows[ITEMS.name])[0]])
            log.write(batch(db.commit()))
            log.flush()

    work(3)
    for round_number in range(kills):
        process = driver(tmp_path, *settings)
        before = output.state().number if output.state() else 0
        until(
            lambda before=before: output.state() and output.state().number > before,
            "a commit of the driver",
            within=300.0,
        )
        killed_after = time.monotonic() + chance.uniform(0.0, 1.0)
        while time.monotonic() < killed_after:
            work(2)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        work(round_number)
    log.close()
    written = ChangeLog(str(tmp_path / "log"))
    if briefly:
        follower = OutputApplier(prepare(delta), written, output, choice=FormatChoice("delta"))
        follower.open()
        follower.apply(list(written.manifests(follower.state.log_position)))
        follower.close()
    else:
        process = driver(tmp_path, *settings)
        assert process.stdin is not None
        process.stdin.close()  # as when the engine is gone: apply everything, and end
        assert process.wait(timeout=400) == 0, (tmp_path / "driver.log").read_text()[-2000:]
    last = written.last()
    state = output.state()
    assert state.log_position == last.log_position
    live = LiveTables(prepare(delta), output)
    for table in tables:
        frame = live.current(table.name)
        rows = frame.selectExpr(*[f"cast({c.name} as string)" for c in table.columns]).collect()
        assert sorted(map(tuple, rows)) == sorted(db.rows[table.name])
        logged = sum(
            entry.rows
            for manifest in written.manifests()
            for entry in manifest.tables
            if entry.name == table.name
        )
        assert live.changes(table.name).count() == logged
