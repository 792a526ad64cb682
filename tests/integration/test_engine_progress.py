"""What is confirmed to the server, and when: never more than is stored, never less for long."""

import pytest
from tests.harness.pipeline import PipelineRig, until
from tests.harness.servers.postgres import Database

from waltap.changes.transactions.position import parse_lsn


@pytest.fixture
def quiet(database, tmp_path) -> PipelineRig:
    """Return a pipeline of ``quiet``; changes of ``busy`` are not captured."""
    database.execute("CREATE TABLE quiet (id int PRIMARY KEY); CREATE TABLE busy (a int)")
    return PipelineRig(database, tmp_path, {"table.include.list": r"public\.quiet"})


def current(database: Database) -> int:
    ((lsn,),) = database.execute("SELECT pg_current_wal_flush_lsn()::text")
    return parse_lsn(lsn)


def test_a_quiet_table_beside_busy_ones_holds_no_wal(quiet, database):
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
    assert offset.sole.position.end_lsn >= quiet.slot_lsns()[0]


def test_a_clean_stop_confirms_what_the_server_has_read(quiet, database):
    """Also when the next idle progress is far away."""
    with quiet.running():
        pass
    database.execute("INSERT INTO quiet VALUES (1)")
    database.execute("INSERT INTO busy SELECT generate_series(1, 3000)")
    goal = current(database)
    quiet.catch_up(**{"status.update.interval.ms": 600_000})
    assert quiet.destination.ids("quiet") == [1]
    until(lambda: quiet.slot_lsns()[0] >= goal, "the server to take what was confirmed last")


def test_a_clean_stop_confirms_what_was_written(quiet, database):
    """Flushes are far apart: only the end itself can have stored and confirmed it."""
    with quiet.running(**{"offset.flush.interval.ms": 3_600_000}) as run:
        database.execute("INSERT INTO quiet VALUES (1)")
        run.until(lambda: quiet.destination.ids("quiet") == [1], "the row")
    stored = quiet.offset().sole.position.end_lsn
    until(lambda: quiet.slot_lsns()[0] >= stored, "the server to take what was confirmed last")
