"""Incremental snapshots on a real server: rows read in chunks while the table changes.

The promise: who takes every event, row by row, has the table's state in the end.
"""

import json
import os
import re
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from waltap.transactions.transaction import SnapshotRows

from tests.harness.chunks import around_chunk
from tests.harness.pipeline import WAIT_S, Destination, PipelineRig, Run, until
from tests.harness.servers.postgres import Cluster, Database, Server

SIGNALS = "CREATE TABLE signals (id varchar(64) PRIMARY KEY, type varchar(32) NOT NULL, data text);"
CHUNK = "incremental.snapshot.chunk.size"


SETTINGS = {
    "signal.data.collection": "public.signals",
    "snapshot.mode": "no_data",
    CHUNK: 10,
    "publication.autocreate.mode": "all_tables",
    "publication.keyless.tables": "publish",
}


pytestmark = pytest.mark.pipeline(sql=SIGNALS, settings=SETTINGS)


@pytest.fixture(scope="module")
def shared(server: Server) -> Iterator[Database]:
    """Return a database that many short tests use, one after the other."""
    made = server.create_database(f"waltap_test_{os.getpid()}_incremental")
    yield made
    assert made.drop() == []


@pytest.fixture
def short(shared: Database, tmp_path: Path) -> Iterator[PipelineRig]:
    """Return a pipeline of a database with a signal table, which is emptied again."""
    shared.execute(SIGNALS)
    pipeline = PipelineRig(shared, tmp_path, SETTINGS)
    yield pipeline
    shared.execute(f"DROP PUBLICATION IF EXISTS {pipeline.slot}")
    shared.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    until(lambda: not any(shared.slots().values()), "the walsender to leave")
    shared.execute(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
        " WHERE database = current_database()"
    )


def signal(
    database: Database, kind: str = "execute-snapshot", name: str = "s", **data: Any
) -> None:
    database.execute(
        "INSERT INTO signals VALUES (%s, %s, %s)",
        name, kind, json.dumps({k.replace("_", "-"): v for k, v in data.items()}),
    )  # fmt: skip


def read_rows(destination: Destination, table: str = "t") -> list[dict[str, Any]]:
    """Return the rows that incremental snapshots gave."""
    return [e.row for e in destination.of(table) if e.op == "r"]


def chunks(destination: Destination) -> list[int]:
    """Return the number of rows of each chunk."""
    return [
        len(part.rows)
        for batch in destination.batches
        for part in batch.parts
        if isinstance(part, SnapshotRows)
    ]


def finished(run: Run) -> bool:
    """Tell whether a snapshot has begun and no table waits to be read any more.

    Each chunk has a pair of watermarks, and one more pair finds that there is no further chunk.
    """
    database, delivery = run.pipeline.database, run.engine.delivery
    assert delivery is not None
    ((pairs,),) = database.execute("SELECT count(*) FROM signals WHERE type LIKE '%-close'")
    return pairs > 1 and not delivery.signals.get("queue")


def contents(database: Database, table: str, *key: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Return the rows as the server sends them."""
    with database.connect() as connection:
        connection.execute("SET timezone = 'UTC'; SET extra_float_digits = 3")
        result = connection.pgconn.exec_(f"SELECT * FROM {table}".encode())
    names = [(result.fname(n) or b"").decode() for n in range(result.nfields)]
    rows = []
    for number in range(result.ntuples):
        values = (result.get_value(number, n) for n in range(result.nfields))
        rows.append(dict(zip(names, [v if v is None else v.decode() for v in values], strict=True)))
    return {tuple(row[name] for name in key or ("id",)): row for row in rows}


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return what lets an action happen around the reading of the n-th chunk, by the real reader."""

    return partial(around_chunk, monkeypatch)


# --- whole tables -----------------------------------------------------------------------------------


def test_a_table_under_change_arrives_whole(pipeline: PipelineRig) -> None:
    """Three writers insert, update (large values untouched, too), delete and change keys meanwhile.

    Who changes a key touches the large value: a row that leaves the part to be read, and whose change
    does not tell all, is nowhere to be had whole.
    """
    database = pipeline.database
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text, large text);"
        "ALTER TABLE t ALTER large SET STORAGE EXTERNAL;"
        "INSERT INTO t SELECT g, 'old', CASE WHEN g % 3 = 0 THEN repeat(g::text, 3000) END"
        " FROM generate_series(1, 600) g"
    )
    stop = threading.Event()

    def write(number: int) -> None:
        with database.connect() as connection:
            turn = number
            while not stop.wait(0.005):  # a pipeline on a busy machine must keep up
                turn += 7
                old = turn * 31 % 600 + 1
                connection.execute("UPDATE t SET v = 'w%s' WHERE id = %s", [turn, old])
                connection.execute("DELETE FROM t WHERE id = %s", [turn * 17 % 600 + 1])
                connection.execute(
                    "INSERT INTO t VALUES (%s, 'new', repeat('n', 3000)) ON CONFLICT DO NOTHING",
                    [turn * 13 % 900],
                )
                connection.execute(
                    "UPDATE t SET id = id + 10000, large = large || '' WHERE id = %s AND NOT EXISTS"
                    " (SELECT FROM t WHERE id = %s)",
                    [turn * 7 % 600, turn * 7 % 600 + 10000],
                )

    with pipeline.running() as run:
        threads = [threading.Thread(target=write, args=(n,), daemon=True) for n in range(3)]
        for thread in threads:
            thread.start()
        try:
            signal(database, data_collections=["public.t"])
            run.until(lambda: finished(run), "the end of the snapshot", within=300)
        finally:
            stop.set()
            for thread in threads:
                thread.join(90)
    pipeline.catch_up()
    assert pipeline.destination.table("t") == contents(database, "t")
    assert len(chunks(pipeline.destination)) > 40


