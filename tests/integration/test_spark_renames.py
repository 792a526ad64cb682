"""Tables that the source renames, in Parquet and Delta Lake; in Iceberg: `tests.spark41.test_iceberg_in_use`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.harness.renamed_tables import COURSES
from tests.harness.spark import Rig


@pytest.mark.parametrize("course", COURSES, ids=lambda course: course.__name__)
@pytest.mark.parametrize("table_format", ["parquet", "delta"])
def test_a_table_is_renamed(
    delta: Any, tmp_path: Path, table_format: str, course: Callable[[Rig], None]
) -> None:
    course(Rig(tmp_path, delta, table_format, parallel=2))
