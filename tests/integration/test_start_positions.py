"""Where a start continues, on a real server: slots and publications that went, moved, or belong to others, and offsets
that do not fit. Nothing is ever passed over in silence, and no way out is advised that does not lead out."""

import itertools
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
from tests.harness.json_lines import records
from tests.harness.pipeline import PipelineRig, until
from tests.harness.servers.postgres import Database, queries

from waltap.base.text import size
from waltap.changes.transactions.position import Position, lsn_text
from waltap.errors import RetryVerdict
from waltap.pipeline import Limits
from waltap.ports.offsets.offset import Offset
from waltap_postgres import connector
from waltap_postgres.errors import (
    FailoverUnavailable,
    OtherServer,
    PositionAhead,
    PositionGap,
    PublicationGone,
    ServerRestored,
    SlotActive,
    SlotMissing,
)
from waltap_postgres.replication.publication import PublicationPlan

CREATE_SLOT = "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')"
WHEN_NEEDED = {"snapshot.mode": "when_needed"}

pytestmark = pytest.mark.pipeline(sql="CREATE TABLE t (id int PRIMARY KEY)")


@pytest.fixture
def behind(pipeline) -> PipelineRig:
    """Return a pipeline that has delivered row 1 and stopped; row 2 came since."""
    pipeline.catch_up()
    pipeline.deliver("INSERT INTO t VALUES (1)")
    pipeline.database.execute("INSERT INTO t VALUES (2)")
    return pipeline


def stored(pipeline: PipelineRig) -> Offset:
    offset = pipeline.offset()
    assert offset is not None
    return offset


def change_offset(pipeline: PipelineRig, **fields: object) -> None:
    changed = stored(pipeline).with_sole(**fields)
    pipeline.offset_file.write_bytes(msgspec.json.encode(changed))


def drop(pipeline: PipelineRig) -> None:
    pipeline.database.execute("SELECT pg_drop_replication_slot(%s)", pipeline.slot)


def make_anew(pipeline: PipelineRig) -> None:
    drop(pipeline)
    pipeline.database.execute(CREATE_SLOT, pipeline.slot)


@pytest.mark.parametrize(
    ("damage", "kind", "code"),
    [
        pytest.param(drop, SlotMissing, "WT-2103", id="slot dropped"),
        pytest.param(make_anew, PositionGap, "WT-6101", id="slot made anew"),
        pytest.param(
            lambda p: change_offset(p, system_id="6999999999999999999"),
            OtherServer, "WT-6102", id="offset of another server",
        ),
        pytest.param(
            lambda p: change_offset(p, position=Position(1 << 60)),
            PositionAhead, "WT-6103", id="offset after the end of WAL",
        ),
    ],
)  # fmt: skip
def test_a_lost_position_is_an_error_that_moves_nothing_and_when_needed_a_new_snapshot(
    behind, damage, kind, code
):
    database, destination = behind.database, behind.destination
    damage(behind)
    query = "SELECT slot_name, confirmed_flush_lsn FROM pg_replication_slots WHERE database = current_database()"
    before, slots = behind.offset(), database.execute(query)
    with pytest.raises(kind) as caught:
        behind.catch_up()
    assert str(caught.value).startswith(code)
    assert "snapshot.mode=when_needed" in caught.value.advice()
    if kind is PositionGap:
        gap = behind.slot_lsns()[0] - stored(behind).sole.position.end_lsn
        assert f" {size(gap)} of WAL after the stored offset" in str(caught.value)
    assert (behind.offset(), database.execute(query), destination.ids("t")) == (before, slots, [1])
    database.execute("INSERT INTO t VALUES (3)")
    with behind.running(**WHEN_NEEDED) as run:
        database.execute("INSERT INTO t VALUES (4)")
        run.until(lambda: 4 in destination.ids("t"), "the new row")
    behind.catch_up()  # and all is well again
    assert destination.ids("t", "r") == [1, 2, 3]
    assert destination.ids("t", "c") == [1, 4]


