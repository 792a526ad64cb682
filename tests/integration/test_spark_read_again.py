"""Rows of tables that a blocking snapshot reads again, later than where they stand in the stream."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.harness.changelog import ALL, Database, batch, context, relation

from waltap.source.position import Position
from waltap.transactions.transaction import Batch, SnapshotRows
from waltap_sinks.changelog import ChangeLog, ChangeLogProperties, ChangeLogSink
from waltap_spark.applier import ApplyOptions, OutputApplier
from waltap_spark.formats.choice import FormatChoice
from waltap_spark.live import LiveTables
from waltap_spark.output import SparkOutput

FORMATS = pytest.mark.parametrize("table_format", ["parquet", "delta"])
PEOPLE = relation("public.people", [("id", "int4"), ("name", "text")])
OTHER = relation("public.other", [("id", "int4"), ("name", "text")])

KEYLESS = relation("public.keyless", [("id", "int4"), ("name", "text")], key=())


class Read:
    """A change log and the tables that follow it, commit by commit."""

    def __init__(self, folder: Path, spark: Any, table_format: str, table: Any = PEOPLE) -> None:
        self.folder, self.spark, self.db, self.table = folder, spark, Database(), table
        self.choice = FormatChoice(table_format)
        path = ChangeLogProperties(path=str(folder / "log"))
        self.sink = ChangeLogSink(path, context(folder, whole=True))
        self.sink.open()
        self.sink.begins(ALL)
        self.insert(("0", "first"), into=OTHER)

    def initial(self, *rows: tuple[str, ...]) -> None:
        self.db.rows[self.table.name] = list(rows)
        for each in self.db.snapshot(self.table):
            self.sink.write(each)

    def blocking(self, *rows: tuple[str, ...]) -> None:
        """A piece of what a blocking snapshot reads."""
        piece = SnapshotRows(relation=self.table, rows=rows, ts=0, lsn=1, xid=1, kind="blocking")
        position = Position(self.db.lsn)
        self.sink.write(Batch(parts=[piece], position=position, events=len(rows), snapshot=True))

    def insert(self, *rows: tuple[str, ...], into: Any = None) -> None:
        self.db.insert(into or self.table, *rows)
        self.sink.write(batch(self.db.commit()))

    def rows(self) -> Sequence[tuple[Any, ...]]:
        """Publish and apply; return the table's rows."""
        self.sink.flush()
        found = LiveTables(self.spark, self.apply())
        return sorted(tuple(row) for row in found.current(self.table.name).collect())

    def doubts(self) -> tuple[str, ...]:
        state = SparkOutput(str(self.folder / "out")).state()
        assert state is not None
        return state.tables[self.table.name].stale

    def apply(self) -> SparkOutput:
        log, output = ChangeLog(str(self.folder / "log")), SparkOutput(str(self.folder / "out"))
        options = ApplyOptions(fold_sets=1)
        applier = OutputApplier(self.spark, log, output, options, self.choice)
        applier.open()
        applier.apply(list(log.manifests(applier.state.mark)))
        applier.maintain()
        applier.close()
        return output


@FORMATS
@pytest.mark.parametrize("before", [[("1", "a")], []], ids=["rows", "empty"])
def test_what_the_stream_brings_once_more_stands_once(
    tmp_path: Path, delta: Any, table_format: str, before: list[tuple[str, ...]]
) -> None:
    """It was inserted behind the signal, and before the table was read."""
    read = Read(tmp_path, delta, table_format)
    keys = [int(key) for key, _name in before]
    if before:
        read.initial(*before)
        assert [row[0] for row in read.rows()] == keys
    read.blocking(*before, ("2", "b"))
    assert [row[0] for row in read.rows()] == [*keys, 2]
    read.insert(("2", "b"))
    assert [row[0] for row in read.rows()] == [*keys, 2]
    read.insert(("3", "c"))
    assert [row[0] for row in read.rows()] == [*keys, 2, 3]


@FORMATS
def test_a_table_without_a_key_that_is_read_again_needs_a_new_snapshot(
    tmp_path: Path, delta: Any, table_format: str
) -> None:
    """Nobody can tell which of its rows it had; a snapshot that replaces them ends the doubt."""
    read = Read(tmp_path, delta, table_format, KEYLESS)
    three = ("1", "a"), ("2", "b"), ("3", "c")
    read.initial(*three)
    assert len(read.rows()) == 3
    read.insert(("4", "d"))
    assert len(read.rows()) == 4
    assert read.doubts() == ()
    read.blocking(*three, ("4", "d"))
    read.rows()
    [doubt] = read.doubts()
    assert "they may stand twice" in doubt
    read.initial(*three)
    assert len(read.rows()) == 3
    assert read.doubts() == ()
