"""From snapshot to stream on a real server: no row lost, none twice. Rows are written while the snapshot is taken,
beside a new slot and an older one."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from tests.harness.meanwhile import RoundPortions, in_background, meanwhile
from tests.harness.pipeline import PipelineRig, until
from tests.harness.servers.postgres import Database

from waltap.changes.decode.message import LogicalMessage
from waltap.changes.transactions.transaction import Batch, SnapshotRows, TransactionPart
from waltap_postgres.snapshot.transaction import ReadingTransaction

DECODERS = ["pgoutput", "wal2json", "decoderbufs"]


# --- under load ------------------------------------------------------------------------------------------


@contextmanager
def writers(database: Database, portions: RoundPortions) -> Iterator[list[list[int]]]:
    """Insert, update and delete from three connections while the block lasts; each has ids of its
    own, some transactions take long, some roll back. Yields the ids inserted so far."""
    inserted: list[list[int]] = [[], [], []]

    def write(number: int, stop: threading.Event) -> None:
        with database.connect(autocommit=False) as connection:
            for turn, _ in enumerate(portions(stop), 1):
                first = (number + 1) * 1_000_000 + turn * 10
                ids = range(first, first + 1 + turn % 5)
                with connection.cursor() as cursor:
                    cursor.executemany("INSERT INTO busy VALUES (%s, 'new')", [(i,) for i in ids])
                    if turn % 3 == 0:
                        cursor.execute("UPDATE busy SET v = v || '+' WHERE id = %s", (first,))
                    if turn % 7 == 0 and turn > 7:
                        cursor.execute("DELETE FROM busy WHERE id = %s", (first - 70,))
                if turn % 11 == 0:
                    connection.rollback()
                else:
                    connection.commit()
                    inserted[number].extend(ids)

    with meanwhile(*(partial(write, number) for number in range(3))):
        yield inserted


@pytest.mark.pipeline(
    sql="CREATE TABLE busy (id int PRIMARY KEY, v text);"
    "INSERT INTO busy SELECT g, 'old' FROM generate_series(1, 3000) g",
    settings={"snapshot.fetch.size": 500},
)
@pytest.mark.parametrize("way", ["new slot", "second start", *DECODERS])
def test_rows_written_during_the_snapshot_arrive_once(pipeline, database, way):
    """At a second start there is a stored position, and the snapshot has read most changes behind it; a decoder's
    name: beside a slot that somebody made before."""
    if way == "second start":
        pipeline.settings["snapshot.mode"] = "always"
        pipeline.catch_up()
        pipeline.destination.events.clear()
    elif way != "new slot":
        pipeline.settings |= {"plugin.name": way, "slot.takeover": "true"}
        database.execute(f"CREATE PUBLICATION {pipeline.slot} FOR TABLE busy")
        database.execute(f"SELECT pg_create_logical_replication_slot('{pipeline.slot}', '{way}')")
    portions = RoundPortions(900)
    with writers(database, portions) as inserted:
        portions.add()
        until(lambda: sum(map(len, inserted)) > 300, "changes that wait")
        portions.add()
        with pipeline.running() as run:
            mark = sum(map(len, inserted)) + 150
            portions.add()
            until(lambda: sum(map(len, inserted)) > mark, "more writes")
            run.stop()
    pipeline.catch_up(**{"snapshot.mode": "initial"})
    rows = database.execute("SELECT id::text, v FROM busy")
    assert pipeline.destination.table("busy") == {(i,): {"id": i, "v": v} for i, v in rows}
    ids = pipeline.destination.ids("busy", "r", "c")
    assert len(ids) == len(set(ids)), "a row came into being twice"
    assert 3000 < len(pipeline.destination.ids("busy", "r")) < len(ids)
    offset = pipeline.offset()
    assert offset.sole.visible_in == {}, "the stream is behind all that the snapshot saw"


# --- beside an older slot --------------------------------------------------------------------------------

ONLY_T = {"snapshot.include.collection.list": r"public\.t"}


def with_slot(pipeline: PipelineRig, **settings: Any) -> Database:
    """Have somebody make the slot before the pipeline runs; return the database."""
    pipeline.settings |= {"slot.takeover": True} | settings
    plugin = str(settings.get("plugin.name", "pgoutput"))
    pipeline.database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v int); CREATE TABLE other (id int PRIMARY KEY, v int);"
        f"CREATE TABLE void (id int PRIMARY KEY, v int); CREATE PUBLICATION {pipeline.slot} FOR ALL TABLES"
    )
    pipeline.database.execute(
        f"SELECT pg_create_logical_replication_slot('{pipeline.slot}', '{plugin}')"
    )
    return pipeline.database


def reported(pipeline: PipelineRig) -> list[str]:
    return [
        f"{event.op} {event.table.removeprefix('public.')} {event.row.get('id', '')}".strip()
        for event in pipeline.destination.of("t", "other", "void")
    ]


def test_what_is_of_no_table_that_was_read_arrives(pipeline):
    """A truncate for the other of two tables, and messages, in transactions or at once."""
    database = with_slot(pipeline, **{"skipped.operations": "none"}, **ONLY_T)
    database.execute("SELECT pg_logical_emit_message(false, 'app', 'at once')")
    database.execute(
        "INSERT INTO t VALUES (1, 1); INSERT INTO other VALUES (1, 1);"
        "SELECT pg_logical_emit_message(true, 'app', 'within')"
    )
    pipeline.deliver(
        "TRUNCATE t, other",
        "INSERT INTO t VALUES (2, 1)",
        "SELECT pg_logical_emit_message(true, 'app', 'alone')",
    )
    assert reported(pipeline) == ["r t 2", "c other 1", "t other"]
    changes = (
        change
        for batch in pipeline.destination.batches
        for part in batch.parts
        if isinstance(part, TransactionPart)
        for change in part.changes
    )
    messages = [change.content for change in changes if isinstance(change, LogicalMessage)]
    assert messages == [b"at once", b"within", b"alone"]


def test_tables_that_were_read_and_empty_are_left_out_of_the_stream(pipeline):
    """Nor does what was under a table's name before it: those rows are not in it."""
    with_slot(pipeline)
    pipeline.deliver(
        "INSERT INTO void VALUES (1, 1); DELETE FROM void",
        "INSERT INTO t VALUES (1, 1)",
        "DROP TABLE t; CREATE TABLE t (id int PRIMARY KEY, v int)",
        "INSERT INTO t VALUES (2, 2)",
    )
    assert reported(pipeline) == ["r t 2"]
    pipeline.deliver("INSERT INTO void VALUES (3, 3)")
    assert reported(pipeline) == ["r t 2", "c void 3"]


