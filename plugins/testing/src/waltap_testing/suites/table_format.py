"""Conformance tests for formats of Spark tables.

Subclass `TableFormatSuite` and define the fixture ``rig``:

    class TestMyFormat(TableFormatSuite):
        @pytest.fixture
        def rig(self, spark):
            return TableFormatRig(MY_SPEC, spark)

``spark`` is a session with the format's libraries. The suite writes a change log, the real applier
applies it, and the suite reads the tables as users do. It needs `waltap-spark`, `waltap-sinks` and
`waltap-postgres`. Spark starts jobs slowly, so each test makes few commits.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from waltap.changes.decode.message import Delete, Insert, OldTuple, Update
from waltap.changes.decode.relation import Relation
from waltap.changes.decode.tuple_image import ABSENT, UNCHANGED, Tuple, Value
from waltap.changes.transactions.position import START, Position
from waltap.ports.sink.sink import SinkContext
from waltap.ports.source.connector import PublicationCompleteness
from waltap.ports.specs import TableFormatSpec
from waltap_sinks.changelog import ChangeLog, ChangeLogProperties, ChangeLogSink
from waltap_spark.apply.applier import OutputApplier
from waltap_spark.config.options import ApplyOptions
from waltap_spark.formats import TableFormat, What
from waltap_spark.formats.choice import FormatChoice
from waltap_spark.read.live import LiveTables
from waltap_spark.session.session import prepare
from waltap_spark.state.modes import ModeRules
from waltap_spark.state.output import SparkOutput, TableState
from waltap_testing.crash import CrashChild, KillPoint, imitated
from waltap_testing.installed import identity_as_sent, mapper
from waltap_testing.suite import RigSuite
from waltap_testing.workload import ITEMS, NOTES, ExpectedEvent, ScriptedWorkload, relation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


Rows = list[tuple[str | None, ...]]


@dataclass(frozen=True, slots=True)
class TableFormatRig:
    """The table format under test."""

    spec: TableFormatSpec
    # A session with the format's libraries.
    spark: "SparkSession"
    _: KW_ONLY
    # The format's properties as a profile has them (``format.NAME``).
    values: Mapping[str, str] = field(default_factory=dict)
    # The modes of tables; tables without key (``pairs``) support no versions.
    modes: ModeRules = field(default_factory=ModeRules)


class _RigFormat(FormatChoice):
    """A rig's format, not installed, whose writes are steps."""

    def __init__(self, rig: TableFormatRig) -> None:
        super().__init__(rig.spec.name, rig.values)
        self._rig = rig
        # The child that may die at a step; None outside of `imitated`.
        self.child: CrashChild | None = None

    @property
    def factory(self) -> Any:
        properties = self._properties(self._rig.spec)
        return lambda context: _MortalFormat(self._rig.spec.factory(properties, context), self)


def _mortal(method: str) -> Any:
    """Return a method of `_MortalFormat` that calls the format's own."""

    def call(self: "_MortalFormat", *arguments: Any) -> TableState:
        child = self._choice.child
        if child is not None:
            child.mark(f"before {method}")
        done: TableState = getattr(self._inner, method)(*arguments)
        if child is not None:
            child.mark(f"after {method}")
        return done

    return call


class _MortalFormat(TableFormat):
    """A format that may die before and after every write."""

    def __init__(self, inner: TableFormat, choice: _RigFormat) -> None:
        self._inner, self._choice = inner, choice
        self.writes_in_place = inner.writes_in_place  # type: ignore[misc] # as the format has it

    evolve, replace, apply = map(_mortal, ("evolve", "replace", "apply"))
    truncate, maintain = map(_mortal, ("truncate", "maintain"))

    def read(self, spark: "SparkSession", table: TableState, what: What) -> "DataFrame":
        return self._inner.read(spark, table, what)

    def estimated_rows(self, spark: "SparkSession", table: TableState) -> int | None:
        return self._inner.estimated_rows(spark, table)


