"""`waltap.Pipeline` and `waltap.stream`: a pipeline that a program starts, asks and stops, and acknowledges."""

import json
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.harness.json_lines import records
from tests.harness.pipeline import until
from tests.harness.servers.postgres import Database
from tests.harness.shop import Shop

import waltap
from waltap.errors import SourceError
from waltap.pipeline.api.batches import AcknowledgedTooLate
from waltap.pipeline.api.in_process import PipelineEnded
from waltap.plugins.hookspecs import hookimpl
from waltap.ports.snapshot.snapshotter import SnapshotFacts, Snapshotter
from waltap.ports.specs import SnapshotterSpec

IDLE = waltap.Limits(until_idle=0.2)


@pytest.fixture
def profile(database, tmp_path) -> dict[str, Any]:
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1), (2)")
    own = {"waltap.state.dir": str(tmp_path / "state"), "offset.flush.interval.ms": 0}
    sink = {"type": "jsonl", "path": str(tmp_path / "out.jsonl")}
    return {"name": "shop", "source": Shop(tmp_path, database, **own).source, "sink": sink}


def test_it_starts_is_asked_and_goes_on_where_it_was(database, profile, tmp_path):
    shop, heard = waltap.Pipeline(profile), list[str]()
    shop.on_notification(lambda notification: heard.append(notification.kind))
    assert [each for each in shop.check() if each.verdict == "error"] == []
    with shop:
        shop.wait(lambda status: status.state == "streaming", timeout=120)
        database.execute("INSERT INTO t VALUES (3)")
        status = shop.wait(lambda status: status.changes == 1, timeout=120)
        assert (status.state, status.snapshot_rows) == ("streaming", 2)
        assert shop.signal("log", {"message": "here"}).result(120).reason == ""
        with pytest.raises(RuntimeError, match="runs already"):
            shop.start()
    assert shop.status().state == "stopped"
    assert "COMPLETED" in heard
    database.execute("INSERT INTO t VALUES (4)")
    shop.start(waltap.Limits(max_records=1))
    with pytest.raises(PipelineEnded, match="shop is stopped"):
        shop.wait(lambda status: status.events > 100, timeout=120)
    assert shop.wait().events == 1
    lines = records(tmp_path / "out.jsonl")
    assert [line["value"]["after"]["id"] for line in lines] == [1, 2, 3, 4]


def test_what_it_fails_with_is_raised_where_it_is_waited_for(profile):
    profile["source"]["database.dbname"] = "no_such_database"
    shop = waltap.Pipeline(profile).start()
    with pytest.raises(SourceError, match="WT-2004"):
        shop.wait(lambda status: status.state == "streaming", timeout=120)
    with pytest.raises(RuntimeError, match="does not run"):
        shop.signal("log")
    with pytest.raises(SourceError, match="WT-2004"), waltap.Pipeline(profile):
        pass
    with pytest.raises(SourceError, match="WT-2004"):
        next(iter(waltap.stream(profile)))


def test_a_run_of_another_thread_is_asked_waited_for_and_stopped(profile):
    shop = waltap.Pipeline(profile)
    thread = threading.Thread(target=shop.run)
    thread.start()
    until(lambda: shop.running, "the run")
    shop.wait(lambda status: status.state == "streaming", timeout=120)
    assert shop.signal("log", {"message": "here"}).result(120).accepted
    with pytest.raises(RuntimeError, match="runs already"):
        shop.run()
    shop.stop()
    assert shop.status().state == "stopped"
    assert not shop.running
    thread.join(120)


class Refuses(Snapshotter):
    def takes_snapshot(self, known: SnapshotFacts) -> bool:
        raise LookupError("mine")

    @hookimpl
    def register_snapshotters(self) -> list[SnapshotterSpec]:
        return [SnapshotterSpec(name="refuses", summary="s", factory=lambda _properties: self)]


def test_an_error_of_the_program_is_its_own_whoever_calls_it(profile):
    """The connector, a plugin, asks the mode."""
    profile["source"]["snapshot.mode"] = "refuses"
    with pytest.raises(LookupError, match="mine"):
        waltap.Pipeline(profile, plugins=(Refuses(),)).run(IDLE)


def test_a_confirmable_that_raises_leaves_no_reader_behind(database, profile):
    def refuse(_lsn: int) -> int:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine") as raised:
        waltap.Pipeline(profile, confirmable=refuse).run(IDLE)
    # The traceback, which the program may keep, holds every object of the run.
    until(lambda: not any(database.slots().values()), "its reader to be gone")
    assert raised.tb is not None


class Ends:
    """A hook that stops its pipeline, and asks for what only another thread can wait for."""

    def __init__(self) -> None:
        self.shop: waltap.Pipeline | None = None
        self.said: list[str] = []

    @hookimpl
    def on_batch(self) -> None:
        self.end()

    def end(self, *_notification: object) -> None:
        assert self.shop is not None
        try:
            self.shop.wait()
        except RuntimeError as error:
            self.said.append(str(error))
        self.shop.stop()


@pytest.mark.parametrize("threaded", [True, False])
@pytest.mark.parametrize("by", ["hook", "notification"])
def test_a_callback_stops_its_pipeline(profile, caplog, by, *, threaded):
    ends = Ends()
    shop = ends.shop = waltap.Pipeline(profile, plugins=(ends,) if by == "hook" else ())
    if by == "notification":
        shop.on_notification(ends.end)
    if threaded:
        assert shop.start().wait(timeout=120).state == "stopped"
    else:
        shop.run()
    assert shop.status().state == "stopped"
    assert set(ends.said) == {"pipeline shop calls this function, and would wait for itself"}
    assert not [each for each in caplog.records if each.exc_info], "no error of the callback"


