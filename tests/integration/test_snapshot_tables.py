"""What an initial snapshot reads, on a real server: every kind of table, whole and in order."""

import threading
from pathlib import Path

import pytest
from tests.harness.pipeline import WAIT_S, PipelineRig
from tests.harness.servers.postgres import Database

from waltap.changes.transactions.transaction import Batch, SnapshotRows
from waltap_postgres.errors import RowsHidden, TableUnreadable


def pieces(pipeline: PipelineRig) -> list[tuple[str, int, str, str]]:
    """Return (table, rows, first marker, last marker) of every piece that was read."""
    return [
        (part.relation.table, len(part.rows), part.first_marker, part.last_marker)
        for batch in pipeline.destination.batches
        for part in batch.parts
        if isinstance(part, SnapshotRows)
    ]


def test_tables_are_read_whole_whatever_their_size_and_kind(
    database: Database, pipeline: PipelineRig
) -> None:
    database.execute(
        "CREATE TABLE a_large (id int PRIMARY KEY, v text);"
        "INSERT INTO a_large SELECT g, repeat('x', g % 50) FROM generate_series(1, 2500) g;"
        "CREATE TABLE b_empty (id int PRIMARY KEY);"
        "CREATE TABLE c_single (id int PRIMARY KEY, v text); INSERT INTO c_single VALUES (1, E'\\t\\n\\\\N');"
        "CREATE TABLE d_no_columns ();"
        "INSERT INTO d_no_columns DEFAULT VALUES; INSERT INTO d_no_columns DEFAULT VALUES;"
        'CREATE SCHEMA "Odd.Schema";'
        'CREATE TABLE "Odd.Schema"."the ""table""" ("a b" int PRIMARY KEY, "select" text);'
        'INSERT INTO "Odd.Schema"."the ""table""" VALUES (7, NULL)'
    )
    pipeline.settings |= {"snapshot.fetch.size": 1000, "publication.keyless.tables": "publish"}
    pipeline.catch_up()
    assert pieces(pipeline) == [
        ('the "table"', 1, "first", "first"),
        ("a_large", 1000, "first_in_data_collection", "true"),
        ("a_large", 1000, "true", "true"),
        ("a_large", 500, "true", "last_in_data_collection"),
        ("b_empty", 0, "true", "true"),
        ("c_single", 1, "last_in_data_collection", "last_in_data_collection"),
        ("d_no_columns", 2, "first_in_data_collection", "last"),
    ]
    assert pipeline.destination.ids("a_large") == list(range(1, 2501))
    assert [e.row for e in pipeline.destination.of("c_single")] == [{"id": "1", "v": "\t\n\\N"}]
    odd = [e.row for e in pipeline.destination.events if e.table.startswith("Odd")]
    assert odd == [{"a b": "7", "select": None}]


def test_a_database_without_tables_streams_at_once(pipeline: PipelineRig) -> None:
    run = pipeline.catch_up()
    assert [state for state, _ in run.notices.states] == [
        "checking", "snapshot", "streaming", "stopped",
    ]  # fmt: skip
    offset = pipeline.offset()
    assert offset is not None
    assert offset.snapshot is None


PARTITIONED = """
CREATE TABLE m (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
CREATE TABLE m_low PARTITION OF m FOR VALUES FROM (0) TO (100);
CREATE TABLE m_high PARTITION OF m FOR VALUES FROM (100) TO (1000);
INSERT INTO m SELECT g, 'x' FROM generate_series(50, 149) g;
"""