class _LogAndTables:
    """A change log and the tables that are made from it."""

    def __init__(self, rig: TableFormatRig, folder: Path) -> None:
        self.folder, self.workload = folder, ScriptedWorkload()
        self.spark, self.choice, self.modes = prepare(rig.spark), _RigFormat(rig), rig.modes
        context = SinkContext(
            pipeline="test",
            state_dir=folder,
            types=mapper(),
            identity=identity_as_sent(),
            has_offset=True,
            gets_every_change=True,
        )
        self.sink = ChangeLogSink(ChangeLogProperties(path=str(folder / "log")), context)
        self.sink.open()
        self.sink.begins(PublicationCompleteness(others="all", continuous=True))
        self._written: Position = START
        self.log = ChangeLog(str(folder / "log"))
        self.open()

    def open(self) -> None:
        self.output = SparkOutput(str(self.folder / "out"))
        # One table after another, so that the moments of a kill repeat.
        options = ApplyOptions(parallel=1, compact_rows=0, modes=self.modes)
        self.applier = OutputApplier(self.spark, self.log, self.output, options, self.choice)
        self.applier.open()

    def commit(self) -> None:
        """COMMIT in the source and flush the change log."""
        self.workload.commit()
        for batch in self.workload.batches(1_000, self._written, records=False):
            self.sink.write(batch)
            self._written = batch.position
        self.sink.flush()

    def step(self, *checked: Relation) -> None:
        """Commit, apply, and check these tables."""
        self.commit()
        self.apply()
        self.check(*checked)

    def apply(self) -> None:
        """Apply the new changes, then maintain the tables' files."""
        self.applier.apply(list(self.log.manifests(self.applier.state.log_position)))
        self.applier.maintain()

    def apply_in(self, child: CrashChild) -> None:
        self.choice.child = child
        try:
            self.apply()
        finally:
            self.choice.child = None

    def reader(self) -> LiveTables:
        """Return the tables as their users open them."""
        return LiveTables(self.spark, self.output, self.choice)

    def rows(self, table: Relation, tables: LiveTables | None = None) -> Rows:
        frame = (tables or self.reader()).live_rows(table.name)
        listed = [f"cast(`{column.name}` as string)" for column in table.columns]
        return sorted((tuple(row) for row in frame.selectExpr(*listed).collect()), key=str)

    def model(self, table: Relation) -> Rows:
        found = self.workload.rows.get(table.name, {}).values()
        return sorted((tuple(row) for row in found), key=str)

    def check(self, *tables: Relation) -> None:
        """Check the rows and the whole history of the tables."""
        reader = self.reader()
        for table in tables:
            assert self.rows(table, reader) == self.model(table), table.name
            logged = [event.op for event in self.workload.events if event.table == table.name]
            wanted = sorted(op for op in logged if op is not None)
            history = reader.changes(table.name).select("_op").collect()
            assert sorted(row["_op"] for row in history) == wanted, table.name

    def insert(self, table: Relation, row: Tuple) -> None:
        """INSERT a row into a table of any columns."""
        work, event = self.workload, ExpectedEvent(table.name, "c", None, None)
        work._add(Insert(table, work._step(), row), event)  # noqa: SLF001

    def update(
        self,
        table: Relation,
        key: int,
        values: Sequence[str | None],
        *,
        moved_to: int | None = None,
    ) -> None:
        """UPDATE a row without sending its last column.

        The server omits a long value that the statement did not change (unchanged TOAST).
        """
        work = self.workload
        before = work.rows[table.name].pop(key)
        now = (str(key if moved_to is None else moved_to), *values, before[-1])
        work.rows[table.name][int(now[0] or 0)] = now
        # With the default replica identity the server sends the old key only if the key changes.
        old: Tuple = () if moved_to is None else (before[0], *[ABSENT] * (len(before) - 1))
        sent: tuple[Value, ...] = (*now[:-1], UNCHANGED)
        kind = OldTuple.NONE if moved_to is None else OldTuple.KEY
        work._add(  # noqa: SLF001 - the workload's own updates bring all values
            Update(table, work._step(), sent, old, kind),  # noqa: SLF001
            ExpectedEvent(table.name, "u", key, None),
        )
        if moved_to is not None:  # the history has it as a delete and an insert
            work.events[-1:] = [ExpectedEvent(table.name, op, key, None) for op in ("d", "c")]

    def close(self) -> None:
        self.applier.close()
        self.sink.close()


