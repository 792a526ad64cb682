"""Converters of columns: snapshot and stream give equal values, in every format, and failures are told."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.harness.servers.postgres import Database

PLUGIN = """
from waltap.plugins.hookspecs import hookimpl
from waltap.changes.mapping import ColumnConversion, ConnectKind, Schema
from waltap.config import Properties, declare
from waltap.ports.specs import ColumnConverterSpec

WALTAP_API = 1


class Chosen(Properties):
    column: str = declare("column", summary="Column.")
    kind: str = declare("kind", default="string", summary="What it becomes.")


def strict(text):
    if text == "bad":
        raise ValueError("no code")
    return text


def made(properties):
    ways = {
        "string": (ConnectKind.STRING, lambda text: None if text is None else "<" + strict(text) + ">"),
        "null": (ConnectKind.STRING, lambda text: "nothing" if text is None else text),
        "int32": (ConnectKind.INT32, lambda text: None if text is None else len(text)),
        "bytes": (ConnectKind.BYTES, lambda text: None if text is None else text.encode()),
        "wrong": (ConnectKind.INT32, lambda text: text),
    }
    kind, convert = ways[properties.kind]
    schema = Schema(kind=kind, optional=True, name="acme." + kind.name.title(), parameters=(("a", "b"),))

    def converter(relation, column):
        if properties.column != f"{relation.name}.{column.name}":
            return None
        return ColumnConversion(schema=schema, values=lambda texts: [convert(text) for text in texts])

    return converter


@hookimpl
def register_converters():
    yield ColumnConverterSpec(
        name="acme", aliases=("com.acme.Converter",), summary="Acme.", properties=Chosen, factory=made
    )
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "acme_converter.py").write_text(PLUGIN)
    info = tmp_path / "acme_converter-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-converter\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[waltap]\nacme = acme_converter\n")
    return tmp_path


@pytest.fixture
def books(database: Database) -> Database:
    database.psql(
        "CREATE TYPE mood AS ENUM ('calm', 'wild');"
        "CREATE TABLE books (id int, code text, mood mood, size numeric, place point, raw text,"
        " PRIMARY KEY (id, code));"
        "ALTER TABLE books REPLICA IDENTITY FULL;"
        "INSERT INTO books VALUES (1, 'a', 'calm', 1.5, '(1,2)', 'good'), (2, 'b', NULL, NULL, NULL, NULL)"
    )
    return database


def run(
    database: Database, folder: Path, columns: dict[str, str], **more: str
) -> subprocess.CompletedProcess[str]:
    """Run until nothing comes; ``columns``: column → what it becomes."""
    config = {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "plugin.name": "pgoutput",
        "topic.prefix": "t",
        "waltap.sink.type": "jsonl",
        "waltap.sink.path": "out",
        "converters": ", ".join(f"c_{name}" for name in columns),
        **{name.replace("__", "."): value for name, value in more.items()},
        **database.properties(),
    }
    for name, kind in columns.items():
        config |= {
            f"c_{name}.type": "com.acme.Converter",
            f"c_{name}.column": f"public.books.{name}",
            f"c_{name}.kind": kind,
        }
    path = folder / f"{database.name}.json"
    path.write_text(json.dumps({"name": database.name, "config": config}))
    environment = {**os.environ, "COLUMNS": "400", "PYTHONPATH": str(folder)}
    return subprocess.run(
        [sys.executable, "-m", "waltap", "run", str(path), "--until-idle", "1"],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=180,
    )  # fmt: skip


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "out").read_text().splitlines()]


def payload(record: dict[str, Any]) -> dict[str, Any]:
    value: dict[str, Any] = record["value"]["payload"]
    return value


COLUMNS = {"code": "bytes", "mood": "string", "size": "int32", "place": "string", "raw": "null"}