@pytest.mark.parametrize(
    ("root", "tables"),
    [
        pytest.param("false", {"public.m_low", "public.m_high"}, id="as partitions"),
        pytest.param("true", {"public.m"}, id="as the root"),
    ],
)
def test_rows_of_a_partitioned_table_come_once_in_snapshot_and_stream(
    database: Database, pipeline: PipelineRig, root: str, tables: set[str]
) -> None:
    database.execute(PARTITIONED)
    pipeline.settings |= {"publish.via.partition.root": root}
    pipeline.catch_up()
    database.execute("INSERT INTO m VALUES (1, 'new'), (200, 'new')")
    database.execute("UPDATE m SET id = 201 WHERE id = 2 OR id = 50")
    pipeline.catch_up()
    events = pipeline.destination.events
    assert {event.table for event in events} == tables
    assert sorted(int(e.row["id"]) for e in events if e.op == "r") == list(range(50, 150))
    state: dict[str, str] = {}
    for event in events:
        if event.op == "d":
            del state[event.row["id"]]
        else:
            if event.old.get("id"):
                del state[event.old["id"]]
            state[event.row["id"]] = event.row["v"]
    assert state == dict(database.execute("SELECT id::text, v FROM m"))


def test_rows_of_a_child_table_are_not_read_again_with_its_parent(
    database: Database, pipeline: PipelineRig
) -> None:
    database.execute(
        "CREATE TABLE parent (id int PRIMARY KEY, v text); INSERT INTO parent VALUES (1, 'p');"
        "CREATE TABLE child (PRIMARY KEY (id)) INHERITS (parent); INSERT INTO child VALUES (2, 'c')"
    )
    pipeline.catch_up()
    assert [(e.table, e.row["id"]) for e in pipeline.destination.events] == [
        ("public.child", "2"),
        ("public.parent", "1"),
    ]


