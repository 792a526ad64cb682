"""The slot monitor over servers whose WAL really fills: it foretells, warns, and does as it is reported."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.harness.pipeline import WAIT_S, PipelineRig, Run, until
from tests.harness.servers.own_server import own_server
from tests.harness.servers.postgres import Cluster, Database

from waltap.changes.transactions.position import parse_lsn
from waltap.changes.transactions.transaction import Batch, Notification, SnapshotRows
from waltap.ports.offsets.gaps import CaptureGap, GapCertificates
from waltap.services.monitor.status import SlotHealth
from waltap.services.slot_monitor import SlotGivenUp
from waltap_postgres.errors import SlotInvalidated

MB = 1 << 20
SETTINGS = {
    "wal_segment_size": "1",
    "min_wal_size": "2MB",
    "max_wal_size": "1GB",
    "bgwriter_delay": "10s",
}
"""Small segments, so that little WAL is much; and nothing of the server's own moves a slot in between."""


@pytest.fixture(scope="module", params=["oldest", "newest"])
def small_server(request) -> Iterator[Cluster]:
    make = Cluster.create if request.param == "oldest" else Cluster.create_newest
    with own_server(make, **SETTINGS) as cluster:
        yield cluster


@pytest.fixture
def database(small_server, request) -> Iterator[Database]:
    small_server.execute("ALTER SYSTEM RESET ALL")
    small_server.reload()
    name = "".join(c if c.isalnum() else "_" for c in request.node.name.lower())[:40]
    made = small_server.create_database(name)
    made.psql(
        "CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a'), (2, 'b');"
        "CREATE TABLE noise (v text)"
    )
    yield made
    made.drop()


pytestmark = pytest.mark.pipeline(
    settings={"table.include.list": "public.t", "waltap.new.tables": "warn"}
)


def fill(database: Database, megabytes: int) -> None:
    """Write so much WAL that nobody captures."""
    database.execute(
        "SELECT count(pg_logical_emit_message(false, 'noise', repeat('x', 1024 * 1024 - 4096)))"
        " FROM generate_series(1, %s)",
        megabytes,
    )


class Watched:
    """A run, its notifications of the slot, and a sink that can be held."""

    def __init__(self, pipeline: PipelineRig, run: Run) -> None:
        self.pipeline, self.run = pipeline, run
        self.free = threading.Event()
        self.free.set()
        self.reported: list[Notification] = []
        run.engine.on_notification(self.reported.append)
        pipeline.destination.before_write = lambda _batch: self.free.wait(WAIT_S)

    def kinds(self) -> list[str]:
        return [each.kind for each in self.reported if each.aggregate_type == "Slot"]

    @property
    def health(self) -> SlotHealth:
        found = self.run.engine.status().slot
        assert found is not None
        return found

    def until(self, condition: Callable[[SlotHealth], object], what: str) -> None:
        self.run.until(lambda: self.run.engine.status().slot and condition(self.health), what)


def gaps(pipeline: PipelineRig) -> list[CaptureGap]:
    return GapCertificates(pipeline.folder / "state" / "p").all()


def test_a_held_sink_is_predicted_and_reported(pipeline, database):
    """The engine waits for the sink; the monitor looks over a connection of its own."""
    settings: dict[str, Any] = {"waltap.wal.budget": "20MB", "waltap.wal.warn.at": "0.25,0.5"}
    with pipeline.running(**settings) as run:
        watched = Watched(pipeline, run)
        watched.until(lambda health: health.limit_kind == "budget", "a look")
        watched.free.clear()
        database.execute("INSERT INTO t VALUES (3, 'c')")
        fill(database, 6)
        watched.until(lambda health: health.level == "warned", "the first warning")
        fill(database, 6)
        watched.until(lambda health: health.retained_bytes > 11 * MB, "the next look")
        assert watched.health.growth_per_s > 0
        assert watched.health.seconds_left is not None
        assert watched.health.limit_bytes == 20 * MB
        fill(database, 9)
        watched.until(lambda health: health.seconds_left == 0, "the budget is spent")
        # the look is on the status before it is reported
        run.until(lambda: len(watched.kinds()) >= 3, "the last warning")
        assert watched.kinds() == ["WAL_WARNING"] * 3
        assert watched.health.level == "acted"
        reported = watched.reported[-1].additional_data
        assert (reported["limit"], reported["slot"]) == ("budget", pipeline.slot)
        watched.free.set()
        run.until(lambda: pipeline.destination.ids("t", "c") == [3], "the change that was held")
    assert pipeline.slot in database.slots()
    assert gaps(pipeline) == []


