"""A database that never checked its text: what a run says of bytes that are no UTF-8 does help."""

import functools
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import command
from tests.harness.servers.postgres import Database, Server


@pytest.fixture
def ascii_database(server: Server, database: Database) -> Iterator[Database]:
    name = f"{database.name}_ascii"
    database.execute(
        f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C'"
    )
    made = Database(server, name)
    yield made
    made.drop()


waltap = functools.partial(command.waltap, COLUMNS="400", WALTAP_LOG_LEVEL="ERROR")


@pytest.mark.parametrize(
    ("plugin", "streamed"),
    [
        pytest.param("pgoutput", False, id="snapshot"),
        pytest.param("pgoutput", True, id="pgoutput"),
        pytest.param("wal2json", True, id="wal2json"),
    ],
)
def test_the_remedy_brings_every_row(
    ascii_database: Database, tmp_path: Path, streamed: bool, plugin: str
) -> None:
    database = ascii_database
    database.execute("CREATE TABLE t (id int PRIMARY KEY, c text)")
    source = "\n".join(f'"{k}" = {json.dumps(v)}' for k, v in database.properties().items())
    (tmp_path / "p.toml").write_text(
        f'[source]\ntype = "postgres"\n{source}\n"slot.name" = "{database.name}"\n'
        f'"plugin.name" = "{plugin}"\n[sink]\ntype = "jsonl"\npath = "out.jsonl"\n'
    )
    bad = "INSERT INTO t VALUES (1, convert_from('\\xe9'::bytea, 'SQL_ASCII'))"
    run = ("run", "p.toml", "--until-idle", "0.5")
    if streamed:
        assert waltap(*run, cwd=tmp_path).returncode == 0
    database.execute(bad)
    refused = waltap(*run, cwd=tmp_path)
    text = " ".join(refused.stderr.split())
    assert refused.returncode == 1, text
    assert ("WT-3001" if plugin == "wal2json" else "WT-2020") in text
    assert "SQL_ASCII" in text
    assert "Traceback" not in text

    mend = re.search(r"convert_from\(convert\(.*?'SQL_ASCII'\)(?=\.)", text)
    assert mend is not None
    database.execute(f"UPDATE t SET c = {mend[0]}")
    for command in re.findall(r"`waltap (\w+ \w+) FILE`", text):
        waltap(*command.split(), "p.toml", "--yes", cwd=tmp_path)
    again = waltap(*run, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    last = json.loads((tmp_path / "out.jsonl").read_text().splitlines()[-1])
    assert last["value"]["after"] == {"id": 1, "c": "é"}