KEYS = [
    pytest.param("a int, b text, PRIMARY KEY (a, b)", "g % 7, 'k' || g", id="int and text"),
    pytest.param("a timestamptz PRIMARY KEY", "'2020-01-01Z'::timestamptz + g * interval '1.5h'", id="timestamptz"),
    pytest.param("a uuid PRIMARY KEY", "md5(g::text)::uuid", id="uuid"),
    pytest.param("a numeric PRIMARY KEY", "g * 1.10 - 30", id="numeric"),
    pytest.param("a float8 PRIMARY KEY", "CASE WHEN g = 5 THEN 'NaN' ELSE sin(g) END", id="float"),
    pytest.param("a char(9) PRIMARY KEY", "E'it''s \\\\' || g", id="padded, quotes, backslashes"),
    pytest.param("a bytea, b date, c bool, PRIMARY KEY (c, b, a)", "g::text::bytea, '2024-02-28'::date + g % 4, g % 2 = 0", id="key in another order"),
    pytest.param("a int8 PRIMARY KEY", "(g - 50)::int8 << 40", id="negative"),
]  # fmt: skip


@pytest.mark.parametrize(("key", "values"), KEYS)
def test_keys_of_any_type_are_read_in_order_without_gaps(
    short: PipelineRig, key: str, values: str
) -> None:
    database = short.database
    database.execute(f"CREATE TABLE t ({key})")
    database.execute(f"INSERT INTO t SELECT {values} FROM generate_series(1, 95) g")
    columns = list(contents(database, "t", "a").values())[0].keys()
    with short.running() as run:
        signal(database, data_collections=["public.t"])
        run.until(lambda: len(read_rows(short.destination)) >= 95, "all rows")
        run.until(lambda: finished(run), "the end")
    rows = read_rows(short.destination)
    assert len(rows) == 95
    assert short.destination.table("t", *columns) == contents(database, "t", *columns)
    assert chunks(short.destination) == [10] * 9 + [5]


def test_a_surrogate_key_may_be_null_and_not_unique(short: PipelineRig) -> None:
    database = short.database
    database.execute(
        "CREATE TABLE t (id int, g int); ALTER TABLE t REPLICA IDENTITY FULL;"
        "INSERT INTO t SELECT n, nullif(n % 4, 0) * 10 FROM generate_series(1, 60) n"
    )
    with short.running() as run:
        signal(database, data_collections=["public.t"], surrogate_key="g")
        run.until(lambda: len(read_rows(short.destination)) >= 60, "all rows")
        run.until(lambda: finished(run), "the end")
    assert short.destination.table("t") == contents(database, "t")
    assert chunks(short.destination) == [15] * 4