class Killed(BaseException):
    """The process is gone: nothing of it runs any more."""


@pytest.mark.parametrize("pieces", [0, 2])
def test_a_snapshot_that_goes_on_still_leaves_out_all_that_it_read(pipeline, pieces):
    """Tables are read together: of those behind the first no row had come when it broke off."""
    database = with_slot(pipeline)
    pipeline.destination.resumes = True
    database.execute("INSERT INTO t VALUES (1, 1); INSERT INTO other VALUES (1, 1)")
    database.execute("UPDATE t SET v = 2; UPDATE other SET v = 2; INSERT INTO void VALUES (1, 1)")
    seen = iter(range(pieces))

    def stop(batch: Batch) -> None:
        rows = any(isinstance(part, SnapshotRows) for part in batch.parts)
        if rows and next(seen, None) is None:
            raise Killed

    pipeline.destination.before_write = stop
    with pytest.raises(Killed):
        pipeline.run()
    pipeline.destination.before_write = lambda batch: None
    pipeline.deliver("UPDATE t SET v = 3")
    assert [event for event in reported(pipeline) if event[0] != "r"] in ([], ["u t 1"])
    rows = {table: list(pipeline.destination.table(table).values()) for table in ("t", "other")}
    assert rows == {"t": [{"id": "1", "v": "3"}], "other": [{"id": "1", "v": "2"}]}


# --- where the rows of a snapshot beside an older slot lie: before all that they lack ---------------------------

TWO_ROWS = "INSERT INTO t VALUES (1, 10), (2, 20)"
CHANGE = "UPDATE t SET v = 21 WHERE id = 2"


def snapshot_lsn(pipeline: PipelineRig) -> int:
    (lsn,) = {piece.lsn for piece in pipeline.destination.pieces()}
    assert lsn is not None
    return lsn


def test_rows_come_before_a_change_that_their_snapshot_did_not_see(pipeline, monkeypatch):
    """It is committed when the first reading transaction has its snapshot, before it reads a row."""
    database, seen = with_slot(pipeline), ReadingTransaction.seen

    def then_a_commit(transaction: ReadingTransaction) -> str:
        found = seen(transaction)
        database.execute(CHANGE)
        return found

    database.execute(TWO_ROWS)
    # the slot has it, and the snapshot sees it
    database.execute("UPDATE t SET v = 11 WHERE id = 1")
    before = database.wal_end()
    monkeypatch.setattr(ReadingTransaction, "seen", then_a_commit)
    pipeline.catch_up()  # it may end before the change, which was made after it began
    pipeline.catch_up()
    events = [(event.op, event.row["v"]) for event in pipeline.destination.of("t")]
    assert sorted(events[:2]) == [("r", "11"), ("r", "20")]
    assert events[2:] == [("u", "21")]
    # not before what was there when the pipeline came: a destination may have that from an earlier one
    assert before <= snapshot_lsn(pipeline) <= pipeline.destination.of("t")[-1].commit_lsn


def test_rows_come_before_a_commit_that_was_written_and_not_yet_to_be_seen(
    private_server, tmp_path
):
    """A commit that waits for a standby is in the WAL, and streamed; no snapshot sees it."""
    database = private_server.create_database("waits")
    pipeline = PipelineRig(database, tmp_path)
    with_slot(pipeline).execute(TWO_ROWS)
    private_server.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
    private_server.reload()
    # commits wait as soon as the checkpointer, too, has read the setting
    private_server.execute("CHECKPOINT")

    def waits() -> bool:
        return bool(database.execute("SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'"))

    changed = in_background(database.execute, CHANGE)
    try:
        until(waits, "the commit to wait for its standby")
        # others write: the end of the WAL lies far behind the commit
        with database.connect() as other:
            other.execute("SET synchronous_commit = local")
            other.execute("CREATE TABLE more AS SELECT g FROM generate_series(1, 100) g")
        with pipeline.running():
            until(lambda: pipeline.destination.of("t")[2:], "the change")
            assert waits()
    finally:
        private_server.execute("ALTER SYSTEM RESET synchronous_standby_names")
        private_server.reload()
        changed.result(120)
    assert pipeline.destination.table("t")[("2",)] == {"id": "2", "v": "21"}
    assert snapshot_lsn(pipeline) <= pipeline.destination.of("t")[-1].commit_lsn
