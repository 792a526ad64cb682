"""Tables that are written in place by numbered steps.

A *step* is one commit of the format. Steps of a target are numbered from 1, and each commit carries
a `CommitNote` with its writer and number. To repeat a step after a crash or a suspension, a driver
first looks for it in the target's own log.
"""

import functools
import itertools
import logging
import random
import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from threading import Lock, RLock
from typing import ClassVar, Final

import msgspec
import pyarrow as pa
from msgspec.structs import replace
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from waltap.base.files.durable_file import UNREADABLE
from waltap_sinks.changelog.manifest import LogPosition
from waltap_spark.config.properties import TargetProperties
from waltap_spark.config.targets import FileLayout, NameClaims
from waltap_spark.errors import NameTaken, StepDiffers, TargetChanged, first_words
from waltap_spark.formats.small_files.rows import Action, DriverTable, left_to_spark
from waltap_spark.formats.table_format import CommitContext, TableFormat, TableFormatContext, What
from waltap_spark.schema.expression import GONE, quoted
from waltap_spark.schema.schema import LOG_FIELDS, sql_type
from waltap_spark.state.output import TableState, TargetTable

# Target, rows, key and condition: the rows replace the rows of the condition, or with their keys.
ReplaceRows = Callable[[TargetTable, DataFrame, Sequence[str], str | None], None]

# Version of a table that no commit names.
NOWHERE: Final = -1

# Kind of steps that write rows.
ROWS: Final = "rows"

# Kind of an empty commit, which shows other outputs that this one is active.
SIGN: Final = "sign"


