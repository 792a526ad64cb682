"""Debezium and waltap take turns on one slot, while transactions of all sizes are committed.

``python -m tests.hunt.takeover --turns 12``: Debezium begins, with a snapshot; each turn ends after some
records, wherever that is in a transaction; `waltap offsets import` and `export` hand over. The judge: every row
came, in the order of its changes, and what came again is of one transaction at each handover.
"""

import argparse
import itertools
import json
import random
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from tests.differential.engines import PEER
from tests.harness.command import run_program
from tests.harness.meanwhile import meanwhile
from tests.harness.servers.postgres import Cluster, Database
from tests.hunt.by_hand import Played, run_by_hand

SLOT, PUBLICATION, PREFIX = "turns", "turns", "shop"
SECONDS = 240.0
ACCOUNTS, ITEMS = 20, 500
SETUP = f"""
CREATE TABLE item (id bigint PRIMARY KEY, tx bigint NOT NULL, note text);
CREATE TABLE account (id int PRIMARY KEY, changes int NOT NULL, tx bigint NOT NULL);
ALTER TABLE account REPLICA IDENTITY FULL;
INSERT INTO account SELECT n, 0, 0 FROM generate_series(1, {ACCOUNTS}) n;
INSERT INTO item SELECT -n, 0, 'before' FROM generate_series(1, {ITEMS}) n;
CREATE PUBLICATION {PUBLICATION} FOR TABLE item, account;
"""


@dataclass(slots=True)
class Findings:
    """What the judge saw. ``repeated`` has the number of events that came again at each handover."""

    events: int = 0
    lost: list[str] = field(default_factory=list)
    disorder: list[str] = field(default_factory=list)
    repeated: list[int] = field(default_factory=list)
    stray: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not (self.lost or self.disorder or self.stray)


class Handovers:
    """One slot of ``database``, read in turns. ``turns`` are the dumps so far, by engine; ``pause_s`` is the
    longest pause of a writer between two transactions."""

    def __init__(
        self, database: Database, folder: Path, seed: int, *, pause_s: float = 0.04
    ) -> None:
        self._pause_s = pause_s
        self.database, self.folder = database, folder
        self.random = random.Random(seed)
        self.offsets = folder / "offsets.dat"
        self.turns: list[tuple[str, Path]] = []
        self._ids, self._txs = itertools.count(1), itertools.count(1)
        self.file = folder / "connector.properties"
        folder.mkdir(parents=True, exist_ok=True)
        self.file.write_text(
            "".join(f"{name}={value}\n" for name, value in self.properties().items())
        )

    def properties(self) -> dict[str, str]:
        return {
            "name": "turns",
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "topic.prefix": PREFIX,
            "plugin.name": "pgoutput",
            "slot.name": SLOT,
            "publication.name": PUBLICATION,
            "publication.autocreate.mode": "disabled",
            "status.update.interval.ms": "200",
            "offset.flush.interval.ms": "200",
            "key.converter.schemas.enable": "false",
            "value.converter.schemas.enable": "false",
            **self.database.properties(),
        }

    # --- the writers ------------------------------------------------------------------------

    @contextmanager
    def writing(self, writers: int = 2) -> Iterator[None]:
        """Commit transactions meanwhile."""
        with meanwhile(*[self._write] * writers, within=SECONDS):
            yield

    def _write(self, stop: threading.Event) -> None:
        chance = random.Random(self.random.getrandbits(32))
        with self.database.connect(autocommit=False) as connection:
            while not stop.wait(chance.random() * self._pause_s):
                self._transaction(connection, chance)

    def _transaction(self, connection: "psycopg.Connection[Any]", chance: random.Random) -> None:
        tx, size = next(self._txs), chance.choice([1, 1, 3, 20, 150])
        rows = [(next(self._ids), tx, "x" * chance.randrange(40)) for _ in range(size)]
        with connection.cursor() as cursor:
            if chance.random() < 0.3:
                with cursor.copy("COPY item FROM STDIN") as copy:
                    for row in rows:
                        copy.write_row(row)
            else:
                cursor.executemany("INSERT INTO item VALUES (%s, %s, %s)", rows)
            cursor.execute(
                "UPDATE account SET changes = changes + 1, tx = %s WHERE id = %s",
                (tx, chance.randint(1, ACCOUNTS)),
            )
        connection.commit()

    # --- the turns --------------------------------------------------------------------------

    def debezium(self, records: int) -> None:
        """Let Debezium deliver that many records."""
        dump = self._dump("debezium")
        _run(
            *(PEER, self.file, "--dump", dump, "--offset-file", self.offsets),
            *("--count", records, "--max-seconds", SECONDS, "--set", "offset.flush.interval.ms=0"),
            *("--set", "max.batch.size=64"),
        )

    def waltap(self, records: int) -> None:
        """Let waltap deliver that many records."""
        self._waltap("--max-records", records)

    def waltap_to_the_end(self) -> None:
        """Let waltap deliver all there is."""
        ((lsn,),) = self.database.execute("SELECT pg_current_wal_lsn()::text")
        self._waltap("--until-lsn", lsn, "--max-seconds", SECONDS)

    def to_waltap(self) -> None:
        """Hand over from Debezium."""
        self._offsets("import", "--from-debezium", self.offsets, "--yes")

    def to_debezium(self) -> None:
        """Hand over to Debezium."""
        self._offsets("export", "--to-debezium", self.offsets, "--yes")

    def _waltap(self, *options: object) -> None:
        sink = f"jsonl:{self._dump('waltap')}"
        _run(sys.executable, "-m", "waltap", "run", self.file, "--sink", sink, *options)

    def _offsets(self, what: str, *options: object) -> None:
        waltap = (sys.executable, "-m", "waltap", "offsets", what, self.file, *options)
        deadline = time.monotonic() + SECONDS
        while "WT-6304" in _run(*waltap, passing="WT-6304"):  # the walsender of the turn before
            assert time.monotonic() < deadline, "somebody still reads the slot"

    def _dump(self, engine: str) -> Path:
        path = self.folder / f"turn{len(self.turns)}.jsonl"
        self.turns.append((engine, path))
        return path


