"""Incremental snapshots on a real server: rows read in chunks while the table changes, between watermarks or by
WAL positions alone (``read.only``).

The promise: who takes every event, row by row, has the table's state in the end.
"""

import json
import sqlite3
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from tests.harness.chunks import around_chunk
from tests.harness.meanwhile import RoundPortions, in_background, meanwhile
from tests.harness.pipeline import SIGNALS, WAIT_S, Destination, PipelineRig, Run

from waltap.changes.transactions.transaction import Batch, SnapshotRows
from waltap.pipeline.runtime.run_state import IdleDetector, Limits
from waltap.ports.snapshot.incremental import IncrementalSnapshots
from waltap_postgres.snapshot import chunk_query

CHUNK = "incremental.snapshot.chunk.size"
READ_ONLY = {"read.only": "true", "signal.data.collection": None}
BY_DELETION = {"incremental.snapshot.watermarking.strategy": "insert_delete"}
LARGE_VALUES = (
    "CREATE TABLE t (id int PRIMARY KEY, place int UNIQUE DEFERRABLE, large text);"
    "ALTER TABLE t ALTER large SET STORAGE EXTERNAL;"
    "INSERT INTO t SELECT g, g, repeat(g::text, 3000) FROM generate_series(1, 40) g"
)
THREE_HUNDRED = (
    "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t SELECT generate_series(1, 300);"
    "CREATE TABLE u (id int PRIMARY KEY); INSERT INTO u SELECT generate_series(1, 15)"
)

pytestmark = pytest.mark.pipeline(
    signals=True,
    settings={
        "snapshot.mode": "no_data",
        CHUNK: 10,
        "publication.autocreate.mode": "all_tables",
        "publication.keyless.tables": "publish",
    },
)
large = pytest.mark.pipeline(sql=THREE_HUNDRED)


def read_rows(destination: Destination, table: str = "t") -> list[dict[str, Any]]:
    return [e.row for e in destination.of(table) if e.op == "r"]


def chunks(pipeline: PipelineRig) -> list[int]:
    return [len(piece.rows) for piece in pipeline.destination.pieces()]


def finished(run: Run) -> bool:
    delivery = run.engine.delivery
    over = any(event == "completed" for event, _, _ in run.notices.snapshots)
    return over and not (delivery.signals.get("queue") or delivery.signals.get("settling"))


def asked(run: Run, *tables: str, **data: Any) -> None:
    """Ask for a snapshot without a signal table."""
    given = {k.replace("_", "-"): v for k, v in data.items()}
    given["data-collections"] = [f"public.{table}" for table in tables]
    assert run.engine.signal("execute-snapshot", given).result(WAIT_S).accepted


@pytest.fixture
def between(monkeypatch) -> Callable[..., None]:
    """Return what lets an action happen around the reading of the n-th chunk, by the real reader."""
    return partial(around_chunk, monkeypatch)


def warnings(caplog: pytest.LogCaptureFixture) -> str:
    return " ".join(r.getMessage() for r in caplog.records if r.levelname == "WARNING")


