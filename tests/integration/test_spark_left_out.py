"""Columns and tables that are captured no more for a while, and come back: what rows lack is said until
a snapshot brings it."""

from pathlib import Path
from typing import Any

import pytest
from tests.harness.changelog import relation
from tests.harness.spark import Rig

from waltap_spark.live import LiveTables
from waltap_spark.modes import ModeRules

pytestmark = pytest.mark.usefixtures("quick_plans")

COLUMNS = [("id", "int4"), ("n", "text"), ("v", "int4")]
KEPT_AS = ("plain", "versions")
WHOLE = [relation(f"public.{name}", COLUMNS, numbers=(1, 2, 3)) for name in KEPT_AS]
LESS = [relation(f"public.{name}", COLUMNS[:2], numbers=(1, 2)) for name in KEPT_AS]
DOUBT = ("v was not captured for a while",)


def shown(rig: Rig, table: str) -> list[tuple[Any, ...]]:
    frame = LiveTables(rig.spark, rig.output).current(f"public.{table}")
    rows = frame.where("_current") if table == "versions" else frame
    return sorted(tuple(row) for row in rows.select("id", "n", "v").collect())


@pytest.mark.parametrize("dropped", ["keep", "drop"])
@pytest.mark.parametrize("table_format", ["parquet", "delta"])
def test_a_column_that_was_left_out_and_comes_back_needs_a_snapshot(
    delta: Any, tmp_path: Path, table_format: str, dropped: str
) -> None:
    """An update of that column alone, and one of another, while it is not captured."""
    modes = ModeRules(modes=(r"public\.versions:scd2", "scd1"))
    rig = Rig(tmp_path, delta, table_format, parallel=1, modes=modes, dropped=(dropped,))
    for whole in WHOLE:
        rig.db.insert(whole, ["1", "a", "1"], ["2", "b", "2"], ["3", "c", "3"], ["4", "d", "4"])
    rig.commit()
    rig.apply()
    for less in LESS:
        rig.db.rows[less.name] = [row[:2] for row in rig.db.rows[less.name]]
        rig.db.update(less, ["1"])  # of v, to 100
        rig.db.update(less, ["2"], n="m")
    rig.commit()
    rig.apply()
    assert [rig.output.table(less.name).stale for less in LESS] == [(), ()]
    values = ["100", "2", "3", "4"]
    for whole in WHOLE:
        rows = rig.db.rows[whole.name]
        rig.db.rows[whole.name] = [(*row, v) for row, v in zip(rows, values, strict=True)]
        rig.db.update(whole, ["3"], n="k")
    rig.commit()
    rig.apply()
    for name in KEPT_AS:
        assert rig.output.table(f"public.{name}").stale == DOUBT
        if dropped == "drop":  # it is new, what rows had in it before does not come back
            assert [row[2] for row in shown(rig, name)] == [None, None, 3, None]
    for part in rig.db.snapshot(*WHOLE):
        rig.sink.write(part)
    rig.sink.flush()
    rig.apply()
    for name in KEPT_AS:
        assert rig.output.table(f"public.{name}").stale == ()
        assert shown(rig, name) == [(1, "a", 100), (2, "m", 2), (3, "k", 3), (4, "d", 4)]
    rig.applier.close()
    rig.sink.close()


@pytest.mark.parametrize("table_format", ["parquet", "delta"])
def test_a_table_that_was_left_out_and_comes_back_needs_a_snapshot(
    delta: Any, tmp_path: Path, table_format: str
) -> None:
    """Also when the engine died before anything came of it; not one of which nothing is there."""
    rig = Rig(tmp_path, delta, table_format, parallel=1)
    table, new = WHOLE
    rig.db.insert(table, ["1", "a", "1"], ["2", "b", "2"])
    rig.commit()
    rig.apply()
    for each in (table, new):
        rig.sink.missed(each.name)
    rig.sink.close()
    rig.sink.open()
    for each in (table, new):
        rig.db.insert(each, ["3", "c", "3"])
    rig.commit()
    rig.apply()
    (doubt,) = rig.output.table(table.name).stale
    assert "not captured for a while" in doubt
    assert rig.output.table(new.name).stale == ()
    rig.db.rows[table.name] = rig.db.rows[table.name][1:]
    for part in rig.db.snapshot(table, new):
        rig.sink.write(part)
    rig.sink.flush()
    rig.db.insert(table, ["4", "d", "4"])
    rig.commit()
    rig.apply()
    assert rig.output.table(table.name).stale == (), "it is said once"
    rig.check(table)
    rig.applier.close()
    rig.sink.close()
