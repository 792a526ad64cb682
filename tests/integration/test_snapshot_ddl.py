"""DDL between the point of a snapshot and the reading of a table, on a real server: nothing is lost."""

import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from tests.harness.changelog import logged
from tests.harness.pipeline import until
from tests.harness.servers.postgres import Database

from waltap.plugins.hookspecs import hookimpl

DECODERS = ["pgoutput", "wal2json", "decoderbufs"]
TABLES = (
    "CREATE TABLE a (id int PRIMARY KEY); INSERT INTO a VALUES (1);"
    "CREATE TABLE t (id int PRIMARY KEY, v int, u int);"
    "INSERT INTO t SELECT g, g, -g FROM generate_series(1, 1000) g;"
    "CREATE TABLE z (id int PRIMARY KEY); INSERT INTO z VALUES (1), (2)"
)
PARTITIONED = (
    "CREATE TABLE m (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);"
    "CREATE TABLE m_low PARTITION OF m FOR VALUES FROM (0) TO (100);"
    "CREATE TABLE m_high PARTITION OF m FOR VALUES FROM (100) TO (1000);"
    "CREATE TABLE m_more (id int PRIMARY KEY, v text);"
    "INSERT INTO m SELECT g, '1' FROM generate_series(50, 149) g"
)


class AtStart:
    """Runs each statement, once, between the point of the snapshot and the reading of tables."""

    def __init__(self, database: Database, text: str, act: Callable[[], object] = bool) -> None:
        self.database, self.statements, self.act = database, text.split(";"), act

    @hookimpl
    def on_snapshot(self, event: str) -> None:
        if event == "started":
            statements, self.statements = self.statements, []
            self.database.run(*statements)
            act, self.act = self.act, bool
            act()


@pytest.mark.pipeline(sql=TABLES, settings={"snapshot.fetch.size": 300})
@pytest.mark.parametrize(
    ("statements", "decoder"),
    [
        *(
            pytest.param(
                "ALTER TABLE t ALTER v TYPE bigint; UPDATE t SET v = v + 7 WHERE id < 20;"
                "DELETE FROM t WHERE id = 30; INSERT INTO t VALUES (2001, 1)",
                decoder,
                id=f"another type, then changes-{decoder}",
            )
            for decoder in DECODERS
        ),
        pytest.param(
            "UPDATE t SET v = 0 WHERE id = 3; INSERT INTO t VALUES (2002, 2);"
            "ALTER TABLE t ADD w timestamptz DEFAULT clock_timestamp(); DELETE FROM t WHERE id = 4",
            "pgoutput",
            id="changes before and after",
        ),
        pytest.param("TRUNCATE t; INSERT INTO t VALUES (5, 50)", "decoderbufs", id="truncated and filled"),
        pytest.param("ALTER TABLE t DROP v; ALTER TABLE t ADD v text DEFAULT 'new'", "pgoutput", id="column made anew"),
    ],
)  # fmt: skip
def test_a_table_that_is_rewritten_before_it_is_read_arrives_whole(
    pipeline, database, statements, decoder
):
    with pipeline.running(AtStart(database, statements), **{"plugin.name": decoder}):
        database.execute("UPDATE t SET id = 3000 WHERE id = 5; DELETE FROM t WHERE id = 6")
    pipeline.catch_up(**{"plugin.name": decoder})
    assert pipeline.destination.table("t") == database.rows("t")
    assert pipeline.destination.ids("z") == [1, 2]


@pytest.mark.pipeline(sql=TABLES)
@pytest.mark.parametrize("columns", ["*", "id, w AS v"])
def test_a_column_that_is_renamed_before_a_select_of_the_users_reads_it_keeps_its_values(
    pipeline, columns
):
    name = "snapshot.select.statement.overrides"
    pipeline.settings |= {
        name: "public.t",
        f"{name}.public.t": f"SELECT {columns} FROM t WHERE id < 3",
    }
    with pipeline.running(AtStart(pipeline.database, "ALTER TABLE t RENAME v TO w")):
        pass
    read = [(event.row["id"], event.row["v"]) for event in pipeline.destination.of("t")]
    assert read == [("1", "1"), ("2", "2")]


