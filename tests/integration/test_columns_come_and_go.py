"""Columns and types that change while a table is captured: names that differ by case alone, columns that are left
out, and labels and attributes, which the schema has from their first row on."""

import json
import sqlite3
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyarrow import dataset
from tests.harness.changelog import logged
from tests.harness.json_lines import records
from tests.harness.pipeline import PipelineRig

from waltap.changes.capture.topic_naming import field_namer

# --- names -----------------------------------------------------------------------------------------------


@pytest.mark.pipeline(
    sql="""CREATE TABLE t ("my-id" int PRIMARY KEY, "1st" text, "größe_" int); INSERT INTO t VALUES (1, 'a', 2)"""
)
@pytest.mark.parametrize("mode", ["avro", "avro_unicode"])
def test_every_sink_calls_columns_alike(pipeline, tmp_path, mode):
    """field.name.adjustment.mode is for all: records, the change log, files and SQL targets."""
    pipeline.settings["field.name.adjustment.mode"] = mode
    pipeline.branches = [
        {"name": "lines", "type": "jsonl", "path": str(tmp_path / "lines")},
        {"name": "log", "type": "changelog", "path": str(tmp_path / "log")},
        {"name": "rows", "type": "sql", "url": f"sqlite:///{tmp_path / 'rows.db'}"},
        {"name": "files", "type": "files", "path": str(tmp_path / "files"), "file.format": "parquet"},
    ]  # fmt: skip
    pipeline.catch_up()
    pipeline.deliver("""UPDATE t SET "my-id" = 2; UPDATE t SET "1st" = 'b'""")
    called = [field_namer(mode)(name) for name in ("my-id", "1st", "größe_")]
    last = json.loads((tmp_path / "lines").read_text().splitlines()[-1])
    assert last["key"] == {called[0]: 2}
    assert last["value"]["after"] == dict(zip(called, (2, "b", 2), strict=True))
    rows = [(r["_op"], *(r[name] for name in called)) for r in logged(tmp_path / "log")]
    assert [row for row in rows if row[0] != "d"] == [
        ("r", 1, "a", 2), ("c", 2, "a", 2), ("u", 2, "b", 2),
    ]  # fmt: skip
    with sqlite3.connect(tmp_path / "rows.db") as target:
        found = target.execute("SELECT * FROM t")
        assert [each[0] for each in found.description][:3] == called
        assert [row[:3] for row in found] == [(2, "b", 2)]
    for file in (tmp_path / "files").rglob("*.parquet"):
        assert set(pq.read_schema(file).names) >= set(called)


# --- columns that are left out ---------------------------------------------------------------------------

CHANGES = """
INSERT INTO t VALUES (1, 'SECRET', 'a', 'SECRET');
ALTER TABLE t DROP s1;
INSERT INTO t VALUES (2, 'b', 'SECRET');
ALTER TABLE t DROP s2;
INSERT INTO t VALUES (3, 'c');
ALTER TABLE t ADD s3 text, ADD s4 text;
INSERT INTO t VALUES (4, 'd', 'SECRET', 'SECRET');
DELETE FROM t WHERE id = 1;
ALTER TABLE t REPLICA IDENTITY FULL;
DELETE FROM t WHERE id = 2;
UPDATE t SET s3 = 'SECRET too' WHERE id = 3;
"""


