"""Blocking snapshots on a real server: tables are read whole while the stream waits.

The promise: every change of the stream arrives, and the rows are the table at their place in the stream.
"""

import itertools
import random
import sqlite3
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.harness.meanwhile import RoundPortions, meanwhile
from tests.harness.pipeline import PipelineRig, Run, until
from tests.harness.servers.postgres import Database

from waltap.changes.transactions.transaction import Batch, SnapshotRows, TransactionPart
from waltap.pipeline.stages import blocking_snapshot
from waltap.ports.snapshot.later_changes import LaterChanges
from waltap_postgres.catalog.catalogue import PostgresCatalogue
from waltap_postgres.snapshot.options import SnapshotOptions
from waltap_postgres.snapshot.requested import RequestedTables

pytestmark = pytest.mark.pipeline(
    signals=True,
    sql="CREATE TABLE t (id int PRIMARY KEY, v text);"
    "INSERT INTO t SELECT n, 'v' || n FROM generate_series(1, 300) n;"
    "CREATE TABLE u (id int PRIMARY KEY); INSERT INTO u SELECT generate_series(1, 15)",
    settings={
        "snapshot.mode": "no_data",
        "snapshot.fetch.size": 10,
        "publication.autocreate.mode": "all_tables",
        "publication.keyless.tables": "publish",
    },
)


def ask(pipeline: PipelineRig, *tables: str, **filters: str) -> None:
    """Ask for a blocking snapshot; ``filters`` are SELECTs by table."""
    conditions = [{"data-collection": f"public.{t}", "filter": sql} for t, sql in filters.items()]
    pipeline.signal("execute-snapshot", *tables, type="blocking", additional_conditions=conditions)


def rows(pipeline: PipelineRig, table: str) -> list[int]:
    return pipeline.destination.ids(table, "r")


def completed(run: Run, times: int = 1) -> bool:
    return [event for event, _, _ in run.notices.snapshots].count("completed") >= times


def warnings(caplog: pytest.LogCaptureFixture) -> str:
    return " ".join(r.getMessage() for r in caplog.records if r.levelname == "WARNING")


def test_rows_follow_every_change_that_they_contain(pipeline, database):
    with pipeline.running() as run:
        database.execute("INSERT INTO t VALUES (1000)")
        ask(pipeline, "t", "u", t="SELECT * FROM public.t WHERE id > 290 ORDER BY id")
        database.execute("INSERT INTO t VALUES (1001)")
        run.until(lambda: completed(run), "the snapshot")
        run.until(lambda: 1001 in pipeline.destination.ids("t", "c"), "the last change")
    ops = [(e.op, int(e.row["id"])) for e in pipeline.destination.of("t")]
    assert [n for op, n in ops if op == "c"] == [1000, 1001]
    read = [n for op, n in ops if op == "r"]
    assert read in ([*range(291, 301), 1000], [*range(291, 301), 1000, 1001])
    first = ops.index(("r", 291))
    assert {n for op, n in ops[:first] if op == "c"} == {n for n in read if n >= 1000}
    assert rows(pipeline, "u") == list(range(1, 16))
    pieces = pipeline.destination.pieces()
    assert {part.kind for part in pieces} == {"blocking"}
    # a part of a table does not replace the whole
    assert {part.relation.table: part.all_rows for part in pieces} == {"t": False, "u": True}
    assert {part.relation.name: part.xid for part in pieces}["public.u"] is not None
    assert (pieces[0].first_marker, pieces[-1].last_marker) == ("first", "last")


KEYS = 40
TABLE = (
    "CREATE TABLE moving (id int PRIMARY KEY, v int, large text);"
    "ALTER TABLE moving ALTER large SET STORAGE EXTERNAL;"
    f"INSERT INTO moving SELECT n, 0, repeat(n || '.', 2000) FROM generate_series(1, {KEYS}, 2) n"
)
"""Its rows change their keys all the time, with large values that such changes do not send."""


def move_keys(database: Database, portions: RoundPortions, ended: threading.Event) -> None:
    """Write a transaction a round until ``ended``; a commit takes a while, so that readers see it late."""
    chance = random.Random()
    with database.connect(autocommit=True) as connection:
        connection.execute("SET commit_delay = 8000; SET commit_siblings = 0")
        for _ in portions(ended):
            try:
                with connection.transaction():
                    for _ in range(chance.randint(1, 4)):
                        _change(connection, chance)
            except (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure):
                continue