@pytest.mark.pipeline(sql=TABLES)
@pytest.mark.parametrize(
    ("statements", "together", "size"),
    [
        pytest.param("VACUUM FULL a", "t z a", 300, id="first"),
        pytest.param("VACUUM FULL z", "a t z", 300, id="last"),
        pytest.param("TRUNCATE a", "t z -a", 300, id="first emptied"),
        pytest.param("TRUNCATE z; VACUUM FULL a", "t a -z", 300, id="last emptied"),
        pytest.param("VACUUM FULL a; VACUUM FULL z", "a t z", 1, id="each by itself"),
        pytest.param("TRUNCATE z", "a t -z", 1, id="each by itself, last emptied"),
    ],
)
def test_markers_show_the_order_in_which_rows_are_delivered(pipeline, statements, together, size):
    """``together``: the order of the tables where one group is read, a minus before one without rows.
    In groups of their own they keep their place."""
    pipeline.database.execute("DELETE FROM t WHERE id > 10; ANALYZE")
    with pipeline.running(AtStart(pipeline.database, statements), **{"snapshot.fetch.size": size}):
        pass
    found: dict[str, list[str]] = {}
    for part in pipeline.destination.pieces():
        middle = ["true"] * (len(part.rows) - 2)
        shown = [part.first_marker, *middle, part.last_marker][: len(part.rows)]
        found.setdefault(part.relation.table, []).extend(shown)
    order = together.split()
    ends = ["first_in_data_collection", "last_in_data_collection"]
    expected = {name.lstrip("-"): [] if name[0] == "-" else list(ends) for name in order}
    if order[0][0] != "-":
        expected[order[0]][0] = "first"
    full = [name for name in order if name[0] != "-"]
    expected[full[-1]][1] = "last"
    if "a" in full:  # one row: the earlier of the two, but for the very last
        expected["a"] = ["last" if full[-1] == "a" else expected["a"][order[0] != "a"]]
    assert list(found) == list(expected)
    for table, markers in expected.items():
        shown = found[table]
        assert [*shown[:1], *shown[-1:]][: len(markers)] == markers
        assert set(shown[1:-1]) <= {"true"}


@pytest.mark.pipeline(
    sql="CREATE TABLE k (v int); INSERT INTO k SELECT generate_series(1, 100);"
    "CREATE TABLE o (id int PRIMARY KEY)",
    settings={"publication.keyless.tables": "publish"},
)
@pytest.mark.parametrize("decoder", DECODERS)
def test_rows_without_a_key_come_once_when_their_table_is_rewritten(pipeline, decoder):
    """The stream leaves out what the later reading contains, and nothing else."""
    pipeline.settings["plugin.name"] = decoder
    text = (
        "INSERT INTO k VALUES (101), (101); INSERT INTO o VALUES (1); ALTER TABLE k ALTER v TYPE bigint;"
        "INSERT INTO k VALUES (102), (102); INSERT INTO o VALUES (2)"
    )
    with pipeline.running(AtStart(pipeline.database, text)):
        pipeline.database.execute("INSERT INTO k VALUES (103), (103); INSERT INTO o VALUES (3)")
    pipeline.catch_up()
    found = Counter(pipeline.destination.ids("k", column="v"))
    assert found == Counter({**dict.fromkeys(range(1, 101), 1), 101: 2, 102: 2, 103: 2})
    assert pipeline.destination.ids("o", "c") == [1, 2, 3]


@pytest.mark.pipeline(sql=TABLES)
@pytest.mark.parametrize(
    "statements",
    [
        pytest.param("ALTER TABLE t RENAME v TO w", id="column renamed"),
        pytest.param("ALTER TABLE t RENAME TO t2", id="table renamed"),
        pytest.param(
            "CREATE TABLE n (LIKE t INCLUDING ALL); ALTER TABLE t RENAME TO t_old; ALTER TABLE n RENAME TO t",
            id="table replaced",
        ),
        pytest.param("DROP TABLE t", id="table dropped"),
    ],
)
def test_rows_are_read_on_under_the_names_that_the_snapshot_has(pipeline, statements, caplog):
    with pipeline.running(AtStart(pipeline.database, statements)):
        pass
    read = [event.row for event in pipeline.destination.of("t") if event.op == "r"]
    dropped = statements == "DROP TABLE t"
    there = range(1, 1 if dropped else 1001)
    assert read == [{"id": str(n), "v": str(n), "u": str(-n)} for n in there]
    assert pipeline.destination.ids("z") == [1, 2]
    assert ("public.t was dropped" in caplog.text) == dropped


