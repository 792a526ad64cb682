"""Versions of rows of which one transaction is applied in parts; stated once for all formats."""

from pathlib import Path
from typing import Any

from tests.harness.changelog import relation
from tests.harness.spark import Rig

from waltap_spark.live import LiveTables
from waltap_spark.modes import ModeRules

__all__ = ["a_transaction_is_one_version"]

NARROW = relation("public.people", [("id", "int4"), ("name", "text")])
WIDE = relation("public.people", [("id", "int4"), ("name", "text"), ("more", "text")])


def a_transaction_is_one_version(folder: Path, spark: Any, table_format: str) -> None:
    """UPDATE; ALTER TABLE ADD COLUMN; UPDATE, or DELETE, in one transaction, which is two groups of changes."""
    rig = Rig(folder, spark, table_format, modes=ModeRules(modes=("scd2",)))
    rig.db.insert(NARROW, ["1", "a"], ["2", "a"], ["3", "a"])
    rig.commit()
    rig.apply()
    before = rig.db.lsn
    for key in ("1", "2"):
        rig.db.update(NARROW, [key], name="b")
    rig.db.insert(NARROW, ["4", "comes"])
    rig.db.rows[NARROW.name] = [(*row, None) for row in rig.db.rows[NARROW.name]]
    rig.db.update(WIDE, ["1"], more="x")
    rig.db.delete(WIDE, ["2"])
    rig.db.delete(WIDE, ["4"])
    rig.commit()
    rig.apply()
    assert rig.output.table("people").failed == ""
    frame = LiveTables(rig.spark, rig.output).current("people")
    rows = frame.select("id", "name", "more", "_current", "_from_lsn", "_to_lsn").collect()
    told = sorted((r[0], r[1], r[2], r[3], r[4] > before, r[5] is None) for r in rows)
    assert told == [
        (1, "a", None, False, False, False),
        (1, "b", "x", True, True, True),
        (2, "a", None, False, False, False),
        (3, "a", None, True, False, True),
    ]
    rig.applier.close()
    rig.sink.close()
