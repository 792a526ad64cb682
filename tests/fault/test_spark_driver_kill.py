"""The Spark driver is killed with SIGKILL while it applies; no row is lost, none is doubled."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.harness.changelog import Database, batch, context, relation
from tests.harness.pipeline import until
from tests.harness.servers import spark_jars
from tests.harness.servers.fixtures import QUICK_JVM

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
                *(sys.executable, "-m", "waltap_spark.driver.driver"),
                *("--changelog", str(folder / "log"), "--output", str(folder / "out")),
                *("--set", "spark.master=local[2]", "--set", "trigger.interval.ms=50"),
                *("--set", f"spark.driver.extraJavaOptions={QUICK_JVM}"),
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


class Followed:
    """A change log that grows, and a driver that follows it until it is killed."""

    def __init__(self, folder: Path, settings: tuple[str, ...]) -> None:
        self.folder, self._settings = folder, settings
        self._chance = random.Random(20130101)
        self.db, self.output = Database(), SparkOutput(str(folder / "out"))
        self.log = ChangeLogSink(ChangeLogProperties(path=str(folder / "log")), context(folder))
        self.log.open()

    def work(self, count: int) -> None:
        """COMMIT so many times."""
        db, chance = self.db, self._chance
        for _ in range(count):
            number = str(db.lsn)
            db.insert(ITEMS, [number, "new", "kept"])
            db.insert(TICKS, [chance.choice("abc")])
            older = chance.choice(db.rows[ITEMS.name])[0]
            db.update(ITEMS, [older], state=f"at {db.lsn}", unsent=["note"])
            if chance.random() < 0.3:
                db.delete(ITEMS, [chance.choice(db.rows[ITEMS.name])[0]])
            self.log.write(batch(db.commit()))
            self.log.flush()

    def drive(self) -> None:
        """Start a driver, and wait until it has committed."""
        before = self.number()
        self.driver = driver(self.folder, *self._settings)
        until(lambda: self.number() > before, "a commit of the driver", within=300.0)

    def number(self) -> int:
        state = self.output.state()
        return state.number if state else 0

    def kill(self) -> None:
        """Kill the driver at a moment within a second of work."""
        killed_after = time.monotonic() + self._chance.uniform(0.0, 1.0)
        while time.monotonic() < killed_after:
            self.work(2)
        self.driver.send_signal(signal.SIGKILL)
        self.driver.communicate()

    def drive_to_the_end(self) -> None:
        """Have a driver end as when the engine is gone: it applies everything."""
        process = driver(self.folder, *self._settings)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(timeout=400) == 0, (self.folder / "driver.log").read_text()[-2000:]


@pytest.fixture
def followed(tmp_path, kind, kills) -> Followed:
    """Return a change log whose driver has made its first commit."""
    settings = ("format=delta", f"spark.jars={spark_jars.delta()}") if kind == "delta" else ()
    made = Followed(tmp_path, settings)
    made.work(3)
    made.drive()
    return made


@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    ("kind", "kills"),
    [
        ("parquet", 1),
        pytest.param("parquet", 6, marks=pytest.mark.exhaustive),
        pytest.param("delta", 6, marks=pytest.mark.exhaustive),
    ],
)
def test_a_killed_driver_goes_on_from_its_last_commit(delta, followed, kills, kind):
    for round_number in range(kills):
        if round_number:
            followed.drive()
        followed.kill()
        followed.work(round_number)
    followed.log.close()
    output, written = followed.output, ChangeLog(str(followed.folder / "log"))
    if kills == 1:  # a second driver takes as long as the first
        follower = OutputApplier(prepare(delta), written, output, choice=FormatChoice(kind))
        follower.open()
        follower.apply(list(written.manifests(follower.state.log_position)))
        follower.close()
    else:
        followed.drive_to_the_end()
    last = written.last()
    state = output.state()
    assert state.log_position == last.log_position
    live = LiveTables(prepare(delta), output)
    for table in (ITEMS, TICKS):
        frame = live.current(table.name)
        rows = frame.selectExpr(*[f"cast({c.name} as string)" for c in table.columns]).collect()
        assert sorted(map(tuple, rows)) == sorted(followed.db.rows[table.name])
        logged = sum(
            entry.rows
            for manifest in written.manifests()
            for entry in manifest.tables
            if entry.name == table.name
        )
        assert live.changes(table.name).count() == logged
