"""The contract of a table format: its methods and their context.

The changes that a format gets are net changes: `waltap_spark.compact.compact_changes` has resolved changed
keys, unsent values, and truncates. A format stores rows, and writes their version into `TableState`.
The commit file has the `TableState` of every table, so it names one consistent set of versions.

Writes count only once that commit file exists. If the driver dies before, or the table's changes
cannot be applied, the applier repeats the same steps from the same `TableState`:

- a format that writes new files (Parquet) writes again, and the files of the first try are deleted, since
  no commit names them;
- a format that writes in place sets ``writes_in_place``. It gets the same rows in the same order, and must
  recognize finished steps by its own transaction id, which it stores with the data.
  `waltap_spark.formats.stepwise` does that for formats whose commits carry notes.
"""

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import count
from typing import ClassVar, Literal

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from waltap.base.files.store import FileStore
from waltap_sinks.changelog.manifest import LogPosition
from waltap_spark.compact.compact_changes import (
    LoggedChanges,
    Rows,
    carry_values,
    compact,
    compact_here,
    only_live,
)
from waltap_spark.compact.compaction import after_last_truncate, widened, with_source
from waltap_spark.compact.log_columns import segment_rows
from waltap_spark.compact.resolve import RetainedKeys
from waltap_spark.compact.small_sets import arrow_types, frame_of, is_small, rows_of
from waltap_spark.compact.timeline import changed, fresh, live_rows
from waltap_spark.config.options import ApplyOptions
from waltap_spark.config.shared_targets import union_columns
from waltap_spark.planning.column_identity import file_column
from waltap_spark.planning.plan import SegmentGroup
from waltap_spark.schema.expression import one_of
from waltap_spark.schema.schema import LOG_FIELDS
from waltap_spark.state.output import SparkOutput, TableState, TargetMove

