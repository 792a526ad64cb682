"""What PostgreSQL 16 to 18 brought, on a real 18, the newest that waltap says it knows; and a primary that fails over to its
standby: slots that are copied, streaming from the standby itself, and what a standby that lags costs."""

import contextlib
import itertools
import sqlite3
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
from waltap_postgres.catalog.catalogue import PostgresCatalogue
from waltap_postgres.errors import IdentityMissing, OtherServer
from waltap_postgres.properties import PostgresProperties
from waltap_postgres.snapshot.transaction import ReadingTransaction


@pytest.fixture
def newest(newest_database, tmp_path) -> PipelineRig:
    newest_database.execute("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1)")
    return PipelineRig(newest_database, tmp_path, {"waltap.new.tables": "warn"})


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="text"),
        pytest.param({"pgoutput.streaming": "parallel"}, id="protocol 4"),
        pytest.param({"pgoutput.two_phase": True, "two.phase.policy": "prepare"}, id="2pc"),
    ],
)
def test_changes_come_in_every_form(newest, options):
    database = newest.database
    newest.settings |= options
    database.execute(f"ALTER DATABASE {database.name} SET logical_decoding_work_mem = '64kB'")
    newest.catch_up()
    database.execute("INSERT INTO t SELECT g, repeat('x', 500) FROM generate_series(10, 400) g")
    with database.connect() as connection:
        connection.execute("BEGIN; SAVEPOINT s; UPDATE t SET v = v || 'y'; ROLLBACK")
        connection.execute("BEGIN; UPDATE t SET v = 'y' WHERE id = 10; SAVEPOINT s")
        connection.execute("DELETE FROM t; ROLLBACK TO s; DELETE FROM t WHERE id = 11; COMMIT")
        if database.server.version >= 150000:
            connection.execute("BEGIN; INSERT INTO t VALUES (500); PREPARE TRANSACTION 'p'")
            connection.execute("COMMIT PREPARED 'p'")
    newest.catch_up()
    ops = [event.op for event in newest.destination.of("t")]
    assert ops == ["r", *["c"] * 391, "u", "d", "c"]


def test_a_snapshot_outlasts_the_limit_of_a_transaction(newest):
    database = newest.database
    database.execute("CREATE TABLE u AS SELECT 2 AS id; CREATE TABLE w AS SELECT 3 AS id")
    database.execute(f"ALTER DATABASE {database.name} SET transaction_timeout = '200ms'")
    newest.settings["publication.keyless.tables"] = "publish"
    held, release = newest.destination.hold()
    with newest.running(ready=False) as run:
        run.until(held.is_set, "the first table")
        # the session is gone where the limit holds
        over = (
            "SELECT coalesce(bool_and(now() > xact_start + interval '1 s'), true) FROM pg_stat_activity"
            f" WHERE application_name = 'waltap snapshot' AND datname = '{database.name}'"
        )
        until(lambda: database.server.execute(over) == [(True,)], "the limit")
        release.set()
        run.until(lambda: newest.destination.ids("w"), "the last table")
    assert [*newest.destination.ids("t"), *newest.destination.ids("u")] == [1, 2]


def test_a_not_null_that_is_not_validated_is_not_of_older_rows(newest):
    database = newest.database
    database.execute(
        "CREATE TABLE n (id int PRIMARY KEY, v int); CREATE TABLE k (id int);"
        "INSERT INTO n VALUES (1, NULL); CREATE UNIQUE INDEX ON k (id);"
        "ALTER TABLE n ADD NOT NULL v NOT VALID; ALTER TABLE k ADD NOT NULL id NOT VALID"
    )
    properties = PostgresProperties.model_construct(key_index="sound")
    with database.connect() as connection:
        found = PostgresCatalogue(connection, properties).tables()
    keys = {table.relation.table: table.relation.primary_key for table in found}
    assert keys == {"t": ("id",), "n": ("id",), "k": ()}
    target = newest.folder / "t.db"
    sink = {"sink.type": "sql", "sink.url": f"sqlite:///{target}", "table.include.list": "public.n"}
    newest.catch_up(**sink)
    database.execute("UPDATE n SET v = 5; ALTER TABLE n VALIDATE CONSTRAINT n_v_not_null")
    database.execute("INSERT INTO n VALUES (2, 6)")
    newest.catch_up(**sink)
    with contextlib.closing(sqlite3.connect(target)) as rows:
        assert rows.execute("SELECT id, v FROM n ORDER BY id").fetchall() == [(1, 5), (2, 6)]


def test_a_generated_column_in_a_replica_identity_is_refused_as_it_would_stop_updates(newest):
    database = newest.database
    database.execute(
        "CREATE TABLE g (id int PRIMARY KEY, v int GENERATED ALWAYS AS (id) STORED);"
        "ALTER TABLE g REPLICA IDENTITY FULL; INSERT INTO g VALUES (1)"
    )
    for mode in ("all_tables", "filtered"):
        newest.settings["publication.autocreate.mode"] = mode
        with pytest.raises(IdentityMissing, match="generated columns") as refused:
            newest.catch_up(**{"publication.keyless.tables": "refuse"})
    database.execute(refused.value.fields["sql"])
    newest.catch_up(**{"publication.keyless.tables": "refuse"})
    newest.deliver("UPDATE g SET id = 2")
    assert newest.destination.ids("g") == [1, 2]


