"""What a commit of one change to an Iceberg table may cost."""

from pathlib import Path
from typing import Any, Final

import pytest
from tests.harness.spark_cost import commits_cost

pytestmark = pytest.mark.usefixtures("quick_plans")

# change → most calls, round trips, Spark jobs
MOST: Final = {
    "insert": (400, 150, 2),
    "update": (0, 0, 0),
    "update, note unsent": (0, 0, 0),
    "key change, note unsent": (0, 0, 0),
    "delete": (0, 0, 0),
}


def test_a_commit_of_one_change_is_within_its_budget(iceberg: Any, tmp_path: Path) -> None:
    commits_cost(iceberg, tmp_path, "iceberg", MOST, history="keep")
