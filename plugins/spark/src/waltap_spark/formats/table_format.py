"""The contract of a table format: six methods, and what they are given.

The changes that a format gets are net changes: `waltap_spark.compact.compaction` has resolved changed
keys, values that the server did not send, and truncates. A format stores rows, and writes into
`TableState` which version of the table has them. The commit file has the `TableState` of every table, so
it names one cut.

A method's writes count only once that commit file exists. When the driver dies before, or the changes of
the table cannot be applied, the applier repeats the same steps from the same `TableState`:

- a format that writes new files beside the old ones (Parquet) writes again, and the files of the first try
  are deleted, since no commit names them;
- a format that writes in place sets ``writes_in_place``. It gets the same rows in the same order, and has
  to recognize steps that it already executed, by a transaction id of its own that it stores with the data.
  `waltap_spark.formats.stepwise` does that for formats whose commits carry notes.
"""

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING, ClassVar, Literal

from waltap.base.files.store import FileStore
from waltap_spark.compact.compact_in_memory import moved, settle
from waltap_spark.compact.compaction import after_last_truncate, widened, with_source
from waltap_spark.compact.drop_overwritten import last_rows
from waltap_spark.config.options import ApplyOptions
from waltap_spark.config.shared_targets import union_columns
from waltap_spark.history.timeline import changed, fresh, standing
from waltap_spark.planning.plan import SegmentGroup, only_adds
from waltap_spark.state.output import SparkOutput, TableState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from waltap_sinks.changelog.manifest import LogPosition
    from waltap_spark.history.retained_keys import RetainedKeys

__all__ = ["CommitContext", "GroupRows", "TableChange", "TableFormat", "TableFormatContext", "What"]

