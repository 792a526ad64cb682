"""Transforms of events in a pipeline: on JSON lines they are applied, on the change log refused."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.command import waltap
from tests.harness.servers.postgres import Database

PROFILE = """
[source]
{source}
[sink]
type = "{sink}"
path = "out"
[[transforms]]
type = "filter"
tables = 'public\\.other'
[[transforms]]
type = "fields"
tables = 'public\\.items'
exclude = "secret"
renames = "name:title"
"""


def profile(database: Database, folder: Path, sink: str) -> Path:
    source = {"type": "postgres", **database.properties()}
    lines = "\n".join(f'"{name}" = {json.dumps(value)}' for name, value in source.items())
    path = folder / f"{database.name}.toml"
    path.write_text(PROFILE.format(source=lines, sink=sink))
    return path


@pytest.fixture
def shop(database: Database) -> Database:
    database.psql(
        "CREATE TABLE items (id int PRIMARY KEY, name text, secret text);"
        "CREATE TABLE other (id int PRIMARY KEY);"
        "INSERT INTO items VALUES (1, 'bolt', 'x'); INSERT INTO other VALUES (1)"
    )
    return database


def test_fields_are_left_out_and_renamed_in_snapshot_and_stream(
    shop: Database, tmp_path: Path
) -> None:
    path = profile(shop, tmp_path, "jsonl")
    first = waltap("run", path, "--until-idle", "1", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    shop.psql("UPDATE items SET name = 'nut'; DELETE FROM items")
    again = waltap("run", path, "--until-idle", "1", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    lines = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    found = [
        (line["key"], line["value"] and [line["value"][part] for part in ("op", "before", "after")])
        for line in lines
    ]
    key = {"id": 1}
    assert found == [
        (key, ["r", None, {"id": 1, "title": "bolt"}]),
        (key, ["u", None, {"id": 1, "title": "nut"}]),
        (key, ["d", {"id": 1, "title": None}, None]),
        (key, None),
    ]


def test_a_sink_of_changes_is_refused_before_anything_is_made(
    shop: Database, tmp_path: Path
) -> None:
    path = profile(shop, tmp_path, "changelog")
    for command in ("doctor", "run"):
        found = waltap(command, path, cwd=tmp_path)
        told = f"{found.stdout}{found.stderr}"
        assert found.returncode != 0
        assert "the sink changelog takes the changes themselves" in told
        assert "take the transform fields out of" in told
        assert "Traceback" not in told
    assert shop.execute(
        "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"
    ) == [(0,)]
    assert not (tmp_path / "out").exists()
