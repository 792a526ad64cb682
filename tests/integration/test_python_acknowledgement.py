"""`waltap.stream(…, acknowledge="explicit")`: what is acknowledged is stored, what is not comes again."""

import json
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.harness.servers.postgres import Database

import waltap
from waltap.pipeline.batches import AcknowledgedTooLate

IDLE = waltap.Limits(until_idle=0.2)


@pytest.fixture
def profile(database: Database, tmp_path: Path) -> dict[str, Any]:
    """Return a profile whose slot is there, each change a batch of its own."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, big text)")
    given = {
        "name": "loop",
        "source": {
            "type": "postgres",
            **database.properties(),
            "slot.name": "ack_" + database.name[-20:],
            "waltap.state.dir": str(tmp_path / "state"),
            "max.batch.size": 1,
            "offset.flush.interval.ms": 0,
            "snapshot.mode": "no_data",
            "publication.autocreate.mode": "all_tables",
        },
    }
    assert list(explicit(given)) == []
    return given


def explicit(profile: dict[str, Any], **given: Any) -> waltap.BatchStream:
    return waltap.stream(profile, acknowledge="explicit", **{"limits": IDLE, **given})


def with_changes(
    batches: Iterator[waltap.StreamedBatch],
) -> Iterator[tuple[int, waltap.StreamedBatch]]:
    """Give each batch with the id of its change. A commit that the server sends after its change was
    handed over is a batch without one: that depends on the network."""
    for batch in batches:
        for record in batch.records or ():
            yield int(json.loads(record.key)["id"]), batch


def numbers(batches: Iterator[waltap.StreamedBatch]) -> list[int]:
    return [number for number, _ in with_changes(batches)]


def insert(database: Database, *ids: int) -> None:
    for each in ids:
        database.execute("INSERT INTO t (id) VALUES (%s)", each)


def test_only_what_is_acknowledged_is_not_given_again(
    database: Database, profile: dict[str, Any]
) -> None:
    insert(database, 1, 2, 3, 4, 5)
    seen: list[int] = []
    for number, batch in with_changes(explicit(profile)):
        seen.append(number)
        if number != 3:
            batch.ack()
            batch.ack()
            assert batch.acknowledged
    assert seen == [1, 2, 3, 4, 5]
    assert numbers(explicit(profile)) == [3, 4, 5], "the position stays before the first that waits"
    with explicit(profile) as batches:
        kept = list(batches)
        kept[-1].ack(earlier=True)
    assert numbers(explicit(profile)) == []


def test_the_server_hears_of_nothing_else(database: Database, profile: dict[str, Any]) -> None:
    def confirmed() -> int:
        ((lsn,),) = database.execute(
            "SELECT confirmed_flush_lsn - '0/0' FROM pg_replication_slots WHERE slot_name = %s",
            profile["source"]["slot.name"],
        )
        return int(lsn)

    insert(database, 1)
    before = confirmed()
    for number, _ in with_changes(explicit(profile, limits=waltap.Limits(until_idle=1.5))):
        insert(database, *([2] if number == 1 else []))
    assert confirmed() == before
    for batch in explicit(profile):
        batch.ack()
    assert confirmed() > before


def test_a_program_killed_before_it_acknowledges_gets_it_again(
    database: Database, profile: dict[str, Any], tmp_path: Path
) -> None:
    insert(database, 1, 2, 3)
    program = """
import json, os, signal, sys, time, waltap
from pathlib import Path
profile = json.loads(sys.argv[1])
offset = Path(profile["source"]["waltap.state.dir"], "loop", "offset.json")
for batch in waltap.stream(profile, acknowledge="explicit"):
    if any(json.loads(record.key)["id"] == 2 for record in batch.records):
        while offset.read_bytes() == before:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    before = offset.read_bytes()
    batch.ack()
"""
    done = subprocess.run([sys.executable, "-c", program, json.dumps(profile)], timeout=120)
    assert done.returncode == -9
    assert numbers(explicit(profile)) == [2, 3]


def test_a_snapshot_that_is_not_acknowledged_is_taken_again(
    database: Database, profile: dict[str, Any]
) -> None:
    insert(database, 1, 2)
    profile["source"] |= {
        "snapshot.mode": "initial",
        "slot.name": profile["source"]["slot.name"] + "s",
    }
    profile["name"] = "snapshot"
    rows = [json.loads(record.value)["op"] for b in explicit(profile) for record in b.records or ()]
    assert rows == ["r", "r"]
    ops = []
    with explicit(profile) as batches:
        for batch in batches:
            ops += [json.loads(record.value)["op"] for record in batch.records or ()]
        batch.ack(earlier=True)
    assert ops == ["r", "r"]
    insert(database, 3)
    assert numbers(explicit(profile)) == [3]


def test_any_thread_acknowledges_and_room_is_waited_for(
    database: Database, profile: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    insert(database, *range(20))
    held: list[waltap.StreamedBatch] = []
    told = threading.Event()

    class Heard(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "not acknowledged" in record.getMessage():
                told.set()

    heard = Heard()
    logging.getLogger("waltap.pipeline.batches").addHandler(heard)

    def work() -> None:
        assert told.wait(60)
        assert len(held) <= 3
        held[-1].ack(earlier=True)
        for batch in iter(lambda: later.pop(0) if later else None, None):
            batch.ack()

    later: list[waltap.StreamedBatch] = []
    worker = threading.Thread(target=work)
    worker.start()
    seen = []
    with explicit(profile, unacknowledged=3) as batches:
        for number, batch in with_changes(batches):
            seen.append(number)
            if told.is_set():
                worker.join()
                batch.ack(earlier=True)
            held.append(batch)
    logging.getLogger("waltap.pipeline.batches").removeHandler(heard)
    assert seen == list(range(20))
    assert numbers(explicit(profile)) == []


def test_too_late_is_told(database: Database, profile: dict[str, Any]) -> None:
    insert(database, 1)
    batch, *_ = explicit(profile)
    with pytest.raises(AcknowledgedTooLate, match="WT-1203"):
        batch.ack()
    assert not batch.acknowledged
    assert numbers(explicit(profile)) == [1]


def test_an_incremental_snapshot_is_as_far_as_what_is_acknowledged(
    database: Database, profile: dict[str, Any]
) -> None:
    """Rows of a chunk that nobody acknowledged come again, though the chunk behind it was read."""
    insert(database, 1, 2, 3, 4)
    for batch in explicit(profile):
        batch.ack()
    database.execute("CREATE TABLE signals (id text PRIMARY KEY, type text, data text)")
    profile["source"] |= {
        "signal.data.collection": "public.signals",
        "incremental.snapshot.chunk.size": 1,
    }
    database.execute(
        "INSERT INTO signals VALUES ('1', 'execute-snapshot', '{\"data-collections\": [\"public.t\"]}')"
    )
    read: list[int] = []
    for batch in explicit(profile, limits=waltap.Limits(until_idle=1)):
        for record in batch.records or ():
            if json.loads(record.value)["op"] == "r":
                read.append(json.loads(record.key)["id"])
        if read != [1, 2, 3] and read != [1, 2, 3, 4]:
            batch.ack()
    assert read == [1, 2, 3, 4]
    again: list[int] = []
    for batch in explicit(profile, limits=waltap.Limits(until_idle=1)):
        for record in batch.records or ():
            if json.loads(record.value)["op"] == "r":
                again.append(json.loads(record.key)["id"])
        batch.ack()
    assert again == [3, 4]