@pytest.mark.pipeline(sql=TABLES)
def test_a_table_that_is_renamed_and_rewritten_has_the_snapshot_taken_anew(pipeline):
    text = "ALTER TABLE t RENAME TO t2; ALTER TABLE t2 ALTER v TYPE bigint"
    with pipeline.running(AtStart(pipeline.database, text)) as run:
        assert "reconnecting" in [state for state, _ in run.notices.states]
    pipeline.catch_up()
    assert pipeline.destination.table("t2") == pipeline.database.rows("t2")
    assert list(pipeline.database.slots()) == [pipeline.slot]


@pytest.mark.pipeline(sql=PARTITIONED, settings={"table.include.list": r"public\.m.*"})
@pytest.mark.parametrize(
    ("statements", "root"),
    [
        pytest.param("ALTER TABLE m ALTER v TYPE int USING v::int", True, id="all rewritten"),
        pytest.param("TRUNCATE m_low; INSERT INTO m VALUES (7, 'again')", True, id="one truncated"),
        pytest.param(
            "INSERT INTO m_more VALUES (1001, 'before');"
            "ALTER TABLE m ATTACH PARTITION m_more FOR VALUES FROM (1000) TO (2000)",
            True,
            id="one attached",
        ),
        pytest.param("ALTER TABLE m DETACH PARTITION m_low", False, id="detached by itself"),
    ],
)  # fmt: skip
def test_partitions_that_are_rewritten_before_they_are_read_arrive_whole(
    pipeline, statements, root
):
    pipeline.settings["publish.via.partition.root"] = root
    with pipeline.running(AtStart(pipeline.database, statements)):
        pass
    pipeline.catch_up()
    for table in ["m"] if root else ["m_low", "m_high", "m_more"]:
        assert pipeline.destination.table(table) == pipeline.database.rows(table)


@pytest.mark.pipeline(sql=TABLES, settings={"sink.type": "changelog"})
def test_the_change_log_has_the_rows_that_were_read_anew(pipeline, tmp_path):
    pipeline.settings["sink.path"] = str(tmp_path / "log")
    text = "ALTER TABLE t ALTER v TYPE bigint USING v::bigint * 10"
    with pipeline.running(AtStart(pipeline.database, text)):
        pass
    found = [(row["id"], row["v"]) for row in logged(tmp_path / "log")]
    assert found == [(n, n * 10) for n in range(1, 1001)]


@pytest.mark.pipeline(sql=TABLES, settings={"snapshot.locking.mode": "shared"})
def test_shared_locks_are_given_up_for_a_transaction_that_the_slot_waits_for(pipeline, database):
    """It holds the slot up, and waits for our lock: neither could ever go on."""
    locked = (
        "SELECT 1 FROM pg_locks JOIN pg_class c ON c.oid = relation JOIN pg_stat_activity a USING (pid)"
        " WHERE relname = 't' AND application_name = 'waltap snapshot'"
    )

    def alter(connection: "psycopg.Connection[Any]") -> None:
        with suppress(psycopg.Error):
            connection.execute("ALTER TABLE t ALTER v TYPE bigint")
            connection.commit()

    with database.connect(autocommit=False) as writer:
        writer.execute("INSERT INTO t VALUES (1001, 1, 1)")
        with pipeline.running(ready=False) as run:
            run.until(lambda: database.execute(locked), "the locks")
            thread = threading.Thread(target=alter, args=(writer,), daemon=True)
            thread.start()
            until(lambda: not thread.is_alive(), "the ALTER TABLE")
            run.until(lambda: run.engine.state == "streaming", "streaming")
    pipeline.catch_up()
    assert pipeline.destination.table("t") == database.rows("t")
