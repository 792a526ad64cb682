"""Processes of one profile, one after the other, that are killed at moments drawn from a seed.

A failure names the seed; ``WALTAP_TEST_SEED`` repeats it.
"""

import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.harness import command
from tests.harness.command import Command
from tests.harness.json_lines import records
from tests.harness.pipeline import QUICK, PipelineRig, until
from tests.harness.servers.postgres import Database

from waltap.changes.transactions.position import Position

SEED: Final = int(os.environ.get("WALTAP_TEST_SEED") or time.time_ns() % 1_000_000)
LARGE: Final = 30_000
"""Rows of the one large transaction: several batches."""
JSONL: Final = {"sink.type": "jsonl", "sink.path": "out.jsonl"}
CHANGELOG: Final = {"sink.type": "changelog", "sink.path": "log"}


class Lives(PipelineRig):
    """The lives of one pipeline, each a process; with ``branches`` it has several sinks. Its waits are the defaults."""

    def __init__(
        self, database: Database, folder: Path, *branches: dict[str, Any], **settings: Any
    ) -> None:
        folder.mkdir(exist_ok=True)
        own = {**dict.fromkeys(QUICK), "offset.flush.interval.ms": 20}
        super().__init__(database, folder, own | settings)
        self.branches = [*branches]
        self.random = random.Random(SEED)
        self.file()

    def start(self, *options: object) -> Command:
        return command.start("run", "p.toml", *options, cwd=self.folder)

    def beginning(self) -> Command:
        """Start, and wait until it streams, or has ended."""
        ready = self.folder / "ready"
        ready.unlink(missing_ok=True)
        process = self.start("--ready-file", "ready")
        until(lambda: ready.exists() or process.poll() is not None, "the engine")
        return process

    def until_killed(self, patience: float) -> None:
        """Start, wait for signs of life, then kill a random moment later."""
        ready, mark = self.folder / "ready", self.written()
        ready.unlink(missing_ok=True)
        process = self.start("--ready-file", "ready")
        until(lambda: self.written() > mark or ready.exists() or process.poll() is not None, "life")
        time.sleep(self.random.random() * patience)  # the random moment itself
        assert process.poll() is None, process.communicate()[1]
        process.kill()
        process.communicate()

    def to_the_end(self, *options: object) -> None:
        """Run until everything committed so far is delivered, or as ``options`` say."""
        ((lsn,),) = self.database.execute("SELECT pg_current_wal_lsn()::text")
        process = self.start(*(options or ("--until-lsn", lsn)))
        _, errors = process.communicate(timeout=180)
        assert process.returncode == 0, errors

    def written(self) -> int:
        """Return how much there is of output."""
        files = [p for p in self.folder.rglob("*") if p.suffix in {".jsonl", ".parquet", ".json"}]
        total = 0
        for path in files:
            try:
                total += path.stat().st_size
            except FileNotFoundError:  # it was being replaced
                continue
        return total

    def records(self) -> list[dict[str, Any]]:
        return records(self.folder / "out.jsonl")


class Writer(threading.Thread):
    """Inserts ids from 1 on, in transactions of different sizes, one of them large.

    ``commits`` holds (last id, end of WAL after the commit) of each transaction.
    """

    def __init__(self, database: Database) -> None:
        super().__init__(daemon=True)
        self._database = database
        self.commits: list[tuple[int, int]] = []
        self.large_from = 0
        self._stop_asked, self._large_asked = threading.Event(), threading.Event()

    def run(self) -> None:
        sizes = random.Random(SEED + 1)
        last = 0
        with self._database.connect() as connection:
            while not self._stop_asked.wait(0.002):
                count = sizes.choice((1, 1, 1, 2, 5, 50))
                if self._large_asked.is_set() and not self.large_from:
                    count, self.large_from = LARGE, last + 1
                connection.execute(
                    "INSERT INTO t SELECT g, repeat('x', g %% 40) FROM generate_series(%s::int, %s::int) g",
                    [last + 1, last + count],
                )
                last += count
                ((end,),) = connection.execute("SELECT (pg_current_wal_insert_lsn() - '0/0')::int8")
                self.commits.append((last, end))

    def large(self) -> None:
        """Make the next transaction the large one, and wait for its commit."""
        self._large_asked.set()
        until(lambda: self.large_from and self.commits[-1][0] > self.large_from, "it")

    def durable(self, position: Position) -> int:
        """Return the id up to which all rows lie before ``position``, at least."""
        whole = max((last for last, end in self.commits if end <= position.end_lsn), default=0)
        return whole + position.index

    def finish(self) -> int:
        self._stop_asked.set()
        self.join(120)
        return self.commits[-1][0]


@contextmanager
def writing(database: Database) -> Iterator[Writer]:
    writer = Writer(database)
    writer.start()
    until(lambda: writer.commits, "the first commit")
    try:
        yield writer
    finally:
        writer.finish()


def ids(records: list[dict[str, Any]], *ops: str) -> list[int]:
    return [r["value"]["after"]["id"] for r in records if r["value"]["op"] in ops]
