"""What a commit of one change to a Delta table may cost; Iceberg: `tests.spark41.test_iceberg_budget`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from tests.harness.spark import Rig
from tests.harness.spark_cost import cost, filled

# change → the most calls, round trips and jobs of its commit. One job appends to the history, one finds and marks the
# rows that there were, one adds rows, and one reads values that were not sent. On a busy machine a commit takes up to
# 24 calls and 5 round trips more.
BUDGETS: Final = {
    "insert": (347, 75, 2),
    "update": (397, 114, 3),
    "update, note unsent": (432, 146, 4),
    "key change, note unsent": (457, 146, 4),
    "delete": (397, 109, 2),
}


@pytest.fixture(scope="module")
def rig(delta: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with filled(delta, tmp_path_factory.mktemp("budget"), "delta") as made:
        yield made


@pytest.mark.parametrize(("change", "most"), BUDGETS.items())
def test_a_commit_of_one_change_is_within_its_budget(
    rig: Rig, change: str, most: tuple[int, int, int]
) -> None:
    found = cost(rig, change)
    assert all(each <= limit for each, limit in zip(found, most, strict=True)), found


def test_without_history_an_insert_is_one_job(delta: Any, tmp_path: Path) -> None:
    with filled(delta, tmp_path, "delta", "none") as rig:
        calls, trips, jobs = cost(rig, "insert")
    assert calls <= 331
    assert trips <= 65
    assert jobs == 1
