"""Rows hold more than changes tell: in a table without a key, a change means a row by what it tells."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.harness.changelog import relation
from tests.harness.spark import Rig
from tests.harness.untold_columns import COURSES

from waltap_spark.live import LiveTables

pytestmark = pytest.mark.usefixtures("quick_plans")

TWO = relation("public.t", [("id", "int4"), ("v", "text")], numbers=(1, 2))
THREE = relation("public.t", [("id", "int4"), ("v", "text"), ("tmp", "int4")], numbers=(1, 2, 3))


@pytest.fixture(params=["parquet", "delta"])
def rig(request: Any, delta: Any, tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path, delta, request.param, parallel=1)
    yield made
    made.applier.close()
    made.sink.close()


@pytest.mark.parametrize("course", COURSES, ids=lambda course: course.__name__)
def test_a_change_without_a_key_means_a_row_by_the_columns_that_it_tells(
    rig: Rig, course: Any
) -> None:
    course(rig)


@pytest.mark.parametrize("how", ["deleted", "truncated"])
def test_changes_around_a_column_that_comes_and_goes_in_one_transaction_stay_in_order(
    rig: Rig, how: str
) -> None:
    rig.db.insert(TWO, ["1", "first"], ["2", "first"], ["3", "first"])
    rig.commit()
    rig.apply()
    rig.db.update(TWO, ["1"], v="old")
    rig.db.update(TWO, ["2"], v="old")
    rig.db.rows[TWO.name] = [(*row, None) for row in rig.db.rows[TWO.name]]
    rig.db.update(THREE, ["1"], v="mid", tmp="1")
    rig.db.update(THREE, ["2"], v="mid", tmp="1")
    rig.db.rows[TWO.name] = [row[:2] for row in rig.db.rows[TWO.name]]
    if how == "truncated":
        rig.db.truncate(TWO)
        rig.db.insert(TWO, ["1", "new"])
    else:
        rig.db.update(TWO, ["1"], v="new")
        rig.db.delete(TWO, ["2"])
    rig.commit()
    rig.apply()
    rig.check(TWO)
    assert LiveTables(rig.spark, rig.output).changes("public.t").count() == 9