# --- whole tables ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, READ_ONLY], ids=["watermarks", "read-only"])
def test_a_table_under_change_arrives_whole(pipeline, database, settings):
    """Writers insert, update (large values untouched, too), delete and change keys meanwhile, one of them in long
    transactions.

    Who changes a key touches the large value: a row that leaves the part to be read, and whose change
    does not show all, is nowhere to be had whole.
    """
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text, large text);"
        "ALTER TABLE t ALTER large SET STORAGE EXTERNAL;"
        "INSERT INTO t SELECT g, 'old', CASE WHEN g % 3 = 0 THEN repeat(g::text, 3000) END"
        " FROM generate_series(1, 300) g"
    )

    portions = [RoundPortions(15) for _ in range(3)]  # of whole transactions: none stays open

    def write(number: int, stop: threading.Event) -> None:
        with database.connect(autocommit=number > 0) as connection:
            for n, _ in enumerate(portions[number](stop)):
                turn = number + 7 * n
                row = turn * 3 + number if not number else turn * 31
                old, moving = row % 300 // 3 * 3 + number, turn * 7 % 300 // 3 * 3 + number
                connection.execute("UPDATE t SET v = 'w%s' WHERE id = %s", [turn, old])
                connection.execute("DELETE FROM t WHERE id = %s", [(old + 150) % 300])
                connection.execute(
                    "INSERT INTO t VALUES (%s, 'new', repeat('n', 3000)) ON CONFLICT DO NOTHING",
                    [turn * 13 % 450 // 3 * 3 + number],
                )
                connection.execute(
                    "UPDATE t SET id = id + 10000, large = large || '' WHERE id = %s AND NOT EXISTS"
                    " (SELECT FROM t WHERE id = %s)",
                    [moving, moving + 10000],
                )
                if not number and n % 5 == 4:
                    connection.commit()
            connection.commit()

    def more(batch: Batch) -> None:
        if any(isinstance(part, SnapshotRows) for part in batch.parts):
            for each in portions:
                each.add()

    for each in portions:
        each.add()
    pipeline.destination.before_write = more
    with pipeline.running(**settings) as run:
        with meanwhile(*(partial(write, number) for number in range(3))):
            asked(run, "t")
            run.until(lambda: finished(run), "the end of the snapshot")
    pipeline.catch_up(**settings)
    assert pipeline.destination.table("t") == pipeline.database.rows("t")
    assert len(chunks(pipeline)) > 15


@pytest.mark.parametrize(
    ("key", "values"),
    [
        pytest.param("a int, b text, PRIMARY KEY (a, b)", "g % 7, 'k' || g", id="int and text"),
        pytest.param("a float8 PRIMARY KEY", "CASE WHEN g = 5 THEN 'NaN' ELSE sin(g) END", id="float"),
        pytest.param("a char(9) PRIMARY KEY", "E'it''s \\\\' || g", id="padded, quotes, backslashes"),
        pytest.param("a bytea, b date, c bool, PRIMARY KEY (c, b, a)", "g::text::bytea, '2024-02-28'::date + g % 4, g % 2 = 0", id="key in another order"),
        pytest.param("a signals, b int, PRIMARY KEY (a, b)", "(g % 7, 'k', NULL)::signals, g", id="composite"),
    ],
)  # fmt: skip
def test_keys_of_any_type_are_read_in_order_without_gaps(pipeline, key, values):
    pipeline.database.execute(f"CREATE TABLE t ({key})")
    pipeline.database.execute(f"INSERT INTO t SELECT {values} FROM generate_series(1, 95) g")
    columns = next(iter(pipeline.database.rows("t", "a").values()))
    with pipeline.running() as run:
        pipeline.signal("execute-snapshot", "t")
        run.until(lambda: finished(run), "the end")
    assert len(read_rows(pipeline.destination)) == 95
    assert pipeline.destination.table("t", *columns) == pipeline.database.rows("t", *columns)
    assert chunks(pipeline) == [10] * 9 + [5]


def test_tables_without_key_are_read_by_columns_neither_unique_nor_set(pipeline, database):
    """A surrogate key of the signal, or ``message.key.columns``: no row is left out where a chunk ends."""
    database.execute(
        "CREATE TABLE t (id int, g int); ALTER TABLE t REPLICA IDENTITY FULL;"
        "INSERT INTO t SELECT n, nullif(n % 4, 0) * 10 FROM generate_series(1, 60) n;"
        "CREATE TABLE keyless (kind int, note text);"
        "INSERT INTO keyless SELECT n % 7, 'n' || n FROM generate_series(1, 50) n;"
        "INSERT INTO keyless SELECT NULL, 'null' || n FROM generate_series(1, 15) n"
    )
    with pipeline.running(**{"message.key.columns": "public.keyless:kind"}) as run:
        pipeline.signal("execute-snapshot", "t", surrogate_key="g")
        run.until(lambda: finished(run), "the end")
        assert chunks(pipeline) == [15] * 4
        pipeline.signal("execute-snapshot", "keyless")
        run.until(lambda: len(read_rows(pipeline.destination, "keyless")) >= 65, "all rows")
    assert pipeline.destination.table("t") == pipeline.database.rows("t")
    notes = [row["note"] for row in read_rows(pipeline.destination, "keyless")]
    assert len(notes) == len(set(notes)) == 65


@pytest.mark.parametrize("server_has_ties", [True, False])
def test_rows_that_share_a_key_of_a_partial_index_are_read(pipeline, monkeypatch, server_has_ties):
    """Debezium's rule takes it as the key. Servers before 13 are asked for the last key of a chunk."""
    if not server_has_ties:
        monkeypatch.setattr(chunk_query, "WITH_TIES", 1_000_000)
    pipeline.settings["waltap.key.index"] = "debezium"
    pipeline.database.execute(
        "CREATE TABLE t (mail text NOT NULL, n int, gone bool);"
        "CREATE UNIQUE INDEX ON t (mail) WHERE NOT gone; ALTER TABLE t REPLICA IDENTITY FULL;"
        "INSERT INTO t SELECT 'm' || n % 7, n, true FROM generate_series(1, 50) n"
    )
    with pipeline.running() as run:
        pipeline.signal("execute-snapshot", "t")
        run.until(lambda: finished(run), "the end")
    assert sorted(pipeline.destination.ids("t", "r", column="n")) == list(range(1, 51))


FAMILY = """
CREATE TABLE parent (id int PRIMARY KEY, v int); INSERT INTO parent VALUES (1, 0), (2, 0);
CREATE TABLE child (PRIMARY KEY (id)) INHERITS (parent); INSERT INTO child VALUES (2, 7), (3, 7);
CREATE TABLE root (id int PRIMARY KEY) PARTITION BY LIST (id);
CREATE TABLE leaf PARTITION OF root FOR VALUES IN (1);
CREATE TABLE middle PARTITION OF root FOR VALUES IN (2, 3) PARTITION BY LIST (id);
CREATE TABLE deep PARTITION OF middle FOR VALUES IN (2, 3);
INSERT INTO root VALUES (1), (2), (3)
"""


@pytest.mark.parametrize("via_root", [False, True])
@pytest.mark.parametrize(
    "named", [["parent", "root"], [r"public\.(?!signals).*"], ["middle"]], ids=str
)
def test_rows_are_those_that_the_stream_shows_of_a_table(pipeline, named, via_root):
    database, destination = pipeline.database, pipeline.destination
    database.execute(FAMILY)
    own = {"parent": [1, 2]}
    if len(named) == 1:
        own["child"] = [2, 3]
    own |= {"root": [1, 2, 3]} if via_root else {"leaf": [1], "deep": [2, 3]}
    if named == ["middle"]:
        own = {} if via_root else {"deep": [2, 3]}

    def reported() -> dict[str, list[int]]:
        names = ("parent", "child", "root", "leaf", "middle", "deep")
        found = {name: sorted(destination.ids(name, "r")) for name in names}
        return {name: ids for name, ids in found.items() if ids}

    with pipeline.running(**{"publish.via.partition.root": via_root}) as run:
        pipeline.signal("execute-snapshot", *named)
        pipeline.signal("log", message="all")
        database.execute("CREATE TABLE last (id int PRIMARY KEY); INSERT INTO last VALUES (1)")
        run.until(lambda: destination.ids("last"), "the end of the signals")
        if own:  # the end is reported when the last rows are on their way
            run.until(lambda: finished(run) and reported() == own, "the snapshot")
    assert reported() == own


# --- changes inside the window ---------------------------------------------------------------------------


MOVED = "UPDATE t SET id = 33, large = large || '' WHERE id = 3"


@pytest.mark.parametrize(
    ("identity", "when", "change"),
    [
        pytest.param("DEFAULT", "before", "UPDATE t SET v = 'new' WHERE id = 3", id="update"),
        pytest.param("DEFAULT", "after", MOVED, id="key change"),
        pytest.param("DEFAULT", "before", "UPDATE t SET id = -id, v = 'new' WHERE id = 3", id="key change backwards"),
        pytest.param("DEFAULT", "after", "DELETE FROM t; INSERT INTO t VALUES (3, 'again', NULL, 3)", id="delete all"),
        pytest.param("DEFAULT", "after", "TRUNCATE t; INSERT INTO t VALUES (4, 'again', NULL, 4)", id="truncate"),
        pytest.param("DEFAULT", "after", "UPDATE t SET v = 'a' WHERE id = 3; UPDATE t SET large = 'x' WHERE id = 3; UPDATE t SET v = 'b' WHERE id = 3", id="large value changed between"),
        pytest.param("FULL", "after", "UPDATE t SET v = 'new' WHERE id = 3", id="full update"),
        pytest.param("USING INDEX other", "before", MOVED, id="index, other key change"),
        pytest.param("DEFAULT", "after", "ALTER TABLE t RENAME id TO ident; DELETE FROM t WHERE ident = 1; UPDATE t SET v = 'new' WHERE ident = 3", id="key renamed"),
        pytest.param("DEFAULT", "after", "ALTER TABLE t RENAME v TO w; UPDATE t SET w = 'new' WHERE id = 3", id="column renamed"),
        pytest.param("DEFAULT", "before", "ALTER TABLE t ADD more int DEFAULT 5; UPDATE t SET v = 'new' WHERE id = 3", id="column added"),
    ],
)  # fmt: skip
def test_a_change_while_a_chunk_is_read_is_not_undone_by_it(
    pipeline, database, between, when, identity, change
):
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text, large text, o int NOT NULL);"
        "ALTER TABLE t ALTER large SET STORAGE EXTERNAL; CREATE UNIQUE INDEX other ON t (o);"
        "INSERT INTO t SELECT g, 'old', repeat(g::text, 3000), g FROM generate_series(1, 5) g;"
        f"ALTER TABLE t REPLICA IDENTITY {identity}"
    )
    pipeline.settings["skipped.operations"] = "none"
    key = "o" if "INDEX" in identity else "ident" if "ident" in change else "id"
    between(lambda: database.execute(change), when=when)
    with pipeline.running() as run:
        pipeline.signal("execute-snapshot", "t")
        run.until(lambda: finished(run), "the end")
    pipeline.catch_up()
    found = pipeline.destination.table("t", key)
    if "more" in change:  # the chunk may be older than the column: the consumer has no value
        for row in found.values():
            row.setdefault("more", "5")
    assert found == pipeline.database.rows("t", key)


