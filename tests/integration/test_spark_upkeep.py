"""Files are folded and merged by a thread beside the commits, which go on; an end cancels what it does."""

import threading
import time
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tests.harness.changelog import relation
from tests.harness.spark import Rig

from waltap_spark.compaction_worker import CompactionWorker
from waltap_spark.formats import CommitContext, TableFormatContext, parquet
from waltap_spark.formats.parquet import ParquetFormat
from waltap_spark.live import LiveTables
from waltap_spark.modes import ModeRules
from waltap_spark.output import SparkOutput, TableState
from waltap_spark.session import prepare

pytestmark = pytest.mark.usefixtures("quick_plans")

PEOPLE = relation("public.people", [("id", "int4"), ("name", "text"), ("note", "text")])
KEYED = relation(
    "public.people", [("id", "int4"), ("name", "text"), ("note", "text")], key=("id", "name")
)
OTHERS = relation("public.others", [("id", "int4"), ("name", "text")])
WAIT_S = 120.0


def test_commits_and_folds_of_the_same_tables_go_on_beside_each_other(
    spark: Any, tmp_path: Path
) -> None:
    """Every commit is followed by a fold of what it left; truncates and other keys make some of them
    void."""
    rig = Rig(tmp_path, spark, fold_rows=0, fold_share=0.0, merge_sets=2)
    rig.applier.keep_up()
    rig.applier.keep_up()  # as if by two: one thread

    def commit() -> None:
        rig.commit()
        rig.applier.apply(list(rig.log.manifests(rig.applier.state.mark)))

    people = PEOPLE
    for number in range(1, 15):
        if number == 6:
            rig.db.truncate(OTHERS)
        if number == 9:
            people = KEYED
        rig.db.insert(people, [str(number), "new", "x"])
        rig.db.insert(OTHERS, [str(number), "new"])
        if number % 2 == 0:
            rig.db.update(
                people, [*("1", "new")[: len(people.primary_key or ())]], note=str(number)
            )
            rig.db.update(OTHERS, [str(number)], name="changed")
        commit()
    limit = time.monotonic() + WAIT_S
    while any(table.pending for table in rig.applier.state.tables.values()):
        assert time.monotonic() < limit, "nothing is folded"
        rig.applier.apply([])
        time.sleep(0.05)
    rig.check(people, OTHERS)
    tables = LiveTables(rig.spark, rig.output)
    assert tables.changes("people").count() == 14 + 7
    assert tables.changes("others").count() == 14 + 7 + 1
    rig.reopen()
    assert rig.folders() == rig.named_folders(), "what was made in vain is gone"
    rig.check(people, OTHERS)
    rig.applier.close()
    rig.sink.close()


def test_versions_that_ended_are_not_written_again(spark: Any, tmp_path: Path) -> None:
    rules = ModeRules(modes=("scd2",))
    rig = Rig(tmp_path, spark, fold_rows=0, fold_share=0.0, merge_sets=3, modes=rules)
    rig.db.insert(OTHERS, ["1", "0"], ["2", "0"])
    seen: set[str] = set()
    for number in range(1, 6):
        rig.db.update(OTHERS, ["1"], name=str(number))
        rig.commit()
        rig.apply()
        base = rig.output.table("others").base
        ended = {part.path: part.rows for part in base if part.closed}
        assert sum(ended.values()) == max(0, number - 1)
        assert sum(part.rows for part in base) == number + 1
        assert len(ended) < 3
        assert seen <= ended.keys() or len(seen) == 2, "but where small parts are made one"
        seen = set(ended)
    rows = LiveTables(rig.spark, rig.output).current("others").where("id = 1")
    assert sorted(row["name"] for row in rows.collect()) == ["1", "2", "3", "4", "5"]
    assert [row["name"] for row in rows.where("_current").collect()] == ["5"]
    rig.reopen()
    assert rig.folders() == rig.named_folders()
    rig.applier.close()
    rig.sink.close()


def test_versions_that_ended_are_no_reason_to_fold(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They stay through a fold: however many their parts are, there is an end of folding."""
    monkeypatch.setattr(parquet, "MOST_PARTS", 2)
    rules = ModeRules(modes=("scd2",))
    rig = Rig(tmp_path, spark, fold_rows=0, fold_share=0.0, modes=rules)
    rig.db.insert(OTHERS, ["1", "0"])
    for number in range(1, 5):
        rig.db.update(OTHERS, ["1"], name=str(number))
        rig.commit()
        rig.applier.apply(list(rig.log.manifests(rig.applier.state.mark)))
        upkeep = rig.applier._upkeep
        assert upkeep is not None
        tended = 0
        while upkeep.tend(patient=False):
            rig.applier.apply([])
            tended += 1
            assert tended < 3, "it is folded again and again"
    parts = rig.output.table("others").base
    assert len([part for part in parts if part.closed]) > 2
    assert len([part for part in parts if not part.closed]) == 1
    rig.applier.close()
    rig.sink.close()


class Endless(ParquetFormat):
    """Its upkeep is a job of Spark's that nobody sees the end of."""

    begun: ClassVar[threading.Event] = threading.Event()

    def maintain(self, step: CommitContext, table: TableState) -> TableState:
        self.begun.set()
        step.spark.range(10**14).selectExpr("sum(id % 7)").collect()
        return table


def test_an_end_cancels_what_is_being_folded(spark: Any, tmp_path: Path) -> None:
    rig = Rig(tmp_path, spark)
    rig.db.insert(OTHERS, ["1", "new"])
    rig.commit()
    rig.apply()
    output = SparkOutput(str(tmp_path / "out"))
    context = TableFormatContext(output=output, options=rig.options, identity=lambda: "")
    upkeep = CompactionWorker(lambda: prepare(spark), output, Endless(context))
    upkeep.look(rig.applier.state)
    upkeep.start()
    assert Endless.begun.wait(WAIT_S)
    upkeep.stop(WAIT_S)
    assert "waltap-upkeep" not in [each.name for each in threading.enumerate()]
    assert upkeep.done() == []
    rig.db.insert(OTHERS, ["2", "new"])
    rig.commit()
    rig.apply()
    rig.check(OTHERS)
    rig.applier.close()
    rig.sink.close()
