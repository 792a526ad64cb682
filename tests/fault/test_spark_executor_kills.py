"""While executors read a snapshot, and people write, each process is killed in turn; the tables are right."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.harness.pipeline import profile_text
from tests.harness.servers import spark_jars
from tests.harness.servers.postgres import Database

from waltap_spark.read.live import LiveTables
from waltap_spark.session.session import prepare
from waltap_spark.state.output import SparkOutput

ACCOUNTS, EACH, GATE = 3000, 100, 42
PATIENCE_S = 600.0
TABLES = f"""
CREATE TABLE accounts (id int PRIMARY KEY, balance int NOT NULL, note text);
CREATE TABLE large (id int PRIMARY KEY, v text);
CREATE TABLE ticks (n int, v text);
ALTER TABLE ticks REPLICA IDENTITY FULL;
INSERT INTO accounts SELECT g, {EACH}, repeat('n', 20) FROM generate_series(1, {ACCOUNTS}) g;
INSERT INTO large SELECT g, repeat('v', 900) FROM generate_series(1, 3000) g;
INSERT INTO ticks SELECT -g, 'before' FROM generate_series(1, 50) g;
"""
# the task that reads this table waits for the test
GATED = f"SELECT a.* FROM accounts a, (SELECT pg_advisory_xact_lock_shared({GATE}) OFFSET 0) gate"


ON_A_CLUSTER = {
    "spark.master": "local-cluster[1,1,512]",
    "spark.executor.memory": "512m",
    "spark.driver.memory": "512m",
}


def profile(database: Database, folder: Path, spark: dict[str, str]) -> Path:
    source = {
        **database.properties(),
        "slot.name": database.name[:60],
        "publication.name": database.name[:60],
        "waltap.state.dir": str(folder / "state"),
        "waltap.stop.timeout.ms": "0",  # the tables are read after a stop
        "snapshot.max.threads": "3",
        "snapshot.select.statement.overrides": "public.accounts",
        "snapshot.select.statement.overrides.public.accounts": GATED,
    }
    sink = {"path": str(folder / "lake"), "snapshot.readers": "executors", **spark}
    path = folder / "bank.toml"
    path.write_text(profile_text("bank", {"type": "postgres", **source}, {"type": "spark", **sink}))
    return path


class Bank:
    """The database, people who write to it, and the pipeline."""

    def __init__(self, database: Database, folder: Path, spark: dict[str, str]) -> None:
        self.database, self.folder = database, folder
        self.file, self.log = profile(database, folder, spark), folder / "run.log"
        self.engine: subprocess.Popen[bytes] | None = None
        self._stop, self._file = threading.Event(), self.log.open("ab")
        self._people = threading.Thread(target=self._write)
        self.gate = database.connect(autocommit=True)
        self.gate.execute("SELECT pg_advisory_lock(%s)", (GATE,))

    def _write(self) -> None:
        with self.database.connect(autocommit=True) as connection:
            number = 0
            while not self._stop.wait(0.05):
                number += 1
                one, other = number * 7 % ACCOUNTS + 1, number * 11 % ACCOUNTS + 1
                with connection.transaction():
                    change = "UPDATE accounts SET balance = balance + %s WHERE id = %s"
                    connection.execute(change, (-1, one))
                    connection.execute(change, (1, other))
                    connection.execute("INSERT INTO ticks VALUES (%s, 'after')", (number,))
                    connection.execute("DELETE FROM large WHERE id = %s", (number,))
                    connection.execute("INSERT INTO large VALUES (%s, 'new')", (10_000 + number,))

    def start(self) -> None:
        command = [sys.executable, "-m", "waltap", "run", str(self.file)]
        self.engine = subprocess.Popen(command, stdout=self._file, stderr=self._file)
        if not self._people.is_alive():
            self._people.start()

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        limit = time.monotonic() + PATIENCE_S
        while not (found := condition()):
            assert time.monotonic() < limit, f"no {what}: {self.log.read_text()[-3000:]}"
            assert self.engine is not None
            assert self.engine.poll() is None, self.log.read_text()[-3000:]
            time.sleep(0.1)
        return found

    def waiting(self) -> set[int]:
        found = self.database.execute(
            "SELECT pid FROM pg_stat_activity WHERE wait_event = 'advisory' AND datname = current_database()"
        )
        return {pid for (pid,) in found}

    def kill(self, *pids: int) -> None:
        """Kill processes; wait until another task reads the accounts."""
        before = self.waiting()
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        self.until(lambda: self.waiting() - before, "other task")

    def stop(self) -> None:
        """Stop the pipeline as an operator does."""
        assert self.engine is not None
        self.engine.send_signal(signal.SIGTERM)
        assert self.engine.wait(timeout=PATIENCE_S) == 0, self.log.read_text()[-3000:]

    def finish(self, spark: Any) -> None:
        """Let the tasks read, stop when all changes are in the log, and compare. ``spark`` gives a session,
        which is made behind that of the driver."""
        self.gate.execute("SELECT pg_advisory_unlock(%s)", (GATE,))
        self.until(lambda: self.said('"streaming"'), "stream")
        self.rest()
        self.until(lambda: not self.holding(), "end of the snapshots")
        ((end,),) = self.database.execute("SELECT pg_current_wal_lsn()")
        self.until(lambda: self.confirmed(end), "end of the changes")
        self.stop()
        tables = LiveTables(prepare(spark()), SparkOutput(str(self.folder / "lake" / "tables")))
        for table, columns in (("accounts", "id, balance"), ("large", "id, v"), ("ticks", "n, v")):
            rows = tables.current(f"public.{table}").selectExpr(*columns.split(", ")).collect()
            there = self.database.execute(f"SELECT {columns} FROM {table}")
            assert sorted(map(tuple, rows)) == sorted(there), table
        balances = tables.current("accounts").select("balance").collect()
        assert sum(row[0] for row in balances) == ACCOUNTS * EACH

    def driver(self) -> int:
        assert self.engine is not None
        (pid,) = children(self.engine.pid)
        return pid

    def executors(self) -> list[int]:
        (machine,) = (p for p in children(self.driver()) if b"java" in command_line(p))
        return [p for p in children(machine) if b"CoarseGrainedExecutorBackend" in command_line(p)]

    def holding(self) -> int:
        """Return how many of the server's processes keep a snapshot for nothing that they do."""
        ((count,),) = self.database.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction'"
            " AND datname = current_database()"
        )
        return int(count)

    def confirmed(self, lsn: str) -> bool:
        """Return whether everything up to ``lsn`` is in the change log."""
        found = self.database.execute(
            "SELECT 1 FROM pg_replication_slots WHERE slot_name = %s AND confirmed_flush_lsn >= %s::pg_lsn",
            self.database.name[:60],
            lsn,
        )
        return bool(found)

    def said(self, text: str) -> int:
        return self.log.read_text().count(text)

    def rest(self) -> None:
        self._stop.set()
        if self._people.is_alive():
            self._people.join()

    def close(self) -> None:
        self.rest()
        self.gate.close()
        if self.engine is not None:
            self.engine.kill()
            self.engine.wait()
        self._file.close()


