"""Two slots of one table in one engine, which is killed again and again while a writer goes on.

``python -m tests.hunt.yugabyte_ranges --kills 50``: ``waltap run`` is a process, ended by SIGKILL at some
point of its life: while it starts, reads, or streams. The judge: the events, applied in their order, give the
table in the end; every version that was committed after the first that a range streamed has come; and of no
key came an older event first behind a newer one.

Verified against a protocol double built from published sources; no YugabyteDB server was run.
"""

import argparse
import json
import random
import threading
import time
from pathlib import Path
from typing import Any

from tests.harness.engine_process import EngineProcess
from tests.harness.meanwhile import meanwhile
from tests.harness.servers import output_plugin
from tests.harness.servers.postgres import Cluster, Database
from tests.harness.yugabyte.server import Yugabyte
from tests.harness.yugabyte.wire import hash_code
from tests.hunt.by_hand import Played, run_by_hand

KEYS = 80


class KilledRanges:
    """One pipeline in ``folder`` on the double, one life after the other."""

    def __init__(self, server: Yugabyte, folder: Path, seed: int) -> None:
        self.server, self.folder = server, folder
        folder.mkdir(parents=True, exist_ok=True)
        self._random = random.Random(seed)
        self._committed: list[tuple[int, int]] = []
        self._streamed: set[int] = set()
        self.lives = self.events = self.repeated = self.written = 0
        database = server.database
        database.execute("CREATE TABLE t (id int PRIMARY KEY, name text, version int NOT NULL)")
        database.execute(f"INSERT INTO t SELECT n, 'old', 0 FROM generate_series(1, {KEYS // 2}) n")
        name = database.name[:50]
        source = {
            "type": "yugabyte",
            **server.properties(),
            "topic.prefix": "ranges",
            "streaming.mode": "parallel",
            "slot.names": f"{name}_a,{name}_b",
            "publication.names": f"{name}_pa,{name}_pb",
            "slot.ranges": "0,32768;32768,65536",
            "table.include.list": "public.t",
            "slot.lsn.type": "HYBRID_TIME",
            "yb.streaming.order": "hybrid_time",
            "yb.streaming.order.wait.ms": 50,
            "yb.read.time.wait.ms": 0,
            "yb.event.form": "cells",
            "publication.autocreate.mode": "filtered",
            "offset.flush.interval.ms": 0,
            "retriable.restart.connector.wait.ms": 100,
        }
        self._engine = EngineProcess(folder, source, {"type": "jsonl", "path": "out.jsonl"})

    # --- the writer ---------------------------------------------------------------------------

    def _write(self, stop: threading.Event) -> None:
        chance, version = random.Random(self._random.getrandbits(32)), 0
        with self.server.database.connect(autocommit=False) as connection:
            while not stop.wait(chance.random() * 0.05):
                versions: list[tuple[int, int]] = []
                for _ in range(chance.choice([1, 1, 2, 8])):
                    version += 1
                    key = chance.randint(1, KEYS)
                    if chance.random() < 0.2:
                        connection.execute("DELETE FROM t WHERE id = %s", (key,))
                        continue
                    connection.execute(
                        "INSERT INTO t VALUES (%s, %s, %s) ON CONFLICT (id)"
                        " DO UPDATE SET version = excluded.version",
                        (key, f"row {version}", version),
                    )
                    versions.append((key, version))
                connection.commit()
                self._committed += versions
                self.written += 1

    # --- lives --------------------------------------------------------------------------------

    def play(self, kills: int) -> list[str]:
        """Kill that many lives under the writer, let the last one catch up; return what is wrong."""
        with meanwhile(self._write):
            for _ in range(kills):
                self._life_that_is_killed()
        self._start()
        try:
            self._engine.until(lambda: self._rows()[0] == self._table(), "the events to give it")
        except AssertionError as error:
            return [str(error), *self._different()]
        finally:
            self._engine.kill()
        return self._rows()[1] + self._lost()

    def _lost(self) -> list[str]:
        """Return the versions that were committed behind the first that their range streamed, and did not
        come; what was committed before the slot was made is the snapshot's."""
        lost: list[str] = []
        for low in (True, False):
            ours = [v for k, v in self._committed if (hash_code(str(k)) < 32768) is low]
            came = self._streamed.intersection(ours)
            assert came, "a range streamed nothing"
            lost += [f"version {v} did not come" for v in ours if v > min(came) and v not in came]
        return lost

    def _life_that_is_killed(self) -> None:
        self._start()
        try:
            if self._random.random() < 0.85:
                size = self._size() + self._random.randint(1, 20_000)
                self._engine.until(lambda: self._size() >= size, "events")
            else:  # while it starts
                time.sleep(self._random.random())
        finally:
            self._engine.kill()

    def _start(self) -> None:
        self.lives += 1
        self._engine.start()

    # --- the judge ----------------------------------------------------------------------------

    def _size(self) -> int:
        out = self.folder / "out.jsonl"
        return out.stat().st_size if out.exists() else 0

    def _table(self) -> dict[int, tuple[Any, ...]]:
        rows = self.server.database.execute("SELECT id, name, version FROM t")
        return {row[0]: row for row in rows}

    def _rows(self) -> tuple[dict[int, tuple[Any, ...]], list[str]]:
        """Return the table that the events give, and what is wrong in their order: an event that is newer
        than all before it of its key must be the next one of that key."""
        found: dict[int, tuple[Any, ...]] = {}
        wrong: list[str] = []
        seen: set[tuple[int, int, str]] = set()
        newest: dict[int, int] = {}
        self.events = self.repeated = 0
        out = self.folder / "out.jsonl"
        text = out.read_bytes().decode() if out.exists() else ""
        for line in text[: text.rfind("\n") + 1].splitlines():
            record = json.loads(line)
            value, key = record["value"], record["key"]["id"]["value"]
            if value is None:
                continue
            self.events += 1
            after, source, op = value["after"], value["source"], value["op"]
            if op == "d":
                found.pop(key, None)
            else:
                sent = {n: c["value"] for n, c in after.items() if c is not None}
                old = dict(zip(("id", "name", "version"), found.get(key, ()), strict=False))
                new = old | sent
                found[key] = tuple(new.get(n) for n in ("id", "name", "version"))
            if op == "r":
                continue
            if op != "d":
                self._streamed.add(after["version"]["value"])
            each = (key, source["lsn"], line[: line.find('"ts_ms"')])
            if each in seen:
                self.repeated += 1
            elif source["lsn"] < newest.get(key, 0):
                wrong.append(f"key {key}: {source['lsn']} came first behind {newest[key]}")
            seen.add(each)
            newest[key] = max(newest.get(key, 0), source["lsn"])
        return found, wrong

    def _different(self) -> list[str]:
        rows, table = self._rows()[0], self._table()
        keys = sorted(k for k in rows.keys() | table.keys() if rows.get(k) != table.get(k))
        return [f"key {k}: {rows.get(k)} instead of {table.get(k)}" for k in keys[:10]]


def play(given: argparse.Namespace, cluster: Cluster, folder: Path) -> Played:
    cluster.execute("CREATE DATABASE ranges", "postgres")
    database = Database(cluster, "ranges")
    output_plugin.prepare(database, output_plugin.built(folder))
    with Yugabyte(database) as server:
        ranges = KilledRanges(server, folder / "p", given.seed)
        wrong = ranges.play(given.kills)
    done = (
        f"{given.kills} kills, {ranges.lives} lives, {ranges.written} transactions,"
        f" {ranges.events} events, {ranges.repeated} again"
    )
    return done, wrong


if __name__ == "__main__":
    run_by_hand(
        __doc__ or "",
        {"kills": 50},
        play,
        right="nothing wrong",
        max_replication_slots="20",
        fsync="off",
    )