def test_a_slot_that_is_believed_is_gone_on_from(behind):
    make_anew(behind)
    behind.database.execute("INSERT INTO t VALUES (3)")
    behind.catch_up(**{"offset.mismatch.strategy": "trust_slot"})
    assert behind.destination.ids("t") == [1, 3]


@pytest.mark.parametrize("mode", ["initial", "always"])
def test_an_offset_ahead_of_a_slot_that_is_believed_counts(pipeline, mode):
    pipeline.settings |= {"lsn.flush.mode": "manual", "offset.mismatch.strategy": "trust_slot"}
    pipeline.catch_up()
    pipeline.deliver("INSERT INTO t VALUES (1); DELETE FROM t")
    before = stored(pipeline).sole.position.end_lsn
    assert pipeline.slot_lsns()[0] < before
    pipeline.catch_up(**{"snapshot.mode": mode})
    assert [event.op for event in pipeline.destination.of("t")] == ["c", "d"]
    assert stored(pipeline).sole.position.end_lsn >= before


def test_manual_confirms_nothing_and_whoever_moves_the_slot_up_to_the_offset_loses_nothing(
    pipeline, database
):
    pipeline.settings["lsn.flush.mode"] = "manual"
    pipeline.catch_up()
    before = pipeline.slot_lsns()[0]
    for number in (1, 2):
        database.execute("INSERT INTO t VALUES (%s)", number)
        pipeline.catch_up()
        assert pipeline.slot_lsns()[0] == before
    assert pipeline.destination.ids("t") == [1, 2]
    position = stored(pipeline).sole.position.end_lsn
    assert position > before
    advance = "SELECT pg_replication_slot_advance(%s, %s::pg_lsn)"
    database.execute(advance, pipeline.slot, lsn_text(position))
    pipeline.deliver("INSERT INTO t VALUES (3)")
    assert pipeline.destination.ids("t") == [1, 2, 3]
    database.execute("INSERT INTO t VALUES (4)")
    ((end,),) = database.execute("SELECT pg_current_wal_lsn()::text")
    database.execute(advance, pipeline.slot, end)
    with pytest.raises(PositionGap):
        pipeline.catch_up()


# --- slots of others -------------------------------------------------------------------------------------


def read_slot(pipeline: PipelineRig, publication: str) -> psycopg.pq.PGconn:
    """Start another consumer of the pipeline's slot."""
    connection = psycopg.pq.PGconn.connect(f"{pipeline.database.dsn}?replication=database".encode())
    sql = (
        f"START_REPLICATION SLOT {pipeline.slot} LOGICAL 0/0"
        f" (proto_version '1', publication_names '{publication}')"
    )
    # the walsender of the run before may still have it
    begun = psycopg.pq.ExecStatus.COPY_BOTH
    until(lambda: connection.exec_(sql.encode()).status == begun, "the slot")
    return connection


@pytest.fixture
def reader(behind) -> Iterator[psycopg.pq.PGconn]:
    connection = read_slot(behind, behind.slot)
    yield connection
    connection.finish()


def test_a_slot_in_use_is_reported_at_once_and_refused_when_patience_ends(behind, reader, caplog):
    before = behind.offset()
    with pytest.raises(SlotActive):
        behind.catch_up(**{"slot.max.retries": 0, "slot.retry.delay.ms": 60_000})
    assert "waiting" not in caplog.text, "no retries mean no wait"
    with pytest.raises(SlotActive) as caught:
        behind.catch_up(**{"slot.max.retries": 2, "slot.retry.delay.ms": 1000})
    assert caught.value.retry is RetryVerdict.RECONNECT  # exit status 3
    assert f"pid {reader.backend_pid}" in str(caught.value)
    warnings = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    waiting = f"slot {behind.slot} is read by pid {reader.backend_pid}: waiting up to 2 s for it"
    assert warnings.count(waiting) == 1
    assert behind.offset() == before
    (ends,) = re.findall(r"SELECT pg_terminate_backend\(\d+\)", caught.value.advice())
    behind.deliver(ends)


