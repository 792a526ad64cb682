"""What a run says when the database or the operating system refuses: what, why, what fixes it; and nothing of a
run that was refused is left behind."""

import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from tests.harness.command import run_program
from tests.harness.servers.postgres import Database
from tests.harness.shop import Shop, text_of

pytestmark = pytest.mark.shop(
    sql="CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)",
    variables={"WALTAP_LOG_LEVEL": "ERROR"},
)
LONG = {"waltap.state.dir": "s" * 300}
SQL = {"sink.type": "sql", "sink.url": "sqlite:///rows.db"}
REFUSED: list[tuple[dict[str, Any], int, str]] = [
    (LONG, 1, "WT-6005 … shorter name"),
    ({"sink.type": "changelog", "sink.path": "o" * 300}, 3, "shorter name"),
    ({"sink.type": "changelog", "sink.segment.max.rows": 2**31}, 2, "segment.max.rows"),
    (SQL | {"sink.history.table.include.list": "("}, 2, "history.table.include.list … pattern"),
    (SQL | {"sink.lock.timeout.ms": 2**31}, 2, "lock.timeout.ms"),
    ({"database.query.timeout.ms": 2**31}, 2, "database.query.timeout.ms"),
    ({"database.initial.statements": "SET x TO"}, 2, "database.initial.statements … syntax error"),
]
"""Others: test_refusals.py."""


def test_what_is_refused_is_reported_and_leaves_nothing(shop):
    for changed, code, words in REFUSED:
        said = shop.run(*(f"--set={name}={value}" for name, value in changed.items()), code=code)
        assert all(word in said for word in words.split(" … ")), (words, said)
        assert shop.made() == [], words


@pytest.mark.parametrize("sink", ["jsonl", "changelog"])
def test_used_up_file_descriptors_are_reported_as_that(shop, sink):
    shop.sink = {"type": sink, "path": "out"}
    reported = 0
    for files in (6, 8, 9, 11):
        done = run_program(
            *(sys.executable, "-m", "waltap", "run", shop.path, "--until-idle", 0), code=None, cwd=shop.folder,
            preexec_fn=lambda n=files: resource.setrlimit(resource.RLIMIT_NOFILE, (n, n)),
            env={**os.environ, "COLUMNS": "200", "WALTAP_LOG": "text"},
        )  # fmt: skip
        text = text_of(done)
        if done.returncode:
            reported += 1
            assert "ulimit -n" in text, (files, text)
            assert "WT-9000" not in text
            assert "WT-1108" not in text
    assert reported >= 2
    shop.run()


@pytest.mark.parametrize(
    ("closed", "path", "code"),
    [("0<&- >&- 2>&-", "out", 0), (">&-", "-", 1)],
)
def test_what_is_written_goes_to_no_file_that_has_a_closed_streams_number(shop, closed, path, code):
    shop.sink = {"type": "jsonl", "path": path}
    line = f"{sys.executable} -m waltap run {shop.path} --until-idle 0.3 {closed}"
    done = subprocess.run(line, shell=True, cwd=shop.folder, capture_output=True, text=True)
    assert done.returncode == code, text_of(done)
    if code:
        assert "standard output cannot be written" in text_of(done)
        shop.sink["path"] = "out"
        shop.run()
    assert shop.operations("out") == [("r", 1)]


# --- a database that never checked its text ----------------------------------------------------------


@pytest.fixture
def ascii_shop(server, database, tmp_path) -> Iterator[Shop]:
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


@pytest.mark.parametrize(("plugin", "streamed"), [("pgoutput", False), ("wal2json", True)])
def test_the_remedy_for_bytes_that_are_no_utf_8_brings_every_row(ascii_shop, plugin, streamed):
    shop = ascii_shop
    shop.source["plugin.name"] = plugin
    if streamed:
        shop.run()
    shop.database.execute("INSERT INTO t VALUES (1, convert_from('\\xe9'::bytea, 'SQL_ASCII'))")
    said = shop.run(code=1)
    assert ("WT-3001" if plugin == "wal2json" else "WT-2020") in said
    assert "SQL_ASCII" in said
    mend = re.search(r"convert_from\(convert\(.*?'SQL_ASCII'\)(?=\.)", said)
    shop.database.execute(f"UPDATE t SET c = {mend[0]}")
    for command in re.findall(r"`waltap (\w+ \w+) FILE`", said):
        done = shop.waltap(f"{command} FILE --yes")
        assert done.returncode == 0 or not streamed, text_of(done)
    shop.run()
    last = json.loads((shop.folder / "out.jsonl").read_text().splitlines()[-1])
    assert last["value"]["after"] == {"id": 1, "c": "é"}