def _change(connection: psycopg.Connection, chance: random.Random) -> None:
    one, other = chance.randint(1, KEYS), chance.randint(1, KEYS)
    statement, *values = chance.choice([
        ("UPDATE moving SET id = %s WHERE id = %s", other, one),
        ("UPDATE moving SET id = %s WHERE id = %s", other, one),
        ("UPDATE moving SET v = v + 1 WHERE id = %s", one),
        ("DELETE FROM moving WHERE id = %s", one),
        ("INSERT INTO moving VALUES (%s, 1, repeat(%s, 2000))", one, f"{chance.random():.4}"),
    ])  # fmt: skip
    try:
        with connection.transaction():
            connection.execute(statement, values)
    except psycopg.errors.UniqueViolation:
        pass  # the key has a row


def same_in(target: Path, database: Database) -> bool:
    with sqlite3.connect(target) as connection:
        found = connection.execute("SELECT id, v, large FROM moving ORDER BY id").fetchall()
    rows = database.execute("SELECT id, v, large FROM moving ORDER BY id")
    return found == [(int(key), int(v), large) for key, v, large in rows]


def equal_beside_snapshots(
    pipeline: PipelineRig,
    folder: Path,
    portions: RoundPortions,
    *writers: Callable[[threading.Event], None],
) -> None:
    """Take snapshots, each beside a portion of the ``writers``, and compare source and target."""
    database, target = pipeline.database, folder / "target.db"
    database.execute(TABLE)
    pipeline.settings |= {"sink.type": "sql", "sink.url": f"sqlite:///{target}"}
    pipeline.settings |= {"snapshot.mode": "initial"}
    with pipeline.running() as run, meanwhile(*writers):
        for times in range(1, 7):
            portions.add()
            ask(pipeline, "moving")
            run.until(lambda n=times: completed(run, n), "the snapshot")
    pipeline.catch_up()
    assert same_in(target, database)


def test_a_table_has_its_rows_while_keys_move_beside_snapshots(pipeline, tmp_path):
    """A key change that the rows contained, and that came again, gave rows the large values of others."""
    portions = RoundPortions(150)
    write = partial(move_keys, pipeline.database, portions)
    equal_beside_snapshots(pipeline, tmp_path, portions, write, write, write)


def stop_in_a_snapshot(pipeline: PipelineRig) -> None:
    """Ask for rows in a run that is stopped when their first ones come."""
    with pipeline.running() as run:

        def stop(batch: Batch) -> None:
            if any(isinstance(part, SnapshotRows) for part in batch.parts):
                run.engine.stop()

        pipeline.destination.before_write = stop
        ask(pipeline, "t")
        run.join()
    pipeline.destination.before_write = lambda _batch: None


def test_a_stop_inside_a_snapshot_loses_nothing_of_the_stream(pipeline):
    """The batch that is written then goes on behind the place of the rows."""
    database, portions = pipeline.database, RoundPortions(500)

    def write(ended: threading.Event) -> None:
        with database.connect(autocommit=True) as connection:
            for number, _ in enumerate(portions(ended), 1000):
                connection.execute("INSERT INTO u VALUES (%s)", (number,))

    with meanwhile(write):
        for _ in range(5):
            portions.add()
            stop_in_a_snapshot(pipeline)
    pipeline.catch_up()
    delivered = set(pipeline.destination.ids("u", "c"))
    ((last,),) = database.execute("SELECT max(id) FROM u")
    assert delivered == set(range(min(delivered), int(last) + 1))


