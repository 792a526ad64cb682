"""A primary that fails over to its standby, on real PostgreSQL 18 servers: slots that are copied, streaming
from the standby itself, and what a standby that lags costs."""

import contextlib
import itertools
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.harness.meanwhile import in_background, meanwhile
from tests.harness.pipeline import WAIT_S, PipelineRig, until
from tests.harness.servers.postgres import Cluster, Database, Unavailable
from tests.harness.servers.requirement import missing

from waltap.changes.transactions.position import lsn_text
from waltap_postgres.errors import OtherServer

PHYSICAL = "standby_1"


class Pair:
    """A primary and its standby; ``database`` is on the primary, ``there`` the same on the standby."""

    def __init__(self) -> None:
        self.primary = Cluster.create_newest()
        try:
            self.primary.execute(f"SELECT pg_create_physical_replication_slot('{PHYSICAL}', true)")
            self.database = self.primary.create_database("shop")
            self.database.execute("CREATE TABLE t (id int PRIMARY KEY)")
            self.standby = self.primary.standby(PHYSICAL, sync_replication_slots="on")
        except BaseException:
            self.primary.remove()
            raise
        self.there = Database(self.standby, "shop")

    def changes_wait(self) -> None:
        """Have logical slots send what the standby has, and nothing more."""
        with self.primary.connect() as connection:
            connection.execute(f"ALTER SYSTEM SET synchronized_standby_slots = '{PHYSICAL}'")
        self.primary.reload()

    def pipeline(self, folder: Path, **settings: Any) -> PipelineRig:
        """Return a pipeline that looks for whoever of the two takes writes."""
        both = {
            "database.hostname": f"{self.primary.host},{self.standby.host}",
            "driver.port": f"{self.primary.port},{self.standby.port}",
            "driver.target_session_attrs": "read-write",
            "slot.failover": True,
        }
        return PipelineRig(self.database, folder, both | settings)

    def until_copied(self, slot: str) -> None:
        """Wait until the standby could go on with the slot, which somebody reads: a slot is copied once it
        has moved past the point where the standby first saw it."""

        def copied() -> bool:
            self.database.execute("SELECT txid_current(); SELECT pg_log_standby_snapshot()")
            query = "SELECT synced AND NOT temporary FROM pg_replication_slots WHERE slot_name = %s"
            return self.there.execute(query, slot) == [(True,)]

        until(copied, "a copy of the slot")

    def until_same(self) -> None:
        ((end,),) = self.database.execute("SELECT pg_current_wal_flush_lsn()::text")
        query = "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn"
        until(lambda: self.there.execute(query, end) == [(True,)], "the standby")

    def show_transactions(self, made: threading.Event) -> None:
        """Show running transactions: then a slot can be made on the standby."""
        while not made.wait(0.2):
            self.database.execute("SELECT pg_log_standby_snapshot()")

    def fail_over(self) -> None:
        self.primary.kill()
        self.there.execute("SELECT pg_promote()")


@pytest.fixture
def pair() -> Iterator[Pair]:
    try:
        made = Pair()
    except Unavailable as reason:
        missing(str(reason))
    yield made
    made.standby.remove()
    made.primary.remove()


def write(database: Database) -> None:
    with suppress(psycopg.Error), database.connect() as connection:
        for number in itertools.count(1):
            connection.execute("INSERT INTO t VALUES (%s)", [number])


def test_a_promotion_under_load_loses_nothing_and_invents_nothing(pair, tmp_path):
    pair.changes_wait()
    pipeline = pair.pipeline(tmp_path)
    with pipeline.running() as run:
        pair.until_copied(pipeline.slot)
        writing = in_background(write, pair.database)
        run.until(lambda: len(pipeline.destination.events) > 300, "load")
        pair.fail_over()
        writing.result(WAIT_S)
        pair.there.execute("INSERT INTO t VALUES (0)")
        run.until(lambda: 0 in pipeline.destination.ids("t"), "the first row after it")
    kept = {number for (number,) in pair.there.execute("SELECT id FROM t")}
    assert set(pipeline.destination.ids("t")) == kept
    offset = pipeline.offset()
    assert offset.sole.timeline == 2
    pair.there.execute("INSERT INTO t VALUES (-1)")
    pipeline.database = pair.there
    pipeline.catch_up()  # and a start on the new timeline knows its own offset
    assert pipeline.destination.ids("t")[-1] == -1


