"""The demo's pipeline is killed in mid-stream, engine or Spark or both: every table still equal."""

import contextlib
import threading
import time
from datetime import date
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from waltap_demo.flights import TABLES, load
from waltap_demo.processes import EngineProcess, write_profile
from waltap_demo.replay import OperationReplay, ReplayProgress, day_of_operations, night_run
from waltap_spark.read.live import LiveTables
from waltap_spark.read.verify import compare
from waltap_spark.session.session import prepare
from waltap_spark.state.output import SparkOutput

DAY = date(2013, 2, 8)
VICTIMS = ("engine", "engine", "spark", "spark", "engine")
"""Each after its like and after the other."""


class Silent:
    """A console for a replay that nobody watches."""

    def print(self, *_arguments: Any, **_options: Any) -> None:
        pass


def kill_spark(engine: EngineProcess) -> None:
    """SIGKILL to the Spark driver of ``engine``, its JVM first."""
    for child in psutil.Process(engine.pid).children():
        for process in [*child.children(recursive=True), child]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def quiet() -> None:
    """Nothing to show."""


@pytest.mark.timeout(1500)
def test_every_table_is_equal_after_kills(spark: Any, database: Any, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    connection = database.connect()
    data, _rows = load(connection, DAY, most_days=2)
    profile = tmp_path / "flights.toml"
    parameters = psycopg.conninfo.conninfo_to_dict(database.dsn)
    write_profile(
        profile,
        host=str(parameters["host"]),
        port=int(parameters["port"]),
        user=str(parameters["user"]),
        database=str(parameters["dbname"]),
        output=lake,
        state=tmp_path / "state",
    )
    engine = EngineProcess(profile, tmp_path)
    engine.start()
    try:
        engine.wait_until(engine.ready_file.exists, 240, "the snapshot", quiet)
        events = day_of_operations(data)
        replay = OperationReplay(connection, ReplayProgress(lake), Silent())
        player = threading.Thread(target=replay.play, args=(events, 4.0 * (len(VICTIMS) + 1)))
        player.start()
        for victim in VICTIMS:
            before = replay.transactions
            engine.wait_until(
                lambda before=before: replay.transactions > before + 200 or not player.is_alive(),
                240,
                "replay",
                quiet,
            )
            if victim == "engine":
                engine.kill()
                engine.start()
            else:
                kill_spark(engine)
        player.join()
        night = OperationReplay(connection, ReplayProgress(lake), Silent())
        night.play(night_run(DAY), 0)
        engine.wait_until(
            lambda: replay.caught_up() and night.caught_up(), 600, "catching up", quiet
        )
        assert engine.stop() == 0, engine.last_words()
    finally:
        with contextlib.suppress(Exception):
            engine.kill()
        _wait_for_spark_to_end(lake)
    tables = LiveTables(prepare(spark), SparkOutput(str(lake / "tables")))
    found = compare(connection, tables, [f"public.{name}" for name in TABLES])
    connection.close()
    assert [each for each in found if not each.equal] == []
    assert all(each.source_rows > 0 for each in found)
    published = tables.changes("flights").where("_op = 'c' AND _sub = 0").count()
    assert published == len(data.flights), "a change is missing from the history, or there twice"


def _wait_for_spark_to_end(lake: Path) -> None:
    """A driver whose engine was killed applies the rest and ends; nothing may be left running."""
    limit = time.monotonic() + 240
    while time.monotonic() < limit:
        left = [
            process
            for process in psutil.process_iter(["cmdline"])
            if str(lake) in " ".join(process.info["cmdline"] or [])
        ]
        if not left:
            return
        time.sleep(0.1)
    for process in left:
        process.kill()
    pytest.fail(f"still running: {left}")
