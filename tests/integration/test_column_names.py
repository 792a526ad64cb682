"""Columns whose names differ by case alone. Debezium refuses such a table; they are columns of their own."""

import json
import sqlite3
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from waltap.capture.name_adjustment import field_namer
from waltap_sinks.changelog import ChangeLog

from tests.harness.pipeline import PipelineRig
from tests.harness.servers.postgres import Database


def fill(database: Database) -> None:
    database.execute("INSERT INTO t VALUES (1, 2, 'b', 'B')")
    database.execute('UPDATE t SET "ID" = 5 WHERE id = 1')
    database.execute("UPDATE t SET id = 7 WHERE id = 1")
    database.execute("DELETE FROM t WHERE id = 7")


@pytest.mark.parametrize("plugin", ["pgoutput", "wal2json", "decoderbufs"])
def test_columns_that_differ_by_case_keep_their_values_apart(
    database: Database, tmp_path: Path, plugin: str
) -> None:
    database.execute(
        'CREATE TABLE t (id int PRIMARY KEY, "ID" int, v text, "V" text);'
        " INSERT INTO t VALUES (0, 1, 'a', 'A')"
    )
    out = tmp_path / "out"
    settings = {"sink.type": "jsonl", "sink.path": str(out), "plugin.name": plugin}
    pipeline = PipelineRig(database, tmp_path, settings | {"topic.prefix": "x"})
    pipeline.catch_up()
    fill(database)
    pipeline.catch_up()
    records = [json.loads(line) for line in out.read_text().splitlines()]
    rows = [(r["key"], r["value"]["op"], r["value"]["after"]) for r in records if r["value"]]
    assert rows == [
        ({"id": 0}, "r", {"id": 0, "ID": 1, "v": "a", "V": "A"}),
        ({"id": 1}, "c", {"id": 1, "ID": 2, "v": "b", "V": "B"}),
        ({"id": 1}, "u", {"id": 1, "ID": 5, "v": "b", "V": "B"}),
        ({"id": 1}, "d", None),
        ({"id": 7}, "c", {"id": 7, "ID": 5, "v": "b", "V": "B"}),
        ({"id": 7}, "d", None),
    ]


def test_the_change_log_keeps_columns_apart_that_differ_by_case(
    database: Database, tmp_path: Path
) -> None:
    database.execute(
        'CREATE TABLE t (id int PRIMARY KEY, "ID" int, v text, "V" text);'
        " INSERT INTO t VALUES (0, 1, 'a', 'A')"
    )
    settings = {"sink.type": "changelog", "sink.path": str(tmp_path / "log")}
    pipeline = PipelineRig(database, tmp_path, settings)
    pipeline.catch_up()
    fill(database)
    pipeline.catch_up()
    tables = ChangeLog(str(tmp_path / "log")).rows("public", "t")
    rows = [row for table in tables for row in table.to_pylist()]
    assert [(r["_op"], r["id"], r["ID"], r["V"]) for r in rows if r["_op"] != "d"] == [
        ("r", 0, 1, "A"),
        ("c", 1, 2, "B"),
        ("u", 1, 5, "B"),
        ("c", 7, 5, "B"),
    ]


@pytest.mark.parametrize("mode", ["none", "avro", "avro_unicode"])
def test_every_sink_calls_columns_alike(database: Database, tmp_path: Path, mode: str) -> None:
    """field.name.adjustment.mode is for all: records, the change log, files and SQL targets."""
    database.execute(
        'CREATE TABLE t ("my-id" int PRIMARY KEY, "1st" text, "größe_" int);'
        "INSERT INTO t VALUES (1, 'a', 2)"
    )
    outlets = {
        "lines": {"type": "jsonl", "path": str(tmp_path / "lines")},
        "log": {"type": "changelog", "path": str(tmp_path / "log")},
        "rows": {"type": "sql", "url": f"sqlite:///{tmp_path / 'rows.db'}"},
        "files": {"type": "files", "path": str(tmp_path / "files"), "file.format": "parquet"},
    }
    pipeline = PipelineRig(database, tmp_path, {"field.name.adjustment.mode": mode})
    pipeline.outlets = [{"name": name, **each} for name, each in outlets.items()]
    pipeline.catch_up()
    database.execute("""UPDATE t SET "my-id" = 2; UPDATE t SET "1st" = 'b'""")
    pipeline.catch_up()

    called = [field_namer(mode)(name) for name in ("my-id", "1st", "größe_")]
    records = [json.loads(line) for line in (tmp_path / "lines").read_text().splitlines()]
    last = records[-1]
    assert (last["key"], last["value"]["after"]) == (
        {called[0]: 2}, dict(zip(called, (2, "b", 2), strict=True)),
    )  # fmt: skip
    for table in ChangeLog(str(tmp_path / "log")).rows("public", "t"):
        assert set(table.column_names) >= set(called)
    rows = [
        r for each in ChangeLog(str(tmp_path / "log")).rows("public", "t") for r in each.to_pylist()
    ]
    assert [(r["_op"], *(r[name] for name in called)) for r in rows if r["_op"] != "d"] == [
        ("r", 1, "a", 2), ("c", 2, "a", 2), ("u", 2, "b", 2),
    ]  # fmt: skip
    with sqlite3.connect(tmp_path / "rows.db") as target:
        found = target.execute("SELECT * FROM t")
        assert [each[0] for each in found.description][:3] == called
        assert [row[:3] for row in found] == [(2, "b", 2)]
    for file in (tmp_path / "files").rglob("*.parquet"):
        assert set(pq.read_schema(file).names) >= set(called)