def test_a_commit_that_streams_before_it_is_visible_is_waited_for(private_server, tmp_path):
    """With synchronous replication a commit is in the WAL, and streams, long before others see it.
    Rows read in between would bring the old row back."""
    database = private_server.create_database("slow")
    database.execute(
        f"{SIGNALS}; CREATE TABLE t (id int PRIMARY KEY, v text);"
        "INSERT INTO t SELECT g, 'old' FROM generate_series(1, 5) g"
    )
    private_server.execute("ALTER SYSTEM SET synchronous_commit = 'local'")
    settings = {"signal.data.collection": "public.signals", "snapshot.mode": "no_data"}
    pipeline = PipelineRig(database, tmp_path, settings)

    def commits_wait_for(standby: str) -> None:
        private_server.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{standby}'")
        private_server.reload()
        # commits wait as soon as the checkpointer, too, has read the setting
        private_server.execute("CHECKPOINT")

    def update(row: int) -> None:
        with database.connect() as connection:
            connection.execute("SET synchronous_commit = on")
            connection.execute("UPDATE t SET v = 'new' WHERE id = %s", [row])

    with pipeline.running() as run:
        for row, kind in ((3, "incremental"), (4, "blocking")):
            read = len(read_rows(pipeline.destination))
            commits_wait_for("nobody")
            waiting = in_background(update, row)
            run.until(lambda n=row: n in pipeline.destination.ids("t", "u"), "the update to stream")
            assert database.execute("SELECT v FROM t WHERE id = %s", row) == [("old",)]
            pipeline.signal("execute-snapshot", "t", type=kind)
            database.execute("INSERT INTO t VALUES (%s, 'after')", row + 3)
            run.until(lambda n=row: n + 3 in pipeline.destination.ids("t"), "the stream to go on")
            assert len(read_rows(pipeline.destination)) == read
            commits_wait_for("")
            waiting.result(120)
            run.until(lambda n=read: len(read_rows(pipeline.destination)) >= n + 5, "the rows")
    assert pipeline.destination.table("t") == pipeline.database.rows("t")


