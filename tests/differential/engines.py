"""The two engines that turn a workload into events: waltap's command, and Debezium's runner.

Both get a ``.properties`` file and dump one JSON object per record. An engine is started, becomes
ready (what is committed from then on is certain to be captured), meets the workload, and is finished:
it ends once it delivered everything.
"""

import abc
import os
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from tests.differential.normalise import Record, parse, read
from tests.harness.command import Command
from tests.harness.servers.postgres import Database

PEER = Path(__file__).parents[2] / "benchmarks" / "peer" / "run-peer"
READY_SECONDS = 240.0
FINISH_SECONDS = 120.0
QUIET_SECONDS = 12.0
STOP_SECONDS = 10.0
POLL_SECONDS = 0.02


class CaptureFailed(Exception):
    """An engine did not start, or ended in failure; the text holds the end of its log."""


def peer_installed() -> bool:
    """Return whether Debezium's runner can be used at once, without fetching anything."""
    return subprocess.run([PEER, "--installed"], check=False).returncode == 0


class Engine(abc.ABC):
    """A run of one engine, in a folder of its own."""

    name: str

    def __init__(self, folder: Path, properties: Mapping[str, str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.dump, self._ready = folder / "dump.jsonl", folder / "ready"
        self._log = folder / "log"
        self._read = 0
        text = "".join(f"{name}={value}\n" for name, value in properties.items())
        (folder / "connector.properties").write_text(text, encoding="utf-8")
        with self._log.open("wb") as log:
            self._process = self._started(folder / "connector.properties", log)

    @abc.abstractmethod
    def _started(self, properties: Path, log: IO[bytes]) -> "subprocess.Popen[bytes] | Command": ...

    @abc.abstractmethod
    def _end(self, database: Database, expected: Sequence[Record], collapse: Sequence[str]) -> None:
        """Wait until everything is delivered, and make the process end."""

    def wait_ready(self) -> None:
        self.wait(self._ready.exists, READY_SECONDS, "not ready")

    def pause(self, database: Database, seconds: float, collapse: Sequence[str]) -> None:
        """Give the engine the time that Debezium had for what is committed when the events were recorded."""
        time.sleep(seconds)

    def finish(
        self, database: Database, expected: Sequence[Record] = (), collapse: Sequence[str] = ()
    ) -> None:
        """Return when the engine has delivered everything that is committed and has ended.

        ``expected`` are records known to come; of topics in ``collapse``, and of heartbeats, the number
        is not known, only that there is one.
        """
        self._end(database, expected, collapse)
        if status := self._process.wait():
            raise self._failed(f"ended with status {status}")

    def records(self) -> list[Record]:
        """Return what was dumped, as it was dumped."""
        return read(self.dump) if self.dump.exists() else []

    def stop(self) -> None:
        """End the process, whatever state it is in."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    def news(self) -> list[Record]:
        """Return the records dumped since the last call; a line still being written comes later."""
        if not self.dump.exists():
            return []
        with self.dump.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        return list(map(parse, whole.decode().split("\n")[:-1]))

    def wait(self, done: Callable[[], bool], seconds: float, what: str) -> None:
        """Wait until ``done`` says so. Raises: CaptureFailed with ``what`` after ``seconds``."""
        deadline = time.monotonic() + seconds
        while True:
            ended = self._process.poll() is not None  # before the look: then it was the last one
            if done():
                return
            if ended:
                raise self._failed(f"ended with status {self._process.returncode}")
            if time.monotonic() > deadline:
                raise self._failed(f"{what} after {seconds:.0f} s")
            time.sleep(POLL_SECONDS)

    def _failed(self, what: str) -> CaptureFailed:
        return CaptureFailed(
            f"{self.name}: {what}\n{self._log.read_text(errors='replace')[-3000:]}"
        )


class Debezium(Engine):
    """Debezium's runner; it is over after ``idle_seconds`` of silence. What it dumps it sends to the
    broker at ``kafka``, too, and ends when all of it is there. ``format_``: ``json`` or ``avro``."""

    name = "debezium"

    def __init__(
        self,
        folder: Path,
        properties: Mapping[str, str],
        idle_seconds: float,
        kafka: str | None = None,
        format_: str = "json",
    ) -> None:
        self._idle, self._kafka, self._format = idle_seconds, kafka, format_
        super().__init__(folder, properties)

    def _started(self, properties: Path, log: IO[bytes]) -> "subprocess.Popen[bytes]":
        options = {
            "--dump": self.dump,
            "--ready-file": self._ready,
            "--until-idle": self._idle,
            "--idle-after": self.folder / "go",
            "--max-seconds": 900,
            "--format": self._format,
        }
        if self._kafka is not None:
            options["--kafka"] = self._kafka
        words = [str(word) for option in options.items() for word in option]
        return subprocess.Popen(
            [str(PEER), str(properties), *words], cwd=self.folder, stdout=log, stderr=log
        )

    def _end(self, database: Database, expected: Sequence[Record], collapse: Sequence[str]) -> None:
        (self.folder / "go").touch()
        self.wait(lambda: self._process.poll() is not None, FINISH_SECONDS * 3, "still running")


class Waltap(Engine):
    """``waltap run``; it is reported to stop once its slot has confirmed everything.

    A position is confirmed only after the sink made it durable, so a confirmed position behind the
    workload means that nothing is still to come. Where fewer records than expected came, silence
    ends the wait.
    """

    name = "waltap"

    def __init__(self, folder: Path, properties: Mapping[str, str]) -> None:
        self._slot = properties["slot.name"]
        self._came: Counter[str] = Counter()
        # confirm soon, so that the wait for it is short; neither changes an event
        prompt = {"offset.flush.interval.ms": "20", "status.update.interval.ms": "100"}
        super().__init__(folder, {**prompt, **properties})

    def _started(self, properties: Path, log: IO[bytes]) -> Command:
        words = [
            "run",
            str(properties),
            "--sink",
            f"jsonl:{self.dump}",
            "--ready-file",
            str(self._ready),
        ]
        return Command(words, self.folder, os.environ, log, log)

    def pause(self, database: Database, seconds: float, collapse: Sequence[str]) -> None:
        """Wait until everything is confirmed and for half of ``seconds`` no record came."""
        timed = _timed(collapse)
        self._wait_confirmed(database)
        changed = time.monotonic()
        while time.monotonic() - changed < seconds / 2:
            time.sleep(POLL_SECONDS)
            fresh = _counts(self.news(), timed)
            self._came += fresh
            if any(not timed.search(topic) for topic in fresh):
                self._wait_confirmed(database)
                changed = time.monotonic()

    def _end(self, database: Database, expected: Sequence[Record], collapse: Sequence[str]) -> None:
        timed = _timed(collapse)
        awaited = _counts(expected, timed) - self._came
        changed = time.monotonic()
        while awaited and time.monotonic() - changed < QUIET_SECONDS:
            if self._process.poll() is not None:
                return
            if fresh := self.news():
                awaited -= _counts(fresh, timed)
                changed = time.monotonic()
            time.sleep(POLL_SECONDS)
        self._wait_confirmed(database)
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        self.wait(
            lambda: self._process.poll() is not None, FINISH_SECONDS, "did not stop on SIGTERM"
        )

    def _wait_confirmed(self, database: Database) -> None:
        """Wait until the slot has confirmed everything that is written, or the engine has ended."""
        target = database.execute("SELECT pg_current_wal_lsn()")[0][0]
        query = (
            f"SELECT confirmed_flush_lsn >= '{target}' FROM pg_replication_slots"
            f" WHERE slot_name = '{self._slot}'"
        )
        deadline = time.monotonic() + FINISH_SECONDS
        with database.connect() as connection:
            while self._process.poll() is None and time.monotonic() < deadline:
                row = connection.execute(query).fetchone()  # no slot: it ends by itself
                if row is not None and row[0]:
                    break
                time.sleep(POLL_SECONDS)


def _timed(collapse: Sequence[str]) -> re.Pattern[str]:
    """Return the pattern of topics whose number of records depends on time."""
    return re.compile("|".join(["heartbeat", *collapse]))


def _counts(records: Sequence[Record], timed: re.Pattern[str]) -> Counter[str]:
    """Count records by topic; for a topic whose number depends on time the count is one."""
    found = Counter(str(record["topic"]) for record in records)
    return Counter({topic: 1 if timed.search(topic) else n for topic, n in found.items()})