@pytest.mark.pipeline(
    sql="CREATE TABLE t (id int PRIMARY KEY, s1 text, v text, s2 text)",
    settings={"column.exclude.list": r"public\.t\.s\d", "offset.flush.interval.ms": "60000"},
)
def test_columns_that_are_left_out_come_and_go_within_one_flush(pipeline, tmp_path):
    """What is kept stays what it is, in every sink that has columns."""
    log, files, lake = (tmp_path / name for name in ("log", "files", "lake"))
    pipeline.branches = [
        {"name": "log", "type": "changelog", "path": str(log)},
        {"name": "files", "type": "files", "path": str(files), "file.format": "parquet"},
        {"name": "lake", "type": "delta", "path": str(lake)},
    ]
    pipeline.catch_up()
    pipeline.deliver(*filter(None, CHANGES.split("\n")))
    in_files = dataset.dataset(files / "table=public.t", partitioning="hive").to_table()
    in_lake = DeltaTable(lake / "public" / "t").to_pyarrow_table()
    puts = [("c", 1, "a"), ("c", 2, "b"), ("c", 3, "c"), ("c", 4, "d")]
    for rows in (logged(log), in_files.to_pylist(), in_lake.to_pylist()):
        kept = [(r["_op"], r["id"], r["v"] if r["_op"] != "d" else "") for r in rows]
        assert sorted(kept) == sorted([*puts, ("d", 1, ""), ("d", 2, ""), ("u", 3, "c")])
        assert "SECRET" not in str(rows)


# --- labels and attributes -------------------------------------------------------------------------------

MOOD = "CREATE TYPE mood AS ENUM ('sad', 'ok');"
HEADER = {"type": "insert-header", "header": "of", "value.literal": "x"}
IN_LINES = {"sink.type": "jsonl", "topic.prefix": "x", "value.converter.schemas.enable": "true"}


@pytest.fixture
def lines(pipeline, tmp_path) -> Path:
    """Have the pipeline write lines with schemas; return their file."""
    pipeline.settings |= IN_LINES | {"sink.path": str(tmp_path / "out")}
    return tmp_path / "out"


def seen(out: Path) -> list[tuple[str, Any, Any]]:
    """Return (operation, value, allowed labels or names of fields) of each event of the column ``m``."""
    found = []
    for value in (record["value"] for record in records(out)):
        if value is None:
            continue
        (field,) = [f for f in value["schema"]["fields"][1]["fields"] if f["field"] == "m"]
        row = value["payload"]["after"] or value["payload"]["before"]
        if "fields" in field:
            labels = [f["field"] for f in field["fields"]]
        else:
            labels = field.get("items", field)["parameters"]["allowed"]
        found.append((value["payload"]["op"], row["m"], labels))
    return found


def grown(pipeline: PipelineRig, out: Path, steps: dict[int, str], **settings: Any) -> list[Any]:
    """Execute each step, and wait until there are so many events; return what was seen."""
    with pipeline.running(**settings) as run:
        for count, sql in steps.items():
            pipeline.database.run(*sql.split(";"))
            run.until(lambda count=count: len(seen(out)) == count, f"{count} events")
    return seen(out)


@pytest.mark.pipeline(sql=MOOD + "CREATE TABLE t (id int PRIMARY KEY, m mood)")
@pytest.mark.parametrize("transforms", [[], [HEADER]], ids=["plain", "transformed"])
@pytest.mark.parametrize("plugin", ["pgoutput", "wal2json", "decoderbufs"])
def test_a_label_is_known_from_its_first_row_on(pipeline, lines, plugin, transforms):
    pipeline.tables = {"transforms": transforms}
    steps = {
        1: "INSERT INTO t VALUES (1, 'ok')",
        2: "ALTER TYPE mood ADD VALUE 'glad'; INSERT INTO t VALUES (2, 'glad')",
        3: "ALTER TYPE mood ADD VALUE 'mad' BEFORE 'sad'; UPDATE t SET m = 'mad' WHERE id = 1",
        4: "INSERT INTO t VALUES (3, 'sad')",
    }
    rows = grown(pipeline, lines, steps, **{"plugin.name": plugin})
    assert [row[:2] for row in rows] == [("c", "ok"), ("c", "glad"), ("u", "mad"), ("c", "sad")]
    assert rows[0][2] == "sad,ok"
    assert "glad" in rows[1][2].split(",")
    assert {allowed for _, _, allowed in rows[2:]} == {"mad,sad,ok,glad"}