@pytest.mark.pipeline(sql=LARGE_VALUES)
@pytest.mark.parametrize(
    ("settings", "data", "moved_to"),
    [
        pytest.param({}, {}, "-id", id="watermarks, backwards"),
        pytest.param(BY_DELETION, {}, "id + 1000", id="deletion, forwards"),
        pytest.param(READ_ONLY, {}, "-id", id="read-only, backwards"),
        pytest.param({}, {"surrogate_key": "place"}, "-id", id="surrogate, backwards"),
    ],
)
def test_a_row_that_moves_past_the_chunks_keeps_its_large_value(
    pipeline, between, settings, data, moved_to
):
    """Its update does not have the value, and no chunk comes to the row any more."""
    column = data.get("surrogate_key", "id")
    move = (
        f"UPDATE t SET {column} = {moved_to.replace('id', column)} WHERE {column} BETWEEN 25 AND 27"
    )
    between(lambda: pipeline.database.execute(move))
    with pipeline.running(**settings) as run:
        asked(run, "t", **data)
        run.until(
            lambda: pipeline.destination.table("t") == pipeline.database.rows("t"), "the table"
        )
        run.until(lambda: finished(run), "the end")


# --- life of a snapshot ----------------------------------------------------------------------------------


def hold_after(destination: Destination, rows: int) -> tuple[threading.Event, threading.Event]:
    return destination.hold(lambda _batch: len(read_rows(destination)) >= rows)


@large
def test_a_snapshot_can_be_paused_and_resumed_also_over_a_restart(pipeline):
    destination = pipeline.destination

    def insert(run: Run, number: int) -> None:
        pipeline.database.execute("INSERT INTO t VALUES (%s)", number)
        run.until(lambda: number in destination.ids("t", "c"), f"row {number}")

    held, release = hold_after(destination, 50)
    with pipeline.running() as run:
        pipeline.signal("execute-snapshot", "t")
        assert held.wait(WAIT_S)
        pipeline.signal("pause-snapshot")
        release.set()
        insert(run, 1000)
        paused = len(read_rows(destination))
        insert(run, 1001)
        assert len(read_rows(destination)) <= paused + 10
    with pipeline.running() as run:
        insert(run, 1002)
        assert len(read_rows(destination)) < 100
        pipeline.signal("resume-snapshot")
        run.until(lambda: len(set(destination.ids("t", "r"))) >= 300, "the end")
        assert [kind for kind, _ in run.notices.signals] == ["resume-snapshot"]


