"""A snapshot that tasks read into a table that is written in place: rows wait in files until the commit."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.harness.changelog import context, relation
from tests.harness.handed import ITEMS, Chunk, rows
from tests.harness.spark import Died

from waltap.decode.relation import Relation
from waltap_sinks.changelog import ChangeLog, ChangeLogProperties, ChangeLogSink
from waltap_spark import external_snapshots
from waltap_spark.applier import ApplyOptions, OutputApplier
from waltap_spark.formats.choice import FormatChoice
from waltap_spark.formats.work import TableWriter
from waltap_spark.live import LiveTables
from waltap_spark.output import SparkOutput
from waltap_spark.session import prepare
from waltap_spark.snapshot_splits import AssignedSplits, Handed

pytestmark = pytest.mark.usefixtures("quick_plans")

OLD = [("1", "old"), ("2", "old"), ("3", "gone")]
NEW = [("1", "new"), ("2", "old")]


class Tables:
    """A log, its tables, and what an engine hands over."""

    def __init__(self, folder: Path, spark: Any, kind: str = "delta") -> None:
        self.folder, self.spark, self.kind = folder, prepare(spark), kind
        self.handed: dict[str, Handed] = {}
        self.reopen()

    def reopen(self) -> None:
        """A new engine."""
        place = context(self.folder, resumes=True)
        self.sink = ChangeLogSink(ChangeLogProperties(path=str(self.folder / "log")), place)
        self.sink.open()

    def hand_over(
        self, name: str, content: Sequence[tuple[str, ...]], table: Relation = ITEMS
    ) -> None:
        """Hand ``content`` over, a row a chunk, and say so in the log; what was handed before is gone."""
        chunks = [Chunk(table, n, len(content), [row]) for n, row in enumerate(content)]
        self.handed = {name: {table.name: AssignedSplits.of(chunks, context(self.folder))}}
        self.sink.write(rows(name, table=table))
        self.sink.flush()

    def apply(self) -> None:
        """Apply all there is by a driver of its own."""
        log, output = ChangeLog(str(self.folder / "log")), SparkOutput(str(self.folder / "out"))
        applier = OutputApplier(
            prepare(self.spark), log, output, ApplyOptions(parallel=1), FormatChoice(self.kind),
            self.handed.get,
        )  # fmt: skip
        applier.open()
        try:
            applier.apply(list(log.manifests(applier.state.mark)))
        finally:
            applier.close()

    def apply_and_die(self, place: object, name: str) -> None:
        """Apply by a driver that dies where it comes to ``name`` of ``place``."""

        def dies(*_given: object) -> None:
            raise Died

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(place, name, dies)
            with pytest.raises(Died):
                self.apply()

    def read(self, what: str) -> list[tuple[str, ...]]:
        """Return the rows, or the history."""
        tables = LiveTables(self.spark, SparkOutput(str(self.folder / "out")))
        found = getattr(tables, what)(ITEMS.name).selectExpr("cast(id as string)", "v")
        return sorted(map(tuple, found.collect()))

    @property
    def waiting(self) -> list[Path]:
        """Return files of rows that wait."""
        return list((self.folder / "out" / external_snapshots.WAITING).rglob("*.parquet"))


def test_a_step_that_was_taken_keeps_its_rows_when_driver_and_engine_die(
    delta: Any, tmp_path: Path
) -> None:
    die_between_two_steps(Tables(tmp_path, delta))


def die_between_two_steps(tables: Tables) -> None:
    """The history has the first snapshot's rows, the table has none yet: both go on with these."""
    tables.hand_over("one", OLD)
    tables.apply_and_die(TableWriter, "overwrite")
    assert tables.waiting
    tables.sink.close()
    tables.reopen()
    tables.hand_over("two", NEW)
    tables.apply()
    assert tables.read("current") == NEW
    assert tables.read("changes") == sorted([*OLD, *NEW])
    assert not tables.waiting
    tables.sink.close()


def test_rows_of_which_some_are_missing_are_read_again(
    delta: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that dies when they are written and not yet durable, and an engine that lives."""
    tables = Tables(tmp_path, delta)
    tables.hand_over("one", OLD)
    tables.apply_and_die(SparkOutput, "sync")
    before = set(tables.waiting)
    assert before
    assert not list((tmp_path / "out").rglob("_delta_log")), (
        "no step is taken before they are there"
    )
    with monkeypatch.context() as patch:
        patch.setattr(external_snapshots.ExternalSnapshots, "settle", lambda _self: None)
        tables.apply()
    assert tables.waiting
    assert not before & set(tables.waiting), "they were written anew"
    assert tables.read("current") == tables.read("changes") == OLD
    tables.apply()
    assert not tables.waiting, "who opens the tables next, and owes nothing, clears them away"
    tables.sink.close()


def test_a_snapshot_that_is_lost_before_its_rows_are_there_leaves_nothing(
    delta: Any, tmp_path: Path
) -> None:
    """Until the next one the table may have got other columns."""
    tables = Tables(tmp_path, delta)
    tables.hand_over("one", OLD)
    tables.apply_and_die(external_snapshots, "chunk_rows")
    tables.sink.close()
    tables.reopen()
    wider = relation(ITEMS.name, [("id", "int8"), ("v", "text"), ("more", "int4")])
    tables.hand_over("two", [("5000000000", "new", "7")], wider)
    tables.apply()
    assert tables.read("current") == tables.read("changes") == [("5000000000", "new")]
    more = LiveTables(delta, SparkOutput(str(tmp_path / "out"))).current(ITEMS.name).select("more")
    assert [row[0] for row in more.collect()] == [7]
    tables.sink.close()
