"""Snapshots on demand under writers and kills: what arrives is the source, in order, and twice only where it may.

    python -m tests.hunt.soak --seconds 600

Writers insert, update, delete and move rows of twenty tables at random. Snapshots of some of them are asked
for, paused, resumed and stopped, incremental and blocking ones, and the engine is killed now and then. A
consumer that takes every record must have the tables in the end; within one life of the engine no event of a
row may be older than one before it; and a life delivers nothing again that was stored as delivered.
"""

import argparse
import json
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.harness.engine_process import EngineProcess
from tests.harness.meanwhile import meanwhile
from tests.harness.servers.postgres import Cluster, Database
from tests.hunt.by_hand import Played, run_by_hand

WRITERS = 4
PLACEHOLDER = "__debezium_unavailable_value"
LARGE = 2_500
"""Characters of a value that lies out of line."""

TABLE = """
CREATE TABLE t{n} (id bigint PRIMARY KEY, v bigint NOT NULL, note text, large text);
ALTER TABLE t{n} ALTER large SET STORAGE EXTERNAL;
INSERT INTO t{n} SELECT g, 0, 'n' || g, CASE WHEN g % 5 = 0 THEN repeat(g::text, {large} / 2) END
FROM generate_series(1, {rows}) g;
"""
SIGNALS = "CREATE TABLE signals (id varchar(64) PRIMARY KEY, type varchar(32) NOT NULL, data text)"


class Writer:
    """Changes rows whose key is its own, modulo `WRITERS`: each row's ``v`` goes up with every change."""

    def __init__(self, database: Database, tables: int, rows: int, number: int, seed: int) -> None:
        self._database, self._tables, self._number = database, tables, number
        self._chance = random.Random(seed * WRITERS + number)
        self._rows = [set(range(number or WRITERS, rows + 1, WRITERS)) for _ in range(tables)]
        self._version, self._next = 0, rows + WRITERS + number - rows % WRITERS
        self.transactions = 0

    def work(self, stop: threading.Event) -> None:
        with self._database.connect() as connection:
            while not stop.wait(self._chance.random() * 0.03):
                with connection.transaction():
                    for _ in range(self._chance.choice((1, 1, 2, 3, 5, 12))):
                        for statement, values in self._change():
                            connection.execute(statement, values)
                self.transactions += 1

    def _change(self) -> Iterator[tuple[str, list[Any]]]:
        chance = self._chance
        table = chance.randrange(self._tables)
        rows, name = self._rows[table], f"t{table}"
        self._version += 1
        version, what = self._version, chance.random()
        if what < 0.15 or not rows:
            self._next += WRITERS
            large = chance.choice("abcdef") * LARGE if chance.random() < 0.2 else None
            rows.add(self._next)
            yield (
                f"INSERT INTO {name} VALUES (%s, %s, %s, %s)",
                [self._next, version, "new", large],
            )
            return
        row = chance.choice(list(rows)[:50])
        if what < 0.25:
            rows.discard(row)
            yield f"DELETE FROM {name} WHERE id = %s", [row]
        elif what < 0.4:  # to a place that chunks may have been at, or will never come to
            self._next += WRITERS
            other = self._next if chance.random() < 0.5 else -self._next
            rows.discard(row)
            rows.add(other)
            yield f"UPDATE {name} SET id = %s, v = %s WHERE id = %s", [other, version, row]
        elif what < 0.5:
            large = chance.choice("uvwxyz") * LARGE
            yield f"UPDATE {name} SET large = %s, v = %s WHERE id = %s", [large, version, row]
        else:
            yield f"UPDATE {name} SET note = note || 'x', v = %s WHERE id = %s", [version, row]


