"""Two pipelines and one destination, one pipeline and two: nothing is left out without a word."""

import shutil
from pathlib import Path

import pytest
from tests.harness.changelog import logged_ids
from tests.harness.json_lines import records

from waltap.errors import WaltapError

pytestmark = pytest.mark.pipeline(
    sql="CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)"
)


def test_a_change_log_of_another_pipeline_is_refused(pipeline, tmp_path):
    """Of two that take turns each would take what lies below the other's mark for delivered."""
    log, slot = tmp_path / "log", pipeline.slot[:55]
    pipeline.settings |= {"sink.type": "changelog", "sink.path": str(log)}

    def named(name: str) -> None:
        pipeline.tables = {"name": name}
        pipeline.settings |= {"slot.name": f"{slot}_{name}", "publication.name": f"{slot}_{name}"}

    named("mine")
    pipeline.catch_up()
    named("theirs")
    assert "written by pipeline 'mine'" in str(pipeline.doctor())
    with pytest.raises(WaltapError, match="WT-5110"):
        pipeline.catch_up()
    assert list(pipeline.database.slots()) == [f"{slot}_mine"]
    log.rename(tmp_path / "away")  # as the remedy says
    pipeline.catch_up()
    named("mine")
    with pytest.raises(WaltapError, match="WT-5110"):
        pipeline.catch_up()
    log.rename(tmp_path / "theirs")
    (tmp_path / "away").rename(log)
    pipeline.deliver("INSERT INTO t VALUES (2)")
    assert logged_ids(log) == [1, 2]


def test_a_sink_that_takes_the_place_of_another_is_reported(pipeline, tmp_path, caplog):
    def said(**settings: str) -> str:
        caplog.clear()
        pipeline.catch_up(**settings)
        return caplog.text

    lines, log = str(tmp_path / "out.jsonl"), str(tmp_path / "look")
    pipeline.settings |= {"sink.type": "jsonl", "sink.path": lines}
    for _ in range(2):
        assert "went to" not in said()
    pipeline.database.execute("INSERT INTO t VALUES (2)")
    look = {"sink.type": "changelog", "sink.path": log}
    reported = f"changes up to the stored offset went to jsonl:{lines}; changelog:{log}"
    assert reported in said(**look)
    assert "went to" not in said(**look)
    assert "snapshot.mode=always" in str(pipeline.doctor())
    assert f"went to changelog:{log}; jsonl:{lines}" in said(**{"snapshot.mode": "always"})
    assert [each["value"]["after"]["id"] for each in records(Path(lines))] == [1, 1, 2]
    assert "went to" not in said()


def test_a_change_log_that_was_moved_lacks_nothing_and_an_older_copy_is_reported(
    pipeline, tmp_path, caplog
):
    def run(place: str) -> None:
        pipeline.settings |= {"sink.type": "changelog", "sink.path": str(tmp_path / place)}
        pipeline.catch_up()

    run("log")
    shutil.copytree(tmp_path / "log", tmp_path / "copy")
    pipeline.database.execute("INSERT INTO t VALUES (2)")
    run("log")
    (tmp_path / "log").rename(tmp_path / "moved")
    pipeline.database.execute("INSERT INTO t VALUES (3)")
    run("moved")
    assert "went to" not in caplog.text
    assert logged_ids(tmp_path / "moved") == [1, 2, 3]
    with pytest.raises(WaltapError, match="WT-5109"):
        run("copy")
    run("other")
    assert f"went to changelog:{tmp_path}/moved; changelog:{tmp_path}/other" in caplog.text