def children(pid: int) -> list[int]:
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        found += [int(word) for word in path.read_text().split()]
    return found


def command_line(pid: int) -> bytes:
    """Return how a process was started, nothing of one that has ended since it was listed."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


Banks = Callable[[dict[str, str]], Bank]


@pytest.fixture
def banks(database, java, tmp_path) -> Iterator[Banks]:
    database.execute(TABLES)
    made: list[Bank] = []

    def make(spark: dict[str, str]) -> Bank:
        made.append(Bank(database, tmp_path, spark))
        return made[-1]

    yield make
    for bank in made:
        bank.close()


def each_dies_in_turn(bank: Bank, spark: Callable[[], Any]) -> None:
    """Kill the executor, the driver and the engine while a task waits; see `Bank.finish`."""
    bank.start()
    bank.until(bank.waiting, "task that reads")
    bank.kill(*bank.executors())
    bank.kill(bank.driver())
    assert bank.engine is not None
    bank.engine.kill()  # its driver lives, and holds the tables until its task has ended
    bank.engine.wait()
    bank.start()
    bank.until(lambda: bank.said("are read by others") >= 2, "second snapshot")
    bank.finish(spark)


@pytest.mark.parametrize("kind", ["parquet", "delta"])
@pytest.mark.timeout(1500)  # five starts of Spark, on a machine that may have much to do
def test_executor_driver_and_engine_are_killed_while_tasks_read(banks, request, kind):
    jars = {"format": kind, "spark.jars": spark_jars.delta()} if kind == "delta" else {}
    bank = banks({**ON_A_CLUSTER, **jars})
    name = "delta" if kind == "delta" else "spark"
    each_dies_in_turn(bank, lambda: request.getfixturevalue(name))