def test_what_the_standby_never_got_is_reported_with_both_positions(pair, tmp_path):
    pipeline = pair.pipeline(tmp_path)
    with pipeline.running():
        pair.until_copied(pipeline.slot)
    pair.standby.stop()
    pair.database.execute("INSERT INTO t VALUES (1)")
    pipeline.catch_up()  # nothing makes changes wait for the standby
    assert pipeline.destination.ids("t") == [1]
    pair.primary.kill()
    pair.standby.start()
    pair.there.execute("SELECT pg_promote()")
    pair.there.execute("INSERT INTO t VALUES (2)")
    pipeline.database = pair.there
    before = pipeline.offset()
    with pytest.raises(
        OtherServer, match=r"of timeline 1; .* on timeline 2, which left it at "
    ) as reported:
        pipeline.catch_up()
    assert reported.value.code == "WT-6102"
    assert pipeline.offset() == before


def test_a_standby_is_streamed_from_and_goes_on_when_it_is_promoted(pair, tmp_path):
    pair.database.execute("INSERT INTO t VALUES (1); CREATE PUBLICATION p FOR TABLE t")
    pair.until_same()
    settings = {"publication.name": "p", "publication.autocreate.mode": "disabled"}
    pipeline = PipelineRig(pair.there, tmp_path, settings)

    with contextlib.ExitStack() as stack:
        with meanwhile(pair.show_transactions):
            run = stack.enter_context(pipeline.running())
        pair.database.execute("INSERT INTO t VALUES (2)")
        run.until(lambda: 2 in pipeline.destination.ids("t"), "row 2")
        asked = run.engine.signal("execute-snapshot", {"data-collections": ["public.t"]})
        assert asked.result(WAIT_S).accepted
        read_again = "chunks that write nothing to the standby"
        run.until(lambda: pipeline.destination.ids("t", "r") == [1, 1, 2], read_again)
        blocking = {"data-collections": ["public.t"], "type": "blocking"}
        assert run.engine.signal("execute-snapshot", blocking).result(WAIT_S).accepted
        whole = "a snapshot in a mode that a standby has"
        run.until(lambda: pipeline.destination.ids("t", "r") == [1, 1, 2, 1, 2], whole)
        pair.fail_over()
        pair.there.execute("INSERT INTO t VALUES (3)")
        run.until(lambda: 3 in pipeline.destination.ids("t"), "row 3")
    assert pipeline.destination.ids("t", "r") == [1, 1, 2, 1, 2]
    assert set(pipeline.destination.ids("t", "c")) == {2, 3}


def test_a_standby_that_was_killed_first_replays_what_it_sent(pair, tmp_path):
    """Until then the offset is after the end of what it has replayed; the primary has that WAL."""
    pair.database.execute("CREATE PUBLICATION p FOR TABLE t; CHECKPOINT")
    pair.until_same()
    pair.there.execute("ALTER SYSTEM SET bgwriter_lru_maxpages = 0")
    pair.standby.reload()
    pair.there.execute("CHECKPOINT")
    settings = {"publication.name": "p", "publication.autocreate.mode": "disabled"}
    pipeline = PipelineRig(pair.there, tmp_path, settings)
    with contextlib.ExitStack() as stack:
        with meanwhile(pair.show_transactions):
            run = stack.enter_context(pipeline.running())
        pair.database.execute("INSERT INTO t VALUES (1)")
        run.until(lambda: 1 in pipeline.destination.ids("t"), "row 1")
    pair.there.execute("ALTER SYSTEM SET recovery_min_apply_delay = '1h'")
    pair.standby.kill()
    pair.standby.start()
    stored = lsn_text(pipeline.offset().sole.position.end_lsn)
    assert pair.there.execute("SELECT pg_last_wal_replay_lsn() < %s::pg_lsn", stored) == [(True,)]
    with pipeline.running() as run:
        pair.there.execute("ALTER SYSTEM SET recovery_min_apply_delay = 0")
        pair.standby.reload()
        pair.database.execute("INSERT INTO t VALUES (2)")
        run.until(lambda: 2 in pipeline.destination.ids("t"), "row 2")
    assert pipeline.destination.ids("t") == [1, 2]
