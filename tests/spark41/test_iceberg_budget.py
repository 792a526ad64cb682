"""What a commit of one change to an Iceberg table may cost."""

from collections.abc import Iterator
from typing import Any, Final

import pytest
from tests.harness.spark import Rig
from tests.harness.spark_cost import cost, filled

# change → the most calls, round trips and jobs of its commit: a job reads values that were not sent, and the driver writes.
BUDGETS: Final = {
    "insert": (309, 105, 0),
    "update": (365, 149, 0),
    "update, note unsent": (376, 143, 1),
    "key change, note unsent": (396, 143, 1),
    "delete": (351, 113, 0),
}


@pytest.fixture(scope="module")
def rig(iceberg: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with filled(iceberg, tmp_path_factory.mktemp("budget"), "iceberg") as made:
        yield made


@pytest.mark.parametrize(("change", "most"), BUDGETS.items())
def test_a_commit_of_one_change_is_within_its_budget(
    rig: Rig, change: str, most: tuple[int, int, int]
) -> None:
    found = cost(rig, change)
    assert all(each <= limit for each, limit in zip(found, most, strict=True)), found