class TableFormatSuite(RigSuite):
    """Rules for every table format."""

    needs = "a TableFormatRig"

    @pytest.fixture
    def tables(self, rig: TableFormatRig, tmp_path: Path) -> Iterator[_LogAndTables]:
        made = _LogAndTables(rig, tmp_path)
        yield made
        made.close()

    def test_rows_and_history_follow_the_source(self, tables: _LogAndTables) -> None:
        """Rows and history match the source after every operation.

        Also with unsent values and with updates of keys.
        """
        work = tables.workload
        for number in range(1, 6):
            work.insert(ITEMS, number, f"long {number}")
            work.insert(NOTES, number, "n")
        tables.step(ITEMS, NOTES)
        work.update(ITEMS, 1, None)
        tables.update(ITEMS, 2, ["1002"])
        tables.update(ITEMS, 2, ["1003"], moved_to=20)
        work.delete(ITEMS, 3)
        work.insert(ITEMS, 6, "first")
        tables.update(ITEMS, 6, ["1006"])
        work.truncate(NOTES)
        work.insert(NOTES, 9, "after")
        tables.step(ITEMS, NOTES)

    def test_a_snapshot_replaces_the_rows_and_not_the_history(self, tables: _LogAndTables) -> None:
        work = tables.workload
        for number in range(1, 5):
            work.insert(ITEMS, number, "streamed")
            work.insert(NOTES, number, "streamed")
        tables.step()
        # Rows that disappeared without a delete in the change log, of one table all.
        del work.rows[ITEMS.name][4]
        work.rows[NOTES.name].clear()
        for batch in work.snapshot([ITEMS, NOTES], 2, records=False):
            tables.sink.write(batch)
        tables.sink.flush()
        tables.apply()
        tables.check(ITEMS)
        assert tables.rows(NOTES) == [], "an emptied table still has rows"

    def test_a_key_that_comes_again_behind_a_missing_delete_is_there_once(
        self, tables: _LogAndTables
    ) -> None:
        """A key is there once though the log lacks its delete."""
        work = tables.workload
        for number in range(1, 5):
            work.insert(ITEMS, number, "first")
        tables.step()
        del work.rows[ITEMS.name][2]
        tables.sink.begins(
            PublicationCompleteness(others="the publication was changed", continuous=True)
        )
        work.insert(ITEMS, 2, "again")
        tables.step(ITEMS)
        tables.sink.begins(PublicationCompleteness())
        for text in ("second", "third"):
            for number in (3, 9):
                work.rows[ITEMS.name].pop(number, None)
                work.insert(ITEMS, number, text)
            tables.commit()
        tables.apply()
        tables.check(ITEMS)

    def test_columns_are_added_and_widened_and_keep_their_values_when_renamed(
        self, tables: _LogAndTables
    ) -> None:
        """Columns are added, widened and renamed without losing values.

        The source's column numbers identify them. Older rows have null in a new column.
        """
        first = _numbered(("id", "int4"), ("n", "int4"))
        then = _numbered(("id", "int4"), ("size", "int8"), ("more", "text"))
        tables.insert(first, ("1", "5"))
        tables.step()
        tables.insert(then, ("2", "5000000000", "new"))
        tables.step()
        assert tables.output.table("shapes").failed == ""
        assert tables.rows(then) == [("1", "5", None), ("2", "5000000000", "new")]
        assert tables.reader().changes("shapes").count() == 2

    def test_a_table_without_key_has_every_row_as_often_as_the_source(
        self, tables: _LogAndTables
    ) -> None:
        """A keyless table is a multiset: deletes remove one equal row."""
        pairs = msgspec.structs.replace(
            relation("pairs", [("a", "text"), ("x", "float8")], oid=901),
            primary_key=(),
            identity="f",
        )
        work = tables.workload
        # PostgreSQL's float8 has 0 = -0, in two texts.
        rows: list[Tuple] = [("a", "1.5"), ("a", "1.5"), ("b", None), ("z", "0"), ("z", "-0")]
        for row in rows:
            tables.insert(pairs, row)
        tables.step()
        for gone in (("a", "1.5"), ("z", "-0")):
            old = OldTuple.FULL
            work._add(  # noqa: SLF001
                Delete(pairs, work._step(), gone, old),  # noqa: SLF001
                ExpectedEvent(pairs.name, "d", None, None),
            )
        tables.step()
        assert tables.output.table("pairs").failed == ""
        assert tables.rows(pairs) == [("a", "1.5"), ("b", None), ("z", "0.0")]

    def test_a_driver_that_dies_anywhere_leaves_one_cut_and_its_successor_continues(
        self, tables: _LogAndTables
    ) -> None:
        """A dead driver leaves all tables at the last commit.

        It dies before or after a method that writes. The next driver finds more changes and
        applies each once.
        """
        work = tables.workload
        for table in (ITEMS, NOTES):
            work.insert(table, 1, "x")
            work.insert(table, 2, "y")
        tables.step()
        number, deaths = 10, 0
        for moment in (4, 8):
            before = {table: tables.model(table) for table in (ITEMS, NOTES)}
            for more in range(2):
                for table in (ITEMS, NOTES):
                    tables.update(table, 1, [str(5000 + number)])
                    number += 1
                    work.insert(table, number, "new")
                tables.commit()
                if more:
                    break
                outcome = imitated(tables.apply_in, KillPoint(step=moment))
                assert outcome.error is None, outcome.error
                deaths += outcome.killed
                # Readers must not see the unfinished commit of the dead driver.
                tables.applier.close()
                reader = tables.reader()
                assert {table: tables.rows(table, reader) for table in before} == before
            tables.open()
            tables.apply()
            tables.check(ITEMS, NOTES)
        assert deaths == 2

    def test_all_tables_are_read_as_of_an_earlier_position(self, tables: _LogAndTables) -> None:
        work, past = tables.workload, []
        for number in range(1, 4):
            work.insert(ITEMS, number, "x")
            work.insert(NOTES, number, "y")
            if number == 3:
                work.delete(ITEMS, 1)
            tables.step()
            counts = {table: len(tables.model(table)) for table in (ITEMS, NOTES)}
            past.append((work.parts[-1].end_lsn, counts, number))
        for lsn, counts, number in past:
            then = tables.reader().at(lsn)
            assert {table: then.live_rows(table.name).count() for table in counts} == counts
            assert then.changes(NOTES.name).count() == number


def _numbered(*columns: tuple[str, str]) -> Relation:
    table = relation("shapes", columns, oid=900)
    numbered = [
        msgspec.structs.replace(column, number=number)
        for number, column in enumerate(table.columns, 1)
    ]
    return msgspec.structs.replace(table, columns=tuple(numbered))