def test_advancing_lets_go_of_what_nobody_captures_and_of_nothing_else(pipeline, database):
    settings = {"waltap.wal.budget": "12MB", "waltap.wal.action": "advance"}
    with pipeline.running(**settings) as run:
        watched = Watched(pipeline, run)
        watched.free.clear()
        database.execute("INSERT INTO t VALUES (3, 'c')")
        fill(database, 14)
        watched.until(lambda health: health.level == "acted", "the budget is spent")
        stored = pipeline.slot_lsns()
        fill(database, 2)
        watched.until(lambda health: health.retained_bytes > 14.5 * MB, "another look")
        assert pipeline.slot_lsns() == stored  # what is captured and not delivered is kept
        watched.free.set()
        watched.until(lambda health: health.level == "ok", "WAL is let go of")
        database.execute("INSERT INTO t VALUES (4, 'd')")
        run.until(lambda: pipeline.destination.ids("t", "c") == [3, 4], "both changes")
        # the look is on the status before it is reported
        run.until(lambda: {"WAL_ACTION", "WAL_CALM"} <= set(watched.kinds()), "what is reported")
        assert watched.kinds()[:1] == ["WAL_WARNING"]
    assert gaps(pipeline) == []


PAUSES: dict[str, Any] = {
    "waltap.wal.budget": "12MB",
    "waltap.wal.action": "pause",
    "incremental.snapshot.chunk.size": 10,
}


def paused(pipeline: PipelineRig, run: Run, *signals: str) -> Watched:
    """Have the monitor pause a snapshot of t behind its first chunk, in which ``signals`` are sent."""
    database = pipeline.database
    database.execute("INSERT INTO t SELECT g, 'x' FROM generate_series(100, 500) g")
    watched = Watched(pipeline, run)
    held = threading.Event()

    def hold(batch: Batch) -> None:
        if any(isinstance(part, SnapshotRows) for part in batch.parts):
            held.set()
            watched.free.wait(WAIT_S)

    watched.free.clear()
    pipeline.destination.before_write = hold
    asked = {"data-collections": ["public.t"], "type": "incremental"}
    assert run.engine.signal("execute-snapshot", asked).result(120).accepted
    assert held.wait(WAIT_S)  # from here on nothing is confirmed, whatever the server writes
    for kind in signals:
        run.engine.signal(kind)
    fill(database, 14)  # before the second chunk there is too much
    watched.until(lambda health: health.level == "acted", "the budget is spent")
    watched.free.set()
    run.until(lambda: "PAUSED" in pauses(watched), "the pause")
    return watched


def pauses(watched: Watched) -> list[str]:
    return [
        each.kind for each in watched.reported if each.kind in {"PAUSED", "RESUMED", "COMPLETED"}
    ]


def read(pipeline: PipelineRig) -> int:
    return len(set(pipeline.destination.ids("t", "r")))


def calm(watched: Watched) -> None:
    def lets_go() -> bool:
        watched.pipeline.database.execute("CHECKPOINT")
        return watched.health.level != "acted"

    until(lets_go, "the server lets go")


def test_incremental_snapshots_are_paused_while_there_is_too_much(pipeline):
    with pipeline.running(**PAUSES) as run:
        watched = paused(pipeline, run)
        calm(watched)
        run.until(lambda: "COMPLETED" in pauses(watched), "the end")
    assert pauses(watched)[0] == "PAUSED"
    assert pauses(watched)[-2:] == ["RESUMED", "COMPLETED"]
    assert read(pipeline) == 403


def changed(watched: Watched) -> None:
    watched.pipeline.database.execute("INSERT INTO t VALUES (4, 'd')")
    watched.run.until(lambda: 4 in watched.pipeline.destination.ids("t", "c"), "the change")


def test_a_pause_of_the_monitor_ends_with_its_run(pipeline):
    with pipeline.running(**PAUSES) as run:
        changed(paused(pipeline, run))
    with pipeline.running(**PAUSES | {"waltap.wal.budget": "1GB"}) as run:
        run.until(lambda: read(pipeline) == 403, "the end")


def test_the_monitor_ends_no_pause_that_somebody_asked_for(pipeline):
    with pipeline.running(**PAUSES) as run:
        watched = paused(pipeline, run, "pause-snapshot")
        calm(watched)
        changed(watched)
        assert "RESUMED" not in pauses(watched)
        assert run.engine.signal("resume-snapshot").result(120).accepted
        run.until(lambda: "COMPLETED" in pauses(watched), "the end")
    assert read(pipeline) == 403


