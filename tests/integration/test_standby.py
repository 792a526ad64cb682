"""Two engines of one profile: one runs it, the other waits, and never do both write."""

import contextlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from tests.harness.pipeline import Destination, PipelineRig, Run, until
from tests.harness.proxy import Proxy
from tests.harness.servers.postgres import Database

from waltap.pipeline.runtime.leadership import LeaseLost
from waltap.pipeline.runtime.lock import StateFolderGone
from waltap_postgres.replication.slot import ReplicationSlot, SlotAdmin

STANDBY = {"waltap.standby": True, "waltap.lease.ms": 60_000}
"""A machine that is busy must not lose the lease where a test does not mean it to."""
SHORT = {"waltap.lease.ms": 5_000}
"""For tests that wait until a lease has expired."""


class Pair:
    """Two runs of one pipeline; each has a destination of its own, to show who wrote what."""

    def __init__(self, database: Database, folder: Path) -> None:
        database.execute("CREATE TABLE t (id int PRIMARY KEY)")
        self.database = database
        self.first = PipelineRig(database, folder, STANDBY)
        self.second = PipelineRig(database, folder, STANDBY)

    def insert(self, number: int) -> None:
        self.database.execute("INSERT INTO t VALUES (%s)", number)

    @contextmanager
    def running(self, **of_first: object) -> Iterator[tuple[Run, Run]]:
        """Run both; the first has the lease, the second waits."""
        with (
            self.first.running(**of_first) as first,
            self.second.running(ready=False) as second,
        ):
            second.until(lambda: second.engine.state == "standby", "the standby")
            yield first, second


@pytest.fixture
def pair(database, tmp_path) -> Pair:
    if database.server.version < 140000:
        pytest.skip("the server keeps no leases")
    return Pair(database, tmp_path)


def came(run: Run, destination: Destination, number: int) -> None:
    run.until(lambda: number in destination.ids("t"), f"row {number}")


def loses_lease(run: Run) -> None:
    """Wait until a run has; the link may have been found broken before."""
    run.until(lambda: any(isinstance(e, LeaseLost) for e, _ in run.notices.failures), "the loss")


def seen_without_locks(pair: Pair) -> Path:
    """Return the first's state folder as a machine sees it that does not share its locks."""
    shared = pair.first.offset_file.parent
    unlocked = pair.second.folder / "elsewhere" / shared.name
    unlocked.mkdir(parents=True)
    for name in ("offset.json", "belongings.json"):
        (unlocked / name).symlink_to(shared / name)
    return unlocked.parent


@pytest.mark.parametrize("first_is", [True, False], ids=["with a lease", "without"])
def test_a_standby_follows_a_clean_end_and_repeats_nothing(pair, first_is):
    with pair.running(**{"waltap.standby": first_is}) as (first, second):
        pair.insert(1)
        came(first, pair.first.destination, 1)
        assert second.engine.state == "standby"
        first.stop()
        pair.insert(2)
        came(second, pair.second.destination, 2)
    assert pair.first.destination.ids("t") == [1]
    assert pair.second.destination.ids("t") == [2]


def test_who_is_cut_off_writes_nothing_more_and_waits_in_turn(pair):
    server = pair.database.server
    pair.first.settings |= SHORT
    pair.second.settings |= SHORT
    with (
        Proxy(server.host, server.port) as proxy,
        pair.running(
            **{
                "database.hostname": "127.0.0.1",
                "database.port": proxy.port,
                "driver.connect_timeout": "2",
            }
        ) as (first, second),
    ):
        pair.insert(1)
        came(first, pair.first.destination, 1)
        proxy.swallow(all_of_them=True)
        pair.insert(2)
        came(second, pair.second.destination, 2)
        loses_lease(first)
        proxy.pass_again()
        second.stop()
        pair.insert(3)
        came(first, pair.first.destination, 3)
    assert pair.first.destination.ids("t") == [1, 3]
    assert pair.second.destination.ids("t") == [2]


