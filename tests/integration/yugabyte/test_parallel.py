"""Several slots, each of a hash range of one table, in one engine: a position for each. Double A.

Verified against a protocol double built from published sources; no YugabyteDB server was run.
"""

import os
import random
from pathlib import Path
from typing import Any

import pytest
from tests.harness.servers.postgres import Database
from tests.harness.yugabyte.pipeline import YugabytePipeline
from tests.harness.yugabyte.server import Yugabyte
from tests.harness.yugabyte.wire import hash_code

from waltap.errors import WaltapError
from waltap.ports.offsets.gaps import GapCertificates


class Ranged(YugabytePipeline):
    """Two slots with a publication each, and half of the hash codes."""

    def __init__(self, server: Yugabyte, folder: Path, **settings: Any) -> None:
        name = server.database.name[:50]
        self.slots = (f"{name}_a", f"{name}_b")
        own = {
            "streaming.mode": "parallel",
            "slot.names": ",".join(self.slots),
            "publication.names": f"{name}_pa,{name}_pb",
            "slot.ranges": "0,32768;32768,65536",
            "table.include.list": "public.t",
            "slot.name": None,
            "publication.name": None,
        }
        super().__init__(server, folder, own | settings)

    def rows(self) -> dict[int, dict[str, Any]]:
        """Return the table as a consumer of the events has it."""
        found: dict[int, dict[str, Any]] = {}
        for op, key, _, after in self.events():
            number = key["id"]["value"]
            if op == "d":
                found.pop(number, None)
                continue
            sent = {name: c["value"] for name, c in after.items() if c is not None}
            found[number] = found.get(number, {}) | sent
        return found

    def table(self) -> dict[int, dict[str, Any]]:
        rows = self.server.database.execute("SELECT id, name, aura FROM t")
        return {row[0]: dict(zip(("id", "name", "aura"), row, strict=True)) for row in rows}


@pytest.fixture
def database(yugabyte) -> Database:
    yugabyte.database.execute("CREATE TABLE t (id int PRIMARY KEY, name text, aura int)")
    yugabyte.database.execute("INSERT INTO t SELECT n, 'old', n FROM generate_series(1, 60) n")
    return yugabyte.database


def test_scenario_31_two_ranges_of_one_table(yugabyte, database, tmp_path):
    pipeline = Ranged(yugabyte, tmp_path)
    with pipeline.running() as run:
        database.execute("UPDATE t SET aura = -aura WHERE id <= 30")
        database.execute("DELETE FROM t WHERE id > 50")
        run.until(lambda: pipeline.rows() == pipeline.table(), "the same rows")
    first = [start.options.get("hash_range") for start in yugabyte.streams]
    assert first == ["0,32768", "32768,65536"]
    ranges = [said.partition("WHERE ")[2] for said in yugabyte.asked("COPY .*yb_hash_code")]
    assert ranges[0].startswith('yb_hash_code("id") >= 0 AND yb_hash_code("id") < 32768')
    ops = [event[0] for event in pipeline.events()]
    assert ops.count("r") == 60  # each row once
    stored = pipeline.offset()
    assert tuple(stored.partitions) == pipeline.slots
    by_slot = {each.slot: each.position.end_lsn for each in stored.partitions.values()}
    assert all(lsn > 2 for lsn in by_slot.values())
    assert yugabyte.refused == []


def test_the_ranges_of_slots_without_a_stream(yugabyte, database, tmp_path):
    """``snapshot.mode=parallel`` beside ``streaming.mode=parallel``: the ranges are those of the slots."""
    pipeline = Ranged(yugabyte, tmp_path)
    pipeline.run(**{"snapshot.mode": "parallel", "tasks.max": 2})
    assert [event[0] for event in pipeline.events()] == ["r"] * 60
    assert pipeline.rows() == pipeline.table()
    assert yugabyte.streams == []
    assert yugabyte.refused == []


