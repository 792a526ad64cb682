"""What is confirmed to the server, and when: never more than is stored, never less for long."""

import threading
from pathlib import Path

import pytest
from tests.harness.pipeline import WAIT_S, PipelineRig, until
from tests.harness.servers.postgres import Database

from waltap.changes.transactions.position import parse_lsn
from waltap.changes.transactions.transaction import Batch
from waltap.errors import SinkError
from waltap.pipeline import Limits
from waltap.ports.offsets.offset import Offset


@pytest.fixture
def quiet(database: Database, tmp_path: Path) -> PipelineRig:
    """Return a pipeline of ``quiet``; changes of ``busy`` are not captured."""
    database.execute("CREATE TABLE quiet (id int PRIMARY KEY); CREATE TABLE busy (a int)")
    return PipelineRig(database, tmp_path, {"table.include.list": r"public\.quiet"})


def current(database: Database) -> int:
    ((lsn,),) = database.execute("SELECT pg_current_wal_flush_lsn()::text")
    return parse_lsn(lsn)


def sent_all(pipeline: PipelineRig, goal: int) -> bool:
    """Return whether the walsender has sent everything up to ``goal`` and sleeps: before it does, it says
    in a keepalive how far it has come."""
    rows = pipeline.database.execute(
        "SELECT r.sent_lsn::text, a.wait_event FROM pg_replication_slots s"
        " JOIN pg_stat_replication r ON r.pid = s.active_pid"
        " JOIN pg_stat_activity a ON a.pid = s.active_pid WHERE s.slot_name = %s",
        pipeline.slot,
    )
    return bool(rows) and parse_lsn(rows[0][0]) >= goal and rows[0][1] == "WalSenderWaitForWAL"


def last_heard(pipeline: PipelineRig) -> float:
    """Return when the walsender heard of us last, 0 when it has not yet."""
    ((when,),) = pipeline.database.execute(
        "SELECT coalesce(extract(epoch FROM r.reply_time), 0)::float8 FROM pg_replication_slots s JOIN pg_stat_replication r"
        " ON r.pid = s.active_pid WHERE s.slot_name = %s",
        pipeline.slot,
    )
    return float(when)


# --- idle progress -------------------------------------------------------------------------------


def test_a_quiet_table_beside_busy_ones_holds_no_wal(
    quiet: PipelineRig, database: Database
) -> None:
    with quiet.running():
        before = quiet.slot_lsns()
        for _ in range(3):
            database.execute("INSERT INTO busy SELECT generate_series(1, 3000)")
        goal = current(database)
        until(lambda: quiet.slot_lsns()[0] >= goal, "confirmed_flush_lsn to follow")
        # restart_lsn follows as soon as the server has written what running transactions there are
        database.execute("CHECKPOINT")
        until(lambda: quiet.slot_lsns()[1] > before[1], "restart_lsn to follow")
    offset = quiet.offset()
    assert offset is not None
    assert offset.sole.position.end_lsn >= quiet.slot_lsns()[0]


def test_heartbeats_are_not_in_the_way_of_progress(quiet: PipelineRig, database: Database) -> None:
    """They are written like anything else, and may always be waiting for their flush."""
    more = {"heartbeat.interval.ms": 50, "offset.flush.interval.ms": 500}
    with quiet.running(**more):
        for _ in range(3):
            database.execute("INSERT INTO busy SELECT generate_series(1, 3000)")
            goal = current(database)
            until(lambda goal=goal: quiet.slot_lsns()[0] >= goal, "confirmed_flush_lsn to follow")


def test_a_clean_stop_confirms_what_the_server_has_read(
    quiet: PipelineRig, database: Database
) -> None:
    """Also when the next idle progress is far away."""
    with quiet.running():
        pass
    database.execute("INSERT INTO quiet VALUES (1)")
    database.execute("INSERT INTO busy SELECT generate_series(1, 3000)")
    goal = current(database)
    quiet.catch_up(**{"status.update.interval.ms": 600_000})
    assert quiet.destination.ids("quiet") == [1]
    until(lambda: quiet.slot_lsns()[0] >= goal, "the server to take what was confirmed last")


def test_progress_without_data_is_stored_before_it_is_confirmed(
    quiet: PipelineRig, database: Database
) -> None:
    seen: list[bool] = []
    with quiet.running():
        for _ in range(40):
            database.execute("INSERT INTO busy VALUES (1)")
            confirmed, _ = quiet.slot_lsns()
            offset = quiet.offset()
            assert offset is not None
            seen.append(confirmed <= offset.sole.position.end_lsn)
    assert all(seen)


# --- confirmed after stored after flushed ----------------------------------------------------------