@pytest.mark.parametrize(
    ("plugin", "settings"),
    [
        pytest.param("pgoutput", {"pgoutput.binary": "true"}, id="binary"),
        pytest.param("pgoutput", {"pgoutput.streaming": "on"}, id="streaming"),
        pytest.param("wal2json", {}, id="wal2json"),
        pytest.param("decoderbufs", {}, id="decoderbufs"),
    ],
)
def test_a_change_in_the_window_is_known_by_its_key_whatever_the_decoder(
    short: PipelineRig, between: Callable[..., None], plugin: str, settings: dict[str, str]
) -> None:
    database = short.database
    database.execute(
        "CREATE TABLE t (id int, at timestamptz, v text, PRIMARY KEY (id, at));"
        "INSERT INTO t SELECT g, '2024-05-05 10:00:00.5Z', 'old' FROM generate_series(1, 9) g"
    )
    between(
        lambda: database.execute(
            "UPDATE t SET v = 'new' WHERE id = 2; DELETE FROM t WHERE id = 3;"
            "UPDATE t SET id = 40 WHERE id = 4"
        )
    )
    with short.running(**{"plugin.name": plugin, **settings}) as run:
        signal(database, data_collections=["public.t"])
        run.until(lambda: finished(run), "the end")
    # as text also where the decoder is told to send binary: the snapshot's rows are text
    assert [r["id"] for r in read_rows(short.destination)] == ["1", "5", "6", "7", "8", "9"]


# --- changes inside the window -----------------------------------------------------------------------


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    ("identity", "change"),
    [
        pytest.param("DEFAULT", "UPDATE t SET v = 'new' WHERE id = 3", id="update"),
        pytest.param("DEFAULT", "DELETE FROM t WHERE id = 3", id="delete"),
        pytest.param("DEFAULT", "UPDATE t SET id = 33, large = large || '' WHERE id = 3", id="key change"),
        pytest.param("DEFAULT", "UPDATE t SET id = -id, v = 'new' WHERE id = 3", id="key change backwards"),
        pytest.param("DEFAULT", "DELETE FROM t; INSERT INTO t VALUES (3, 'again', NULL, 3)", id="delete all"),
        pytest.param("DEFAULT", "TRUNCATE t; INSERT INTO t VALUES (4, 'again', NULL, 4)", id="truncate"),
        pytest.param("DEFAULT", "UPDATE t SET v = 'a' WHERE id = 3; UPDATE t SET large = 'x' WHERE id = 3; UPDATE t SET v = 'b' WHERE id = 3", id="large value changed between"),
        pytest.param("FULL", "UPDATE t SET v = 'new' WHERE id = 3", id="full update"),
        pytest.param("FULL", "DELETE FROM t WHERE id = 3", id="full delete"),
        pytest.param("FULL", "UPDATE t SET id = 33, large = large || '' WHERE id = 3", id="full key change"),
        pytest.param("USING INDEX other", "DELETE FROM t WHERE id = 3", id="index delete"),
        pytest.param("USING INDEX other", "UPDATE t SET id = 33, large = large || '' WHERE id = 3", id="index, other key change"),
        pytest.param("DEFAULT", "ALTER TABLE t ADD more int DEFAULT 5; UPDATE t SET v = 'new' WHERE id = 3", id="column added"),
    ],
)  # fmt: skip
def test_a_change_while_a_chunk_is_read_is_not_undone_by_it(
    short: PipelineRig, between: Callable[..., None], when: str, identity: str, change: str
) -> None:
    database = short.database
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text, large text, o int NOT NULL);"
        "ALTER TABLE t ALTER large SET STORAGE EXTERNAL; CREATE UNIQUE INDEX other ON t (o);"
        "INSERT INTO t SELECT g, 'old', repeat(g::text, 3000), g FROM generate_series(1, 5) g;"
        f"ALTER TABLE t REPLICA IDENTITY {identity}"
    )
    key = "o" if "INDEX" in identity else "id"
    between(lambda: database.execute(change), when=when)
    with short.running(**{"skipped.operations": "none"}) as run:
        signal(database, data_collections=["public.t"])
        run.until(lambda: finished(run), "the end")
    short.catch_up(**{"skipped.operations": "none"})
    found, wanted = short.destination.table("t", key), contents(database, "t", key)
    for row in found.values():  # the chunk may be older than the column: the consumer has no value
        if "more" in change or any("more" in r for r in wanted.values()):
            row.setdefault("more", "5")
    assert found == wanted