def test_a_restart_with_slots_at_different_positions(yugabyte, database, tmp_path):
    pipeline = Ranged(yugabyte, tmp_path)
    low = next(n for n in range(1, 61) if hash_code(str(n)) < 32768)
    high = next(n for n in range(1, 61) if hash_code(str(n)) >= 32768)
    with pipeline.running() as run:
        for value in range(5):
            database.execute("UPDATE t SET aura = %s WHERE id = %s", value, low)
        run.until(lambda: pipeline.rows() == pipeline.table(), "the low range")
    stored = pipeline.offset()
    at = [each.position.end_lsn for each in stored.partitions.values()]
    assert at[0] > at[1]
    before = len(pipeline.events())
    database.execute("UPDATE t SET aura = 100 WHERE id IN (%s, %s)", low, high)
    with pipeline.running() as run:
        run.until(lambda: len(pipeline.events()) == before + 2, "what came meanwhile")
    assert pipeline.rows() == pipeline.table()
    assert [start.lsn for start in yugabyte.streams[2:]] == at


def test_one_of_the_connections_runs_the_heartbeats_query(yugabyte, database, tmp_path):
    database.execute("CREATE TABLE beats (at timestamp)")
    query = "INSERT INTO beats VALUES (now())"
    settings = {"heartbeat.interval.ms": 50, "heartbeat.action.query": query}
    with Ranged(yugabyte, tmp_path, **settings).running() as run:
        run.until(lambda: database.execute("SELECT at FROM beats"), "a beat")


def test_a_range_whose_slot_is_lost_has_a_certificate(yugabyte, database, tmp_path):
    pipeline = Ranged(yugabyte, tmp_path, **{"snapshot.mode": "when_needed"})
    with pipeline.running():
        pass
    yugabyte.execute("SELECT pg_drop_replication_slot(%s)", pipeline.slots[1])
    with pipeline.running():
        pass
    (gap,) = GapCertificates(pipeline.offset_file.parent).all()
    assert (gap.code, gap.by) == ("WT-2103", "snapshot")
    assert pipeline.rows() == pipeline.table()


def test_ranges_in_the_order_of_commits(yugabyte, database, tmp_path):
    """Each range waits for the other, however slow it is: what is left over waits for the next run."""
    settings = {
        "slot.lsn.type": "HYBRID_TIME",
        "yb.streaming.order": "hybrid_time",
        "yb.streaming.order.wait.ms": 600_000,
    }
    pipeline = Ranged(yugabyte, tmp_path, **settings)

    def updates() -> list[int]:
        return [event[1]["id"]["value"] for event in pipeline.events() if event[0] == "u"]

    for last in (30, 60):
        with pipeline.running() as run:
            for number in range(last - 29, last + 1):
                database.execute("UPDATE t SET aura = 1000 + id WHERE id = %s", number)
            run.until(lambda last=last: len(updates()) >= last - 10, "most of them")
    assert updates() == list(range(1, len(updates()) + 1))


def test_kills_with_two_slots_merged(yugabyte, database, tmp_path):
    """Every link is cut under a writer; the events give the table in the end. ``WALTAP_RANGE_KILLS=50`` is the
    long form."""
    kills, chance = int(os.environ.get("WALTAP_RANGE_KILLS", "4")), random.Random(1)
    settings = {
        "slot.lsn.type": "HYBRID_TIME",
        "yb.streaming.order": "hybrid_time",
        "yb.streaming.order.wait.ms": 50,
        "errors.max.retries": -1,
    }
    pipeline = Ranged(yugabyte, tmp_path, **settings)
    with pipeline.running() as run:
        for number in range(kills):
            seen = len(pipeline.events())
            for _ in range(chance.randint(1, 12)):
                key = chance.randint(1, 80)
                database.execute(
                    "INSERT INTO t VALUES (%s, 'new', %s) ON CONFLICT (id) DO UPDATE SET aura = -%s",
                    key, number, number,
                )  # fmt: skip
                database.execute("DELETE FROM t WHERE id = %s", chance.randint(1, 80))
            if chance.random() < 0.7:
                run.until(lambda seen=seen: len(pipeline.events()) > seen, "an event")
            yugabyte.cut()
        run.until(lambda: pipeline.rows() == pipeline.table(), "the same rows")
    assert run.notices.failures


def test_more_than_one_table_is_refused(yugabyte, database, tmp_path):
    database.execute("CREATE TABLE other (id int PRIMARY KEY)")
    with pytest.raises(WaltapError, match="takes one table"):
        Ranged(yugabyte, tmp_path, **{"table.include.list": None}).run()
