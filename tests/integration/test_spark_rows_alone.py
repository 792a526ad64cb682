"""``history = none``: rows without what happened to them."""

from pathlib import Path
from typing import Any

import pytest
from tests.harness.rows_alone import RowsAlone

from waltap_spark.formats.choice import FormatChoice

pytestmark = pytest.mark.usefixtures("quick_plans")


@pytest.mark.parametrize("name", ["parquet", "delta"])
def test_rows_are_right_and_nothing_else_is_kept(
    request: pytest.FixtureRequest, tmp_path: Path, name: str
) -> None:
    spark: Any = request.getfixturevalue("delta" if name == "delta" else "spark")
    rows = RowsAlone(tmp_path, spark, FormatChoice(name))
    rows.play()
    rows.close()


def test_what_comes_again_without_a_column_that_was_added_is_told(
    spark: Any, tmp_path: Path
) -> None:
    rows = RowsAlone(tmp_path, spark, FormatChoice("parquet"))
    rows.play_with_a_column_that_is_added()
    rows.close()
