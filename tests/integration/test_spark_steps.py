"""Steps of tables in Delta Lake that are repeated: what was done is found again, and nothing else is taken for it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from tests.harness.changelog import relation
from tests.harness.spark import Rig

from waltap_sinks.changelog.manifest import LogPosition
from waltap_spark import retries
from waltap_spark.formats.work import TableWriter
from waltap_spark.live import LiveTables
from waltap_spark.plan import TableTask

pytestmark = pytest.mark.usefixtures("quick_plans")

HAD = [("id", "int4"), ("name", "text"), ("note", "text")]
WITH = relation("public.people", HAD, numbers=(1, 2, 3))
WITHOUT = relation("public.people", HAD[:2], numbers=(1, 2))


@pytest.fixture
def rig(delta: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    monkeypatch.setattr(retries, "RETRY_S", 0.0)
    made = Rig(tmp_path, delta, "delta", parallel=1, dropped=("drop",))
    made.db.insert(WITH, ["1", "Ann", "x"])
    made.commit()
    made.apply()
    yield made
    made.applier.close()
    made.sink.close()


@pytest.mark.parametrize("brought_back", [False, True])
def test_a_rule_that_changes_while_a_commit_is_half_done_stops_the_table(
    rig: Rig, brought_back: bool
) -> None:
    """Else a column's removal counts as the writing of rows. It goes on under the old rule, or from the
    versions of the last commit."""
    held = rig.output.table("people").held
    assert held is not None
    rig.db.rows[WITH.name] = [("1", "Ann")]
    rig.db.insert(WITHOUT, ["2", "Bob"])
    rig.commit()
    rig.apply_and_die()
    rig.reopen(parallel=1, dropped=("keep",))
    rig.apply()
    failed = rig.output.table("people").failed
    assert "WT-5267" in failed
    assert "drop note" in failed
    if brought_back:
        for target in held.targets.values():
            rig.spark.sql(f"RESTORE TABLE {target.at} TO VERSION AS OF {target.version}")
        assert str(held.targets["changes"].version) in failed
    if not brought_back:  # the same process sees it where the table was brought back
        rig.reopen(parallel=1, dropped=("drop",))
    for more in (0, 1):
        if more:
            rig.db.insert(WITHOUT, ["3", "Cid"])
            rig.commit()
        rig.apply()
        assert rig.output.table("people").failed == ""
        rig.check(WITHOUT)
        tables = LiveTables(rig.spark, rig.output)
        assert tables.changes("people").count() == 2 + more
        assert ("note" in tables.current("people").columns) == brought_back


def test_steps_of_fewer_changes_are_not_taken_for_those_of_more(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a table that stands still lost sight of how far it had been tried."""

    def forgotten(plan: TableTask, had: Any, *, every: bool) -> tuple[LogPosition, ...]:
        return ()

    def fails(*_arguments: Any) -> None:
        raise PySparkException("out of order")

    monkeypatch.setattr(rig.applier._format, "puts", lambda _spark: False)
    for name in ("a", "b"):
        rig.db.update(WITH, ["1"], name=name)
        rig.commit()
        with monkeypatch.context() as patch:
            patch.setattr(TableTask, "ends", forgotten)
            patch.setattr(TableWriter, "merge", fails)
            rig.apply()
    failed = rig.output.table("people").failed
    assert "WT-5267" in failed
    assert "up to " in failed
