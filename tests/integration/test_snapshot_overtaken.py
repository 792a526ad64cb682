"""DDL between the point of a snapshot and the reading of a table, on a real server: nothing is lost."""

import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from waltap.hookspecs import hookimpl
from waltap.transactions.transaction import SnapshotRows
from waltap_sinks.changelog import ChangeLog

from tests.harness.pipeline import PipelineRig, until
from tests.harness.servers.postgres import Database

DECODERS = ["pgoutput", "wal2json", "decoderbufs"]

REWRITES = {
    "another type": "ALTER TABLE t ALTER v TYPE bigint USING v::bigint * 10",
    "another type, then changes": "ALTER TABLE t ALTER v TYPE bigint;"
    "UPDATE t SET v = v + 7 WHERE id < 20; DELETE FROM t WHERE id = 30; INSERT INTO t VALUES (2001, 1)",
    "changes before and after": "UPDATE t SET v = 0 WHERE id = 3; INSERT INTO t VALUES (2002, 2);"
    "ALTER TABLE t ADD w timestamptz DEFAULT clock_timestamp(); DELETE FROM t WHERE id = 4",
    "truncated and filled": "TRUNCATE t; INSERT INTO t VALUES (5, 50)",
    "packed": "VACUUM FULL t",
    "clustered": "CLUSTER t USING t_pkey",
    "unlogged for a moment": "ALTER TABLE t SET UNLOGGED; ALTER TABLE t SET LOGGED",
    "column dropped": "ALTER TABLE t DROP v",
    "column dropped and added": "ALTER TABLE t DROP v; ALTER TABLE t ADD v text DEFAULT 'new'",
}
RENAMES = {
    "column renamed": "ALTER TABLE t RENAME v TO w",
    "columns swapped": "ALTER TABLE t RENAME v TO x; ALTER TABLE t RENAME u TO v;"
    "ALTER TABLE t RENAME x TO u",
    "column added": "ALTER TABLE t ADD w int DEFAULT 9",
    "table renamed": "ALTER TABLE t RENAME TO t2",
    "table moved": "CREATE SCHEMA s; ALTER TABLE t SET SCHEMA s",
    "table replaced": "CREATE TABLE n (LIKE t INCLUDING ALL); ALTER TABLE t RENAME TO t_old;"
    "ALTER TABLE n RENAME TO t",
}


class AtStart:
    """Does something, once, between the point of the snapshot and the reading of tables."""

    def __init__(self, act: Callable[[], object]) -> None:
        self.act = act

    @hookimpl
    def on_snapshot(self, event: str) -> None:
        if event == "started":
            act, self.act = self.act, lambda: None
            act()


def ddl(database: Database, text: str) -> Callable[[], object]:
    """Return what runs each statement as a transaction of its own."""
    return lambda: [database.execute(statement) for statement in text.split(";")]


@pytest.fixture
def tables(database: Database) -> Database:
    database.execute(
        "CREATE TABLE a (id int PRIMARY KEY); INSERT INTO a VALUES (1);"
        "CREATE TABLE t (id int PRIMARY KEY, v int, u int);"
        "INSERT INTO t SELECT g, g, -g FROM generate_series(1, 1000) g;"
        "CREATE TABLE z (id int PRIMARY KEY); INSERT INTO z VALUES (1), (2)"
    )
    return database


def present(database: Database, table: str) -> dict[tuple[str], dict[str, Any]]:
    """Return the rows that a table has now, by its first column, as text."""
    with database.connect() as connection:
        cursor = connection.execute(f"SELECT * FROM {table}")  # type: ignore[arg-type]
        names = [column.name for column in cursor.description or ()]
        types = ", ".join(f"{name}::text" for name in names)
        found = connection.execute(f"SELECT {types} FROM {table}").fetchall()  # type: ignore[arg-type]
    return {(row[0],): dict(zip(names, row, strict=True)) for row in found}


