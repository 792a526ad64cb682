"""Columns that the server did not send are read back, and what happens when a row or a column is gone."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.harness.servers.postgres import Database

LONG = "long " * 800


@pytest.fixture
def docs(database: Database) -> Database:
    database.psql(
        "CREATE TABLE docs (id numeric(9,2) PRIMARY KEY, body text, spare text, note text);"
        "ALTER TABLE docs ALTER body SET STORAGE EXTERNAL, ALTER spare SET STORAGE EXTERNAL;"
        f"INSERT INTO docs SELECT n + 0.5, '{LONG}' || n, '{LONG}', 'first' FROM generate_series(1, 3) AS n"
    )
    return database


def run(database: Database, folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    config = {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "plugin.name": "pgoutput",
        "topic.prefix": "t",
        "snapshot.mode": "no_data",
        "waltap.sink.type": "jsonl",
        "waltap.sink.path": "out",
        "post.processors": "again",
        "post.processors.again.type": "io.debezium.processors.reselect.ReselectColumnsPostProcessor",
        **{name.replace("__", "."): value for name, value in more.items()},
        **database.properties(),
    }
    path = folder / f"{database.name}.json"
    path.write_text(json.dumps({"name": database.name, "config": config}))
    return subprocess.run(
        [sys.executable, "-m", "waltap", "run", str(path), "--until-idle", "1"],
        cwd=folder, env={**os.environ, "COLUMNS": "300"}, capture_output=True, text=True,
        timeout=180,
    )  # fmt: skip


def rows(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "out").read_text().splitlines()
    events = [json.loads(line)["value"]["payload"] for line in lines]
    return [event["after"] for event in events if event["op"] == "u"]


def test_values_of_a_numeric_key_find_their_rows(docs: Database, tmp_path: Path) -> None:
    more = {"decimal__handling__mode": "string"}
    assert run(docs, tmp_path, **more).returncode == 0
    docs.psql(
        "UPDATE docs SET note = 'second' WHERE id < 3; UPDATE docs SET spare = NULL WHERE id > 3"
    )
    done = run(docs, tmp_path, **more)
    assert done.returncode == 0, done.stderr
    found = {row["id"]: (row["body"], row["spare"], row["note"]) for row in rows(tmp_path)}
    assert found == {
        "1.50": (f"{LONG}1", LONG, "second"),
        "2.50": (f"{LONG}2", LONG, "second"),
        "3.50": (f"{LONG}3", None, "first"),
    }


def test_a_row_that_is_gone_stops_the_pipeline_where_that_was_asked_for(
    docs: Database, tmp_path: Path
) -> None:
    more = {"post__processors__again__reselect__error__handling__mode": "fail"}
    assert run(docs, tmp_path, **more).returncode == 0
    docs.psql(
        "BEGIN; UPDATE docs SET note = 'x' WHERE id < 2; DELETE FROM docs WHERE id < 2; COMMIT"
    )
    done = run(docs, tmp_path, **more)
    assert done.returncode != 0
    assert "WT-3206" in done.stderr
    assert "1 rows of public.docs are gone" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_column_that_is_gone_leaves_the_placeholders_with_a_warning(
    docs: Database, tmp_path: Path
) -> None:
    assert run(docs, tmp_path).returncode == 0
    docs.psql("UPDATE docs SET note = 'x' WHERE id < 2; ALTER TABLE docs DROP COLUMN spare")
    done = run(docs, tmp_path)
    assert done.returncode == 0, done.stderr
    assert [row["body"] for row in rows(tmp_path)] == ["__debezium_unavailable_value"]
    assert "cannot be read back" in done.stderr
