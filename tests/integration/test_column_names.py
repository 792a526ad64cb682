"""Columns whose names differ by case alone. Debezium refuses such a table; they are columns of their own."""

import json
from pathlib import Path

import pytest
from waltap_sinks.changelog import ChangeLog

from tests.rigs.pipeline import Pipeline
from tests.servers.postgres import Database


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
    pipeline = Pipeline(database, tmp_path, settings | {"topic.prefix": "x"})
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
    pipeline = Pipeline(database, tmp_path, settings)
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
