"""Two pipelines and one destination, one pipeline and two: nothing is left out without a word."""

import shutil

import pytest
from tests.harness.changelog import logged_ids

pytestmark = pytest.mark.shop(sql="CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")


def test_a_change_log_of_another_pipeline_is_refused(shop):
    """Of two that take turns each would take what lies below the other's mark for delivered."""
    shop.sink = {"type": "changelog", "path": "log"}
    slot = shop.slot[:55]

    def run(name: str, code: int = 0) -> str:
        shop.name = name
        shop.source |= {"slot.name": f"{slot}_{name}", "publication.name": f"{slot}_{name}"}
        return shop.run(code=code)

    run("mine")
    shop.name = "theirs"
    assert "written by pipeline 'mine'" in shop.says("doctor FILE", code=1)
    assert "WT-5110" in run("theirs", 1)
    assert list(shop.database.slots()) == [f"{slot}_mine"]
    (shop.folder / "log").rename(shop.folder / "away")  # as the remedy says
    run("theirs")
    assert "WT-5110" in run("mine", 1)
    (shop.folder / "log").rename(shop.folder / "theirs")
    (shop.folder / "away").rename(shop.folder / "log")
    shop.database.execute("INSERT INTO t VALUES (2)")
    run("mine")
    assert logged_ids(shop.folder / "log") == [1, 2]


def test_a_sink_that_takes_the_place_of_another_is_reported(shop):
    for _ in range(2):
        assert "went to" not in shop.run()
    shop.database.execute("INSERT INTO t VALUES (2)")
    look = ("--sink", "changelog:look")
    reported = "changes up to the stored offset went to jsonl:out.jsonl; changelog:look"
    assert reported in shop.run(*look)
    assert "went to" not in shop.run(*look)
    remedy = "snapshot.mode=always"
    assert remedy in shop.says("doctor FILE")
    assert "went to changelog:look; jsonl:out.jsonl" in shop.run("--set", remedy)
    assert [number for _, number in shop.operations()] == [1, 1, 2]
    assert "went to" not in shop.run()


def test_a_change_log_that_was_moved_lacks_nothing_and_an_older_copy_is_reported(shop):
    def run(place: str, code: int = 0) -> str:
        shop.sink = {"type": "changelog", "path": place}
        return shop.run(code=code)

    run("log")
    shutil.copytree(shop.folder / "log", shop.folder / "copy")
    shop.database.execute("INSERT INTO t VALUES (2)")
    run("log")
    (shop.folder / "log").rename(shop.folder / "moved")
    shop.database.execute("INSERT INTO t VALUES (3)")
    assert "went to" not in run("moved")
    assert logged_ids(shop.folder / "moved") == [1, 2, 3]
    assert "WT-5109" in run("copy", 1)
    assert "went to changelog:moved; changelog:other" in run("other")