@large
def test_a_snapshot_of_one_table_can_be_stopped_and_the_next_goes_on(pipeline):
    held, release = hold_after(pipeline.destination, 50)
    with pipeline.running() as run:
        pipeline.signal("execute-snapshot", "t", "u")
        assert held.wait(WAIT_S)
        pipeline.signal("stop-snapshot", "t", type="incremental")
        release.set()
        run.until(lambda: finished(run), "the end")
    assert len(read_rows(pipeline.destination)) < 300
    assert pipeline.destination.ids("u", "r") == list(range(1, 16))


@large
def test_a_stream_is_not_idle_while_chunks_are_read(pipeline, between):
    pipeline.settings |= {"read.only": "true", CHUNK: 3}
    pipeline.catch_up()
    pipeline.signal("execute-snapshot", "u")
    for chunk in range(1, 6):
        between(lambda: time.sleep(0.3), nth=chunk)
    pipeline.run(limits=Limits(until_idle=0.1))
    assert pipeline.destination.ids("u", "r") == list(range(1, 16))


@large
def test_rows_that_wait_for_a_position_do_not_keep_a_run_for_ever(pipeline, monkeypatch):
    """The WAL of a standby advances as its primary's does."""
    pipeline.settings["read.only"] = "true"
    pipeline.catch_up()
    pipeline.signal("execute-snapshot", "u")
    with monkeypatch.context() as patch:
        patch.setattr(IdleDetector, "PATIENCE_S", 1.0)
        never = property(lambda self: 1 << 62 if self.holds_chunk else None)
        patch.setattr(IncrementalSnapshots, "until", never)
        pipeline.run(limits=Limits(until_idle=0.1))
    assert pipeline.destination.ids("u", "r") == []
    pipeline.run(limits=Limits(until_idle=0.1))
    assert pipeline.destination.ids("u", "r") == list(range(1, 16))


@large
def test_a_request_is_stored_before_its_tables_are_read(pipeline, between):
    """Changes before it may be stored much later, and a kill must not lose a request."""
    pipeline.settings["offset.flush.interval.ms"] = 60_000
    found: list[Any] = []
    between(lambda: found.append(pipeline.offset()), when="before")
    with pipeline.running() as run:
        pipeline.database.execute("INSERT INTO t VALUES (1000)")
        run.until(lambda: pipeline.destination.ids("t", "c") == [1000], "the change")
        asked(run, "u")
        run.until(lambda: found, "the reading")
    assert [request["table"] for request in found[0].signals["queue"]] == ["u"]


@large
def test_rows_are_not_delivered_inside_a_transaction_that_a_limit_cut(pipeline):
    """Its sink keeps them to itself until the end comes, in another run."""
    target = pipeline.folder / "target.db"
    pipeline.settings |= {
        "read.only": "true",
        "sink.type": "sql",
        "sink.url": f"sqlite:///{target}",
    }
    pipeline.catch_up()
    pipeline.signal("execute-snapshot", "u")
    pipeline.database.execute("INSERT INTO t SELECT generate_series(1001, 1100)")
    pipeline.run(limits=Limits(max_records=50))
    with pipeline.running() as run:
        run.until(lambda: finished(run), "the end")
    with sqlite3.connect(target) as connection:
        assert connection.execute("SELECT count(*) FROM u").fetchall() == [(15,)]


@pytest.mark.pipeline(
    sql=THREE_HUNDRED,
    settings={"publication.autocreate.mode": "filtered", "waltap.new.tables": "warn"},
)
def test_a_table_that_left_while_partly_read_is_read_whole_when_it_joins_again(pipeline):
    held, release = hold_after(pipeline.destination, 50)
    with pipeline.running():
        pipeline.signal("execute-snapshot", "t")
        assert held.wait(WAIT_S)
        pipeline.signal("pause-snapshot")
        release.set()
    read = len(read_rows(pipeline.destination))
    for what, told in (("remove", "is no longer streamed"), ("add", "next start reads the rows")):
        done = pipeline.command("tables", what, "FILE", "public.t")
        assert told in done.stdout, done.stderr
    with pipeline.running() as run:
        pipeline.signal("resume-snapshot")
        run.until(lambda: finished(run), "the end")
    assert sorted(pipeline.destination.ids("t", "r")[read:]) == list(range(1, 301))