@pytest.mark.parametrize("what", ["the reader's end", "a stop"])
def test_the_wait_for_a_slot_ends_at_once_with(behind, reader, caplog, what):
    """However long the wait between two tries is said to be."""
    with behind.running(ready=False, **{"slot.retry.delay.ms": 600_000}) as run:
        until(lambda: "is read by pid" in caplog.text, "the warning")
        if what == "a stop":
            run.stop()
            assert run.notices.states[-1][0] == "stopped"
        else:
            reader.finish()
            run.until(lambda: behind.destination.ids("t") == [1, 2], "the row")


def test_a_slot_that_somebody_took_since_it_was_looked_at_is_waited_for(
    behind, monkeypatch, caplog
):
    real, others = connector.open_transport, list[psycopg.pq.PGconn]()

    def open_transport(session: Any) -> Any:
        if not others:
            others.append(read_slot(behind, behind.slot))
        return real(session)

    monkeypatch.setattr(connector, "open_transport", open_transport)
    with behind.running(ready=False) as run:
        until(lambda: "is read by pid" in caplog.text, "the warning")
        others[0].finish()
        run.until(lambda: behind.destination.ids("t") == [1, 2], "the row")


def test_a_slot_that_somebody_moved_since_it_was_looked_at_is_a_gap(behind, monkeypatch):
    """The server passes over what the other one confirmed, whatever position it is asked for."""
    real, advance = connector.open_transport, "SELECT pg_replication_slot_advance(%s, %s)"

    def open_transport(session: Any) -> Any:
        behind.database.execute(advance, behind.slot, lsn_text(behind.database.wal_end()))
        return real(session)

    with monkeypatch.context() as patched, pytest.raises(PositionGap):
        patched.setattr(connector, "open_transport", open_transport)
        behind.catch_up()
    behind.repair()
    assert set(behind.destination.ids("t")) == {1, 2}


@pytest.mark.parametrize("ends", ["a stop", "max_seconds"])
def test_the_wait_for_open_transactions_ends_and_leaves_nothing_behind(
    pipeline, database, caplog, ends
):
    """A slot can be made only when all open transactions have ended: who holds it up is reported."""
    with database.connect(autocommit=False) as open_transaction:
        open_transaction.execute("CREATE TABLE forgotten (id int)")
        pid = open_transaction.info.backend_pid
        if ends == "a stop":
            with pipeline.running(ready=False) as run:
                until(lambda: f"pid {pid} of postgres since" in caplog.text, "the warning")
                run.stop()
        else:
            run = pipeline.run(limits=Limits(max_seconds=0.5))
        assert run.notices.states[-1][0] == "stopped"
    until(lambda: database.slots() == {}, "the slot to be gone")
    assert database.execute("SELECT count(*) FROM pg_publication") == [(0,)]
    assert pipeline.offset() is None


# --- publications ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("when", "libpq"),
    [("down", {}), ("streaming", {}), ("streaming", {"driver.gssencmode": "prefer"})],
    ids=["down", "streaming", "streaming through libpq"],
)
def test_when_needed_starts_over_by_itself(behind, caplog, when, libpq):
    database, destination = behind.database, behind.destination
    behind.settings |= WHEN_NEEDED | libpq
    change = f"DROP PUBLICATION {behind.slot}; INSERT INTO t VALUES (3); DELETE FROM t WHERE id = 1"
    behind.catch_up()
    if when == "down":
        database.execute(change)
    with behind.running() as run:
        if when == "streaming":
            database.execute(change)
        run.until(lambda: destination.ids("t", "r") == [2, 3], "the new snapshot")
        run.until(lambda: run.engine.state == "streaming", "streaming")
        database.execute("INSERT INTO t VALUES (4)")
        run.until(lambda: destination.ids("t", "c") == [1, 2, 4], "the change after it")
        failures = [(e.code, retried) for e, retried in run.notices.failures]
        assert failures == ([("WT-2117", True)] if when == "streaming" else [])
    assert "Lost are the single changes since" in caplog.text
    behind.catch_up()  # once is enough
    assert destination.ids("t") == [1, 2, 2, 3, 4]


