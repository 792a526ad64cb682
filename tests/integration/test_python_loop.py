"""`waltap.stream`: batches of a profile in a Python loop."""

import json
from pathlib import Path
from typing import Any

import pytest
import waltap
from tests.harness.servers.postgres import Database
from waltap.errors import WaltapError


def profile(database: Database, folder: Path) -> dict[str, Any]:
    return {
        "name": "loop",
        "source": {
            "type": "postgres",
            **database.properties(),
            "slot.name": "loop_" + database.name[-20:],
            "waltap.state.dir": str(folder),
            "offset.flush.interval.ms": 0,
        },
    }


def ids(batch: Any) -> list[int]:
    return [json.loads(record.key)["id"] for record in batch.records]


def test_a_loop_gets_the_snapshot_and_then_the_changes(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1), (2)")
    seen: list[int] = []
    for batch in waltap.stream(profile(database, tmp_path), limits=waltap.Limits(max_records=3)):
        seen += ids(batch)
        if seen == [1, 2]:
            database.execute("INSERT INTO t VALUES (3)")
    assert seen == [1, 2, 3]


def test_what_the_body_failed_on_comes_again(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    settings = profile(database, tmp_path)
    for _ in waltap.stream(settings, limits=waltap.Limits(until_idle=0.3)):
        pass
    database.execute("INSERT INTO t VALUES (1)")
    with pytest.raises(RuntimeError, match="body"):
        for batch in waltap.stream(settings, limits=waltap.Limits(max_records=1)):
            assert ids(batch) == [1]
            raise RuntimeError("body")
    again = [
        n for b in waltap.stream(settings, limits=waltap.Limits(max_records=1)) for n in ids(b)
    ]
    assert again == [1]


def test_an_error_of_the_engine_reaches_the_loop(database: Database, tmp_path: Path) -> None:
    settings = profile(database, tmp_path)
    settings["source"]["database.dbname"] = "no_such_database"
    with pytest.raises(WaltapError, match="WT-2004"):
        next(iter(waltap.stream(settings)))