@dataclass
class Consumer:
    """Takes every record, as an upserting consumer does. ``wrong`` has what is not as promised."""

    rows: dict[str, dict[int, dict[str, Any]]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    seen: Counter[tuple[int, str, str, int]] = field(default_factory=Counter)
    events: int = 0
    read: int = 0
    twice: int = 0
    stored: int = 0
    _ends: dict[int, int] = field(default_factory=dict)
    _newest: dict[tuple[str, int], int] = field(default_factory=dict)
    _moved: dict[str, Any] | None = None

    def begin(self, stored: int) -> None:
        """A life begins; all that had committed up to ``stored`` was stored as delivered."""
        self._newest.clear()
        self.stored = stored

    def take(self, record: dict[str, Any]) -> None:
        value = record["value"]
        if value is not None and value.get("status") == "END":
            xid, _, end = value["id"].partition(":")
            self._ends[int(xid)] = int(end)
        if value is None or "op" not in value or value["source"]["table"] == "signals":
            return
        op, source = value["op"], value["source"]
        table, key = str(source["table"]), int(record["key"]["id"])
        rows = self.rows.setdefault(table, {})
        self.events += 1
        if op == "r":
            self.read += 1
        else:
            self._count((int(source["lsn"]), op, table, key), int(source["txId"]))
        if op == "d":
            self._moved = rows.pop(key, None)
            return
        row = dict(value["after"])
        newest = self._newest.get((table, key), -1)
        if row["v"] < newest:
            self._note(f"{table} {key}: {op} brings {row['v']} behind {newest}")
        self._newest[table, key] = row["v"]
        names = {header["key"] for header in record.get("headers") or ()}
        known = rows.get(key) or (self._moved if "__debezium.oldkey" in names else None)
        self._moved = None
        if row["large"] == PLACEHOLDER and known is not None:
            row["large"] = known["large"]
        rows[key] = row

    def _count(self, change: tuple[int, str, str, int], xid: int) -> None:
        self.seen[change] += 1
        if self.seen[change] > 1:
            self.twice += 1
            if self._ends.get(xid, self.stored + 1) <= self.stored:
                self._note(f"{change} came again, and transactions up to {self.stored} were stored")

    def _note(self, what: str) -> None:
        if len(self.wrong) < 20:
            self.wrong.append(what)


class Soak:
    """One run. ``folder`` holds the profile, the state and what was delivered."""

    def __init__(
        self, database: Database, folder: Path, seed: int, *, tables: int, rows: int
    ) -> None:
        self._database, self._folder, self._seed = database, folder, seed
        self._tables, self._rows, self._chance = tables, rows, random.Random(seed)
        self._read, self._number = 0, 0
        self._engine = EngineProcess(folder, self._source(), {"type": "jsonl", "path": "out.jsonl"})
        self.consumer, self.done = Consumer(), Counter[str]()
        self._writers: list[Writer] = []

    def play(self, seconds: float) -> list[str]:
        """Return what is not as promised."""
        database = self._database
        database.execute(SIGNALS)
        for number in range(self._tables):
            database.execute(TABLE.format(n=number, rows=self._rows, large=LARGE))
        self._writers = [
            Writer(database, self._tables, self._rows, number, self._seed)
            for number in range(WRITERS)
        ]
        try:
            self._start()
            with meanwhile(*(writer.work for writer in self._writers)):
                self._engine.until(self._engine.ready, "the first start")
                end = time.monotonic() + seconds
                while time.monotonic() < end:
                    self._act()
                    time.sleep(self._chance.random() * min(2.0, seconds / 20))
                self._signal("resume-snapshot", {})
            self._end()
        finally:
            self._engine.kill()
        return self.consumer.wrong + self._differences()

    # --- what happens -------------------------------------------------------------------------

    def _act(self) -> None:
        what = self._chance.choices(
            ["snapshot", "pause", "resume", "stop", "blocking", "kill", "end"],
            weights=[8, 3, 5, 1, 1, 3, 1],
        )[0]
        self.done[what] += 1
        some = [f"public.t{n}" for n in self._chance.sample(range(self._tables), k=3)]
        if what == "snapshot":
            data: dict[str, Any] = {"data-collections": some}
            if self._chance.random() < 0.2:
                data["surrogate-key"] = "v"
            self._signal("execute-snapshot", data)
        elif what == "blocking":
            self._signal("execute-snapshot", {"data-collections": some[:1], "type": "blocking"})
        elif what == "stop":
            self._signal("stop-snapshot", {"data-collections": some})
        elif what in {"pause", "resume"}:
            self._signal(f"{what}-snapshot", {})
        else:
            self._engine.kill(signal.SIGKILL if what == "kill" else signal.SIGTERM)
            self._start()
            if self._chance.random() < 0.7:
                self._engine.until(self._engine.ready, "a start")

    def _signal(self, kind: str, data: dict[str, Any]) -> None:
        self._number += 1
        name = f"soak-{self._number}"
        if self._chance.random() < 0.5:
            values = [name, kind, json.dumps(data)]
            self._database.execute("INSERT INTO signals VALUES (%s, %s, %s)", *values)
            return
        with (self._folder / "asks.txt").open("a") as file:
            file.write(json.dumps({"id": name, "type": kind, "data": data}) + "\n")

    # --- the engine ---------------------------------------------------------------------------

    def _source(self) -> dict[str, Any]:
        return {
            **self._database.properties(),
            "slot.name": self._database.name,
            "publication.name": self._database.name,
            "topic.prefix": "soak",
            "signal.data.collection": "public.signals",
            "signal.enabled.channels": "source,file",
            "signal.file": "asks.txt",
            "signal.poll.interval.ms": 100,
            "incremental.snapshot.chunk.size": 40,
            "incremental.snapshot.watermarking.strategy": "insert_delete",
            "offset.flush.interval.ms": 200,
            "slot.retry.delay.ms": 10_000,
            "value.converter.schemas.enable": "false",
            "key.converter.schemas.enable": "false",
            "provide.transaction.metadata": "true",
            "waltap.state.dir": "state",
        }

    def _start(self) -> None:
        self._take()
        self.consumer.begin(self._stored())
        self._engine.start()

    def _stored(self) -> int:
        """Return up to where the stored offset says that all is delivered."""
        try:
            offset = json.loads((self._folder / "state/p/offset.json").read_text())
        except FileNotFoundError:
            return 0
        (partition,) = offset["partitions"].values()
        return int(partition["position"]["end_lsn"])

    # --- what came ----------------------------------------------------------------------------

    def _take(self) -> None:
        """Have the consumer take the whole records that there are."""
        path = self._folder / "out.jsonl"
        if not path.exists():
            return
        with path.open("rb") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._read += len(line)
                self.consumer.take(json.loads(line))

    def _end(self) -> None:
        """Wait until no table is to be read any more, and what was written last has come."""
        self._engine.until(self._engine.ready, "the last start")
        self._engine.until(lambda: not self._waiting(), "the last snapshot")
        database = self._database
        database.execute("INSERT INTO t0 VALUES (0, 0, 'the end', NULL)")

        def came() -> bool:
            self._take()
            return 0 in self.consumer.rows.get("t0", {})

        self._engine.until(came, "the last row")

    def _waiting(self) -> bool:
        try:
            offset = json.loads((self._folder / "state/p/offset.json").read_text())
        except FileNotFoundError:
            return True
        signals = offset.get("signals") or {}
        if signals.get("paused"):  # a pause by the other channel may have come behind the resume
            self._signal("resume-snapshot", {})
            time.sleep(0.5)
        asked = (self._folder / "asks.txt").exists()
        return asked or any(
            signals.get(name) for name in ("queue", "settling", "blocking", "paused")
        )

    def _differences(self) -> list[str]:
        found = []
        for number in range(self._tables):
            name = f"t{number}"
            rows = self._database.execute(f"SELECT id, v, note, large FROM {name}")
            there = {i: {"id": i, "v": v, "note": note, "large": big} for i, v, note, big in rows}
            known = self.consumer.rows.get(name, {})
            if known != there:
                wrong = [i for i in there.keys() | known.keys() if there.get(i) != known.get(i)]
                i = min(wrong)
                shown = {k: str(v)[:80] for k, v in (known.get(i) or {}).items()}
                wanted = {k: str(v)[:80] for k, v in (there.get(i) or {}).items()}
                found.append(f"{name}: {len(wrong)} rows differ, such as {shown}, not {wanted}")
        return found

    @property
    def transactions(self) -> int:
        return sum(writer.transactions for writer in self._writers)


def play(given: argparse.Namespace, server: Cluster, folder: Path) -> Played:
    soak = Soak(server.create_database("soak"), folder, given.seed, tables=20, rows=600)
    wrong, consumer = soak.play(given.seconds), soak.consumer
    done = (
        f"{soak.transactions:,} transactions, "
        f"{consumer.events:,} events, {consumer.read:,} of them read by snapshots, "
        f"{consumer.twice:,} delivered again after a kill, as they may be; {dict(soak.done)}"
    )
    return done, wrong


if __name__ == "__main__":
    run_by_hand(
        __doc__ or "",
        {"seconds": 600.0},
        play,
        right="every table equals the source, every row in its order",
    )