# The rows of a table, or its history: the rows of the change log.
What = Literal["current", "changes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFormatContext:
    """Location and options of a format's tables.

    ``identity`` is the output's permanent id: rows under another id belong to another output.
    ``tables``: the last commit's tables by name.
    """

    output: SparkOutput
    options: ApplyOptions
    identity: Callable[[], str]
    tables: Callable[[], Mapping[str, TableState]] = dict


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitContext:
    """One unfinished commit: number, end position, and its own session."""

    spark: SparkSession
    number: int
    log_position: LogPosition
    attempt: str
    # End position of the written group (`SegmentGroup.until`).
    until: LogPosition | None = None
    # Allocated paths: after the commit, those that it does not name are orphans.
    given: list[str] = field(default_factory=list)
    _counter: "count[int]" = field(default_factory=count)

    def path(self, table: TableState, what: What, end: str = "") -> str:
        """Return a unique path for a set of ``table``."""
        name = f"{self.number:012d}-{self.attempt}-{next(self._counter)}{end}"
        self.given.append(f"{table.folder}/{what}/{name}")
        return self.given[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableChange:
    """A change of a table's columns, key or number in the source.

    ``learn`` returns the table after the change; call it once. ``renames``: present name → new
    name. ``renews_columns``: columns left the source, or returned. ``forgets``: columns, by new name, that
    the table loses after ``learn``, since the source dropped them.
    """

    key: tuple[str, ...]
    renames: dict[str, str]
    replaces: bool
    learn: Callable[[TableState], TableState]
    renews_columns: bool = False
    forgets: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class GroupRows:
    """The rows of one segment group, read on demand.

    ``read`` makes `frame`. ``files``: the change log's store, for a format that writes few rows
    without Spark (`waltap_spark.compact.small_sets`). ``spark``: the session that gets rows which
    this process reads; without it Spark reads them all. ``spared``: rows that stay although the group
    lacks them.
    """

    group: SegmentGroup
    read: Rows
    files: FileStore
    spark: SparkSession | None = None
    spared: RetainedKeys | None = None
    _local: dict[tuple[str, ...], pa.Table | None] = field(default_factory=dict)
    """Columns → the rows of a small group."""
    _frames: dict[tuple[tuple[str, ...], bool], DataFrame] = field(default_factory=dict)
    """Columns, and whether older rows have values → the frame of the rows."""

    @cached_property
    def frame(self) -> DataFrame:
        """The rows with their original columns and the log's own."""
        return self.read()

    def log(self, table: TableState) -> DataFrame:
        """Return the history's rows: the table's columns, then the log's."""
        return self._widened(table, filled=False)

    def read_here(self, table: TableState) -> pa.Table | None:
        """Return the rows of a small group, read by this process.

        None if the group is large, or its columns differ from the table's.
        """
        names = tuple(table.columns)
        if self.spark is None:
            return None
        if names not in self._local and not (self.group.unpacked and is_small(self.group)):
            self._local[names] = None
        if names not in self._local:
            version = self.group.fingerprint
            has, ids = table.file_schemas[version], table.version_ids.get(version, {})
            plain = all(
                has.get(name) == kind and file_column(table, has, ids, name) == name
                for name, kind in table.columns.items()
            )
            rows = rows_of(self.files, self.group, names) if plain else None
            self._local[names] = rows if rows is not None and _has_types(rows, has) else None
        return self._local[names]

    def fresh_here(self, table: TableState) -> pa.Table | None:
        """Return `rows` where this process has them as they are stored."""
        read = None if table.mode.columns else self.read_here(table)
        return None if read is None else read.select(list(table.columns))

    def rows(self, table: TableState) -> DataFrame:
        """Return a snapshot's rows in the table's columns."""
        return fresh(table, self._widened(table, filled=True))

    def compacted(self, table: TableState, base: Rows, *, live: bool = False) -> DataFrame:
        """Return a net row for each touched key, with a `GONE` flag.

        ``live``: only keys that have a row, without the flag. The key is
        `TableState.row_key`. ``base`` has the rows before the changes. Without a
        history, both sides leave out rows from before a truncate.
        """
        if table.mode.keeps_past:
            was = base()
            filled = self._widened(table, filled=True)
            rows = carry_values(table, [self.group], filled, live_rows(table, was))
            if self.spared is not None:
                was = self.spared.of(was, table.key, "left_anti")
            found = changed(table, [self.group], rows, was)
            return only_live(found) if live else found
        given = LoggedChanges(
            self.spark or base().sparkSession,
            table,
            [self.group],
            lambda: self._widened(table, filled=True),
            base,
            self.read_here(table),
        )
        segments = partial(segment_rows, table, self.group, self.files)
        return compact(given, segments=segments, live=live)

    def compacted_here(self, table: TableState, base: Rows) -> pa.Table | None:
        """Return a small group's flagged net rows, computed here."""
        read = self.read_here(table)
        if read is None or self.spark is None:
            return None
        return compact_here(LoggedChanges(self.spark, table, [self.group], base, base, read))

    def changes(self, table: TableState, base: DataFrame) -> tuple[DataFrame, DataFrame]:
        """Return the changes with resolved keys, and their ``base``.

        After a truncate the base is empty.
        """
        rows = carry_values(table, [self.group], self._widened(table, filled=True), base)
        if self.truncates:
            return after_last_truncate(rows), base.limit(0)
        return rows, base

    @property
    def truncates(self) -> bool:
        return "t" in self.group.operations

    @property
    def only_puts(self) -> bool:
        """Return whether every touched key has a row afterwards.

        A row with a changed key leaves a deleted one.
        """
        return set(self.group.operations) <= {"c", "u", "r"} and not self.group.key_changes

    def listed(self, table: TableState) -> str | None:
        """Return the condition that lists a small group's touched keys.

        None: the group is large, or its keys cannot be listed.
        """
        read = self.read_here(table) if table.key else None
        if read is None:
            return None
        keys = zip(*(read.column(name).to_pylist() for name in table.key), strict=True)
        return one_of(keys, table.key, table.columns)

    def _widened(self, table: TableState, *, filled: bool) -> DataFrame:
        read, version = self.read_here(table), self.group.fingerprint
        own = tuple(table.columns), filled and read is None
        if own not in self._frames and read is not None and self.spark is not None:
            types = {**table.columns, **LOG_FIELDS}
            self._frames[own] = frame_of(self.spark, read, types)
        elif own not in self._frames:
            has, ids = table.file_schemas[version], table.version_ids.get(version, {})
            self._frames[own] = widened(self.frame, table, has, ids, filled=filled)
        return self._frames[own]


def _has_types(rows: pa.Table, types: Mapping[str, str]) -> bool:
    """Return whether Spark reads the columns of ``rows`` as ``types``."""
    # not every release of Spark takes times of day and intervals from Arrow
    if any("time(" in kind or "interval" in kind for kind in types.values()):
        return False
    found = arrow_types(rows.schema)
    return found is not None and all(types.get(name) == kind for name, kind in found.items())


class TableFormat(ABC):
    """Stores rows and history of all tables of an output.

    Each method returns the new `TableState`. Threads call methods for different tables at the same
    time, each with its own session. An error suspends only its table: `PySparkException`, or one of
    `waltap_spark.errors`.
    """

    writes_in_place: ClassVar[bool] = True

    def needed(self, table: TableState) -> frozenset[str]:
        """Return the columns that the table must have."""
        return frozenset()

    def estimated_rows(self, spark: SparkSession, table: TableState) -> int | None:
        """Estimate the rows that a change may meet.

        None if unknown.
        """
        return None if self.writes_in_place else table.stored_rows

    def moves(self, spark: SparkSession, tables: Iterable[TableState]) -> tuple[TargetMove, ...]:
        """Return the renames in a catalogue after the source renamed ``tables``."""
        return ()

    def rename_targets(
        self, spark: SparkSession, tables: Mapping[str, TableState], moves: Sequence[TargetMove]
    ) -> Mapping[str, TableState]:
        """Rename targets that are not renamed yet; return changed tables."""
        return {}

    def located(self, spark: SparkSession, table: TableState, number: int) -> TableState:
        """Return ``table`` of a commit with its targets' present names."""
        return table

    def aligned(
        self, spark: SparkSession, tables: Mapping[str, TableState], moved: Iterable[str]
    ) -> Mapping[str, TableState]:
        """Return tables that changed since ``moved`` were written.

        Tables of one target change together.
        """
        return {}

    def afterwards(self) -> Sequence[Callable[[SparkSession], None]]:
        """Return actions after the commit; each gets its own session."""
        return ()

    def move_idle(
        self, commit: CommitContext, tables: Mapping[str, TableState]
    ) -> Mapping[str, TableState]:
        """Return tables at versions with equal rows and longer retention."""
        return {}

    def read_together(
        self, spark: SparkSession, tables: Sequence[TableState], what: What
    ) -> DataFrame:
        """Return rows or history of a target's tables, with sources.

        Raises: SourcesDiffer.
        """
        columns = union_columns(tables)
        return functools.reduce(
            lambda one, other: one.unionByName(other, allowMissingColumns=True),
            (with_source(self.read(spark, table, what), table, columns) for table in tables),
        )

    @abstractmethod
    def evolve(self, commit: CommitContext, table: TableState, change: TableChange) -> TableState:
        """Return ``change.learn(table)``, and change the stored columns."""

    @abstractmethod
    def replace(self, commit: CommitContext, table: TableState, rows: GroupRows) -> TableState:
        """Replace the rows by a snapshot; add it to the history.

        A table with a history gets the snapshot as changes (``rows.group.replaces``).
        """

    @abstractmethod
    def apply(self, commit: CommitContext, table: TableState, rows: GroupRows) -> TableState:
        """Apply changes to the table's rows and history."""

    @abstractmethod
    def truncate(self, commit: CommitContext, table: TableState) -> TableState:
        """Remove the rows since another table took the name."""

    @abstractmethod
    def read(self, spark: SparkSession, table: TableState, what: What) -> DataFrame:
        """Return rows or history at the table's version."""

    @abstractmethod
    def maintain(self, commit: CommitContext, table: TableState) -> TableState:
        """Compact files if due, else return ``table`` itself.

        No row changes. A format that writes in place is called at the end of each commit that
        touches the table. Another format is called in its own thread, and its new files replace
        their inputs later (`waltap_spark.apply.compaction_worker`).
        """
