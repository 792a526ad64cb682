"""What a commit of one change to a Delta table may cost."""

import logging
from pathlib import Path
from typing import Any, Final

import pytest
from tests.harness.spark_cost import commits_cost

# change → most calls, round trips, and jobs that are not Delta's own for its log
MOST: Final = {
    "insert": (400, 135, 2),
    "update": (460, 150, 9),
    "update, note unsent": (515, 235, 13),
    "key change, note unsent": (600, 325, 10),
    "delete": (460, 130, 2),
}


def test_a_commit_of_one_change_is_within_its_budget(
    delta: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The first commit also says how far it is."""
    with caplog.at_level(logging.INFO):
        commits_cost(delta, tmp_path, "delta", MOST, history="keep")
    reported = [each.message for each in caplog.records if each.message.startswith("table ")]
    assert [each.partition(":")[0] for each in reported] == ["table 1 of 2", "table 2 of 2"]


def test_without_history_an_insert_is_one_job(delta: Any, tmp_path: Path) -> None:
    commits_cost(delta, tmp_path, "delta", {"insert": (400, 135, 1)}, history="none")