def test_a_row_of_a_table_without_key_that_goes_while_it_is_read_stays_gone(
    short: PipelineRig, between: Callable[..., None]
) -> None:
    database = short.database
    database.execute(
        "CREATE TABLE t (id int NOT NULL, v text); ALTER TABLE t REPLICA IDENTITY FULL;"
        "INSERT INTO t VALUES (1, 'x'), (1, 'x'), (2, 'y'), (3, 'z')"
    )
    between(
        lambda: database.execute(
            "DELETE FROM t WHERE id = 2; UPDATE t SET v = 'new' WHERE id = 3;"
            "DELETE FROM t WHERE ctid = (SELECT min(ctid) FROM t WHERE id = 1)"
        )
    )
    with short.running() as run:
        signal(database, data_collections=["public.t"], surrogate_key="id")
        run.until(lambda: finished(run), "the end")
    assert read_rows(short.destination) == [{"id": "1", "v": "x"}]


def test_a_commit_that_streams_before_it_is_visible_is_waited_for(tmp_path: Path) -> None:
    """With synchronous replication a commit stands in the WAL, and streams, long before others see it.
    A chunk read in between would bring the old row back."""
    cluster = Cluster.create(synchronous_standby_names="nobody", synchronous_commit="local")
    try:
        database = cluster.create_database("slow")
        database.execute(
            f"{SIGNALS} CREATE TABLE t (id int PRIMARY KEY, v text);"
            "INSERT INTO t SELECT g, 'old' FROM generate_series(1, 5) g"
        )
        pipeline = PipelineRig(
            database, tmp_path, {"signal.data.collection": "public.signals", "snapshot.mode": "no_data"}
        )  # fmt: skip
        with pipeline.running() as run:

            def update() -> None:
                with database.connect() as connection:
                    connection.execute("SET synchronous_commit = on")
                    connection.execute("UPDATE t SET v = 'new' WHERE id = 3")

            waiting = threading.Thread(target=update, daemon=True)
            waiting.start()
            run.until(lambda: pipeline.destination.ids("t", "u") == [3], "the update to stream")
            assert database.execute("SELECT v FROM t WHERE id = 3") == [("old",)]
            signal(database, data_collections=["public.t"])
            database.execute("INSERT INTO t VALUES (6, 'after')")
            run.until(lambda: 6 in pipeline.destination.ids("t"), "the stream to go on")
            assert read_rows(pipeline.destination) == []
            cluster.execute("ALTER SYSTEM SET synchronous_standby_names = ''")
            cluster.reload()
            waiting.join(90)
            run.until(lambda: len(read_rows(pipeline.destination)) >= 5, "the chunk")
        assert pipeline.destination.table("t") == contents(database, "t")
    finally:
        cluster.remove()


# --- life of a snapshot ------------------------------------------------------------------------------


@pytest.fixture
def large(pipeline: PipelineRig) -> PipelineRig:
    """Return a pipeline whose table ``t`` has 300 rows: 30 chunks."""
    pipeline.database.execute(
        "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t SELECT generate_series(1, 300);"
        "CREATE TABLE u (id int PRIMARY KEY); INSERT INTO u SELECT generate_series(1, 15)"
    )
    return pipeline


def hold_after(destination: Destination, rows: int) -> tuple[threading.Event, threading.Event]:
    """Make the destination block, once, when it has so many snapshot rows."""
    held, release = threading.Event(), threading.Event()

    def hold(_batch: object) -> None:
        if not held.is_set() and len(read_rows(destination)) >= rows:
            held.set()
            assert release.wait(WAIT_S)

    destination.before_write = hold
    return held, release


def test_a_stopped_run_goes_on_with_the_chunk_that_was_next(large: PipelineRig) -> None:
    database, destination = large.database, large.destination
    held, release = hold_after(destination, 100)
    with large.running() as run:
        signal(database, data_collections=["public.t", "public.u"])
        assert held.wait(WAIT_S)
        run.engine.stop()
        release.set()
    seen = [int(row["id"]) for row in read_rows(destination)]
    assert 100 <= len(seen) < 300
    with large.running() as run:
        run.until(lambda: finished(run), "the end")
    ids = [int(row["id"]) for row in read_rows(destination)]
    assert sorted(set(ids)) == list(range(1, 301))
    assert len(ids) <= 310  # at most one chunk twice
    assert len(read_rows(destination, "u")) == 15