def test_changes_from_before_a_publication_was_dropped_do_not_hide_the_later_ones(behind):
    """The server decodes the first ones, and fails at the next: the start sees that, not the stream."""
    database = behind.database
    database.execute("INSERT INTO t SELECT generate_series(3, 2000)")
    database.execute("INSERT INTO t VALUES (2001)")
    database.execute(f"DROP PUBLICATION {behind.slot}")
    database.execute("INSERT INTO t VALUES (2002)")
    behind.settings |= WHEN_NEEDED | {"errors.max.retries": 0}
    behind.catch_up()
    assert behind.destination.ids("t", "r") == [*range(1, 2003)]


def test_a_start_that_waits_for_its_slot_judges_the_publication_afterwards(behind, caplog):
    """While another reads the slot, nobody can ask the server for the slot's first change."""
    database = behind.database
    behind.deliver("CREATE PUBLICATION other FOR TABLE t")
    reader = read_slot(behind, "other")
    database.execute(f"DROP PUBLICATION {behind.slot}; INSERT INTO t VALUES (3)")
    settings = WHEN_NEEDED | {"errors.max.retries": 0, "slot.retry.delay.ms": 60_000}
    with behind.running(ready=False, **settings) as run:
        until(lambda: "waiting up to" in caplog.text, "the wait for the slot")
        reader.finish()
        run.until(lambda: behind.destination.ids("t", "r") == [1, 2, 3], "the new snapshot")
    assert run.notices.failures == []


def test_an_adopted_slot_that_cannot_be_read_is_refused_before_a_snapshot(pipeline):
    """As a connector of Debezium leaves it: the slot, no offset of ours, and the publication made anew."""
    database, publication = pipeline.database, f"CREATE PUBLICATION {pipeline.slot} FOR TABLE t"
    database.execute(publication)
    database.execute(CREATE_SLOT, pipeline.slot)
    database.execute(f"DROP PUBLICATION {pipeline.slot}")
    database.execute("INSERT INTO t VALUES (2)")
    database.execute(publication)
    pipeline.settings["slot.takeover"] = True
    for _ in range(2):
        with pytest.raises(PublicationGone, match=r"slot drop FILE"):
            pipeline.catch_up()
    assert pipeline.destination.events == []
    assert pipeline.command("slot", "drop", "--yes").returncode == 0
    pipeline.catch_up()
    pipeline.deliver("INSERT INTO t VALUES (3)")
    assert pipeline.destination.ids("t") == [2, 3]


@pytest.mark.parametrize("mode", ["ACCESS EXCLUSIVE", "SHARE"])
def test_a_start_waits_for_a_locked_table_and_says_so(pipeline, mode):
    """A table that somebody has locked when it is to join the publication; the advice finds who."""
    pipeline.settings |= {"publication.autocreate.mode": "filtered", "snapshot.lock.timeout.ms": 100}  # fmt: skip
    pipeline.database.execute("CREATE TABLE beside (id int PRIMARY KEY)")
    connect = pipeline.database.connect
    with connect() as other, connect() as bystander:
        bystander.execute("BEGIN; INSERT INTO beside VALUES (1)")
        other.execute(f"BEGIN; LOCK TABLE t IN {mode} MODE".encode())
        with pipeline.running(ready=False) as run:
            run.until(lambda: run.notices.failures, "the reason")
            error = run.notices.failures[0][0]
            assert error.code == "WT-2026"
            (query,) = queries(error.advice())
            found = {pid for _ in range(100) for pid, _ in pipeline.database.execute(query)}
            assert found == {other.info.backend_pid}  # the start that tries again is not named
            bystander.execute("ROLLBACK")
            other.execute("INSERT INTO t VALUES (1); COMMIT")
            run.until(lambda: pipeline.destination.ids("t") == [1], "the row")


