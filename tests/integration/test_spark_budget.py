"""What a commit of one change to a Delta table may cost; Iceberg: `tests.spark41.test_iceberg`."""

from collections.abc import Iterator
from typing import Final

import pytest
from tests.harness.spark import Rig
from tests.harness.spark_cost import cost, filled

from waltap_spark.formats import delta as delta_format

# change → the most calls and round trips, and the jobs, of its commit in a table of few bytes. The driver writes history and
# rows; one job reads values that were not sent. On a busy machine a commit takes up to 24 calls and 10 round trips more.
BUDGETS: Final = {
    "insert": (327, 60, 0),
    "update": (366, 64, 0),
    "update, note unsent": (391, 95, 1),
    "key change, note unsent": (411, 95, 1),
    "delete": (364, 58, 0),
}

# The same in a table of more bytes, whose rows Spark writes: one job, or two that find and mark the earlier rows.
LARGE_BUDGETS: Final = {
    "key change, note unsent": (435, 121, 3),
    "delete": (380, 84, 1),
}


@pytest.fixture(scope="module")
def rig(delta, tmp_path_factory) -> Iterator[Rig]:
    with filled(delta, tmp_path_factory.mktemp("budget"), "delta") as made:
        yield made


@pytest.fixture(scope="module")
def large(delta, tmp_path_factory) -> Iterator[Rig]:
    with filled(delta, tmp_path_factory.mktemp("budget"), "delta") as made:
        yield made


def _within(found: tuple[int, int, int], most: tuple[int, int, int]) -> None:
    assert all(each <= limit for each, limit in zip(found, most, strict=True)), found
    assert found[2] == most[2], "jobs are counted: they depend on nothing else that runs"


@pytest.mark.parametrize(("change", "most"), BUDGETS.items())
def test_a_commit_of_one_change_is_within_its_budget(rig, change, most):
    found = cost(rig, change)
    _within(found, most)


@pytest.mark.parametrize(("change", "most"), LARGE_BUDGETS.items())
def test_a_commit_of_one_change_to_a_large_table_is_within_its_budget(
    large, change, most, monkeypatch
):
    monkeypatch.setattr(delta_format, "SMALL_TABLE", 0)
    found = cost(large, change)
    _within(found, most)


def test_without_history_an_insert_is_no_job(delta, tmp_path):
    with filled(delta, tmp_path, "delta", "none") as rig:
        calls, trips, jobs = cost(rig, "insert")
    assert calls <= 320
    assert trips <= 46
    assert jobs == 0