def test_a_lease_that_was_taken_away_is_outlasted_before_another_writes(pair):
    """Its owner is well, and does not know yet: the standby must wait for as long as it may write."""
    pair.first.settings |= SHORT
    pair.second.settings |= SHORT
    with pair.running() as (first, second):
        pair.insert(1)
        came(first, pair.first.destination, 1)
        owners = pair.database.execute(
            "SELECT pg_terminate_backend(a.pid) FROM pg_locks l JOIN pg_stat_activity a USING (pid)"
            " WHERE l.locktype = 'advisory' AND l.granted AND a.datname = current_database()"
            " AND a.application_name LIKE 'waltap lease%'"
        )
        assert owners == [(True,)]
        pair.insert(2)
        loses_lease(first)
        both = [pair.first.destination, pair.second.destination]
        until(lambda: any(2 in each.ids("t") for each in both), "row 2")
        until(
            lambda: sorted((first.engine.state, second.engine.state)) == ["standby", "streaming"],
            "one of them",
        )
        pair.insert(3)
        until(lambda: any(3 in each.ids("t") for each in both), "row 3")
    assert [3 in each.ids("t") for each in both].count(True) == 1


def test_doctor_elsewhere_finds_the_slot_as_expected_while_another_has_the_lease(pair):
    pair.second.settings["waltap.state.dir"] = str(seen_without_locks(pair))
    with pair.first.running():
        assert {each.verdict for each in pair.second.doctor().values()} == {"warning"}


def test_a_state_folder_that_goes_ends_the_run_before_it_is_made_anew(pair):
    folder = pair.first.offset_file.parent
    alone = {
        "waltap.standby": False,
        "status.update.interval.ms": 60_000,
    }  # nothing is stored meanwhile
    with pytest.raises(StateFolderGone), pair.first.running(**alone) as run:
        shutil.rmtree(folder)
        pair.insert(1)
        until(lambda: run.ended, "the end")
        run.raise_error()
    assert not pair.first.offset_file.exists()


def test_a_walsender_behind_a_dead_link_does_not_hold_the_slot(database, tmp_path):
    """The server never finds out by itself here; a reconnect knows its own session."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    database.execute(f'ALTER DATABASE "{database.name}" SET wal_sender_timeout = 0')
    reader = (
        "SELECT a.pid, a.client_port FROM pg_replication_slots s"
        " JOIN pg_stat_activity a ON a.pid = s.active_pid WHERE s.slot_name = %s"
    )
    with Proxy(database.server.host, database.server.port) as proxy:
        there = {"database.hostname": "127.0.0.1", "database.port": proxy.port}
        pipeline = PipelineRig(database, tmp_path, there | {"waltap.receive.timeout.ms": 2000})
        with pipeline.running() as run:
            ((pid, port),) = database.execute(reader, pipeline.slot)
            proxy.swallow(only=port)
            database.execute("INSERT INTO t VALUES (1)")
            run.until(lambda: 1 in pipeline.destination.ids("t"), "row 1")
            ((now, _),) = database.execute(reader, pipeline.slot)
            assert now != pid
            old = "SELECT 1 FROM pg_stat_activity WHERE pid = %s"
            until(lambda: database.execute(old, pid) == [], "the old walsender to end")


def test_a_walsender_that_survives_its_end_does_not_hold_the_slot(database, tmp_path, monkeypatch):
    """Where the reader is paused and the socket is full, it waits for it to say that it is being ended."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    pipeline = PipelineRig(database, tmp_path, STANDBY)
    pipeline.catch_up()
    ends, told = SlotAdmin.end_reader, list[ReplicationSlot]()

    def second_time(self: SlotAdmin, slot: ReplicationSlot) -> None:
        told.append(slot)
        if len(told) > 1:
            ends(self, slot)

    monkeypatch.setattr(SlotAdmin, "end_reader", second_time)
    paused = psycopg.connect(
        database.dsn, replication="database", application_name="waltap leased replication"
    )
    with contextlib.closing(paused):
        options = f"(proto_version '1', publication_names '{pipeline.slot}')"
        paused.pgconn.send_query(
            f"START_REPLICATION SLOT {pipeline.slot} LOGICAL 0/0 {options}".encode()
        )
        until(lambda: database.slots()[pipeline.slot], "the reader")
        pipeline.deliver("INSERT INTO t VALUES (1)")
    assert pipeline.destination.ids("t") == [1]