@pytest.mark.parametrize(
    "late",
    ["DROP TABLE IF EXISTS passing", 'CREATE PUBLICATION "{}" FOR TABLE t'],
    ids=["a table is dropped", "another pipeline's publication of the same name"],
)
def test_what_others_do_as_a_start_publishes_is_left_to_them(pipeline, database, monkeypatch, late):
    """Debezium's default name of a publication is the same for each connector of a database."""
    run_plan, theirs = PublicationPlan.run, [late.format(pipeline.settings["publication.name"])]
    database.execute("CREATE TABLE passing (id int PRIMARY KEY)")

    def run_late(plan: PublicationPlan, *given: Any) -> None:
        while theirs:
            database.execute(theirs.pop())
        run_plan(plan, *given)

    monkeypatch.setattr(PublicationPlan, "run", run_late)
    pipeline.settings |= {
        "publication.autocreate.mode": "filtered",
        "publication.drop.on.stop": "CREATE" in late,
    }
    pipeline.deliver("INSERT INTO t VALUES (1)")
    assert pipeline.destination.ids("t") == [1]
    assert database.execute("SELECT count(*) FROM pg_publication") == [(1,)], "it is not ours"


def test_a_replica_identity_is_not_set_at_the_expense_of_others(pipeline):
    """A long transaction reads the table. The start gives way to who waits behind it, and says who is in its way."""
    pipeline.settings |= {
        "replica.identity.autoset.values": "public.t:FULL",
        "snapshot.lock.timeout.ms": 100,
    }
    connect = pipeline.database.connect
    with connect() as reader, connect() as writer:
        reader.execute("BEGIN; SELECT FROM t")
        with pipeline.running(ready=False) as run:
            run.until(lambda: run.notices.failures, "the reason")
            error = run.notices.failures[0][0]
            assert error.code == "WT-2033"
            (query,) = queries(error.advice())
            assert [pid for pid, _ in pipeline.database.execute(query)] == [reader.info.backend_pid]
            writer.execute("SET statement_timeout = '100s'; INSERT INTO t VALUES (1)")
            reader.execute("COMMIT")
            run.until(lambda: pipeline.destination.ids("t") == [1], "the row")
    (identity,) = pipeline.database.execute("SELECT relreplident FROM pg_class WHERE relname = 't'")
    assert identity == ("f",)


def test_a_replica_identity_that_is_set_needs_no_lock(pipeline):
    pipeline.settings["replica.identity.autoset.values"] = "public.t:INDEX t_pkey"
    pipeline.catch_up()
    (identity,) = pipeline.database.execute("SELECT relreplident FROM pg_class WHERE relname = 't'")
    assert identity == ("i",)
    with pipeline.database.connect() as reader:
        reader.execute("BEGIN; SELECT FROM t")
        pipeline.catch_up()


# --- servers restored from a copy; WAL that is gone: test_slot_monitor.py ---------------------------------------------------------


def put_disk_back(data: Path, copy: Path) -> None:
    owner = data.stat()
    for each in data.iterdir():
        shutil.rmtree(each) if each.is_dir() and not each.is_symlink() else each.unlink()
    shutil.copytree(copy, data, dirs_exist_ok=True)
    for each in (data, *data.rglob("*")):
        shutil.chown(each, owner.st_uid, owner.st_gid)