def test_a_snapshot_can_be_paused_and_resumed_also_over_a_restart(large: PipelineRig) -> None:
    database, destination = large.database, large.destination
    held, release = hold_after(destination, 50)
    with large.running() as run:
        signal(database, data_collections=["public.t"])
        assert held.wait(WAIT_S)
        signal(database, "pause-snapshot", "p")
        release.set()
        database.execute("INSERT INTO t VALUES (1000)")
        run.until(lambda: 1000 in destination.ids("t", "c"), "the row after the pause")
        paused = len(read_rows(destination))
        database.execute("INSERT INTO t VALUES (1001)")
        run.until(lambda: 1001 in destination.ids("t", "c"), "another row")
        assert len(read_rows(destination)) <= paused + 10
    with large.running() as run:
        database.execute("INSERT INTO t VALUES (1002)")
        run.until(lambda: 1002 in destination.ids("t", "c"), "a row of the next run")
        assert len(read_rows(destination)) < 100
        signal(database, "resume-snapshot", "r")
        run.until(lambda: finished(run), "the end")
        assert [kind for kind, _ in run.notices.signals] == ["resume-snapshot"]
    assert {int(row["id"]) for row in read_rows(destination)} >= set(range(1, 301))


def test_a_snapshot_of_one_table_can_be_stopped_and_the_next_goes_on(large: PipelineRig) -> None:
    database, destination = large.database, large.destination
    held, release = hold_after(destination, 50)
    with large.running() as run:
        signal(database, data_collections=["public.t", "public.u"])
        assert held.wait(WAIT_S)
        signal(database, "stop-snapshot", "x", data_collections=["public.t"], type="incremental")
        release.set()
        run.until(lambda: finished(run), "the end")
    assert len(read_rows(destination)) < 300
    assert [int(row["id"]) for row in read_rows(destination, "u")] == list(range(1, 16))


def test_watermarks_by_deletion_leave_the_signal_table_empty(large: PipelineRig) -> None:
    database = large.database
    with large.running(**{"incremental.snapshot.watermarking.strategy": "insert_delete"}) as run:
        signal(database, data_collections=["public.t"])
        run.until(lambda: len(read_rows(large.destination)) == 300, "the end")
    assert database.execute("SELECT id FROM signals") == [("s",)]


def test_a_condition_limits_what_is_read(
    large: PipelineRig, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="waltap.snapshot.incremental")
    database = large.database
    with large.running() as run:
        signal(
            database,
            data_collections=["public.t"],
            additional_conditions=[
                {"data-collection": "public.t", "filter": "id % 10 = 0 -- tens"}
            ],
        )
        run.until(lambda: finished(run) and read_rows(large.destination), "the end")
    assert [int(r["id"]) for r in read_rows(large.destination)] == list(range(10, 301, 10))
    assert "public.t will be read" in caplog.text
    assert "public.t is read to its end" in caplog.text


# --- signals that cannot be acted on --------------------------------------------------------------------


def bad(**data: Any) -> str:
    return json.dumps({k.replace("_", "-"): v for k, v in data.items()})


def filtered(condition: str) -> str:
    conditions = [{"data-collection": "public.t", "filter": condition}]
    return bad(data_collections=["public.t"], additional_conditions=conditions)