def test_snapshot_and_stream_give_the_same_values_and_schemas(
    books: Database, folder: Path
) -> None:
    done = run(books, folder, COLUMNS)
    assert done.returncode == 0, done.stderr
    books.psql("INSERT INTO books SELECT id + 10, code, mood, size, place, raw FROM books")
    books.psql("UPDATE books SET mood = 'wild', code = 'c' WHERE id = 11")
    done = run(books, folder, COLUMNS)
    assert done.returncode == 0, done.stderr
    read, null_read, new, null_new, gone, _, moved = records(folder)
    wanted = {"code": "YQ==", "mood": "<calm>", "size": 3, "place": "<(1,2)>", "raw": "good"}
    nothing = {"code": "Yg==", "mood": None, "size": None, "place": None, "raw": "nothing"}
    assert payload(read)["after"] == {"id": 1, **wanted}
    assert payload(new)["after"] == {"id": 11, **wanted}
    assert payload(null_read)["after"] == {"id": 2, **nothing}
    assert payload(null_new)["after"] == {"id": 12, **nothing}
    assert new["key"]["payload"] == {"id": 11, "code": "YQ=="}
    assert new["value"]["schema"] == read["value"]["schema"]
    assert new["key"]["schema"] == read["key"]["schema"]
    row = read["value"]["schema"]["fields"][1]["fields"]
    assert {field["field"]: field["type"] for field in row} == {
        "id": "int32", "code": "bytes", "mood": "string", "size": "int32", "place": "string",
        "raw": "string",
    }  # fmt: skip
    assert row[2] == {
        "type": "string", "optional": True, "name": "acme.String", "parameters": {"a": "b"},
        "field": "mood",
    }  # fmt: skip
    assert payload(gone)["before"] == {"id": 11, **wanted}
    assert payload(moved)["after"] == {"id": 11, **wanted, "code": "Yw==", "mood": "<wild>"}


def test_converted_formats_write_what_json_does(books: Database, folder: Path) -> None:
    flat = {"key__converter": "json", "key__converter__schemas__enable": "false"}
    done = run(
        books, folder, COLUMNS, **flat,
        value__converter="org.apache.kafka.connect.json.JsonConverter",
        transforms="unwrap", transforms__unwrap__type="io.debezium.transforms.ExtractNewRecordState",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [payload(record) for record in records(folder)] == [
        {"id": 1, "code": "YQ==", "mood": "<calm>", "size": 3, "place": "<(1,2)>", "raw": "good"},
        {"id": 2, "code": "Yg==", "mood": None, "size": None, "place": None, "raw": "nothing"},
    ]


@pytest.mark.parametrize("kind", ["string", "wrong"])
def test_a_value_that_cannot_be_converted_stops_where_that_is_asked_for(
    books: Database, folder: Path, kind: str
) -> None:
    columns = {"raw": kind}
    more = {"event__converting__failure__handling__mode": "fail", "snapshot__mode": "no_data"}
    assert run(books, folder, columns, **more).returncode == 0
    books.psql("INSERT INTO books VALUES (3, 'c', NULL, NULL, NULL, 'bad')")
    done = run(books, folder, columns, **more)
    assert done.returncode != 0
    assert "WT-3207" in done.stderr
    assert "the converter c_raw (acme) of column raw of public.books at LSN " in done.stderr
    assert "Traceback" not in done.stderr
    assert not (folder / "out").exists() or not records(folder)
    more["event__converting__failure__handling__mode"] = "warn"
    done = run(books, folder, columns, **more)
    assert done.returncode == 0, done.stderr
    assert "column raw of public.books: the converter c_raw (acme) " in done.stderr
    (record,) = records(folder)
    assert payload(record)["after"]["raw"] is None


def test_a_sink_that_takes_changes_refuses_converters(books: Database, folder: Path) -> None:
    done = run(books, folder, COLUMNS, waltap__sink__type="changelog")
    assert done.returncode != 0
    assert "WT-3208" in done.stderr


def test_a_java_class_is_refused_with_what_to_do(books: Database, folder: Path) -> None:
    more = {"converters": "isbn", "isbn.type": "com.example.IsbnConverter", "isbn.prefix": "x"}
    done = run(books, folder, {}, **more)
    assert done.returncode != 0
    assert "isbn.type" in done.stderr
    assert "names a Java class" in done.stderr
    assert "register_converters" in done.stderr
