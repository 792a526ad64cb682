"""What an initial snapshot reads, on a real server: every kind of table, whole and in order."""

from typing import Any

import pytest
from tests.harness.pipeline import WAIT_S, PipelineRig

from waltap_postgres.snapshot.binary_copy import BinaryRows
from waltap_sinks.changelog import ChangeLog


def test_tables_are_read_whole_whatever_their_size_and_kind(database, pipeline):
    database.execute(
        "CREATE TABLE a_large (id int PRIMARY KEY, v text);"
        "INSERT INTO a_large SELECT g, repeat('x', g % 50) FROM generate_series(1, 2500) g;"
        "CREATE TABLE b_empty (id int PRIMARY KEY);"
        "CREATE TABLE c_single (id int PRIMARY KEY, v text); INSERT INTO c_single VALUES (1, E'\\t\\n\\\\N');"
        "CREATE TABLE d_no_columns ();"
        "INSERT INTO d_no_columns DEFAULT VALUES; INSERT INTO d_no_columns DEFAULT VALUES;"
        "CREATE TABLE e_parent (id int PRIMARY KEY, v text); INSERT INTO e_parent VALUES (1, 'p');"
        "CREATE TABLE f_child (PRIMARY KEY (id)) INHERITS (e_parent); INSERT INTO f_child VALUES (2, 'c');"
        'CREATE SCHEMA "Odd.Schema";'
        'CREATE TABLE "Odd.Schema"."the ""table""" ("a b" int PRIMARY KEY, "select" text);'
        'INSERT INTO "Odd.Schema"."the ""table""" VALUES (7, NULL)'
    )
    pipeline.settings |= {"snapshot.fetch.size": 1000, "publication.keyless.tables": "publish"}
    pipeline.catch_up()
    read = pipeline.destination.pieces()
    assert [(p.relation.table, len(p.rows), p.first_marker, p.last_marker) for p in read] == [
        ('the "table"', 1, "first", "first"),
        ("a_large", 1000, "first_in_data_collection", "true"),
        ("a_large", 1000, "true", "true"),
        ("a_large", 500, "true", "last_in_data_collection"),
        ("b_empty", 0, "true", "true"),
        ("c_single", 1, "last_in_data_collection", "last_in_data_collection"),
        ("d_no_columns", 2, "first_in_data_collection", "last_in_data_collection"),
        ("e_parent", 1, "last_in_data_collection", "last_in_data_collection"),
        ("f_child", 1, "last", "last"),
    ]
    assert pipeline.destination.ids("a_large") == list(range(1, 2501))
    assert [e.row for e in pipeline.destination.of("c_single")] == [{"id": "1", "v": "\t\n\\N"}]
    odd = [e.row for e in pipeline.destination.events if e.table.startswith("Odd")]
    assert odd == [{"a b": "7", "select": None}]


def test_a_snapshot_holds_up_no_other_slot_and_no_other_writer(database, pipeline):
    """Nothing that the snapshot's transaction holds keeps the server waiting, however long it takes."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1), (2)")
    reading, release = pipeline.destination.hold()
    with pipeline.running(ready=False) as run:
        assert reading.wait(WAIT_S)
        with database.connect() as other:
            other.execute("SET statement_timeout = '10s'")
            name = f"{database.name[:50]}_other"
            other.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [name])
            other.execute("INSERT INTO t VALUES (3)")
        release.set()
        run.until(lambda: 3 in pipeline.destination.ids("t"), "the new row")
    assert pipeline.destination.ids("t") == [1, 2, 3]


@pytest.mark.pipeline(
    sql="""CREATE TABLE large (id int PRIMARY KEY, v text, amount numeric(9,2), made timestamptz, due date, secret text);
        INSERT INTO large SELECT g, repeat('d', g % 300), CASE WHEN g % 7 = 0 THEN 'NaN' ELSE g / 100.0 END,
          CASE WHEN g % 5 <> 0 THEN timestamptz '2020-02-29 01:02:03.004+05' + g * interval '1 hour' END,
          CASE WHEN g = 9 THEN 'infinity' ELSE date '2020-01-01' + g % 9 END, 's' || g FROM generate_series(1, 21000) g;
        ANALYZE large""",
    settings={"column.mask.with.4.chars": "public.large.secret"},
)
def test_a_large_table_reaches_a_change_log_alike_in_both_formats_of_copy(
    pipeline, database, tmp_path, monkeypatch
):
    """A sink of lines beside it takes text, and so the server sends text."""
    read: list[int] = []
    pieces = BinaryRows.pieces

    def counted(self: BinaryRows, *given: Any) -> Any:
        for rows, size in pieces(self, *given):
            read.append(len(rows))
            yield rows, size

    monkeypatch.setattr(BinaryRows, "pieces", counted)
    logs: list[list[dict[str, Any]]] = []
    for others in ([], [{"name": "lines", "type": "jsonl", "path": str(tmp_path / "lines")}]):
        folder = str(tmp_path / f"log{len(others)}")
        rig = PipelineRig(database, tmp_path / f"run{len(others)}", pipeline.settings)
        rig.branches = [{"name": "log", "type": "changelog", "path": folder}, *others]
        before = sum(read)
        rig.catch_up(**{"snapshot.mode": "initial_only"})
        assert sum(read) - before == (0 if others else 21_000)
        every = (
            row for each in ChangeLog(folder).rows("public", "large") for row in each.to_pylist()
        )
        logs.append([{k: v for k, v in row.items() if k[0] != "_"} for row in every])
    assert logs[0] == logs[1]
    assert [row["secret"] for row in logs[0][:2]] == ["****", "****"]
    assert logs[0][8]["due"] is None and logs[0][6]["amount"] is None