def judge(handovers: Handovers) -> Findings:
    """Compare what came with what was committed."""
    found = Findings()
    rows = handovers.database.execute("SELECT id, tx FROM item")
    wanted = dict(rows)
    changes = dict(handovers.database.execute("SELECT id, changes FROM account"))
    seen: set[tuple[str, int, int]] = set()
    last: dict[int, int] = defaultdict(int)
    for number, (engine, path) in enumerate(handovers.turns):
        again: set[int] = set()
        repeated = 0
        for table, key, version, tx in _events(path):
            found.events += 1
            if (table, key, version) in seen:
                repeated += 1
                again.add(tx)
                continue
            seen.add((table, key, version))
            if table == "account":
                if version != last[key] + 1 and not (version == 0 and not last[key]):
                    before = last[key]
                    found.disorder.append(f"account {key}: {version} after {before}, turn {number}")
                last[key] = version
        if len(again) > 1:
            found.stray.append(f"turn {number} ({engine}) repeats transactions {sorted(again)}")
        if number:
            found.repeated.append(repeated)
    items = {key for table, key, _ in seen if table == "item"}
    found.lost += [f"item {key} of transaction {wanted[key]}" for key in wanted.keys() - items]
    found.lost += [f"change {n} of account {k}" for k, n in changes.items() if last[k] != n]
    return found


def _events(path: Path) -> Iterator[tuple[str, int, int, int]]:
    """Yield (table, key, version of the row, transaction) of each record."""
    for line in path.read_text(encoding="utf-8").splitlines():
        value = json.loads(line)["value"]
        value = json.loads(value) if isinstance(value, str) else value
        value = value.get("payload", value)
        after, table = value["after"], value["source"]["table"]
        yield table, after["id"], after.get("changes", 0), after["tx"]


def _run(*words: object, passing: str = "") -> str:
    """Run a program to its end; return what it said. ``passing``: an error that may come."""
    done = run_program(*words, code=None, wait=SECONDS)
    said = done.stdout + done.stderr
    assert done.returncode == 0 or (passing and passing in said), said[-4000:]
    return said


def play(handovers: Handovers, turns: int) -> Findings:
    """Take turns: Debezium with its snapshot, waltap, Debezium, …; waltap has the slot at the end."""
    chance = handovers.random
    handovers.debezium(ACCOUNTS + ITEMS)
    with handovers.writing():
        for turn in range(turns):
            if turn:
                handovers.to_debezium()
                handovers.debezium(chance.randint(50, 800))
            handovers.to_waltap()
            handovers.waltap(chance.randint(50, 800))
    handovers.waltap_to_the_end()
    return judge(handovers)


def run(given: argparse.Namespace, cluster: Cluster, folder: Path) -> Played:
    database = cluster.create_database("turns")
    database.execute(SETUP)
    found = play(Handovers(database, folder, given.seed), given.turns)
    return str(found), [] if found.good else ["not as promised"]


if __name__ == "__main__":
    run_by_hand(__doc__ or "", {"turns": 12}, run, right="nothing lost")