def test_a_notebook_shows_the_last_run_and_its_samples(database, profile):
    database.execute('ALTER TABLE t RENAME TO "<t>"')
    shop = waltap.Pipeline(profile)
    assert shop.history() == []
    shop.run(waltap.Limits(max_records=2))
    assert "2 events (2 from snapshots)" in shop._repr_html_()
    first = shop.history()
    database.execute('INSERT INTO "<t>" VALUES (3)')
    shop.run(waltap.Limits(max_records=1))
    assert shop.history()[0].at_ms > first[0].at_ms
    assert "public.&lt;t&gt;" in shop._repr_html_(), "a run without a snapshot has its tables, too"
    assert repr(shop) == "<waltap.Pipeline shop: stopped>"


# --- acknowledge="explicit": what is acknowledged is stored, what is not comes again ------------------------------


@pytest.fixture
def loop(database, profile) -> dict[str, Any]:
    """Return a profile whose slot is there, each change a batch of its own."""
    database.execute("TRUNCATE t; ALTER TABLE t ADD big text")
    del profile["sink"]
    profile["source"] |= {
        "max.batch.size": 1,
        "snapshot.mode": "no_data",
        "publication.autocreate.mode": "all_tables",
    }
    assert list(explicit(profile)) == []
    return profile


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


def test_only_what_is_acknowledged_is_not_given_again(database, loop):
    insert(database, 1, 2, 3, 4, 5)
    seen: list[int] = []
    for number, batch in with_changes(explicit(loop)):
        seen.append(number)
        if number != 3:
            batch.ack()
            batch.ack()
            assert batch.acknowledged
    assert seen == [1, 2, 3, 4, 5]
    assert numbers(explicit(loop)) == [3, 4, 5], "the position stays before the first that waits"
    with explicit(loop) as batches:
        kept = list(batches)
        kept[-1].ack(earlier=True)
    assert numbers(explicit(loop)) == []


def test_a_snapshot_that_is_not_acknowledged_is_taken_again(database, loop):
    insert(database, 1, 2)
    loop["source"] |= {
        "snapshot.mode": "initial",
        "slot.name": loop["source"]["slot.name"] + "s",
    }
    loop["name"] = "snapshot"
    rows = [json.loads(record.value)["op"] for b in explicit(loop) for record in b.records or ()]
    assert rows == ["r", "r"]
    ops = []
    with explicit(loop) as batches:
        for batch in batches:
            ops += [json.loads(record.value)["op"] for record in batch.records or ()]
        batch.ack(earlier=True)
    assert ops == ["r", "r"]
    insert(database, 3)
    assert numbers(explicit(loop)) == [3]


def test_any_thread_acknowledges_and_room_is_waited_for(database, loop, caplog):
    insert(database, *range(20))
    held: list[waltap.StreamedBatch] = []
    reported = threading.Event()

    class Heard(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "not acknowledged" in record.getMessage():
                reported.set()

    heard = Heard()
    logging.getLogger("waltap.pipeline.api.batches").addHandler(heard)

    def work() -> None:
        assert reported.wait(120)
        assert len(held) <= 3
        held[-1].ack(earlier=True)
        for batch in iter(lambda: later.pop(0) if later else None, None):
            batch.ack()

    later: list[waltap.StreamedBatch] = []
    worker = threading.Thread(target=work)
    worker.start()
    seen = []
    with explicit(loop, unacknowledged=3) as batches:
        for number, batch in with_changes(batches):
            seen.append(number)
            if reported.is_set():
                worker.join()
                batch.ack(earlier=True)
            held.append(batch)
    logging.getLogger("waltap.pipeline.api.batches").removeHandler(heard)
    assert seen == list(range(20))
    assert numbers(explicit(loop)) == []


def test_too_late_is_reported(database, loop):
    insert(database, 1)
    batch, *_ = explicit(loop)
    with pytest.raises(AcknowledgedTooLate, match="WT-1203"):
        batch.ack()
    assert not batch.acknowledged
    assert numbers(explicit(loop)) == [1]


def test_an_incremental_snapshot_is_as_far_as_what_is_acknowledged(database, loop):
    """Rows of a chunk that nobody acknowledged come again, though the chunk behind it was read."""
    insert(database, 1, 2, 3, 4)
    for batch in explicit(loop):
        batch.ack()
    database.execute("CREATE TABLE signals (id text PRIMARY KEY, type text, data text)")
    loop["source"] |= {
        "signal.data.collection": "public.signals",
        "incremental.snapshot.chunk.size": 1,
    }
    database.execute(
        "INSERT INTO signals VALUES ('1', 'execute-snapshot', '{\"data-collections\": [\"public.t\"]}')"
    )

    def read(*held: list[int]) -> list[int]:
        """Return the rows that come; acknowledge but for where those so far are ``held``."""
        found: list[int] = []
        for batch in explicit(loop, limits=waltap.Limits(until_idle=0.5)):
            for record in batch.records or ():
                if json.loads(record.value)["op"] == "r":
                    found.append(json.loads(record.key)["id"])
            if found not in held:
                batch.ack()
        return found

    assert read([1, 2, 3], [1, 2, 3, 4]) == [1, 2, 3, 4]
    assert read() == [3, 4]
