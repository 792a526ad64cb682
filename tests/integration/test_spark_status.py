"""``waltap spark status``: rows of tables in formats that are written in place, as text and as JSON."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.harness.changelog import relation
from tests.harness.command import waltap
from tests.harness.spark import Rig

from waltap_spark.read.live import LiveTables

ITEMS = relation("public.items", [("id", "int4"), ("v", "text")], numbers=(1, 2))
QUIET = relation("public.quiet", [("id", "int4")], numbers=(1,))


@pytest.mark.parametrize("table_format", ["parquet", "delta"])
def test_status_counts_the_rows_of_each_table_and_prints_them_as_json(
    delta: Any, tmp_path: Path, table_format: str
) -> None:
    """Also where Delta's log has a checkpoint, and rows of files were deleted."""
    rig = Rig(tmp_path, delta, table_format, parallel=1)
    rig.db.insert(QUIET, ["1"], ["2"])
    for number in range(12):
        rig.db.insert(ITEMS, *[[str(number * 3 + each), "new"] for each in range(3)])
        if number % 4 == 3:
            rig.db.update(ITEMS, [str(number)], v="changed")
            rig.db.delete(ITEMS, [str(number + 1)])
        rig.follow()
    reported = waltap("spark", "status", rig.folder / "out", "--json")
    assert reported.returncode == 0, reported.stderr
    status = json.loads(reported.stdout)
    tables = {each["table"]: each for each in status["tables"]}
    live = LiveTables(rig.spark, rig.output)
    for name, each in tables.items():
        assert each["rows"] + each["pending"] >= live.current(name).count()
        assert each["position"] == status["position"] == str(rig.applier.state.log_position)
        assert (each["suspended"], each["stale"]) == ("", [])
    if table_format == "delta":
        assert {name: each["rows"] for name, each in tables.items()} == {
            "public.items": live.current("public.items").count(),
            "public.quiet": 2,
        }
        drawn = waltap("spark", "status", rig.folder / "out").stdout
        assert "version" not in drawn
        assert f" {tables['public.items']['rows']} " in drawn