@pytest.mark.parametrize("plugin", DECODERS)
@pytest.mark.parametrize("name", list(REWRITES))
def test_a_table_that_is_rewritten_before_it_is_read_arrives_whole(
    tables: Database, tmp_path: Path, name: str, plugin: str
) -> None:
    pipeline = PipelineRig(tables, tmp_path, {"plugin.name": plugin, "snapshot.fetch.size": 300})
    with pipeline.running(AtStart(ddl(tables, REWRITES[name]))):
        tables.execute("UPDATE t SET id = 3000 WHERE id = 5; DELETE FROM t WHERE id = 6")
    pipeline.catch_up()
    assert pipeline.destination.table("t") == present(tables, "t")
    assert pipeline.destination.ids("z") == [1, 2]


@pytest.mark.parametrize("size", [300, 1], ids=["together", "each by itself"])
@pytest.mark.parametrize(
    ("commands", "together"),
    [
        pytest.param(["VACUUM FULL a"], "t z a", id="first"),
        pytest.param(["VACUUM FULL z"], "a t z", id="last"),
        pytest.param(["VACUUM FULL a", "VACUUM FULL z"], "t a z", id="first and last"),
        pytest.param(["VACUUM FULL"], "a t z", id="every"),
        pytest.param(["TRUNCATE a"], "t z -a", id="first emptied"),
        pytest.param(["TRUNCATE a, t"], "z -a -t", id="first two emptied"),
        pytest.param(["DROP TABLE a"], "t z -a", id="first dropped"),
        pytest.param(["TRUNCATE z", "VACUUM FULL a"], "t a -z", id="last emptied"),
    ],
)
def test_markers_tell_the_order_in_which_rows_are_delivered(
    tables: Database, tmp_path: Path, commands: list[str], together: str, size: int
) -> None:
    """``together``: the order of the tables where one group is read, a minus before one without rows.
    In groups of their own they keep their place."""
    tables.execute("DELETE FROM t WHERE id > 10; ANALYZE")

    def act() -> None:
        with tables.connect(autocommit=True) as connection:
            for command in commands:
                connection.execute(command.encode())

    pipeline = PipelineRig(tables, tmp_path, {"snapshot.fetch.size": size})
    with pipeline.running(AtStart(act)):
        pass
    found: dict[str, list[str]] = {}
    for batch in pipeline.destination.batches:
        for part in batch.parts:
            if isinstance(part, SnapshotRows):
                middle = ["true"] * (len(part.rows) - 2)
                shown = [part.first_marker, *middle, part.last_marker][: len(part.rows)]
                found.setdefault(part.relation.table, []).extend(shown)
    order = together.split()
    if size == 1:
        order.sort(key=lambda name: name.lstrip("-"))
    expected = {
        name.lstrip("-"): []
        if name[0] == "-"
        else ["first_in_data_collection", "last_in_data_collection"]
        for name in order
    }
    if order[0][0] != "-":
        expected[order[0]][0] = "first"
    full = [name for name in order if name[0] != "-"]
    expected[full[-1]][1] = "last"
    if "a" in full:  # one row: the earlier of the two, but for the very last
        expected["a"] = ["last" if full[-1] == "a" else expected["a"][order[0] != "a"]]
    assert list(found) == list(expected)
    for table, ends in expected.items():
        shown = found[table]
        assert [*shown[:1], *shown[-1:]][: len(ends)] == ends
        assert set(shown[1:-1]) <= {"true"}


def test_a_table_that_is_rewritten_beside_an_older_slot_arrives_whole(
    tables: Database, tmp_path: Path
) -> None:
    pipeline = PipelineRig(tables, tmp_path, {"snapshot.mode": "always"})
    pipeline.catch_up()
    pipeline.destination.events.clear()
    tables.execute("INSERT INTO t VALUES (1001, 1, 1); INSERT INTO z VALUES (3)")
    text = REWRITES["another type, then changes"].replace("2001, 1", "2001, 1, 1")
    with pipeline.running(AtStart(ddl(tables, text))):
        pass
    pipeline.catch_up()
    assert pipeline.destination.table("t") == present(tables, "t")


