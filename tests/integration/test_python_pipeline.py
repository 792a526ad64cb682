"""`waltap.Pipeline` and `waltap.stream`: a pipeline that a program starts, asks and stops."""

from pathlib import Path
from typing import Any

import pytest
from tests.harness.json_lines import records
from tests.harness.servers.postgres import Database

import waltap
from waltap.errors import SourceError
from waltap.pipeline.in_process import PipelineEnded


@pytest.fixture
def profile(database: Database, tmp_path: Path) -> dict[str, Any]:
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1), (2)")
    return {
        "name": "shop",
        "source": {
            "type": "postgres",
            **database.properties(),
            "slot.name": "in_" + database.name[-20:],
            "waltap.state.dir": str(tmp_path / "state"),
            "offset.flush.interval.ms": 0,
        },
        "sink": {"type": "jsonl", "path": str(tmp_path / "out.jsonl")},
    }


def test_it_starts_is_asked_and_goes_on_where_it_was(
    database: Database, profile: dict[str, Any], tmp_path: Path
) -> None:
    shop, heard = waltap.Pipeline(profile), list[str]()
    shop.on_notification(lambda notification: heard.append(notification.kind))
    assert [each for each in shop.check() if each.verdict == "error"] == []
    with shop:
        shop.wait(lambda status: status.state == "streaming", timeout=60)
        database.execute("INSERT INTO t VALUES (3)")
        status = shop.wait(lambda status: status.changes == 1, timeout=60)
        assert (status.state, status.snapshot_rows) == ("streaming", 2)
        assert shop.signal("log", {"message": "here"}).result(60).reason == ""
        with pytest.raises(RuntimeError, match="runs already"):
            shop.start()
    assert shop.status().state == "stopped"
    assert "COMPLETED" in heard
    database.execute("INSERT INTO t VALUES (4)")
    shop.run(waltap.Limits(max_records=1))
    lines = records(tmp_path / "out.jsonl")
    assert [line["value"]["after"]["id"] for line in lines] == [1, 2, 3, 4]


def test_what_it_fails_with_is_raised_where_it_is_waited_for(profile: dict[str, Any]) -> None:
    profile["source"]["database.dbname"] = "no_such_database"
    shop = waltap.Pipeline(profile).start()
    with pytest.raises(SourceError, match="WT-2004"):
        shop.wait(lambda status: status.state == "streaming", timeout=60)
    with pytest.raises(RuntimeError, match="does not run"):
        shop.signal("log")
    with pytest.raises(SourceError, match="WT-2004"), waltap.Pipeline(profile):
        pass
    with pytest.raises(SourceError, match="WT-2004"):
        next(iter(waltap.stream(profile)))


def test_an_end_before_what_was_waited_for_is_told(profile: dict[str, Any]) -> None:
    shop = waltap.Pipeline(profile).start(waltap.Limits(max_records=2))
    with pytest.raises(PipelineEnded, match="shop is stopped"):
        shop.wait(lambda status: status.events > 100, timeout=60)
    assert shop.wait().events == 2


def test_a_notebook_shows_it(database: Database, profile: dict[str, Any]) -> None:
    database.execute('ALTER TABLE t RENAME TO "<t>"')
    shop = waltap.Pipeline(profile)
    shop.run(waltap.Limits(max_records=2))
    shown = shop._repr_html_()
    assert "<td>public.&lt;t&gt;</td><td>2</td>" in shown
    assert repr(shop) == "<waltap.Pipeline shop: stopped>"


def test_samples_are_of_the_last_run(database: Database, profile: dict[str, Any]) -> None:
    shop = waltap.Pipeline(profile)
    assert shop.history() == []
    shop.run(waltap.Limits(max_records=2))
    first = shop.history()
    assert first
    database.execute("INSERT INTO t VALUES (3)")
    shop.run(waltap.Limits(max_records=1))
    assert shop.history()[0].at_ms > first[0].at_ms
    assert "<td>public.t</td>" in shop._repr_html_(), "a run without a snapshot has its tables, too"