def test_a_snapshot_holds_up_no_other_slot_and_no_other_writer(
    database: Database, pipeline: PipelineRig
) -> None:
    """Nothing that the snapshot's transaction holds keeps the server waiting, however long it takes."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1), (2)")
    reading, release = threading.Event(), threading.Event()

    def hold(_batch: Batch) -> None:
        reading.set()
        assert release.wait(WAIT_S)

    pipeline.destination.before_write = hold
    try:
        with pipeline.running(ready=False) as run:
            assert reading.wait(WAIT_S)
            with database.connect() as other:
                other.execute("SET statement_timeout = '10s'")
                name = f"{database.name[:50]}_other"
                other.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [name])
                other.execute("INSERT INTO t VALUES (3)")
            release.set()
            run.until(lambda: 3 in pipeline.destination.ids("t"), "the new row")
    finally:
        release.set()
    assert pipeline.destination.ids("t") == [1, 2, 3]


def test_an_unreadable_table_is_refused_before_anything_is_made(
    database: Database, pipeline: PipelineRig
) -> None:
    role = f"r_{database.name}"
    database.execute(
        "CREATE TABLE a (id int PRIMARY KEY); INSERT INTO a VALUES (1);"
        "CREATE TABLE b (id int PRIMARY KEY); CREATE SCHEMA s; CREATE TABLE s.c (id int PRIMARY KEY);"
        f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD 'x';"
        f"GRANT SELECT ON a TO {role}; GRANT SELECT ON s.c TO {role};"
    )
    pipeline.settings |= {
        "database.user": role,
        "database.password": "x",
        "publication.autocreate.mode": "disabled",
    }
    database.execute(f"CREATE PUBLICATION {pipeline.slot} FOR ALL TABLES")
    try:
        with pytest.raises(TableUnreadable) as caught:
            pipeline.catch_up()
        assert "public.b, s.c" in str(caught.value)
        assert f'GRANT SELECT ON "public"."b", "s"."c" TO "{role}"' in str(caught.value)
        assert database.slots() == {}
        assert pipeline.offset() is None
        assert pipeline.destination.events == []
        database.execute(f"GRANT SELECT ON b TO {role}; GRANT USAGE ON SCHEMA s TO {role}")
        pipeline.catch_up()
        assert pipeline.destination.ids("a") == [1]
    finally:
        database.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_rows_hidden_by_a_policy_fail_the_snapshot_instead_of_being_left_out(
    database: Database, pipeline: PipelineRig
) -> None:
    role = f"r_{database.name}"
    database.execute(
        "CREATE TABLE secret (id int PRIMARY KEY, owner text); INSERT INTO secret VALUES (1, 'x');"
        "ALTER TABLE secret ENABLE ROW LEVEL SECURITY;"
        "CREATE POLICY mine ON secret USING (owner = current_user);"
        f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD 'x'; GRANT SELECT ON secret TO {role};"
    )
    pipeline.settings |= {
        "database.user": role,
        "database.password": "x",
        "publication.autocreate.mode": "disabled",
    }
    database.execute(f"CREATE PUBLICATION {pipeline.slot} FOR ALL TABLES")
    try:
        with pytest.raises(RowsHidden, match="policies hide rows of public.secret"):
            pipeline.catch_up()
        assert database.slots() == {}
    finally:
        database.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_only_the_asked_for_tables_are_read_and_a_select_of_ones_own_is_used(
    database: Database, pipeline: PipelineRig
) -> None:
    database.execute(
        "CREATE TABLE a (id int PRIMARY KEY, v text); INSERT INTO a VALUES (1, 'x'), (2, 'y');"
        "CREATE TABLE b (id int PRIMARY KEY); INSERT INTO b VALUES (5);"
    )
    pipeline.settings |= {
        "snapshot.include.collection.list": r"\Qpublic.a\E",
        "snapshot.select.statement.overrides": "public.a",
        "snapshot.select.statement.overrides.public.a": "SELECT v, id FROM a WHERE id > 1;",
    }
    pipeline.catch_up()
    database.execute("INSERT INTO b VALUES (6)")
    pipeline.catch_up()
    assert [(e.op, e.table, e.row) for e in pipeline.destination.events] == [
        ("r", "public.a", {"id": "2", "v": "y"}),
        ("c", "public.b", {"id": "6"}),
    ]


def test_an_exact_number_of_rows_is_delivered_and_the_snapshot_is_taken_anew(
    database: Database, pipeline: PipelineRig
) -> None:
    from waltap.pipeline import Limits

    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t SELECT generate_series(1, 100)"
    )
    pipeline.settings |= {"snapshot.fetch.size": 30}
    pipeline.run(limits=Limits(max_records=42))
    assert pipeline.destination.ids("t") == list(range(1, 43))
    pipeline.destination.events.clear()
    pipeline.catch_up()
    assert pipeline.destination.ids("t") == list(range(1, 101))


@pytest.mark.parametrize("size", [100, 30])
def test_a_change_log_holds_every_row_whichever_tables_are_empty(
    database: Database, pipeline: PipelineRig, tmp_path: Path, size: int
) -> None:
    """Also when the stream goes on, and when the snapshot is taken a second time."""
    from waltap_sinks.changelog import ChangeLog

    database.execute(
        "CREATE TABLE a_empty (id int PRIMARY KEY); CREATE TABLE b_large (id int PRIMARY KEY);"
        "INSERT INTO b_large SELECT generate_series(1, 90); CREATE TABLE c_empty (id int PRIMARY KEY);"
        "CREATE TABLE d_one (id int PRIMARY KEY); INSERT INTO d_one VALUES (1);"
        "CREATE TABLE e_empty (id int PRIMARY KEY); CREATE TABLE f_empty (id int PRIMARY KEY)"
    )
    log = ChangeLog(str(tmp_path / "log"))
    settings = {"sink.type": "changelog", "sink.path": str(tmp_path / "log")}
    pipeline.settings |= settings | {"snapshot.fetch.size": size}
    pipeline.catch_up()

    def ids(table: str) -> list[int]:
        return [row["id"] for part in log.rows("public", table) for row in part.to_pylist()]

    assert ids("b_large") == list(range(1, 91))
    assert ids("d_one") == [1]
    assert [ids(table) for table in ("a_empty", "c_empty", "e_empty", "f_empty")] == [[]] * 4
    database.execute("INSERT INTO f_empty VALUES (5)")
    pipeline.catch_up()
    assert ids("f_empty") == [5]
    assert ids("b_large") == list(range(1, 91))
    last = log.last()
    assert last is not None
    assert last.last_generation == 1
