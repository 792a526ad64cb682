"""Tables in Delta Lake that somebody else wrote, and brought back: no step of ours is lost by that."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.harness.spark import Rig
from tests.integration.test_spark_applier import PEOPLE

from waltap_spark import retries
from waltap_spark.live import LiveTables

pytestmark = pytest.mark.usefixtures("quick_plans")


@pytest.fixture
def rig(delta: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    monkeypatch.setattr(retries, "RETRY_S", 0.0)
    made = Rig(tmp_path, delta, "delta", parallel=1)
    made.db.insert(PEOPLE, ["1", "Ann", "x"], ["2", "Bob", "y"])
    made.commit()
    made.apply()
    yield made
    made.applier.close()
    made.sink.close()


def current(rig: Rig) -> tuple[str, int]:
    held = rig.output.table("people").held
    assert held is not None
    target = held.targets["current"]
    return target.at, target.version


def named(rig: Rig) -> int:
    """Return the version that the error names."""
    found = re.search(
        r"back to version (\d+), the last one without that", rig.output.table("people").failed
    )
    assert found is not None, rig.output.table("people").failed
    return int(found[1])


def restore(rig: Rig, version: int) -> None:
    rig.spark.sql(f"RESTORE TABLE {current(rig)[0]} TO VERSION AS OF {version}")


def check(rig: Rig, changes: int) -> None:
    """Rows are right, also those of the newest version; and so they are after one more commit."""
    for more in (0, 1):
        if more:
            rig.db.insert(PEOPLE, ["90", "more", None])
            rig.commit()
            rig.apply()
        assert rig.output.table("people").failed == ""
        rig.check(PEOPLE)
        names = ", ".join(f"cast({each.name} as string)" for each in PEOPLE.columns)
        newest = rig.spark.sql(f"SELECT {names} FROM {current(rig)[0]}").collect()
        assert sorted(map(tuple, newest), key=str) == sorted(rig.db.rows[PEOPLE.name], key=str)
        assert LiveTables(rig.spark, rig.output).changes("people").count() == changes + more


@pytest.mark.parametrize("to_commit", [False, True])
def test_what_a_driver_that_died_wrote_is_not_lost_where_the_table_is_brought_back(
    rig: Rig, to_commit: bool
) -> None:
    """The error names the version that has it. Where the table is brought back to that of the last commit,
    it is written again."""
    at, committed = current(rig)
    rig.db.insert(PEOPLE, ["3", "Cid", "z"])
    rig.commit()
    rig.apply_and_die()
    rig.spark.sql(f"DELETE FROM {at}")
    rig.apply()
    assert named(rig) > committed
    restore(rig, committed if to_commit else named(rig))
    rig.apply()
    check(rig, 3)


@pytest.mark.parametrize(("reopened", "update"), [(False, True), (True, False)])
def test_what_a_driver_wrote_on_foreign_rows_is_written_again(
    rig: Rig, reopened: bool, update: bool
) -> None:
    """It had looked before they came. Delta remembers the step, also where its rows are gone."""
    at, committed = current(rig)
    for turn in range(2):
        rig.spark.sql(f"DELETE FROM {at}")
        if update:
            rig.db.update(PEOPLE, ["1"], name=f"Eve {turn}")
        else:
            rig.db.insert(PEOPLE, [str(3 + turn), "Cid", "z"])
        rig.commit()
        rig.apply()
        assert named(rig) == committed
        restore(rig, committed)
        if reopened:
            rig.reopen()
        rig.apply()
        assert rig.output.table("people").failed == ""
        committed = current(rig)[1]
    check(rig, 4)


def test_a_table_that_is_brought_back_to_what_it_is_goes_on(rig: Rig) -> None:
    restore(rig, current(rig)[1])
    rig.db.insert(PEOPLE, ["3", "Cid", "z"])
    rig.commit()
    rig.reopen()
    rig.apply()
    check(rig, 3)