class CommitNote(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The note in a commit: its output, step, and table.

    In a shared target, ``source`` is the only source whose rows the commit touches; step 0 changes
    columns for all sources. ``since`` is the version that restored the table: the step may exist
    before it, but its rows are gone. ``kind`` is the kind of change, and ``until`` the position of
    its last change; a repeated step must have the same. ``named_version`` is the version of a shared
    target that the table's last commit names.
    """

    waltap: str
    step: int
    log_position: str = msgspec.field(name="mark", default="")
    table: str = ""
    source: str = ""
    since: int | None = None
    kind: str = ""
    until: str = ""
    named_version: int = msgspec.field(name="stands", default=NOWHERE)

    @classmethod
    def read(cls, text: str | None) -> "CommitNote | None":
        """Parse a note; None if another program wrote ``text``."""
        try:
            return None if text is None else msgspec.json.decode(text, type=cls)
        except UNREADABLE:
            return None


log = logging.getLogger(__name__)

# Attempts at a step while others write the same target.
RACES: Final = 8

# Fewest bytes of a row in a Parquet file, from typical tables.
BYTES: Final = 16

# Longest kind of a step in a note: a table may have thousands of columns.
KIND: Final = 200

WHATS: Final[tuple[What, ...]] = ("current", "changes")


@dataclass(frozen=True, slots=True)
class TableCommit:
    """One entry of a table's own log.

    ``note`` is None if another program wrote it; ``restores`` is the version that it restored.
    """

    version: int
    operation: str
    note: CommitNote | None
    restores: int | None = None


class StepwiseFormat(TableFormat):
    """A format with versions, whose commits carry notes."""

    # Spark's plan whose statistics give the size of a table.
    measured: ClassVar[str] = "optimizedPlan"
    # Operations of other programs that change no rows.
    harmless: ClassVar[frozenset[str]]

    def __init__(self, properties: TargetProperties, context: TableFormatContext) -> None:
        self._properties, self._output = properties, context.output
        self._identity = context.identity
        # Whether tables have names in a catalogue, not paths.
        self._in_catalogue = bool(properties.catalog)
        self._claims = NameClaims(context.tables)
        # (table, identifier) → a step number, and the later steps that exist already. A suspended
        # table returns to an earlier step, whose entry is then missing.
        self._taken: dict[tuple[str, str], tuple[int, dict[int, TableCommit]]] = {}
        # The same keys → the version that last restored the table.
        self._restored: dict[tuple[str, str], int] = {}
        self._tables = context.tables
        # Identifier → position of the table's last compaction.
        self._maintained: dict[str, LogPosition] = {}
        # Tables with old files to remove, and their identifiers.
        self._cluttered: dict[str, list[str]] = {}
        # A commit asks for the same types again and again.
        self._stored_type = functools.cache(self.stored)
        self._locks: dict[str, AbstractContextManager[object]] = {}
        self._locking = Lock()

    # --- what a format does in its own way ----------------------------------------------------------

    @abstractmethod
    def own_identifier(self, table: TableState, what: What) -> str:
        """Return the name in SQL of a table below the output."""

    @abstractmethod
    def create(self, spark: SparkSession, at: str, columns: str, layout: FileLayout) -> None:
        """Create the table; ``columns`` as in CREATE TABLE."""

    @abstractmethod
    def rewriting(
        self,
        spark: SparkSession,
        target: TargetTable,
        names: Sequence[str],
        types: Mapping[str, str],
    ) -> Sequence[Action]:
        """Return actions that convert columns to other types (JSON).

        Each action is one commit. ``names`` are all columns of the table.
        """

    @abstractmethod
    def commits(self, spark: SparkSession, target: TargetTable) -> list[TableCommit] | None:
        """Return the commits after the version of ``target``, oldest first.

        None if the table or that version does not exist.
        """

    @abstractmethod
    def noted(self, spark: SparkSession, note: CommitNote) -> AbstractContextManager[None]:
        """Attach ``note`` to commits of this session within the block.

        Where a session outlives its driver, the format ignores a step that exists already.
        """

    @abstractmethod
    def widens(self, old: str, new: str) -> bool:
        """Return whether a type (JSON) can change without a rewrite."""

    @abstractmethod
    def identity_of(self, spark: SparkSession, at: str) -> str | None:
        """Return the table's id, None if it is missing.

        A rename keeps the id.
        """

    def has_few_files(self, target: TargetTable) -> bool:
        """Return whether the format knows that there is nothing to compact."""
        return False

    @abstractmethod
    def compact_files(self, spark: SparkSession, at: str) -> None:
        """Rewrite many small files as few large ones."""

    @abstractmethod
    def vacuum(self, spark: SparkSession, at: str) -> None:
        """Remove files that no retained version needs."""

    @abstractmethod
    def is_case_sensitive(self, spark: SparkSession) -> bool:
        """Return whether table names may differ only by case."""

    @abstractmethod
    def files(self, spark: SparkSession, at: str) -> int:
        """Return the number of files of the newest version."""

    def rename_column(self, spark: SparkSession, at: str, old: str, new: str) -> None:
        """Rename a column, in one commit."""
        spark.sql(f"ALTER TABLE {at} RENAME COLUMN {quoted(old)} TO {quoted(new)}")

    def drop_columns(self, spark: SparkSession, at: str, names: Sequence[str]) -> None:
        """Drop columns, in one commit."""
        spark.sql(f"ALTER TABLE {at} DROP COLUMNS ({', '.join(map(quoted, names))})")

    def add_columns(self, spark: SparkSession, at: str, columns: Mapping[str, str]) -> None:
        """Add columns (name → type in JSON), in one commit."""
        spark.sql(f"ALTER TABLE {at} ADD COLUMNS ({', '.join(self.declared(columns))})")

    def add_fields(
        self, spark: SparkSession, at: str, fields: Sequence[tuple[tuple[str, ...], str]]
    ) -> None:
        """Add fields (path, type in JSON) to structs, in one commit."""
        listed = ", ".join(f"{'.'.join(map(quoted, way))} {sql_type(kind)}" for way, kind in fields)
        spark.sql(f"ALTER TABLE {at} ADD COLUMNS ({listed})")

    def widen_column(self, spark: SparkSession, at: str, name: str, kind: str) -> None:
        """Widen a column to a type (JSON), in one commit."""
        type_ = sql_type(self.stored(kind))
        spark.sql(f"ALTER TABLE {at} ALTER COLUMN {quoted(name)} TYPE {type_}")

    @abstractmethod
    def clear(self, spark: SparkSession, at: str) -> None:
        """Remove all rows, in one commit."""

    @abstractmethod
    def stored(self, kind: str) -> str:
        """Return the stored type (JSON) for values of ``kind``."""

    def stored_name(self, name: str) -> str:
        """Return the stored name of a mode's own column."""
        return name

    def replacer(self, spark: SparkSession, *, listed: bool) -> ReplaceRows | None:
        """Return the function that replaces rows in one commit and one pass.

        None: this session has none, with or without a condition (``listed``).
        """
        return None

    @abstractmethod
    def driver_table(
        self, spark: SparkSession, target: TargetTable, *, small: bool
    ) -> DriverTable | None:
        """Return a table whose files this process writes, without Spark.

        None: Spark must write, or the table is not ``small``.
        """

    def sign(self, spark: SparkSession, at: str) -> None:
        """Mark this output's version, for outputs that expire versions."""

    def at_version(self, spark: SparkSession, target: TargetTable) -> DataFrame:
        """Return the rows of a version."""
        return spark.sql(f"SELECT * FROM {target.at} VERSION AS OF {target.version}")

    def guarded(self, spark: SparkSession, table: TableState) -> dict[str, str]:
        """Return columns' SQL that fails for a changed value."""
        return {}

    def estimated_rows(self, spark: SparkSession, table: TableState) -> int | None:
        """Return rows by Spark's statistics, estimated from bytes if needed."""
        target = table.stored_table.targets.get("current")
        if target is None:
            return 0  # rows are added, and none is looked at
        return _rows_by_statistics(spark, target.at, self.measured)

    # --- few rows -----------------------------------------------------------------------------------

    def write_here(
        self, spark: SparkSession, target: TargetTable, rows: pa.Table, *, replaces: bool
    ) -> bool:
        """Add few rows as one file, or replace all rows by them.

        Return whether it was done. A first snapshot of many small tables would otherwise be a Spark
        job for each.
        """
        commit: Action | None = None
        with left_to_spark(target.at):
            table = self.driver_table(spark, target, small=False)
            stored = None if table is None else table.stored(rows)
            if table is not None and stored is not None:
                commit = table.adding(stored, replaces=replaces)
        # Outside the block: an error ends the step, since the rows may be there.
        if commit is not None:
            commit()
        return commit is not None

    def replacing(
        self,
        spark: SparkSession,
        target: TargetTable,
        key: Sequence[str],
        net: Callable[[], pa.Table | None],
    ) -> Action | None:
        """Return a commit that writes a small table's files again.

        The rows of ``net`` replace the rows with their keys; a row with `GONE` only removes. None:
        Spark must write.
        """
        with left_to_spark(target.at):
            table = self.driver_table(spark, target, small=True)
            rows = None if table is None else net()
            if table is None or rows is None:
                return None
            stored = table.stored(rows.drop_columns([GONE]))
            return None if stored is None else table.replacing(key, stored, rows.column(GONE))
        return None

    # --- steps --------------------------------------------------------------------------------------

    def take(
        self,
        commit: CommitContext,
        table: TableState,
        target: TargetTable,
        action: Action,
        kind: str,
    ) -> TargetTable:
        """Run ``action`` as the next step of ``target``, once.

        Return the target after the step. ``target`` belongs to ``table``; ``kind``: as in
        `CommitNote`.

        Raises: TargetChanged, NameTaken, StepDiffers.
        """
        number = target.step + 1
        note = self.note(commit, table, number, target, kind)
        # Two sources of a shared target would otherwise both miss the other's step in the log.
        with self.alone(target.at):
            taken = self.taken(commit.spark, table, target)
            try:
                if number not in taken:
                    own = replace(note, since=self._since(table, target))
                    taken = self._written(commit, table, target, own, action)
                written = taken[number]
                # Another program may restore an earlier version at any time.
                _require_same(target, written.note, note)
            except BaseException:  # which steps took place is then unknown
                self._taken.pop((table.owner, target.at), None)
                raise
            # A retry of the table starts from its last commit, where this entry must be missing.
            del taken[number]
            self._taken[table.owner, target.at] = number, taken
        since = None if written.note is None else written.note.since
        return replace(target, version=written.version, step=number, since=since)

    def _written(
        self,
        commit: CommitContext,
        table: TableState,
        target: TargetTable,
        note: CommitNote,
        action: Action,
    ) -> dict[int, TableCommit]:
        """Run ``action`` as the step of ``note``; return the steps then.

        The action runs again if another writer was faster.
        """

        def act() -> None:
            if not again or note.step not in self._steps_of(commit.spark, table, target):
                again.append(True)
                with self.noted(commit.spark, note):
                    action()

        again: list[bool] = []
        self.beside_others(commit, target, act)
        taken = self._steps_of(commit.spark, table, target)
        if note.step not in taken:
            raise self._changed(target, "does not have what was just written")
        return taken

    def beside_others(self, commit: CommitContext, target: TargetTable, action: Action) -> None:
        """Run ``action``, and again if another writer of ``target`` was faster."""
        before: list[TableCommit] = []
        for turn in itertools.count(1):
            try:
                action()
            except (Py4JJavaError, PySparkException) as error:
                if target.step and self.commits(commit.spark, target) is None:
                    raise self._gone(target) from error
                found = self._foreign(commit.spark, target)
                if turn == RACES or found == before:
                    raise
                log.info("%s is written by others, too: %s", target.at, first_words(error))
                before = found
            else:
                return
            time.sleep(random.uniform(0.1, 0.5) * turn)  # noqa: S311 - not at the same time again

    def _foreign(self, spark: SparkSession, target: TargetTable) -> list[TableCommit]:
        """Return the commits of other outputs and programs after ``target``."""
        own = self._identity()
        later = self.commits(spark, target) or ()
        return [each for each in later if each.note is None or each.note.waltap != own]

    def alone(self, at: str) -> AbstractContextManager[object]:
        """Return the lock of a target that tables share."""
        with self._locking:
            return self._locks.setdefault(at, RLock())

    def note(
        self,
        commit: CommitContext,
        table: TableState,
        number: int,
        target: TargetTable,
        kind: str = "",
    ) -> CommitNote:
        """Return the note of a step; 0 is no step."""
        return CommitNote(
            waltap=self._identity(),
            step=number,
            log_position=str(commit.log_position),
            table=table.owner,
            source="" if table.place is None else table.place.source,
            kind=kind[:KIND],
            until="" if commit.until is None else str(commit.until),
            named_version=NOWHERE
            if table.place is None
            else self._named_version(table.name, target.at),
        )

    def _named_version(self, name: str, at: str) -> int:
        """Return the version that the last commit names."""
        table = self._tables().get(name)
        targets = () if table is None else table.stored_table.targets.values()
        return next((each.version for each in targets if each.at == at), NOWHERE)

    def taken(
        self, spark: SparkSession, table: TableState, target: TargetTable
    ) -> dict[int, TableCommit]:
        """Return existing later steps of ``target`` with their commits."""
        key = (table.owner, target.at)
        step, found = self._taken.get(key, (-1, {}))
        if step != target.step:
            found = self._steps_of(spark, table, target)
            self._taken[key] = target.step, found
        return found

    def _steps_of(
        self, spark: SparkSession, table: TableState, target: TargetTable
    ) -> dict[int, TableCommit]:
        """Read later steps of ``target`` from the table's log.

        Raises: TargetChanged if another program wrote one of them, or two drivers the same;
        NameTaken if another program wrote all.
        """
        later = self.commits(spark, target)
        if later is None:
            if target.step:
                raise self._gone(target)
            return {}
        steps: dict[int, TableCommit] = {}
        foreign: TableCommit | None = None
        owner = table.owner
        # Versions with our rows, and without another program's.
        fine = [target.version]
        identity, shares = self._identity(), table.place is not None
        self._restored.pop((owner, target.at), None)
        for commit in later:
            note = commit.note
            back = commit.restores
            if back is not None and back in fine:
                steps = {each: found for each, found in steps.items() if found.version <= back}
                fine = [*(each for each in fine if each <= back), commit.version]
                self._restored[owner, target.at] = commit.version
                foreign = None
                continue
            others = shares and note is not None and self._is_others(note, table)
            own = note is not None and (note.waltap, note.table) == (identity, owner)
            mine = own and not others
            if note is not None and mine and (note.step <= target.step or note.step in steps):
                # two drivers wrote it: the other was believed dead
                twice = TableCommit(commit.version, f"step {note.step} once more", None)
                foreign = foreign or twice
            elif note is not None and mine:
                steps[note.step] = commit
            elif not others and commit.operation not in self.harmless:
                foreign = foreign or commit
            if foreign is None:
                # a source of several cannot be brought back without the others
                stay = not others and not (mine and shares)
                fine = [*fine, commit.version] if stay else [commit.version]
        if foreign is not None and not target.step and not steps:
            whose = "another output's" if foreign.note else "another program's"
            if foreign.note is not None and foreign.note.waltap == identity:
                whose = f"{foreign.note.table}'s"
            text = f"{table.name} would be stored as {target.at}: that is there, and is {whose}"
            raise NameTaken(text, table=table.name)
        if foreign is not None:
            by = "belongs to another output" if foreign.note else "was written by another program"
            what = f"{by} ({foreign.operation}, version {foreign.version})"
            raise self._changed(target, what, version=fine[-1])
        return steps

    def _is_others(self, note: CommitNote, table: TableState) -> bool:
        """Return whether a commit leaves the rows of ``table`` unchanged.

        Such a commit changes columns of a shared target, or another source's rows there.
        """
        place = table.place
        if place is None or not note.source:
            return False
        own = note.waltap == self._identity()
        return note.step == 0 or (note.table != table.owner if own else note.source != place.source)

    def newest_of(self, spark: SparkSession, at: str, versions: Collection[int]) -> int:
        """Return the newest of ``versions``."""
        return max(versions)

    def newest(self, spark: SparkSession, table: TableState, target: TargetTable) -> TargetTable:
        """Return ``target`` at its newest version. Raises: TargetChanged."""
        if self._steps_of(spark, table, target):
            raise self._changed(target, "has steps that no commit names")
        later = self.commits(spark, target) or []
        since = self._since(table, target)
        return replace(target, version=later[-1].version, since=since) if later else target

    def _since(self, table: TableState, target: TargetTable) -> int | None:
        """Return the version that last restored the table."""
        back = self._restored.get((table.owner, target.at), -1)
        return back if back > target.version else target.since

    def _gone(self, target: TargetTable) -> TargetChanged:
        return self._changed(target, "is gone, or was created again")

    def _changed(
        self, target: TargetTable, what: str, *, version: int | None = None
    ) -> TargetChanged:
        version = target.version if version is None else version
        return TargetChanged(f"{target.at} {what}", table=target.at, version=max(version, 0))

    # --- columns ------------------------------------------------------------------------------------

    def all_columns(self, table: TableState, what: What) -> dict[str, str]:
        """Return the stored columns of ``what``, with the source column."""
        mine = table.mode.columns
        columns = stored_columns(table, what)
        own = {self.stored_name(n) if n in mine else n: kind for n, kind in columns.items()}
        return own if table.place is None else {**own, table.place.column: '"string"'}

    def declared(self, columns: Mapping[str, str]) -> Iterator[str]:
        """Return ``columns`` as in CREATE TABLE and ADD COLUMNS."""
        for name, kind in columns.items():
            yield f"{quoted(name)} {sql_type(self.stored(kind))}"

    def casts(self, columns: Mapping[str, str]) -> dict[str, str]:
        """Return the SQL of ``columns`` that have other stored types."""
        return {
            name: f"CAST({quoted(name)} AS {sql_type(stored)})"
            for name, kind in columns.items()
            if (stored := self._stored_type(kind)) != kind
        }


def _require_same(target: TargetTable, had: CommitNote | None, wants: CommitNote) -> None:
    """Raises: StepDiffers if the existing step was another one."""
    if had is None:
        return
    if had.kind and had.kind != wants.kind:
        text = f'step {wants.step} of {target.at} was "{had.kind}", and would be "{wants.kind}" now'
    elif had.kind == ROWS and had.until and wants.until and had.until != wants.until:
        text = (
            f"step {wants.step} of {target.at} has changes up to {had.until}, and would have those up "
            f"to {wants.until} now"
        )
    else:
        return
    raise StepDiffers(text, table=target.at, version=max(target.version, 0))


def is_missing(error: Exception) -> bool:
    """Return whether an error means that no such table exists."""
    return isinstance(error, AnalysisException) and error.getCondition() in {
        "DELTA_MISSING_DELTA_TABLE",
        "DELTA_TABLE_ONLY_OPERATION",
        "DELTA_TABLE_NOT_FOUND",
        "DELTA_PATH_DOES_NOT_EXIST",
        "TABLE_OR_VIEW_NOT_FOUND",
        "SCHEMA_NOT_FOUND",
    }


def whats(table: TableState) -> tuple[What, ...]:
    """Return the stored kinds of a table: rows, history."""
    if table.mode.name == "append":
        return ("changes",)
    return WHATS if table.mode.history else ("current",)


def stored_columns(table: TableState, what: What) -> dict[str, str]:
    """Return the stored columns, with their types in JSON."""
    return {**table.columns, **LOG_FIELDS} if what == "changes" else table.row_columns


def _rows_by_statistics(spark: SparkSession, at: str, plan: str) -> int | None:
    """Estimate a table's rows from the newest version's metadata.

    None if the session cannot ask, as with Spark Connect.
    """
    try:
        frame = getattr(spark.sql(f"SELECT * FROM {at}"), "_jdf", None)
        if frame is None:
            return None
        statistics = getattr(frame.queryExecution(), plan)().stats()
        rows = statistics.rowCount()
        return int(rows.get() if rows.isDefined() else statistics.sizeInBytes() // BYTES)
    except (Py4JError, PySparkException):
        return None