UNUSABLE = [
    ("execute-snapshot", "{not json", "is not JSON"),
    ("execute-snapshot", "[1]", "not a JSON object"),
    ("execute-snapshot", bad(data_collections="t"), "must be a list"),
    ("execute-snapshot", bad(data_collections=["public.none"]), "no such table is captured"),
    (
        "execute-snapshot",
        bad(data_collections=["pg_catalog.pg_authid"]),
        "no such table is captured",
    ),
    ("execute-snapshot", bad(data_collections=["public.t"], type="sideways"), "sideways"),
    ("execute-snapshot", bad(data_collections=["public.t"], surrogate_key="no"), "has no key"),
    ("execute-snapshot", bad(data_collections=["public.keyless"]), "has no key"),
    ("execute-snapshot", filtered("no_column = 1"), 'column "no_column" does not exist'),
    ("execute-snapshot", filtered("id = 1)"), 'syntax error at or near ")"'),
    ("execute-snapshot", filtered("1/(id - id) = 1"), "division by zero"),
    ("execute-snapshot", filtered("true)) TO STDOUT; DROP TABLE u; --"), "syntax error"),
    ("execute-snapshot", filtered("true; DROP TABLE u; --"), "syntax error"),
    ("execute-snapshot", filtered("true)) TO PROGRAM 'false' --"), "syntax error"),
    (
        "execute-snapshot",
        filtered("public.steal()"),
        "public.steal is neither the table nor built in",
    ),
    ("execute-snapshot", filtered("steal()"), "does not exist"),
    ("execute-snapshot", filtered("id OPERATOR(public.===) 1"), "public.= is neither"),
    ("execute-snapshot", filtered("public.t.id OPERATOR ( public . === ) 1"), "is neither"),
    ("execute-snapshot", filtered("public.wrapped()"), "public.wrapped is neither"),
    ("execute-snapshot", filtered("'x'::public.checked IS NULL"), "public.checked is neither"),
    ("execute-snapshot", filtered("'{}'::public.checked[] IS NULL"), "public.checked is neither"),
    ("execute-snapshot", filtered("public.checked 'x' IS NULL"), "public.checked is neither"),
    ("execute-snapshot", filtered('U&"\\0070ublic".steal()'), "write it as it is"),
    ("execute-snapshot", filtered("EXISTS (SELECT FROM pg_shadow)"), "no query of its own"),
    ("execute-snapshot", filtered("count(*) > 0"), "aggregate functions are not allowed"),
    ("execute-snapshot", filtered("generate_series(1, 9) > 1"), "set-returning functions are not"),
    ("execute-snapshot", filtered("nextval('public.s') > 0"), "calls nextval, which may"),
    ("execute-snapshot", filtered("set_config('a.b', '1', false) = '1'"), "calls set_config"),
    ("execute-snapshot", filtered("pg_read_file('PG_VERSION') IS NULL"), "calls pg_read_file"),
    ("execute-snapshot", filtered("pg_sleep(1000) IS NULL"), "calls pg_sleep, which may"),
    (
        "execute-snapshot",
        filtered(
            "0 < (SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE pid = 0)"
        ),
        "no query of its own",
    ),
    (
        "execute-snapshot",
        filtered("repeat('a', 9999999) || id::text ~ '(a|a?)+b'"),
        "waltap.signal.condition.timeout.ms is 2000",
    ),
    ("execute-snapshot", filtered("public.folded(1) = 1"), "public.folded is neither"),
    (
        "execute-snapshot",
        filtered("true) UNION ALL (SELECT pin FROM secret WHERE true"),
        "syntax error",
    ),
    ("execute-snapshot", filtered("true) OR (true"), "syntax error"),
    ("execute-snapshot", filtered("true, false"), "must be type boolean"),
    ("execute-snapshot", filtered("SELECT true"), "syntax error"),
    ("execute-snapshot", filtered("true /*"), "unterminated"),
    ("execute-snapshot", filtered("$1"), "(PARAM)"),
    ("execute-snapshot", "[" * 200_000, "is not JSON"),
    ("execute-snapshot", '{"data-collections": ["public.\\ud800"]}', "is not JSON"),
    ("execute-snapshot", '{"data-collections": ["public.t\\u0000"]}', "NUL"),
    ("execute-snapshot", bad(data_collections=["(" * 5000 + ")" * 5000]), "nested too deep"),
    ("execute-snapshot", bad(data_collections=[r"public\.(o|oo)+$"]), "take longer"),
    ("stop-snapshot", bad(data_collections=["public.("]), "names no table in the queue"),
    ("stop-snapshot", bad(data_collections=7), "must be a list"),
    ("pause-snapshot", "]", "is not JSON"),
    ("log", '"text"', "not a JSON object"),
    ("x" * 32, "{}", "is not known"),
    ("shutdown", "{}", "'shutdown' is not known"),
    ("", "", "'' is not known"),
]


