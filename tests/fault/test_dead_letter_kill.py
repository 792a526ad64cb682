"""``kill -9`` while events become dead letters, and while they are redelivered: each row ends up once.

Two SQL sinks refuse rows of their own. The table has no key, so that a row delivered twice is there twice.
"""

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.fault.lives import SEED, Lives
from tests.harness import command
from tests.harness.command import Command
from tests.harness.pipeline import until
from tests.harness.servers.postgres import Database

from waltap.services.dead_letters.dead_letter import DeadLetter
from waltap.services.dead_letters.store import DeadLetterStore

ROWS = 350
REFUSED = {"one": 7, "two": 5}
"""Sink → every how manyth row it refuses."""


SETTINGS = {
    "schema.include.list": "public",
    "snapshot.mode": "no_data",
    "publication.keyless.tables": "inserts",
    "max.batch.size": 100,
    "errors.tolerance": "dead_letter",
}


class Trial(Lives):
    """A profile with the two sinks, and the processes that work on it."""

    def __init__(self, database: Database, folder: Path) -> None:
        database.execute("CREATE TABLE t (n int, note text)")
        for name, every in REFUSED.items():
            database.execute(
                f"CREATE SCHEMA {name}; CREATE TABLE {name}.t (n int CHECK (n % {every} <> 0), note text)"
            )
        sinks = [
            {
                "name": name,
                "type": "sql",
                "url": database.dsn,
                "table.name.format": f"{name}.{{table}}",
                "schema.evolution": "none",
                "position.table": f"{name}.waltap_position",
            }
            for name in REFUSED
        ]
        super().__init__(database, folder, *sinks, **SETTINGS)

    def redelivering(self) -> Command:
        return command.start("dead-letters", "redeliver", "p.toml", cwd=self.folder)

    def all(self) -> list[DeadLetter]:
        return DeadLetterStore(self.folder / "state" / "p" / "dead-letters").all()

    def delivered(self) -> int:
        return sum(len(self.rows(name)) for name in REFUSED)

    def rows(self, schema: str) -> list[tuple[int]]:
        return self.database.execute(f"SELECT n FROM {schema}.t ORDER BY n")

    def kill_after(self, progress: Callable[[], object], *processes: Command) -> None:
        """Kill the first of ``processes`` a random moment after ``progress``; wait for all."""
        first = processes[0]
        until(lambda: progress() or first.poll() is not None, "progress")
        time.sleep(self.random.random() * 0.1)  # the random moment itself
        first.kill()
        for each in processes:
            each.communicate(timeout=120)


def test_rows_that_two_sinks_refuse_are_there_once_whatever_is_killed(database, tmp_path):
    trial = Trial(database, tmp_path)
    engine = trial.beginning()
    with database.connect() as connection:
        for first in range(1, ROWS, 10):
            connection.execute(
                "INSERT INTO t SELECT g, 'x' FROM generate_series(%s::int, %s::int) g",
                [first, first + 9],
            )
    trial.kill_after(trial.delivered, engine)
    before, whole = trial.delivered(), sum(ROWS - ROWS // k for k in REFUSED.values())
    trial.kill_after(lambda: trial.delivered() > min(before, whole - 1), trial.start())

    engine = trial.beginning()
    taken = {name: [(n,) for n in range(1, ROWS + 1) if n % k] for name, k in REFUSED.items()}
    dead_letters = {name: ROWS // every for name, every in REFUSED.items()}
    until(
        lambda: (
            trial.delivered() >= sum(map(len, taken.values()))
            and len(trial.all()) >= sum(dead_letters.values())
        ),
        "every row and every dead letter",
    )
    assert {name: trial.rows(name) for name in REFUSED} == taken, SEED
    assert Counter(each.sink for each in trial.all()) == dead_letters, SEED
    for name in REFUSED:
        database.execute(f"ALTER TABLE {name}.t DROP CONSTRAINT t_n_check")
    before = trial.delivered()
    trial.kill_after(
        lambda: trial.delivered() > before,
        engine,
        trial.redelivering(),
    )
    then = trial.delivered()
    alone = trial.redelivering()
    trial.kill_after(lambda: trial.delivered() > then, alone)

    engine = trial.beginning()
    last = trial.redelivering()
    said, errors = last.communicate(timeout=120)
    assert last.returncode == 0, (SEED, said, errors)
    assert [each for each in trial.all() if each.redelivered_ms is None] == [], SEED
    database.execute(f"INSERT INTO t VALUES ({ROWS + 1}, 'after')")
    until(lambda: trial.delivered() >= 2 * (ROWS + 1), "the row behind the redelivery")
    engine.terminate()
    engine.communicate(timeout=120)
    for name in REFUSED:
        assert trial.rows(name) == [(n,) for n in range(1, ROWS + 2)], SEED