def test_nothing_is_confirmed_before_the_sink_has_flushed_and_the_offset_is_stored(
    quiet: PipelineRig, database: Database
) -> None:
    orders: list[tuple[int, int]] = []
    flushing, release = threading.Event(), threading.Event()

    def hold() -> None:
        if quiet.destination.ids("quiet"):
            flushing.set()
            assert release.wait(WAIT_S)

    quiet.destination.before_flush = hold
    with quiet.running() as run:
        database.execute("INSERT INTO quiet VALUES (1)")
        committed = current(database)
        assert flushing.wait(WAIT_S)
        # written, not flushed: the server must not hear of it, though keepalives are answered
        until(lambda: sent_all(quiet, committed), "the server to have sent it")
        heard = last_heard(quiet)
        try:
            for _ in range(3):
                until(lambda before=heard: last_heard(quiet) > before, "a status update")
                heard = last_heard(quiet)
                offset = quiet.offset()
                assert offset is not None
                orders.append((quiet.slot_lsns()[0], offset.sole.position.end_lsn))
        finally:
            release.set()
        run.until(lambda: quiet.slot_lsns()[0] >= committed, "the confirmation")
    assert all(confirmed <= stored < committed for confirmed, stored in orders), orders


def test_the_offset_file_is_whole_at_every_moment(quiet: PipelineRig, database: Database) -> None:
    with quiet.running() as run:
        for number in range(100):
            database.execute("INSERT INTO quiet VALUES (%s)", number)
            assert isinstance(quiet.offset(), Offset)  # it parses
        run.until(lambda: len(quiet.destination.ids("quiet")) == 100, "the rows")
    names = {p.name for p in quiet.offset_file.parent.iterdir()}
    assert names == {"offset.json", "lock", "relations", "tables.json", "belongings.json"}


# --- failures ---------------------------------------------------------------------------------------


class Refused(SinkError):
    """The destination of the test refuses."""

    code = "WT-5999"
    remedy = "None."


def test_what_the_sink_refused_is_not_confirmed_and_comes_again(
    quiet: PipelineRig, database: Database
) -> None:
    """While a first write hangs, the second row and the keepalive after it arrive together; then the
    second write fails. What the keepalive says must not count."""
    writing, release = threading.Event(), threading.Event()

    def refuse(batch: Batch) -> None:
        if not batch.events:
            return
        if not writing.is_set():
            writing.set()
            assert release.wait(WAIT_S)
            return
        raise Refused("no room")

    with quiet.running():
        pass
    quiet.destination.before_write = refuse
    with pytest.raises(Refused), quiet.running() as run:
        database.execute("INSERT INTO quiet VALUES (1)")
        assert writing.wait(WAIT_S)
        database.execute("INSERT INTO quiet VALUES (2)")
        committed = current(database)
        for _ in range(5):
            database.execute("INSERT INTO busy SELECT generate_series(1, 100)")
        goal = current(database)
        try:
            until(lambda: sent_all(quiet, goal), "the server to send all")
        finally:
            release.set()
        run.join()
    assert quiet.destination.ids("quiet") == [1]
    assert quiet.slot_lsns()[0] < committed
    quiet.destination.before_write = lambda batch: None
    quiet.catch_up()
    assert quiet.destination.ids("quiet") == [1, 2]


# --- limits -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transactions", [1, 10], ids=["one transaction", "ten transactions"])
def test_an_exact_number_of_changes_and_the_rest_with_the_next_run(
    database: Database, pipeline: PipelineRig, transactions: int
) -> None:
    """Rows of a table that is published but not captured stand between: they count in positions."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE other (id int PRIMARY KEY)")
    pipeline.settings |= {
        "table.include.list": r"public\.t",
        "publication.autocreate.mode": "all_tables",
    }
    pipeline.catch_up()
    each = 20 // transactions
    for first in range(0, 20, each):
        database.execute(
            ";".join(
                f"INSERT INTO other VALUES ({n}); INSERT INTO t VALUES ({n})"
                for n in range(first, first + each)
            )
        )
    pipeline.run(limits=Limits(max_records=7))
    assert pipeline.destination.ids("t") == list(range(7))
    pipeline.catch_up()
    seen = pipeline.destination.ids("t")
    assert sorted(set(seen)) == list(range(20))
    if transactions == 10:
        # at most the transaction that was cut comes again, as far as its positions are not known
        assert len(seen) <= 21


def test_a_batch_is_no_larger_than_asked(quiet: PipelineRig, database: Database) -> None:
    quiet.catch_up()
    database.execute("INSERT INTO quiet SELECT generate_series(1, 1000)")
    database.run(*(f"INSERT INTO quiet VALUES ({number})" for number in range(2000, 2300)))
    quiet.catch_up(**{"max.batch.size": 64})
    assert max(batch.events for batch in quiet.destination.batches) == 64
    assert quiet.destination.ids("quiet") == [*range(1, 1001), *range(2000, 2300)]


def test_until_idle_waits_for_a_server_that_still_reads_old_wal(
    quiet: PipelineRig, database: Database
) -> None:
    with quiet.running():
        pass
    database.execute("INSERT INTO busy SELECT generate_series(1, 100000)")
    database.execute("INSERT INTO quiet VALUES (1)")
    quiet.run(limits=Limits(until_idle=0.01))
    assert quiet.destination.ids("quiet") == [1]