def test_a_slot_that_is_dropped_says_exactly_what_is_lost(pipeline, database):
    settings = {"waltap.wal.budget": "8MB", "waltap.wal.action": "drop"}
    with pytest.raises(SlotGivenUp) as ended, pipeline.running(**settings) as run:
        watched = Watched(pipeline, run)
        database.execute("INSERT INTO t VALUES (3, 'c')")
        run.until(lambda: pipeline.destination.ids("t", "c") == [3], "the change")
        run.until(lambda: not run.engine.status().unflushed_ms, "the flush")
        watched.free.clear()
        begin, (_, restart) = database.wal_end(), pipeline.slot_lsns()
        database.execute("INSERT INTO t VALUES (4, 'd')")
        fill(database, 9)
        until(lambda: pipeline.slot not in database.slots(), "the slot is gone")
        end = database.wal_end()
        watched.run.until(lambda: "SLOT_DROPPED" in watched.kinds(), "the notice")
        watched.free.set()
        run.join()
    (gap,) = gaps(pipeline)
    assert gap.open
    assert (gap.code, gap.tables, gap.slot) == ("WT-2030", ("public.t",), pipeline.slot)
    assert parse_lsn(gap.begin.lsn) <= begin
    # the monitor may look while it is still being filled: what counts is that 90 % were spent
    assert max(begin, restart + int(0.9 * 8 * MB)) <= parse_lsn(gap.end.lsn) <= end
    assert gap.begin.time
    assert gap.begin.time <= gap.end.time
    text = (pipeline.folder / "state" / "p" / "gaps" / f"gap-{gap.identifier}.txt").read_text()
    assert gap.begin.lsn in text
    assert "public.t" in text
    assert gap.end.lsn in str(ended.value)
    assert "waltap repair FILE" in str(ended.value)


@pytest.mark.parametrize("way", ["repair", "snapshot"])
def test_a_slot_that_the_server_gave_up_names_the_reason(pipeline, database, way):
    pipeline.catch_up()
    before = pipeline.offset()
    assert before is not None
    database.server.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '2MB'")
    database.server.reload()
    fill(database, 8)
    database.execute("CHECKPOINT")
    with pytest.raises(SlotInvalidated) as reported:
        pipeline.run()
    assert "wal_removed" in reported.value.problem
    assert "max_slot_wal_keep_size" in reported.value.advice()
    (gap,) = gaps(pipeline)
    assert (gap.code, gap.tables) == ("WT-2104", ("public.t",))
    assert gap.begin.lsn == str(before.sole.position).partition(" ")[0]
    with pytest.raises(SlotInvalidated):
        pipeline.run()
    assert len(gaps(pipeline)) == 1  # the same one, not another
    assert "waltap slot drop FILE" in reported.value.advice()
    kept = pipeline.offset_file.read_bytes()
    pipeline.offset_file.unlink()
    with pytest.raises(SlotInvalidated):  # also without an offset
        pipeline.run()
    pipeline.offset_file.write_bytes(kept)
    if way == "repair":
        pipeline.repair()
        pipeline.catch_up()
    else:
        pipeline.catch_up(**{"snapshot.mode": "when_needed"})
    status = "SELECT wal_status FROM pg_replication_slots WHERE slot_name = %s"
    assert database.execute(status, pipeline.slot) == [("reserved",)]
    (gap,) = gaps(pipeline)
    assert (gap.open, gap.by) == (False, way)
    assert gap.reread["public.t"].rows == 2


def test_the_limit_of_the_server_is_predicted(pipeline, database):
    database.server.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '30MB'")
    database.server.reload()
    with pipeline.running() as run:
        watched = Watched(pipeline, run)
        watched.free.clear()
        database.execute("INSERT INTO t VALUES (3, 'c')")
        fill(database, 20)
        watched.until(lambda h: h.limit_kind == "slot" and h.level == "warned", "the warning")
        watched.free.set()
    assert "slot limits" not in pipeline.doctor()
    fill(database, 60)
    assert "the next checkpoint" in pipeline.doctor()["slot limits"].found


def test_orphans_are_on_the_status(pipeline, database):
    database.execute("SELECT pg_create_logical_replication_slot('left_behind', 'pgoutput')")
    with pipeline.running() as run:
        watched = Watched(pipeline, run)
        watched.until(lambda health: health.orphans == ("left_behind",), "the name")