@pytest.mark.pipeline(sql=MOOD + "CREATE TABLE t (id int PRIMARY KEY, m mood)")
def test_a_label_is_known_after_many_reconnects(pipeline, lines):
    """Each connection announces the table again; transformed events are rendered last."""
    pipeline.tables = {"transforms": [{"type": "fields", "exclude": "other"}]}
    steps = {1: "INSERT INTO t VALUES (1, 'ok')"}
    for count in range(2, 8):
        steps[count] = (
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active;"
            f"INSERT INTO t VALUES ({count}, 'ok')"
        )
    steps[8] = "ALTER TYPE mood ADD VALUE 'glad'; INSERT INTO t VALUES (8, 'glad')"
    assert grown(pipeline, lines, steps)[-1] == ("c", "glad", "sad,ok,glad")


@pytest.mark.pipeline(
    sql=MOOD
    + "CREATE DOMAIN moods AS mood[]; CREATE TABLE t (id int PRIMARY KEY, m mood[], d moods)"
)
@pytest.mark.parametrize(
    ("plugin", "transforms"),
    [("pgoutput", []), ("wal2json", []), ("pgoutput", [HEADER])],
    ids=["pgoutput", "wal2json", "transformed"],
)
def test_a_label_in_an_array_is_known_from_its_first_row_on(pipeline, lines, plugin, transforms):
    pipeline.tables = {"transforms": transforms}
    steps = {
        1: "INSERT INTO t VALUES (1, '{ok,sad}')",
        2: "ALTER TYPE mood ADD VALUE 'so so' BEFORE 'ok'; INSERT INTO t VALUES (2, '{ok,\"so so\"}')",
        4: "ALTER TYPE mood ADD VALUE 'glad'; INSERT INTO t VALUES (3, NULL, '{glad}'), (4, '{}', NULL)",
    }
    assert grown(pipeline, lines, steps, **{"plugin.name": plugin}) == [
        ("c", ["ok", "sad"], "sad,ok"),
        ("c", ["ok", "so so"], "sad,so so,ok"),
        ("c", None, "sad,so so,ok,glad"),
        ("c", [], "sad,so so,ok,glad"),
    ]


@pytest.mark.pipeline(sql=MOOD + "CREATE TABLE t (id int PRIMARY KEY, m mood)")
def test_a_label_that_is_called_otherwise_by_now_is_written_as_it_was(pipeline, lines):
    """The type does not have it any more; asking again for each row would not help."""
    pipeline.catch_up()
    pipeline.database.execute(
        "INSERT INTO t SELECT g, CASE g % 2 WHEN 1 THEN 'ok' ELSE 'sad' END::mood"
        " FROM generate_series(1, 100) g"
    )
    pipeline.deliver("ALTER TYPE mood RENAME VALUE 'ok' TO 'fine'")
    assert [value for _, value, _ in seen(lines)] == ["ok", "sad"] * 50


@pytest.mark.pipeline(
    sql="CREATE TYPE size AS (w int); CREATE TYPE crate AS (label text, sizes size[]);"
    "CREATE TABLE t (id int PRIMARY KEY, m crate)",
    settings={"waltap.composite.types": "struct"},
)
def test_an_attribute_of_a_composite_type_is_known_from_its_first_row_on(pipeline, lines):
    """Also of a type within another, in an array; older values, and those without it, have null."""
    steps = {
        1: "INSERT INTO t VALUES (1, ('a', ARRAY[ROW(1)::size]))",
        2: "ALTER TYPE crate ADD ATTRIBUTE colour text; INSERT INTO t VALUES (2, ('b', '{}', 'red'))",
        3: "ALTER TYPE size ADD ATTRIBUTE h int; UPDATE t SET m = ('c', ARRAY[ROW(1, 2)::size], NULL) WHERE id = 1",
        4: "INSERT INTO t VALUES (3, ('d', NULL, 'blue'))",
    }
    fields = ["label", "sizes", "colour"]
    assert [(value, names) for _, value, names in grown(pipeline, lines, steps)] == [
        ({"label": "a", "sizes": [{"w": 1}]}, fields[:2]),
        ({"label": "b", "sizes": [], "colour": "red"}, fields),
        ({"label": "c", "sizes": [{"w": 1, "h": 2}], "colour": None}, fields),
        ({"label": "d", "sizes": None, "colour": "blue"}, fields),
    ]