def test_signals_that_cannot_be_acted_on_are_logged_and_the_stream_goes_on(
    large: PipelineRig, caplog: pytest.LogCaptureFixture
) -> None:
    """One after the other in one run: none ends it, none reads or writes anything."""
    database = large.database
    database.execute(
        "CREATE TABLE keyless (a int); INSERT INTO keyless VALUES (1);"
        "CREATE TABLE secret (pin int); INSERT INTO secret VALUES (1234);"
        f'CREATE TABLE "{"o" * 60}!" (id int PRIMARY KEY);'
        "CREATE FUNCTION steal() RETURNS bool LANGUAGE sql AS"
        " 'INSERT INTO u VALUES (999); SELECT true';"
        "CREATE FUNCTION stolen(int, int) RETURNS bool LANGUAGE sql AS 'SELECT public.steal()';"
        "CREATE OPERATOR === (FUNCTION = stolen, LEFTARG = int, RIGHTARG = int);"
        "CREATE FUNCTION wrapped() RETURNS bool STABLE LANGUAGE plpgsql AS"
        " 'BEGIN RETURN public.steal(); END';"
        "CREATE DOMAIN checked AS text CHECK (public.wrapped()); CREATE SEQUENCE s;"
        "CREATE FUNCTION folded(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS"
        " $$BEGIN PERFORM pg_sleep(600); RETURN $1; END$$"
    )
    limits = {"waltap.signal.condition.timeout.ms": 2000, "waltap.signal.match.timeout.ms": 1000}
    with large.running(**limits) as run:
        for number, (kind, data, says) in enumerate(UNUSABLE):
            caplog.clear()
            database.execute("INSERT INTO signals VALUES (%s, %s, %s)", number, kind, data)
            run.until(lambda text=says: text in warnings(caplog), f"the warning of {data or kind}")
        signal(database, name="good", data_collections=["public.u"])
        run.until(lambda: len(read_rows(large.destination, "u")) == 15, "the next signal's rows")
    assert read_rows(large.destination) == []
    assert database.execute("SELECT count(*), max(id) FROM u") == [(15, 15)]


def warnings(caplog: pytest.LogCaptureFixture) -> str:
    return " ".join(r.getMessage() for r in caplog.records if r.levelname == "WARNING")


def test_without_a_signal_table_to_write_to_the_stream_goes_on(
    large: PipelineRig, caplog: pytest.LogCaptureFixture
) -> None:
    database = large.database
    database.execute(
        "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS"
        " $$BEGIN RAISE insufficient_privilege USING MESSAGE = 'not you'; END$$;"
        "CREATE TRIGGER no BEFORE INSERT ON signals FOR EACH ROW"
        " WHEN (NEW.type LIKE 'snapshot-window%') EXECUTE FUNCTION no()"
    )
    with large.running() as run:
        signal(database, data_collections=["public.t"])
        database.execute("INSERT INTO t VALUES (1000)")
        run.until(lambda: 1000 in large.destination.ids("t"), "the row")
    assert "not you; given up: public.t" in caplog.text
    assert read_rows(large.destination) == []


def test_a_log_signal_is_logged_with_the_offset(
    large: PipelineRig, caplog: pytest.LogCaptureFixture
) -> None:
    database = large.database
    caplog.set_level("INFO")
    with large.running() as run:
        signal(database, "log", message="we are at {}, said ops")
        run.until(lambda: "we are at " in caplog.text, "the line")
    [line] = [t for r in caplog.records if (t := r.getMessage()).startswith("we are at ")]
    assert re.fullmatch(r"we are at [0-9A-F]+/[0-9A-F]+, said ops", line)


def test_a_hundred_thousand_tables_in_one_signal_are_one_line(
    large: PipelineRig, caplog: pytest.LogCaptureFixture
) -> None:
    database = large.database
    wanted = [f"public.none_{n}" for n in range(50_000)] + ["public.u"]
    with large.running() as run:
        signal(database, data_collections=wanted)
        run.until(lambda: len(read_rows(large.destination, "u")) == 15, "the one that exists")
    warned = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    lines = [line for line in warned if "read" in line and "slot" not in line]
    assert len(lines) == 1
    assert "and 49990 more is not read" in lines[0]


def test_the_older_form_of_a_condition_limits_what_is_read(large: PipelineRig) -> None:
    database = large.database
    with large.running() as run:
        signal(database, data_collections=["public.t"], additional_condition="id > 295")
        run.until(lambda: finished(run) and read_rows(large.destination), "the end")
    assert [int(r["id"]) for r in read_rows(large.destination)] == [296, 297, 298, 299, 300]


def test_names_may_be_quoted(short: PipelineRig) -> None:
    database = short.database
    database.execute(
        'CREATE TABLE "My.Table" (id int PRIMARY KEY); CREATE TABLE "Up Case" (id int PRIMARY KEY);'
        'INSERT INTO "My.Table" VALUES (1); INSERT INTO "Up Case" VALUES (2)'
    )
    with short.running() as run:
        signal(database, data_collections=['"public"."My.Table"', 'public."Up Case"'])
        run.until(lambda: read_rows(short.destination, "public.Up Case"), "the rows")
    assert [row["id"] for row in read_rows(short.destination, "public.My.Table")] == ["1"]


