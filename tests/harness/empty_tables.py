"""Tables that hold no row when a snapshot reads them, or when they are truncated: what a statement finds
nothing to do for is a step all the same."""

from tests.harness.shared_sources import INTO, RULES, of
from tests.harness.spark import Rig

from waltap_spark.live import LiveTables

__all__ = ["OPTIONS", "tables_without_rows_follow"]

OPTIONS = {"places": INTO, "modes": RULES}
KINDS = ("plain", "versions")


def tables_without_rows_follow(rig: Rig) -> None:
    """For a table alone, and for two that share a target."""
    alone = [of("", f"public_{kind}") for kind in KINDS]
    tables = [*alone, *(of(tenant, kind) for tenant in "12" for kind in KINDS)]

    def snapshot() -> None:
        for each in rig.db.snapshot(*tables):
            rig.sink.write(each)
        rig.sink.flush()
        rig.apply()

    def check(rows: int) -> None:
        states = rig.applier.state.tables
        failed = {name: each.failed for name, each in states.items() if each.failed}
        assert not failed, failed
        assert len(states) == len(tables)
        found = LiveTables(rig.spark, rig.output)
        assert {each.name: found.current(each.name).count() for each in tables if _standing(each.table)} == {
            each.name: rows for each in tables if _standing(each.table)
        }  # fmt: skip

    snapshot()
    check(0)
    rig.db.truncate(*tables)
    rig.commit()
    rig.apply()
    check(0)
    for table in tables:
        rig.db.insert(table, ["1", "a", None])
    rig.commit()
    rig.apply()
    check(1)
    rig.db.truncate(*tables)
    rig.commit()
    rig.apply()
    check(0)
    snapshot()
    check(0)


def _standing(table: str) -> bool:
    """Tell whether the rows of a table are those of the source, no more."""
    return table.endswith("plain")