@pytest.mark.pipeline(
    settings=READ_ONLY, sql=";".join(f"CREATE TABLE e{n} (id int PRIMARY KEY)" for n in range(45))
)
def test_the_end_of_tables_without_rows_is_stored_while_nothing_streams(pipeline):
    with pipeline.running() as run:
        asked(run, "e.*")
        run.until(lambda: finished(run), "the end")
    with pipeline.running() as run:
        assert run.engine.delivery.signals.get("queue", []) == []
        pipeline.database.execute("INSERT INTO e1 VALUES (1)")
        run.until(lambda: pipeline.destination.ids("e1") == [1], "the row")
    assert read_rows(pipeline.destination, "e1") == []


NO_WATERMARKS = (
    "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS"
    " $$BEGIN RAISE insufficient_privilege USING MESSAGE = 'not you'; END$$;"
    "CREATE TRIGGER no BEFORE INSERT ON signals FOR EACH ROW"
    " WHEN (NEW.type LIKE 'snapshot-window%') EXECUTE FUNCTION no()"
)


@large
@pytest.mark.parametrize("settings", [{"read.only": "true"}, BY_DELETION], ids=["read", "deleted"])
def test_the_signal_table_is_not_written_or_left_as_it_was(pipeline, settings):
    """Where it may not be written, only the read-only way goes on."""
    if settings == {"read.only": "true"}:
        pipeline.database.execute(NO_WATERMARKS)
    with pipeline.running(**settings) as run:
        pipeline.signal("execute-snapshot", "t", name="s", additional_condition="id > 290")
        run.until(lambda: finished(run), "the end")
    assert pipeline.destination.ids("t", "r") == list(range(291, 301))
    assert pipeline.database.execute("SELECT id FROM signals") == [("s",)]


# --- signals that cannot be acted on: what they may name, test_signal_sql.py ------------------------------

CONDITIONS = [
    ("1/(id - id) = 1", "division by zero"),
    ("true) UNION ALL (SELECT pin FROM secret WHERE true", "syntax error"),
    ("public.steal()", "public.steal is neither the table nor built in"),
    ("repeat('a', 9999999) || id::text ~ '(a|a?)+b'", "waltap.signal.condition.timeout.ms is 2000"),
]


def asks(*tables: str, **data: Any) -> str:
    return json.dumps({"data-collections": tables} | {k.replace("_", "-"): v for k, v in data.items()})  # fmt: skip


def filtered(condition: str) -> str:
    conditions = [{"data-collection": "public.t", "filter": condition}]
    return asks("public.t", additional_conditions=conditions)


UNUSABLE = [
    *(("execute-snapshot", filtered(condition), says) for condition, says in CONDITIONS),
    ("execute-snapshot", "{not json", "is not JSON"),
    ("execute-snapshot", asks("public.none"), "no such table is captured: public.none"),
    ("execute-snapshot", asks(), "no such table is captured: the signal names none"),
    ("execute-snapshot", asks("t"), "no such table is captured: t"),
    ("execute-snapshot", asks(*(f"public.n{n}" for n in range(100))), "and 90 more"),
    ("execute-snapshot", asks("pg_catalog.pg_authid"), "no such table is captured"),
    ("execute-snapshot", asks("public.t", surrogate_key="no"), "has no column 'no'"),
    ("execute-snapshot", asks("public.keyless"), "has no key"),
    ("execute-snapshot", asks(r"public\.(o|oo)+$"), "take longer"),
    ("stop-snapshot", asks("public.("), "names no table in the queue"),
    ("pause-snapshot", "]", "is not JSON"),
    ("pause-snapshot", "", "no incremental snapshot is under way"),
    ("log", '"text"', "not a JSON object"),
    ("", "", "'' is not known"),
]


@large
def test_signals_that_cannot_be_acted_on_are_logged_and_the_stream_goes_on(pipeline, caplog):
    """One after the other in one run: none ends it, none reads or writes anything."""
    database, destination = pipeline.database, pipeline.destination
    database.execute(
        "CREATE TABLE keyless (a int); INSERT INTO keyless VALUES (1);"
        "CREATE TABLE secret (pin int); INSERT INTO secret VALUES (1234);"
        f'CREATE TABLE "{"o" * 60}!" (id int PRIMARY KEY);'
        "CREATE FUNCTION steal() RETURNS bool LANGUAGE sql AS"
        " 'INSERT INTO u VALUES (999); SELECT true'"
    )
    pipeline.settings |= {
        "waltap.signal.condition.timeout.ms": 2000,
        "waltap.signal.match.timeout.ms": 1000,
    }
    with pipeline.running() as run:
        for number, (kind, data, says) in enumerate(UNUSABLE):
            caplog.clear()
            database.execute("INSERT INTO signals VALUES (%s, %s, %s)", number, kind, data)
            run.until(lambda text=says: text in warnings(caplog), f"the warning of {data or kind}")
        pipeline.signal("execute-snapshot", "u")
        run.until(lambda: len(read_rows(destination, "u")) == 15, "the next signal's rows")
    assert ("table_failed", "public.keyless", 0) in run.notices.snapshots
    assert read_rows(destination) == []
    assert database.execute("SELECT count(*), max(id) FROM u") == [(15, 15)]


