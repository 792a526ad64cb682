"""What a run says when the database or the operating system refuses: what, why, what fixes it; and nothing of a
run that was refused is left behind."""

import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.harness.servers.postgres import Database, Server
from tests.harness.shop import Shop, text_of


@pytest.fixture
def shop(database: Database, tmp_path: Path) -> Shop:
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    made = Shop(tmp_path, database)
    made.variables = {"WALTAP_LOG_LEVEL": "ERROR"}
    return made


LONG = {"waltap.state.dir": "s" * 300}
REFUSED: list[tuple[str, dict[str, Any], int, str]] = [
    ("", {"database.dbname": "not_there"}, 1, "WT-2004 … not_there … database.dbname"),
    ("", {"database.port": "1"}, 3, "WT-2002 … database.port"),
    ("", {"database.user": "nobody_at_all"}, 1, "WT-2003 … database.user"),
    ("", {"database.user": "ROLE", "plugin.name": "wal2json"}, 1, "WT-2005 … WITH REPLICATION"),
    ("", {"publication.autocreate.mode": "disabled"}, 1, "WT-2106 … CREATE PUBLICATION"),
    ("CREATE TABLE k (a int)", {}, 1, "WT-2107 … public.k … REPLICA IDENTITY FULL"),
    ("DROP TABLE k", {"plugin.name": "yboutput"}, 1, "WT-2008 … yboutput"),
    ("", {"sink.path": "file/out.jsonl"}, 1, "WT-5001 … file/out.jsonl"),
    ("", LONG, 1, "WT-6005 … shorter name"),
    ("", {"sink.path": "o" * 300}, 1, "shorter name"),
    ("", {"sink.type": "changelog", "sink.path": "o" * 300}, 3, "shorter name"),
]


def test_what_is_refused_is_told_and_leaves_nothing(shop: Shop) -> None:
    role = f"{shop.slot[:50]}_poor"
    shop.database.execute(
        f"CREATE ROLE {role} LOGIN PASSWORD 'x'; GRANT SELECT ON t TO {role}"  # and nothing else
    )
    (shop.folder / "file").write_text("")
    try:
        for statement, changed, code, words in REFUSED:
            if statement:
                shop.database.execute(statement)
            given = {n: role if v == "ROLE" else v for n, v in changed.items()}
            if "database.user" in given:
                given["database.password"] = "x"
            settings = [f"--set={name}={value}" for name, value in given.items()]
            said = shop.run(*settings, code=code)
            assert all(word in said for word in words.split(" … ")), (words, said)
            assert shop.made() == [], words
    finally:
        shop.database.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_a_slot_that_somebody_else_reads_is_told(shop: Shop) -> None:
    with shop.process("run FILE", ready=True):
        said = shop.run(
            "--set=waltap.state.dir=elsewhere", "--set=snapshot.mode=no_data",
            "--set=slot.adopt=true", "--set=slot.max.retries=0", "--set=errors.max.retries=0",
            code=3,
        )  # fmt: skip
    assert "WT-2101" in said
    assert "slot.name" in said


@pytest.mark.parametrize("sink", ["jsonl", "changelog"])
def test_used_up_file_descriptors_are_told_as_that(shop: Shop, sink: str) -> None:
    shop.sink = {"type": sink, "path": "out"}
    told = 0
    for files in (6, 8, 9, 11):
        done = subprocess.run(
            [sys.executable, "-m", "waltap", "run", str(shop.path), "--until-idle", "0"],
            cwd=shop.folder, capture_output=True, text=True, timeout=90,
            preexec_fn=lambda n=files: resource.setrlimit(resource.RLIMIT_NOFILE, (n, n)),
            env={**os.environ, "COLUMNS": "200", "WALTAP_LOG": "text"},
        )  # fmt: skip
        text = text_of(done)
        if done.returncode:
            told += 1
            assert "ulimit -n" in text, (files, text)
            assert "WT-9000" not in text
            assert "WT-1108" not in text
    assert told >= 2
    shop.run()


# --- a database that never checked its text ----------------------------------------------------------


@pytest.fixture
def ascii_shop(server: Server, database: Database, tmp_path: Path) -> Iterator[Shop]:
    name = f"{database.name}_ascii"
    database.execute(
        f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C'"
    )
    made = Database(server, name)
    made.execute("CREATE TABLE t (id int PRIMARY KEY, c text)")
    shop = Shop(tmp_path, made)
    shop.variables = {"COLUMNS": "400", "WALTAP_LOG_LEVEL": "ERROR"}
    yield shop
    made.drop()


@pytest.mark.parametrize(
    ("plugin", "streamed"), [("pgoutput", False), ("pgoutput", True), ("wal2json", True)]
)
def test_the_remedy_for_bytes_that_are_no_utf_8_brings_every_row(
    ascii_shop: Shop, plugin: str, streamed: bool
) -> None:
    shop = ascii_shop
    shop.source["plugin.name"] = plugin
    if streamed:
        shop.run()
    shop.database.execute("INSERT INTO t VALUES (1, convert_from('\\xe9'::bytea, 'SQL_ASCII'))")
    said = shop.run(code=1)
    assert ("WT-3001" if plugin == "wal2json" else "WT-2020") in said
    assert "SQL_ASCII" in said
    mend = re.search(r"convert_from\(convert\(.*?'SQL_ASCII'\)(?=\.)", said)
    assert mend is not None
    shop.database.execute(f"UPDATE t SET c = {mend[0]}")
    for command in re.findall(r"`waltap (\w+ \w+) FILE`", said):
        shop.waltap(f"{command} FILE --yes")
    shop.run()
    last = json.loads((shop.folder / "out.jsonl").read_text().splitlines()[-1])
    assert last["value"]["after"] == {"id": 1, "c": "é"}