def test_a_table_without_key_is_read_by_message_key_columns(short: PipelineRig) -> None:
    """The columns need be neither unique nor set: no row is left out where a chunk ends."""
    database = short.database
    database.execute(
        "CREATE TABLE keyless (kind int, note text);"
        "INSERT INTO keyless SELECT n % 7, 'n' || n FROM generate_series(1, 50) n;"
        "INSERT INTO keyless SELECT NULL, 'null' || n FROM generate_series(1, 15) n"
    )
    with short.running(**{"message.key.columns": "public.keyless:kind"}) as run:
        signal(database, data_collections=["public.keyless"])
        run.until(lambda: len(read_rows(short.destination, "keyless")) >= 65, "all rows")
        run.until(lambda: finished(run), "the end")
    notes = [row["note"] for row in read_rows(short.destination, "keyless")]
    assert len(notes) == len(set(notes)) == 65


def test_a_signal_that_was_read_once_does_not_stop_the_next_start(short: PipelineRig) -> None:
    """The offset stays before the signal: it is read again."""
    database = short.database
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with short.running() as run:
        run.until(lambda: True, "the slot")
    for number, (kind, data, _says) in enumerate(UNUSABLE):
        database.execute("INSERT INTO signals VALUES (%s, %s, %s)", number, kind, data)
    database.execute("INSERT INTO t VALUES (1)")
    for _ in range(2):
        with short.running() as run:
            run.until(lambda: short.destination.ids("t") != [], "the row after the signals")


def test_a_chunk_that_waits_for_a_rewrite_of_its_table_sees_the_rows(short: PipelineRig) -> None:
    """Its snapshot is older than the rewrite, and would see an empty table: a table that is done."""
    database = short.database
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t SELECT g, g FROM generate_series(1, 25) g"
    )
    waits = (
        "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        " AND datname = current_database() AND application_name = 'waltap incremental snapshot'"
    )
    with short.running() as run, database.connect(autocommit=False) as other:
        other.execute("ALTER TABLE t ALTER v TYPE bigint USING v * 2")
        signal(database, data_collections=["public.t"])
        run.until(lambda: database.execute(waits), "the chunk to wait")
        other.commit()
        run.until(lambda: len(read_rows(short.destination)) >= 25, "the rows")
    assert sorted(int(row["id"]) for row in read_rows(short.destination)) == list(range(1, 26))
    assert all(int(row["v"]) == 2 * int(row["id"]) for row in read_rows(short.destination))


# --- tables whose rows are told as others' -------------------------------------------------------


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
    "named", [["public.parent", "public.root"], [r"public\.(?!signals).*"], ["public.middle"]]
)
def test_rows_are_those_that_the_stream_tells_of_a_table(
    short: PipelineRig, named: list[str], via_root: bool
) -> None:
    database = short.database
    database.execute(FAMILY)
    own = {"parent": [1, 2]}
    if len(named) == 1:
        own["child"] = [2, 3]
    own |= {"root": [1, 2, 3]} if via_root else {"leaf": [1], "deep": [2, 3]}
    if named == ["public.middle"]:
        own = {} if via_root else {"deep": [2, 3]}
    with short.running(**{"publish.via.partition.root": via_root}) as run:
        signal(database, data_collections=named)
        signal(database, "log", "told", message="all")
        database.execute("CREATE TABLE last (id int PRIMARY KEY); INSERT INTO last VALUES (1)")
        run.until(lambda: short.destination.ids("last"), "the end of the signals")
        if own:  # the end is told when the last rows are on their way
            run.until(lambda: finished(run) and told(short) == own, "the snapshot")
    assert told(short) == own


def told(pipeline: PipelineRig) -> dict[str, list[int]]:
    names = ("parent", "child", "root", "leaf", "middle", "deep")
    found = {
        name: sorted(int(row["id"]) for row in read_rows(pipeline.destination, name))
        for name in names
    }
    return {name: ids for name, ids in found.items() if ids}


def test_observers_hear_of_it(large: PipelineRig) -> None:
    database = large.database
    with large.running(**{CHUNK: 10}) as run:
        signal(database, data_collections=["public.u"])
        run.until(lambda: ("completed", "", 0) in run.notices.snapshots, "the end")
        [progress] = run.engine.status().snapshot
    assert run.notices.snapshots == [
        ("started", "", 0),
        ("table_started", "public.u", 0),
        ("progress", "public.u", 10),
        ("progress", "public.u", 15),
        ("table_completed", "public.u", 15),
        ("completed", "", 0),
    ]
    assert (progress.table, progress.rows, progress.complete) == ("public.u", 15, True)