# --- what goes wrong while a snapshot reads --------------------------------------------------------------


@large
def test_without_a_signal_table_to_write_to_the_stream_goes_on(pipeline, caplog):
    pipeline.database.execute(NO_WATERMARKS)
    kinds: list[str] = []
    with pipeline.running() as run:
        run.engine.on_notification(lambda notification: kinds.append(notification.kind))
        pipeline.signal("execute-snapshot", "t")
        pipeline.database.execute("INSERT INTO t VALUES (1000)")
        run.until(lambda: 1000 in pipeline.destination.ids("t"), "the row")
    assert "not you; given up: public.t" in caplog.text
    assert kinds[-2:] == ["COMPLETED", "ABORTED"]  # as at a stop
    assert read_rows(pipeline.destination) == []


@pytest.mark.parametrize("settings", [{}, READ_ONLY], ids=["watermarks", "read-only"])
def test_a_chunk_that_waits_for_a_rewrite_of_its_table_sees_the_rows(pipeline, settings, caplog):
    """Its snapshot is older than the rewrite, and would see an empty table: a table that is done. The stream goes on
    meanwhile."""
    database, destination = pipeline.database, pipeline.destination
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t SELECT g, g FROM generate_series(1, 25) g;"
        "CREATE TABLE u (id int PRIMARY KEY); INSERT INTO u SELECT generate_series(1, 15)"
    )
    with pipeline.running(**settings) as run, database.connect(autocommit=False) as other:
        other.execute("ALTER TABLE t ALTER v TYPE bigint USING v * 2")
        asked(run, "t", "u")
        run.until(lambda: "another session locks" in caplog.text, "the lock to be reported")
        database.execute("INSERT INTO u VALUES (100)")
        run.until(lambda: destination.ids("u", "c") == [100], "the stream")
        assert destination.ids("t") == []
        other.commit()
        run.until(lambda: len(destination.ids("u", "r")) == 16, "both tables")
    assert caplog.text.count("another session locks") == 1
    assert sorted(destination.ids("t", "r")) == list(range(1, 26))
    assert all(int(row["v"]) == 2 * int(row["id"]) for row in read_rows(destination))


@large
def test_a_table_that_is_dropped_between_two_chunks_ends_and_the_next_is_read(
    pipeline, between, caplog
):
    reported: list[dict[str, Any]] = []
    between(lambda: pipeline.database.execute("DROP TABLE t"))
    with pipeline.running(**READ_ONLY) as run:
        run.engine.on_notification(lambda notification: reported.append(notification.document()))
        asked(run, "t", "u")
        run.until(lambda: len(pipeline.destination.ids("u", "r")) == 15, "the other table")
        pipeline.database.execute("INSERT INTO u VALUES (100)")
        run.until(lambda: pipeline.destination.ids("u", "c") == [100], "the stream")
    assert "table public.t is not read" in caplog.text
    ends = [d["additional_data"] for d in reported if d["type"] == "TABLE_SCAN_COMPLETED"]
    assert [end["status"] for end in ends] == ["UNKNOWN_SCHEMA", "SUCCEEDED"]


@large
@pytest.mark.parametrize(
    "statements",
    [
        "DROP TABLE t; CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t SELECT generate_series(-25, -1)",
        "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD n int DEFAULT 7, ADD PRIMARY KEY (n, id)",
    ],
    ids=["another table", "another key"],
)
def test_a_table_is_read_from_its_start_if_it_or_its_key_is_another_one(
    pipeline, database, between, statements
):
    """Else the place between two chunks would be one of another table, or of another key."""
    between(lambda: database.execute(statements), nth=2)
    with pipeline.running(**READ_ONLY) as run:
        asked(run, "t")
        run.until(lambda: finished(run), "the end")
    ids = [(row.get("n"), int(row["id"])) for row in read_rows(pipeline.destination)]
    rows = database.execute("SELECT to_jsonb(t) ->> 'n', id FROM t ORDER BY 1, 2")
    assert ids[-len(rows) :] == [(n, int(i)) for n, i in rows]