@pytest.mark.parametrize("plugin", DECODERS)
def test_rows_without_a_key_come_once_when_their_table_is_rewritten(
    database: Database, tmp_path: Path, plugin: str
) -> None:
    """The stream leaves out what the later reading contains, and nothing else."""
    database.execute("CREATE TABLE k (v int); INSERT INTO k SELECT generate_series(1, 100)")
    database.execute("CREATE TABLE o (id int PRIMARY KEY)")
    settings = {"plugin.name": plugin, "publication.keyless.tables": "publish"}
    pipeline = PipelineRig(database, tmp_path, settings)
    text = (
        "INSERT INTO k VALUES (101), (101); INSERT INTO o VALUES (1);"
        "ALTER TABLE k ALTER v TYPE bigint; INSERT INTO k VALUES (102), (102); INSERT INTO o VALUES (2)"
    )
    with pipeline.running(AtStart(ddl(database, text))):
        database.execute("INSERT INTO k VALUES (103), (103); INSERT INTO o VALUES (3)")
    pipeline.catch_up()
    found = Counter(pipeline.destination.ids("k", column="v"))
    assert found == Counter({**dict.fromkeys(range(1, 101), 1), 101: 2, 102: 2, 103: 2})
    assert pipeline.destination.ids("o", "c") == [1, 2, 3]


@pytest.mark.parametrize("name", list(RENAMES))
def test_rows_are_read_on_under_the_names_that_the_snapshot_has(
    tables: Database, tmp_path: Path, name: str
) -> None:
    pipeline = PipelineRig(tables, tmp_path)
    with pipeline.running(AtStart(ddl(tables, RENAMES[name]))):
        pass
    read = [event.row for event in pipeline.destination.of("t") if event.op == "r"]
    assert read == [{"id": str(n), "v": str(n), "u": str(-n)} for n in range(1, 1001)]
    assert pipeline.destination.ids("z") == [1, 2]