def test_a_publication_dropped_while_down_is_reported(newest, caplog):
    """Up to 17 the slot cannot be read on (WT-2113); 18 leaves out what was published."""
    database = newest.database
    newest.catch_up()
    database.execute(f"DROP PUBLICATION {newest.slot}; INSERT INTO t VALUES (2)")
    run = newest.catch_up()
    assert run.notices.new_tables == [("public.t", "incomplete")]
    assert "does not have all changes of public.t" in caplog.text
    newest.deliver("INSERT INTO t VALUES (3)")
    assert newest.destination.ids("t") == [1, 3]


def test_a_publication_dropped_while_streaming_is_reported(newest):
    database = newest.database
    with newest.running() as run:
        database.execute(f"DROP PUBLICATION {newest.slot}; INSERT INTO t VALUES (2)")
        wanted = ("public.t", "interrupted")
        run.until(lambda: wanted in run.notices.new_tables, "the notice")
        assert run.notices.new_tables.count(wanted) == 1
    again = newest.catch_up()
    assert again.notices.new_tables == [("public.t", "incomplete")]


@pytest.mark.parametrize("published", [True, False])
def test_generated_columns_are_as_the_publication_says(newest, published):
    database = newest.database
    database.execute(
        "CREATE TABLE g (id int PRIMARY KEY, d int GENERATED ALWAYS AS (id * 2) STORED)"
    )
    kind = "stored" if published else "none"
    database.execute(
        f"CREATE PUBLICATION {newest.slot} FOR TABLE g WITH (publish_generated_columns = {kind})"
    )
    newest.settings |= {
        "publication.autocreate.mode": "disabled", "table.include.list": "public.g",
    }  # fmt: skip
    newest.catch_up()
    newest.deliver("INSERT INTO g VALUES (1); UPDATE g SET id = 5")
    events = newest.destination.of("g")
    assert [event.op for event in events] == ["c", "u"]
    assert [event.row.get("d") for event in events] == (["2", "10"] if published else [None, None])


# --- a primary that fails over -------------------------------------------------------------------------


PHYSICAL = "standby_1"


class Pair:
    """A primary and its standby; ``database`` is on the primary, ``there`` the same on the standby."""

    def __init__(self) -> None:
        self.primary = Cluster.create_newest()
        try:
            self.primary.execute(f"SELECT pg_create_physical_replication_slot('{PHYSICAL}', true)")
            self.database = self.primary.create_database("shop")
            self.database.execute("CREATE TABLE t (id int PRIMARY KEY)")
            # nothing but a checkpoint writes pages, and with them how far a killed standby must replay
            settings = {"sync_replication_slots": "on", "bgwriter_lru_maxpages": "0"}
            self.standby = self.primary.standby(PHYSICAL, **settings)
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


@contextlib.contextmanager
def streamed(pair: Any, tmp_path: Path) -> Iterator[tuple[PipelineRig, Any]]:
    settings = {"publication.name": "p", "publication.autocreate.mode": "disabled"}
    pipeline = PipelineRig(pair.there, tmp_path, settings)
    with contextlib.ExitStack() as stack:
        with meanwhile(pair.show_transactions):
            run = stack.enter_context(pipeline.running())
        yield pipeline, run


def test_a_standby_is_streamed_from_and_goes_on_when_it_is_promoted(pair, tmp_path):
    pair.database.execute("INSERT INTO t VALUES (1); CREATE PUBLICATION p FOR TABLE t")
    pair.until_same()
    with streamed(pair, tmp_path) as (pipeline, run):
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


def test_a_commit_replayed_just_after_a_snapshot_of_a_standby_is_streamed(
    pair, tmp_path, monkeypatch
):
    """The snapshot does not say that it was in progress: a standby does not know."""
    pair.database.execute("INSERT INTO t VALUES (1); CREATE PUBLICATION p FOR TABLE t")
    pair.until_same()
    with streamed(pair, tmp_path) as (pipeline, _):
        pass
    pipeline.destination.events.clear()
    seen = ReadingTransaction.seen
    with pair.database.connect(autocommit=False) as open_for_long:
        open_for_long.execute("INSERT INTO t VALUES (2)")
        pair.database.execute("INSERT INTO t VALUES (3)")
        pair.until_same()

        def after_a_commit(transaction: ReadingTransaction) -> str:
            transaction.catalogue.snapshot()
            open_for_long.commit()
            pair.until_same()
            return seen(transaction)

        monkeypatch.setattr(ReadingTransaction, "seen", after_a_commit)
        with pipeline.running(**{"snapshot.mode": "always"}) as run:
            run.until(lambda: {1, 3} <= set(pipeline.destination.ids("t", "r")), "the snapshot")
            pair.database.execute("INSERT INTO t VALUES (4)")
            run.until(lambda: 4 in pipeline.destination.ids("t"), "row 4")
    assert pipeline.destination.ids("t", "r") == [1, 3]
    assert pipeline.destination.ids("t", "c") == [2, 4], "row 3 was read already"


def test_a_standby_that_was_killed_first_replays_what_it_sent(pair, tmp_path):
    """Until then the offset is after the end of what it has replayed; the primary has that WAL."""
    pair.database.execute("CREATE PUBLICATION p FOR TABLE t; CHECKPOINT")
    pair.until_same()
    pair.there.execute("CHECKPOINT")
    with streamed(pair, tmp_path) as (pipeline, run):
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