RENAMED = "ALTER TABLE t RENAME TO t2; UPDATE t2 SET v = 'new'"
SWAPPED = (
    "CREATE TABLE n (LIKE t INCLUDING ALL); INSERT INTO n SELECT id, 'n' FROM t; ALTER TABLE t RENAME TO t2;"
    "ALTER TABLE n RENAME TO t; UPDATE t2 SET v = 'new'; UPDATE t SET v = 'last' WHERE id < 20"
)


@pytest.mark.pipeline(
    sql="CREATE TABLE t (id int PRIMARY KEY, v text);"
    "INSERT INTO t SELECT g, 'old' FROM generate_series(1, 35) g"
)
@pytest.mark.parametrize("settings", [{}, READ_ONLY], ids=["watermarks", "read-only"])
@pytest.mark.parametrize("statements", [RENAMED, SWAPPED], ids=["renamed", "swapped"])
@pytest.mark.parametrize(
    ("when", "nth"), [("before", 1), ("after", 1), ("before", 3), ("after", 3)]
)
def test_a_table_is_read_on_under_its_new_name(pipeline, between, settings, statements, when, nth):
    """Rows of its old name must not follow changes of its new name."""
    database, destination = pipeline.database, pipeline.destination
    between(lambda: database.psql(statements), when=when, nth=nth)
    with pipeline.running(**settings) as run:
        asked(run, "t")
        run.until(lambda: finished(run), "the end")
    renamed = [event.table for event in destination.events].index("public.t2")
    later = {(e.table, e.row["v"]) for e in destination.events[renamed:] if e.op == "r"}
    assert later == {("public.t2", "new")}, "no row from before the change"
    assert destination.table("t2") == database.rows("t2")
    assert {*destination.ids("t", "r"), *destination.ids("t2", "r")} == set(range(1, 36))


@pytest.mark.pipeline(
    sql="CREATE TABLE t (id int PRIMARY KEY, v text);"
    "INSERT INTO t SELECT g, 'old' FROM generate_series(1, 35) g"
)
@pytest.mark.parametrize("decoder", ["pgoutput", "wal2json", "decoderbufs"])
def test_a_table_that_has_another_name_for_a_moment_gives_no_older_rows(pipeline, between, decoder):
    """Its change has the name of a table that is another one again. Only pgoutput's wire has the OID."""
    database, destination = pipeline.database, pipeline.destination
    database.execute("CREATE TABLE t2 (id int PRIMARY KEY, v text)")
    exchange = (
        "ALTER TABLE t RENAME TO x; ALTER TABLE t2 RENAME TO t; ALTER TABLE x RENAME TO t2",
    )
    statements = (*exchange, "UPDATE t2 SET v = 'new'", *exchange)
    between(lambda: [database.psql(each) for each in statements], nth=2)
    with pipeline.running(**{"plugin.name": decoder}) as run:
        asked(run, "t")
        run.until(lambda: finished(run), "the end")
    changed = [event.row.get("v") for event in destination.events].index("new")
    assert {e.row["v"] for e in destination.events[changed:] if e.op in "ru"} == {"new"}
    assert {*destination.ids("t", "r"), *destination.ids("t2", "r")} == set(range(1, 36))


@pytest.mark.pipeline(
    sql="CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t SELECT g, g FROM generate_series(1, 15) g"
)
def test_values_of_a_new_type_are_of_a_relation_with_that_type(pipeline, between):
    """The change commits between the description of the table and the reading of a chunk."""
    change = "ALTER TABLE t ALTER v TYPE text USING 'x' || v"
    between(lambda: pipeline.database.execute(change), when="before")
    with pipeline.running() as run:
        pipeline.signal("execute-snapshot", "t")
        run.until(lambda: finished(run), "the end")
    types = {piece.relation.columns[1].type_oid for piece in pipeline.destination.pieces()}
    assert types == {25}
    assert [row["v"] for row in read_rows(pipeline.destination)] == [f"x{n}" for n in range(1, 16)]


@large
def test_a_table_that_is_partly_read_is_read_again_if_asked_for_again(pipeline, between):
    """What asks may be a repair, or the publication of another table of that name. Once is enough."""
    with pipeline.running() as run:
        between(lambda: [pipeline.signal("execute-snapshot", "t") for _ in range(3)], nth=2)
        pipeline.signal("execute-snapshot", "t")
        run.until(lambda: len(read_rows(pipeline.destination)) >= 600, "the second reading")
        run.until(lambda: finished(run), "the end")
    assert len(read_rows(pipeline.destination)) == 600