def test_a_table_that_is_dropped_before_it_is_read_holds_nothing_up(
    tables: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pipeline = PipelineRig(tables, tmp_path)
    with pipeline.running(AtStart(ddl(tables, "DROP TABLE t"))):
        pass
    assert pipeline.destination.of("t") == []
    assert pipeline.destination.ids("z") == [1, 2]
    assert "public.t was dropped" in caplog.text


def test_a_table_that_is_renamed_and_rewritten_has_the_snapshot_taken_anew(
    tables: Database, tmp_path: Path
) -> None:
    pipeline = PipelineRig(tables, tmp_path)
    text = "ALTER TABLE t RENAME TO t2; ALTER TABLE t2 ALTER v TYPE bigint"
    with pipeline.running(AtStart(ddl(tables, text))) as run:
        assert "reconnecting" in [state for state, _ in run.notices.states]
    pipeline.catch_up()
    assert pipeline.destination.table("t2") == present(tables, "t2")
    assert list(tables.slots()) == [pipeline.slot]


PARTITIONED = """
CREATE TABLE m (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
CREATE TABLE m_low PARTITION OF m FOR VALUES FROM (0) TO (100);
CREATE TABLE m_high PARTITION OF m FOR VALUES FROM (100) TO (1000);
CREATE TABLE m_more (id int PRIMARY KEY, v text);
INSERT INTO m SELECT g, '1' FROM generate_series(50, 149) g;
"""
PARTITIONS = {
    "all rewritten": "ALTER TABLE m ALTER v TYPE int USING v::int",
    "one packed": "VACUUM FULL m_low",
    "one truncated": "TRUNCATE m_low; INSERT INTO m VALUES (7, 'again')",
    "one attached": "INSERT INTO m_more VALUES (1001, 'before');"
    "ALTER TABLE m ATTACH PARTITION m_more FOR VALUES FROM (1000) TO (2000)",
    "one detached": "ALTER TABLE m DETACH PARTITION m_low",
}


@pytest.mark.parametrize("root", ["true", "false"])
@pytest.mark.parametrize("name", list(PARTITIONS))
def test_partitions_that_are_rewritten_before_they_are_read_arrive_whole(
    database: Database, tmp_path: Path, name: str, root: str
) -> None:
    database.execute(PARTITIONED)
    settings = {"publish.via.partition.root": root, "table.include.list": r"public\.m.*"}
    pipeline = PipelineRig(database, tmp_path, settings)
    with pipeline.running(AtStart(ddl(database, PARTITIONS[name]))):
        pass
    pipeline.catch_up()
    names = ["m"] if root == "true" else ["m_low", "m_high", "m_more"]
    if root == "true":
        assert pipeline.destination.table("m") == present(database, "m")
    else:
        for table in names:
            assert pipeline.destination.table(table) == present(database, table)


def test_the_change_log_has_the_rows_that_were_read_anew(tables: Database, tmp_path: Path) -> None:
    settings = {"sink.type": "changelog", "sink.path": str(tmp_path / "log")}
    pipeline = PipelineRig(tables, tmp_path, settings)
    with pipeline.running(AtStart(ddl(tables, REWRITES["another type"]))):
        pass
    log = ChangeLog(str(tmp_path / "log"))
    found = [row for part in log.rows("public", "t") for row in part.to_pylist()]
    assert [(row["id"], row["v"]) for row in found] == [(n, n * 10) for n in range(1, 1001)]


def test_shared_locks_stand_before_there_is_a_snapshot(tables: Database, tmp_path: Path) -> None:
    """Who would rewrite a table waits until it has been read; whoever writes rows does not."""
    pipeline = PipelineRig(tables, tmp_path, {"snapshot.locking.mode": "shared"})
    refused: list[BaseException] = []

    def alter() -> None:
        tables.execute("INSERT INTO t VALUES (1001, 1, 1)")
        try:
            tables.execute("SET lock_timeout = '200ms'; ALTER TABLE t ALTER v TYPE bigint")
        except psycopg.errors.LockNotAvailable as error:
            refused.append(error)

    with pipeline.running(AtStart(alter)):
        tables.execute("SET lock_timeout = '10s'; ALTER TABLE t ALTER v TYPE bigint")
    assert refused
    pipeline.catch_up()
    assert pipeline.destination.table("t") == present(tables, "t")


def test_shared_locks_are_given_up_for_a_transaction_that_the_slot_waits_for(
    tables: Database, tmp_path: Path
) -> None:
    """It holds the slot up, and waits for our lock: neither could ever go on."""
    pipeline = PipelineRig(tables, tmp_path, {"snapshot.locking.mode": "shared"})
    locked = (
        "SELECT 1 FROM pg_locks JOIN pg_class c ON c.oid = relation JOIN pg_stat_activity a USING (pid)"
        " WHERE relname = 't' AND application_name = 'waltap snapshot'"
    )

    def alter(connection: "psycopg.Connection[Any]") -> None:
        with suppress(psycopg.Error):
            connection.execute("ALTER TABLE t ALTER v TYPE bigint")
            connection.commit()

    with tables.connect(autocommit=False) as writer:
        writer.execute("INSERT INTO t VALUES (1001, 1, 1)")
        with pipeline.running(ready=False) as run:
            run.until(lambda: tables.execute(locked), "the locks")
            thread = threading.Thread(target=alter, args=(writer,), daemon=True)
            thread.start()
            until(lambda: not thread.is_alive(), "the ALTER TABLE")
            run.until(lambda: run.engine.state == "streaming", "streaming")
    pipeline.catch_up()
    assert pipeline.destination.table("t") == present(tables, "t")
