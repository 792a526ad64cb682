"""What fails while tables in place are written, in one process that goes on; stated once for all such formats."""

from typing import Any

import pytest
from pyspark.errors import PySparkException
from tests.harness.changelog import relation
from tests.harness.spark import Rig

from waltap_spark.apply import applier
from waltap_spark.formats import merging
from waltap_spark.formats.work import TableWriter
from waltap_spark.read.live import LiveTables

PEOPLE = relation("public.people", [("id", "int4"), ("name", "text"), ("note", "text")])


def merging_alone(patch: pytest.MonkeyPatch, rig: Rig) -> None:
    """Have Spark write changed rows, and by MERGE."""
    patch.setattr(rig.applier.format, "replacer", lambda _spark, **_how: None)
    patch.setattr(rig.applier.format, "replacing", lambda *_of: None)


def steps_that_fail_are_taken_once(rig: Rig) -> None:
    """A table whose rows cannot be written has its history written by then: the next try finds it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(applier, "RETRY_S", 0.0)
        merging_alone(patch, rig)
        rig.db.insert(PEOPLE, ["1", "a", "n"], ["2", "b", "m"])
        rig.follow()
        rig.db.update(PEOPLE, ["1"], name="c", unsent=["note"])
        rig.commit()
        with patch.context() as failing:
            failing.setattr(TableWriter, "merge", _fails)
            rig.apply()
        assert "a task is lost" in rig.output.table("people").failed
        rig.apply()
    _check(rig, changes=3)


def upkeep_that_fails_takes_nothing_back(rig: Rig) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merging, "COMPACT_STEPS", 1)
        patch.setattr(merging, "VACUUM_S", 0.0)
        patch.setattr(rig.applier.format, "has_few_files", lambda _target: False)
        tried = []
        for name in ("compact_files", "vacuum"):
            patch.setattr(
                rig.applier.format, name, lambda *_of, name=name: _fails(tried.append(name))
            )
        rig.db.insert(PEOPLE, ["1", "a", "n"], ["2", "b", "m"])
        rig.follow()
        rig.db.insert(PEOPLE, ["3", "c", "m"])
        rig.follow()
    assert set(tried) == {"compact_files", "vacuum"}
    _check(rig, changes=3)


def _check(rig: Rig, *, changes: int) -> None:
    assert rig.output.table("people").failed == ""
    rig.check(PEOPLE)
    assert LiveTables(rig.spark, rig.output).changes("people").count() == changes


def _fails(*_arguments: Any) -> None:
    raise PySparkException("a task is lost")