@pytest.fixture
def put_back(private_server, tmp_path) -> PipelineRig:
    """A pipeline whose server was put back to a copy with slot and timeline, and has written past the offset."""
    database = private_server.create_database("shop")
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    pipeline = PipelineRig(database, tmp_path)
    pipeline.catch_up()
    data, copy = private_server.folder / "data", private_server.folder / "copy"
    private_server.stop()
    shutil.copytree(data, copy)
    private_server.start()
    numbers = itertools.count(2)
    with pipeline.running() as run:
        before = pipeline.slot_lsns()[1]

        def known() -> bool:
            database.execute("INSERT INTO t VALUES (%s)", next(numbers))
            database.execute("CHECKPOINT")  # it lets the slot release WAL
            return stored(pipeline).sole.slot_restart_lsn > before

        run.until(known, "a restart LSN in the offset")
        last = next(numbers) - 1
        run.until(lambda: last in pipeline.destination.ids("t"), "the last row")
    private_server.stop()
    put_disk_back(data, copy)
    private_server.start()
    database.execute("INSERT INTO t SELECT generate_series(1000, 1999)")
    while database.wal_end() <= stored(pipeline).sole.position.end_lsn:
        database.execute("INSERT INTO t SELECT max(id) + 1 FROM t; SELECT pg_switch_wal()")
    return pipeline


def test_a_server_put_back_to_a_copy_is_seen_after_its_wal_passed_the_offset(put_back):
    before = put_back.offset()
    for _ in range(2):
        with pytest.raises(ServerRestored, match="was restored from an older copy") as refused:
            put_back.run()
        assert refused.value.code == "WT-6105"
    assert put_back.offset() == before
    assert put_back.doctor()["start"].error.code == "WT-6105"
    with pytest.raises(ServerRestored, match=r"waltap repair FILE` cannot"):
        put_back.repair()
    put_back.catch_up(**WHEN_NEEDED)
    put_back.deliver("INSERT INTO t VALUES (30000)")
    rows = {number for (number,) in put_back.database.execute("SELECT id FROM t")}
    assert rows <= set(put_back.destination.ids("t"))


@pytest.mark.parametrize("sinks", ["one", "one two"])
def test_a_snapshot_goes_on_where_it_read_and_not_where_its_sinks_were_before(pipeline, sinks):
    """Until its first flush they have the position of the stream before, here of a server with higher LSNs."""
    database, folders = pipeline.database, [pipeline.folder / name for name in sinks.split()]
    found = [{"name": f.name, "type": "files", "path": str(f), "compression": "none"} for f in folders]  # fmt: skip
    pipeline.branches = found if len(found) > 1 else []
    pipeline.settings |= {f"sink.{name}": value for name, value in found[0].items() if name != "name"}  # fmt: skip
    database.execute("INSERT INTO t SELECT generate_series(1, 3000)")
    pipeline.run(limits=Limits(max_records=10))
    assert stored(pipeline).snapshot is not None
    for folder in folders:
        (commit,) = (folder / "_waltap" / "commits").iterdir()
        before = json.loads(commit.read_bytes()) | {"snapshot": False}
        before["positions"][""]["end_lsn"] = 0xFFF00000000
        commit.write_text(json.dumps(before))
    pipeline.deliver("INSERT INTO t VALUES (9999)")
    for folder in folders:
        assert '"after":{"id":9999}' in "".join(f.read_text() for f in folder.rglob("*.jsonl"))


def test_a_database_that_is_renamed_is_gone_on_with(behind):
    database, moved = behind.database, Database(behind.database.server, f"{behind.slot}_moved")
    rename = 'ALTER DATABASE "{}" RENAME TO "{}"'
    database.server.execute(rename.format(database.name, moved.name))
    behind.settings["database.dbname"] = moved.name
    try:
        behind.database = moved
        assert "start" not in behind.doctor()
        behind.catch_up()
        assert stored(behind).sole.database == moved.name
        behind.deliver("INSERT INTO t VALUES (3)")
        file = behind.folder / "state" / "p" / "belongings.json"
        assert {each["database"] for each in json.loads(file.read_text())} == {moved.name}
        done = behind.command("drop", "--yes")
        assert f"publication {behind.slot} in database {moved.name}" in done.stdout
        assert "stays" not in done.stdout
        assert behind.destination.ids("t") == [1, 2, 3]
        behind.catch_up()
        database.server.execute(f'CREATE DATABASE "{database.name}"')
        change_offset(behind, database=database.name)  # of the one that has the name now
        with pytest.raises(OtherServer):
            behind.catch_up()
        database.server.execute(f'DROP DATABASE "{database.name}"')
    finally:
        database.server.execute(rename.format(moved.name, database.name))