def test_a_table_has_its_rows_while_its_columns_come_and_go_beside_snapshots(pipeline, tmp_path):
    database, portions = pipeline.database, RoundPortions(100)

    def alter(ended: threading.Event) -> None:
        statements = itertools.cycle(
            (
                "ALTER TABLE moving ADD COLUMN c{number} int DEFAULT {number}",
                "VACUUM FULL moving",
                "ALTER TABLE moving DROP COLUMN c{number}",
                "TRUNCATE moving",
            )
        )
        with database.connect(autocommit=True) as connection:
            for number, _ in enumerate(portions(ended)):
                connection.execute(next(statements).format(number=number // 4))
                ended.wait(0.05)

    write = partial(move_keys, database, portions)
    equal_beside_snapshots(pipeline, tmp_path, portions, write, write, alter)


def test_a_snapshot_that_the_stream_does_not_reach_gives_its_locks_up(pipeline, monkeypatch):
    monkeypatch.setattr(blocking_snapshot, "PATIENCE_S", 0.3)
    held = threading.Event()
    with pipeline.running() as run:

        def hold(batch: Batch) -> None:
            if any(isinstance(part, TransactionPart) and part.changes for part in batch.parts):
                held.wait(0.2)  # each batch: the stream stays behind

        pipeline.destination.before_write = hold
        with pipeline.database.connect(autocommit=True) as connection:
            for number in range(1000, 1060):
                connection.execute("INSERT INTO u VALUES (%s)", (number,))
        blocking = {"data-collections": ["public.t"], "type": "blocking"}
        assert run.engine.signal("execute-snapshot", blocking).result(120).accepted
        pipeline.database.execute("ALTER TABLE t ADD COLUMN w int")
        held.set()
        run.until(lambda: completed(run), "the snapshot")
    assert rows(pipeline, "t") == list(range(1, 301))


def test_a_partition_that_is_attached_before_the_reading_is_read(pipeline, monkeypatch):
    """Readers' locks do not stop it: the snapshot is taken again."""
    database, pieces = pipeline.database, RequestedTables.pieces
    database.execute(
        "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10); INSERT INTO p VALUES (1);"
        "CREATE TABLE p2 (id int PRIMARY KEY); INSERT INTO p2 VALUES (11)"
    )
    attach = ["ALTER TABLE p ATTACH PARTITION p2 FOR VALUES FROM (10) TO (20)"]

    def attached(tables: RequestedTables) -> Iterator[SnapshotRows]:
        while attach:
            database.execute(attach.pop())
        return pieces(tables)

    monkeypatch.setattr(RequestedTables, "pieces", attached)
    with pipeline.running(**{"publish.via.partition.root": True}) as run:
        ask(pipeline, "p")
        run.until(lambda: completed(run), "the snapshot")
    assert rows(pipeline, "p") == [1, 11]


def test_a_table_that_is_renamed_while_its_snapshot_opens_is_not_read_under_its_old_name(
    pipeline, monkeypatch, caplog
):
    """The rows would follow a later change of one of them."""
    database, real = pipeline.database, PostgresCatalogue.visible_until
    moves = ["ALTER TABLE t RENAME TO w; UPDATE w SET v = 'new' WHERE id = 1"]

    def renamed(self: PostgresCatalogue) -> tuple[int, bool] | None:
        if moves:
            database.psql(moves.pop())
        return real(self)

    monkeypatch.setattr(PostgresCatalogue, "visible_until", renamed)
    with pipeline.running() as run:
        ask(pipeline, "t", "u")
        run.until(lambda: len(rows(pipeline, "u")) == 15, "the rows")
        run.until(lambda: pipeline.destination.ids("w", "u") == [1], "the change")
    assert rows(pipeline, "t") == []
    assert "no such table is captured" in warnings(caplog)


def test_a_refused_snapshot_leaves_no_lock(pipeline, monkeypatch, caplog):
    statements = ["LOCK TABLE public.t IN ACCESS EXCLUSIVE MODE"]
    monkeypatch.setattr(SnapshotOptions, "locks", lambda _self, _targets: statements)
    with pipeline.running() as run:
        ask(pipeline, "t")
        run.until(lambda: "aborted" in [each[0] for each in run.notices.snapshots], "the refusal")
        locks = "SELECT count(*) FROM pg_locks WHERE relation = 't'::regclass"
        until(lambda: pipeline.database.execute(locks) == [(0,)], "the end of its session")
    assert "gives its transaction an id" in warnings(caplog)


def test_rows_are_of_one_snapshot_in_every_isolation_mode(pipeline, monkeypatch):
    """Rows that commit after its opening come by the stream alone."""
    split, database = blocking_snapshot.LaterChanges.split, pipeline.database
    written: list[int] = []

    def insert(later: LaterChanges, parts: Any) -> Any:
        if not written:
            written.append(database.execute("INSERT INTO u VALUES (1000) RETURNING id")[0][0])
        return split(later, parts)

    monkeypatch.setattr(blocking_snapshot.LaterChanges, "split", insert)
    with pipeline.running(**{"snapshot.isolation.mode": "read_committed"}) as run:
        ask(pipeline, "u")
        run.until(lambda: run.notices.signals, "the signal")
        database.execute("INSERT INTO t VALUES (5000)")
        run.until(lambda: completed(run), "the snapshot")
        database.execute("INSERT INTO t VALUES (5001)")
        run.until(lambda: 5001 in pipeline.destination.ids("t"), "the stream")
    if written:
        assert 1000 not in rows(pipeline, "u")


def test_tables_that_a_second_signal_adds_are_read_too(pipeline):
    with pipeline.running() as run:
        for table in ("t", "u", "t", "u"):
            ask(pipeline, table)
        run.until(lambda: completed(run), "a snapshot")
        run.until(lambda: rows(pipeline, "u") and rows(pipeline, "t"), "the rows of both")
    assert set(rows(pipeline, "t")) == set(range(1, 301))
    assert set(rows(pipeline, "u")) == set(range(1, 16))


def test_a_stop_in_the_middle_has_the_next_run_read_again(pipeline):
    stop_in_a_snapshot(pipeline)
    assert 0 < len(rows(pipeline, "t")) < 300
    pipeline.destination.events.clear()
    with pipeline.running() as run:
        run.until(lambda: completed(run), "the snapshot")
    assert rows(pipeline, "t") == list(range(1, 301))
    with pipeline.running() as run:  # and only once
        pipeline.database.execute("INSERT INTO u VALUES (99)")
        run.until(lambda: 99 in pipeline.destination.ids("u"), "the stream")
    assert len(rows(pipeline, "t")) == 300


@pytest.mark.parametrize("kind", ["BLOCKING", "INCREMENTAL"])
def test_what_signals_narrow_is_read_with_the_rights_of_a_role(pipeline, database, caplog, kind):
    """It may read ``t``, not ``u``. Without a condition, tables are read as always."""
    reader = f"{database.name}_reader"
    database.execute(f"CREATE ROLE {reader}; GRANT SELECT ON t TO {reader}")
    statement = "SELECT * FROM public.{} WHERE id < 4" if kind == "BLOCKING" else "id < 4"
    conditions = [
        {"data-collection": f"public.{t}", "filter": statement.format(t)} for t in ("u", "t")
    ]
    try:
        with pipeline.running(**{"waltap.signal.role": reader}) as run:
            pipeline.signal(
                "execute-snapshot", "u", "t", type=kind, additional_conditions=conditions
            )
            run.until(lambda: rows(pipeline, "t") == [1, 2, 3], "the rows that it may read")
            assert "permission denied for table u" in warnings(caplog)
            assert rows(pipeline, "u") == []
            ask(pipeline, "u")
            run.until(lambda: len(rows(pipeline, "u")) == 15, "the rows of the other table")
    finally:
        database.execute(f"DROP OWNED BY {reader}; DROP ROLE {reader}")


def test_observers_and_notifications_hear_of_it_and_of_what_cannot_be_read(pipeline, caplog):
    """A statement fails while it reads; all that SQL may not have: test_signal_sql.py."""
    sent: list[dict[str, Any]] = []
    with pipeline.running() as run:
        run.engine.on_notification(lambda notification: sent.append(notification.document()))
        ask(pipeline, "u", "none", "t", t="SELECT * FROM public.t WHERE 1 / (id - id) > 0")
        run.until(lambda: completed(run), "the snapshot")
    assert "division by zero" in warnings(caplog)
    assert "public.none is not read" in warnings(caplog)
    assert (rows(pipeline, "t"), len(rows(pipeline, "u"))) == ([], 15)
    assert [(event, table) for event, table, _ in run.notices.snapshots] == [
        ("started", ""),
        ("table_started", "public.u"),
        ("progress", "public.u"),
        ("progress", "public.u"),
        ("table_completed", "public.u"),
        ("completed", ""),
    ]
    about = [(n["type"], n["additional_data"]) for n in sent if n["type"] != "SKIPPED"]
    assert [(k, d.get("scanned_collection"), d.get("status")) for k, d in about] == [
        ("STARTED", None, None),
        ("TABLE_SCAN_COMPLETED", "public.t", "SQL_EXCEPTION"),
        ("IN_PROGRESS", None, None),
        ("TABLE_SCAN_COMPLETED", "public.u", "SUCCEEDED"),
        ("COMPLETED", None, None),
    ]