What = Literal["current", "changes"]
"""The rows that a table has, or its history: the rows of the change log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFormatContext:
    """What a format is made with: where the tables lie, and how they are kept.

    ``identity`` is the output's own, for ever: what was written under another is not ours. ``tables``:
    those of the last commit, by name.
    """

    output: SparkOutput
    options: ApplyOptions
    identity: Callable[[], str]
    tables: Callable[[], Mapping[str, TableState]] = dict


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitContext:
    """One commit in the making: its number, the mark it reaches, and a session of one's own."""

    spark: "SparkSession"
    number: int
    mark: "LogPosition"
    attempt: str
    until: "LogPosition | None" = None
    """The mark up to which the group goes that is written (`SegmentGroup.until`)."""
    given: list[str] = field(default_factory=list)
    """The paths that were asked for: what is not named in the end was written in vain."""
    _counter: "count[int]" = field(default_factory=count)

    def path(self, table: TableState, what: What, end: str = "") -> str:
        """Return the path of a set of ``table`` that no other commit, and no other attempt at this one,
        has. ``end``: of its name."""
        name = f"{self.number:012d}-{self.attempt}-{next(self._counter)}{end}"
        self.given.append(f"{table.folder}/{what}/{name}")
        return self.given[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableChange:
    """A table is about to get the columns, the key or the number in the source that a group has.

    ``learn`` gives the table after that; call it once. ``renames``: present name → new name; ``retold``:
    columns of the table are gone from the source, or are there again; ``forgets``: columns, by the new
    names, that the table is to have no more after ``learn``, since the source has not.
    """

    key: tuple[str, ...]
    renames: dict[str, str]
    replaces: bool
    learn: Callable[[TableState], TableState]
    retold: bool = False
    forgets: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class GroupRows:
    """The rows that one group of segments brings to a table. Nothing is read before it is asked for.

    ``read`` makes `frame`. ``files``: those of the change log, for a format that writes few rows
    without Spark (`waltap_spark.compact.small_sets`). ``spared``: what does not end since the group
        lacks it.
    """

    group: SegmentGroup
    read: Callable[[], "DataFrame"]
    files: FileStore
    spared: "RetainedKeys | None" = None

    @cached_property
    def frame(self) -> "DataFrame":
        """The rows with the columns under which they were written, and the change log's own."""
        return self.read()

    def log(self, table: TableState) -> "DataFrame":
        """Return the rows as the history has them: columns of ``table``, then the change log's own."""
        return self._widened(table, filled=False)

    def rows(self, table: TableState) -> "DataFrame":
        """Return the rows as ``table`` has them (`waltap_spark.state.modes.row_columns`), as those of a
        snapshot are."""
        return fresh(table, self._widened(table, filled=True))

    def settled(self, table: TableState, base: "DataFrame") -> "DataFrame":
        """Return the rows that change, one for each `waltap_spark.state.modes.row_key`, as they are after
        the changes, and `waltap_spark.planning.temp_columns.gone`. ``base`` is what the table held before.
        Where no past is kept, rows from before a truncate are no more part of either."""
        filled = self._widened(table, filled=True)
        if table.mode.keeps_past:
            rows = moved(table, [self.group], filled, standing(table, base))
            if self.spared is not None:
                base = self.spared.of(base, table.key, "left_anti")
            return changed(table, [self.group], rows, base)
        return settle(
            table,
            [self.group],
            filled,
            base,
            lambda: last_rows(table, self.group, self.files, filled),
        )

    def changes(self, table: TableState, base: "DataFrame") -> "tuple[DataFrame, DataFrame]":
        """Return the changes, with what moved rows kept, and what they apply to: ``base``, or nothing
        where a truncate is among them."""
        rows = moved(table, [self.group], self._widened(table, filled=True), base)
        if self.truncates:
            return after_last_truncate(rows), base.limit(0)
        return rows, base

    @property
    def truncates(self) -> bool:
        """Tell whether a truncate is among the changes."""
        return "t" in self.group.operations

    def adds_to(self, table: TableState) -> bool:
        """Tell whether the rows are new ones and nothing else. They meet no row of their key, and none of
        another, where the table has no others than of their epoch and, in a table with a key, their
        stretch."""
        return only_adds(table, self.group) and table.mode.adds_alone

    @property
    def only_puts(self) -> bool:
        """Tell whether there is a row, after the changes, under every key that they touch. (A row that
        moved leaves a deleted one.)"""
        return set(self.group.operations) <= {"c", "u", "r"} and not self.group.moved

    def _widened(self, table: TableState, *, filled: bool) -> "DataFrame":
        version = self.group.fingerprint
        has, ids = table.versions[version], table.version_ids.get(version, {})
        return widened(self.frame, table, has, ids, filled=filled)


class TableFormat(ABC):
    """Stores the rows of tables and their history. One instance serves all tables of an output.

    Methods return the `TableState` that holds what they did; they are called for different tables at the
    same time, each with a session of its own. What they raise stops the one table: `PySparkException` and
    the errors of `waltap_spark.errors`.
    """

    writes_in_place: ClassVar[bool] = True

    def needed(self, table: TableState) -> frozenset[str]:
        """Return the columns that the table cannot be without: none, if not told otherwise."""
        return frozenset()

    def rows_of(self, spark: "SparkSession", table: TableState) -> int | None:
        """Return about how many rows a change of ``table`` may meet, by which plans are chosen; None:
        nobody knows."""
        return None if self.writes_in_place else table.stored_rows

    def aligned(
        self, spark: "SparkSession", tables: Mapping[str, TableState], moved: Iterable[str]
    ) -> Mapping[str, TableState]:
        """Return those of ``tables`` that stand otherwise since others of their target, ``moved``, were
        written in this commit."""
        return {}

    def afterwards(self) -> Sequence[Callable[["SparkSession"], None]]:
        """Return what is to be done now that a commit is there, each with a session of its own."""
        return ()

    def rested(
        self, step: CommitContext, tables: Mapping[str, TableState]
    ) -> Mapping[str, TableState]:
        """Return those of ``tables`` that have the same rows at a version that is kept for longer."""
        return {}

    def read_together(
        self, spark: "SparkSession", tables: Sequence[TableState], what: What
    ) -> "DataFrame":
        """Return the rows, or the history, of all tables of a target, each with its source. Raises:
        SourcesDiffer."""
        columns = union_columns(tables)
        return functools.reduce(
            lambda one, other: one.unionByName(other, allowMissingColumns=True),
            (with_source(self.read(spark, table, what), table, columns) for table in tables),
        )

    @abstractmethod
    def evolve(self, step: CommitContext, table: TableState, change: TableChange) -> TableState:
        """Return ``change.learn(table)``, with what is stored in step with it."""

    @abstractmethod
    def replace(self, step: CommitContext, table: TableState, rows: GroupRows) -> TableState:
        """Let ``rows``, those of a whole snapshot, be all the table's rows; add them to its history.

        A table that keeps its past, and has one, is given them as changes (``rows.group.replaces``)."""

    @abstractmethod
    def apply(self, step: CommitContext, table: TableState, rows: GroupRows) -> TableState:
        """Apply the changes ``rows`` to the table's rows; add them to its history."""

    @abstractmethod
    def truncate(self, step: CommitContext, table: TableState) -> TableState:
        """Let the table have no rows: another table took its name. Its history stays."""

    @abstractmethod
    def read(self, spark: "SparkSession", table: TableState, what: What) -> "DataFrame":
        """Return the table's rows or its history as of the version that ``table`` names."""

    @abstractmethod
    def maintain(self, step: CommitContext, table: TableState) -> TableState:
        """Do what is due for the files to stay few and large; return ``table`` itself when nothing is. No
        row changes.

        A format that writes in place is asked at the end of each commit that touches the table. One that
        writes beside what is there is asked beside the commits, by a thread of its own; what it made then
        takes the place of what it was made of (`waltap_spark.apply.compaction_worker`)."""