def test_an_offset_that_goes_while_it_streams_does_not_replace_the_slot(pipeline, database):
    pipeline.settings |= {"snapshot.mode": "no_data", "status.update.interval.ms": 60_000}
    with pipeline.running() as run:
        begin = pipeline.slot_lsns()[0]
        database.execute("INSERT INTO t VALUES (1)")
        run.until(lambda: pipeline.slot_lsns()[0] > begin, "row 1 in the offset")
        pipeline.offset_file.unlink()
        with database.connect() as session, session.transaction():
            session.execute("INSERT INTO t VALUES (2)")
            session.execute(
                "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
                " WHERE slot_name = %s",
                [pipeline.slot],
            )
        run.until(lambda: run.notices.failures, "the broken link")
        database.execute("INSERT INTO t VALUES (3)")
        run.until(lambda: 3 in pipeline.destination.ids("t"), "row 3")
    assert pipeline.destination.ids("t") == [1, 2, 3]


# --- streaming.delay.ms, xmin.fetch.interval.ms, slot.failover --------------------------------------------------


def test_the_stream_waits_behind_a_snapshot_and_a_stop_ends_the_wait(pipeline, database):
    database.execute("INSERT INTO t VALUES (1)")
    pipeline.settings["streaming.delay.ms"] = 3_600_000

    def snapshot_is_whole() -> bool:
        offset = pipeline.offset()
        return offset is not None and offset.snapshot is None

    with pipeline.running(ready=False) as run:
        run.until(snapshot_is_whole, "the end of the snapshot")
        assert run.engine.state == "snapshot"
        assert database.slots() == {pipeline.slot: False}
    pipeline.deliver("INSERT INTO t VALUES (2)")  # no snapshot: nothing to wait for
    assert pipeline.destination.ids("t") == [1, 2]


@pytest.mark.parametrize("interval", [0, 1])
def test_source_xmin_is_the_catalog_xmin_of_the_slot(pipeline, interval):
    database, path = pipeline.database, pipeline.folder / "out.jsonl"
    database.execute("INSERT INTO t VALUES (1)")
    pipeline.settings |= {"sink.type": "jsonl", "sink.path": str(path), "xmin.fetch.interval.ms": interval}  # fmt: skip
    pipeline.catch_up()
    query = "SELECT catalog_xmin::text::int8 FROM pg_replication_slots WHERE slot_name = %s"
    ((xmin,),) = database.execute(query, pipeline.slot)
    pipeline.deliver("INSERT INTO t VALUES (2); DELETE FROM t WHERE id = 1")
    sources = {r["value"]["op"]: r["value"]["source"] for r in records(path) if r["value"]}
    assert sources["r"]["xmin"] is None
    for op in ("c", "d"):
        assert sources[op]["origin"] is None
        assert sources[op]["xmin"] >= xmin if interval else sources[op]["xmin"] is None


def test_a_server_that_copies_no_slots_is_refused_before_anything_is_made(pipeline):
    if pipeline.database.server.version >= 170000:
        pytest.skip("this server copies slots")
    with pytest.raises(FailoverUnavailable, match="copies no slots to standbys") as refused:
        pipeline.catch_up(**{"slot.failover": True})
    assert refused.value.code == "WT-2121"
    assert pipeline.database.slots() == {}
    assert pipeline.database.execute("SELECT 1 FROM pg_publication") == []
