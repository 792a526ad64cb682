"""Tables that are written in place, by MERGE: what Delta Lake and Iceberg have in common.

Every table is two of the format's: ``current``, its rows, and ``changes``, its history. What is done to
one of them is a sequence of *steps*, numbered from 1 for ever. A step is one commit of the format, and
the commit carries a `Note`: whose it is, and which step. So a step is taken once: whoever repeats it,
after a crash or after a table stood still, looks for it in the table's own log first. `TableState.held`
names the last step that counts, and the version it made; readers read that version, whatever came after.
"""

import logging
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from waltap_spark.column_identity import older_value
from waltap_spark.errors import FormatLimit, NameTaken, TargetChanged
from waltap_spark.expression import column_of, quoted
from waltap_spark.formats.merge_sql import equal, inserted, literal
from waltap_spark.formats.table_format import (
    Brought,
    Evolution,
    FormatContext,
    Step,
    TableFormat,
    What,
)
from waltap_spark.modes import row_columns, row_key
from waltap_spark.output import Held, TableState, Target
from waltap_spark.schema import LOG_FIELDS, struct_of
from waltap_spark.settle import GONE, copies, distinguishing
from waltap_spark.targets import Claims, Layout

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Commit", "MergingFormat", "Note"]

log = logging.getLogger(__name__)

WHATS: Final[tuple[What, ...]] = ("current", "changes")
VIEW: Final = "__waltap_rows"
COMPACT_STEPS: Final = 50
"""Steps of a table after which its small files are made large ones."""

VACUUM_S: Final = 24 * 3600.0


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """What a commit of the format says of itself: the output it belongs to, its step, and the table whose
    step it is, "" where an earlier version made it."""

    waltap: str
    step: int
    mark: str = ""
    table: str = ""


@dataclass(frozen=True, slots=True)
class Commit:
    """One entry of a table's own log. ``note`` is None where somebody else made it; ``restores`` is the
    version that the table was brought back to."""

    version: int
    operation: str
    note: Note | None
    restores: int | None = None


class MergingFormat(TableFormat):
    """A table format with MERGE, time travel, and notes in its commits."""

    def __init__(self, context: FormatContext) -> None:
        self._output, self._options = context.output, context.options
        self._identity = context.identity
        self._claims = Claims(context.tables)
        self._taken: dict[str, dict[int, int]] = {}
        """Steps after the one that counts that were taken before: identifier → step → version."""

    # --- what a format does in its own way ----------------------------------------------------------

    @abstractmethod
    def identifier(self, table: TableState, what: What) -> str:
        """Return what SQL calls the table."""

    @abstractmethod
    def create(self, spark: "SparkSession", at: str, columns: str, layout: Layout) -> None:
        """Make the table; ``columns`` as in CREATE TABLE."""

    @abstractmethod
    def rewriting(
        self, spark: "SparkSession", target: Target, names: Sequence[str], types: Mapping[str, str]
    ) -> Sequence[Callable[[], object]]:
        """Return what gives columns of ``target`` other types (SQL), and their values with them: actions,
        each of which is one commit. ``names`` are all columns of the table."""

    @abstractmethod
    def commits(self, spark: "SparkSession", target: Target) -> list[Commit] | None:
        """Return the commits after the version of ``target``, oldest first; None when there is no such
        table, or not with that version."""

    @abstractmethod
    def noted(self, spark: "SparkSession", note: Note) -> AbstractContextManager[None]:
        """Let what is written in this session meanwhile carry ``note``, and be refused, or ignored, where
        the step was taken already."""

    @abstractmethod
    def is_harmless(self, operation: str) -> bool:
        """Tell whether a commit of somebody else's changes no rows."""

    @abstractmethod
    def widens(self, old: str, new: str) -> bool:
        """Tell whether a column can change its stored type (JSON) without its rows being rewritten."""

    @abstractmethod
    def compact(self, spark: "SparkSession", at: str) -> None:
        """Make few large files of many small ones."""

    @abstractmethod
    def vacuum(self, spark: "SparkSession", at: str) -> None:
        """Remove files that no version within the format's retention needs."""

    def tells_case(self, spark: "SparkSession") -> bool:
        """Tell whether two tables may have names that differ by case alone."""
        return False

    def layout(self, table: TableState, what: What) -> Layout:
        """Return how the files of a table that is to be made are divided. Raises: FormatLimit."""
        return Layout()

    def files(self, spark: "SparkSession", at: str) -> int:
        """Return how many files the newest version has."""
        return 0

    def rename_column(self, spark: "SparkSession", at: str, old: str, new: str) -> None:
        """Rename a column, in one commit."""
        spark.sql(f"ALTER TABLE {at} RENAME COLUMN {quoted(old)} TO {quoted(new)}")

    def drop_columns(self, spark: "SparkSession", at: str, names: Sequence[str]) -> None:
        """Drop columns, in one commit."""
        spark.sql(f"ALTER TABLE {at} DROP COLUMNS ({', '.join(map(quoted, names))})")

    def add_columns(self, spark: "SparkSession", at: str, columns: Mapping[str, str]) -> None:
        """Add columns (name → type in JSON), in one commit."""
        spark.sql(f"ALTER TABLE {at} ADD COLUMNS ({', '.join(self.declared(columns))})")

    def widen_column(self, spark: "SparkSession", at: str, name: str, kind: str) -> None:
        """Give a column a type (JSON) that `widens` its own, in one commit."""
        declared = next(iter(self.declared({name: kind})))
        type_ = declared.removeprefix(f"{quoted(name)} ")
        spark.sql(f"ALTER TABLE {at} ALTER COLUMN {quoted(name)} TYPE {type_}")

    def clear(self, spark: "SparkSession", at: str) -> None:
        """Take all rows out, in one commit."""
        spark.sql(f"DELETE FROM {at}")

    def stored(self, kind: str) -> str:
        """Return the type (JSON) in which values of ``kind`` are stored."""
        return kind

    def at_version(self, spark: "SparkSession", target: Target) -> "DataFrame":
        """Return the rows of a version."""
        return spark.sql(f"SELECT * FROM {target.at} VERSION AS OF {target.version}")

    # --- the contract -------------------------------------------------------------------------------

    def needed(self, table: TableState) -> frozenset[str]:
        """What files are divided by stays."""
        return frozenset(table.held.divided if table.held is not None else ())

    def evolve(self, step: Step, table: TableState, change: Evolution) -> TableState:
        """Learn; then rename, drop, add and retype columns, each as a step."""
        learnt = change.learn(table)
        if not learnt.columns:
            return learnt  # a table of which no row was seen yet
        _refuse_alike(learnt)
        if learnt.held is None:
            return self._created(step, learnt)
        renamed = {old: new for old, new in change.renames.items() if old in learnt.held.columns}
        work = _Work(self, step, learnt, learnt.held)
        if renamed:
            work.rename(renamed)
        work.drop(change.forgets)
        work.add(rows=not change.replaces)
        work.retype()
        return msgspec.structs.replace(learnt, held=work.held)

    def replace(self, step: Step, table: TableState, rows: Brought) -> TableState:
        """Write history; then overwrite the rows."""
        work = self._work(step, table)
        work.insert("changes", rows.log(table))
        if table.mode.name == "append":
            return work.done(epoch=rows.group.epoch)
        work.overwrite("current", rows.rows(table))
        return work.done(epoch=rows.group.epoch)

    def apply(self, step: Step, table: TableState, rows: Brought) -> TableState:
        """Write history; then MERGE what the changes come to."""
        work, epoch = self._work(step, table), rows.group.epoch
        work.insert("changes", rows.log(table))
        if table.mode.name == "append":
            return work.done(epoch=epoch)
        first = work.held.epoch in (0, epoch)
        empties = rows.truncates and not table.mode.keeps_past
        if work.is_taken("current"):
            work.take("current", lambda: None)
        elif rows.only_adds and first and table.mode.adds_alone:
            work.insert("current", rows.rows(table))
        elif empties:
            work.overwrite("current", self._left(step, table, rows))
        elif table.key:
            work.merge(rows.settled(table, self.read(step.spark, table, "current")))
        else:
            work.exchange(self._exchanged(step, table, rows))
        return work.done(epoch=epoch if first or empties else work.held.epoch)

    def truncate(self, step: Step, table: TableState) -> TableState:
        """Delete all rows."""
        if table.held is None or table.mode.name == "append":
            return table
        work = self._work(step, table)
        work.take("current", partial(self.clear, step.spark, work.at("current")))
        return work.done(epoch=0)

    def read(self, spark: "SparkSession", table: TableState, what: What) -> "DataFrame":
        """Return the rows of the version that ``table`` names, in the source's types."""
        if table.mode.name == "append":
            what = "changes"
        own = _columns(table, what)
        if table.held is None:
            return spark.createDataFrame([], struct_of(own))
        frame = self.at_version(spark, table.held.targets[what])
        kinds = {field.name: field.dataType for field in struct_of(own).fields}
        there = {field.name: field.dataType.json() for field in frame.schema.fields}
        columns = []
        for name in [*(n for n in own if n in there), *(n for n in there if n not in own)]:
            column = column_of(name)
            if name in own and there[name] != own[name] and there[name] == self.stored(own[name]):
                column = column.cast(kinds[name])
            columns.append(column.alias(name))
        return frame.select(*columns)

    def maintain(self, step: Step, table: TableState) -> TableState:
        """Compact every `COMPACT_STEPS` steps; remove old files once a day."""
        held = table.held
        if held is None:
            return table
        steps = sum(target.step for target in held.targets.values())
        now = time.time()
        if steps - held.compacted >= COMPACT_STEPS:
            held = msgspec.structs.replace(held, compacted=steps)
            for target in held.targets.values():
                self.compact(step.spark, target.at)
        if not held.vacuumed:
            held = msgspec.structs.replace(held, vacuumed=now)
        elif now - held.vacuumed >= VACUUM_S:
            held = msgspec.structs.replace(held, vacuumed=now)
            for target in held.targets.values():
                self.vacuum(step.spark, target.at)
        return msgspec.structs.replace(table, held=held)

    # --- steps --------------------------------------------------------------------------------------

    def take(self, step: Step, owner: str, target: Target, action: Callable[[], object]) -> Target:
        """Do ``action`` as the next step of ``target``, one of the table ``owner``, unless it was done
        before; return the target after it. Raises: TargetChanged, NameTaken."""
        number = target.step + 1
        taken = self.taken(step.spark, owner, target)
        if number not in taken:
            note = Note(waltap=self._identity(), step=number, mark=str(step.mark), table=owner)
            try:
                with self.noted(step.spark, note):
                    action()
                taken = self._look(step.spark, owner, target)
            except BaseException:
                self._taken.pop(target.at, None)  # nobody knows whether it took place
                raise
            if number not in taken:
                raise self._changed(target, "does not have what was just written")
        version = taken.pop(number)
        return msgspec.structs.replace(target, version=version, step=number)

    def taken(self, spark: "SparkSession", owner: str, target: Target) -> dict[int, int]:
        """Return the steps after that of ``target`` that were taken already, with their versions."""
        found = self._taken.get(target.at)
        if found is None:
            found = self._taken[target.at] = self._look(spark, owner, target)
        return found

    def _look(self, spark: "SparkSession", owner: str, target: Target) -> dict[int, int]:
        """Look into the table's log for steps after that of ``target``.

        Raises: TargetChanged, when somebody else's are among them; NameTaken, when all are.
        """
        later = self.commits(spark, target)
        if later is None:
            if target.step:
                raise self._changed(target, "is gone, or was made anew")
            return {}
        steps: dict[int, int] = {}
        foreign: Commit | None = None
        for commit in later:
            if commit.restores == target.version:
                foreign = None
            elif commit.note is not None and self._is_of(commit.note, owner):
                steps[commit.note.step] = commit.version
            elif not self.is_harmless(commit.operation):
                foreign = foreign or commit
        if foreign is not None and not target.step and not steps:
            whose = "another output's" if foreign.note else "somebody else's"
            if foreign.note is not None and foreign.note.waltap == self._identity():
                whose = f"{foreign.note.table}'s"
            text = f"{owner} would be kept as {target.at}: that is there, and is {whose}"
            raise NameTaken(text, table=owner)
        if foreign is not None:
            by = "belongs to another output" if foreign.note else "was written by somebody else"
            raise self._changed(target, f"{by} ({foreign.operation}, version {foreign.version})")
        return steps

    def newest(self, spark: "SparkSession", owner: str, target: Target) -> Target:
        """Return ``target`` at the newest version that has its rows. Raises: TargetChanged."""
        if self._look(spark, owner, target):
            raise self._changed(target, "has steps that no commit names")
        later = self.commits(spark, target) or []
        return msgspec.structs.replace(target, version=later[-1].version) if later else target

    def _is_of(self, note: Note, owner: str) -> bool:
        return note.waltap == self._identity() and note.table in ("", owner)

    def _changed(self, target: Target, what: str) -> TargetChanged:
        return TargetChanged(f"{target.at} {what}", table=target.at, version=max(target.version, 0))

    # --- rows ---------------------------------------------------------------------------------------

    def _work(self, step: Step, table: TableState) -> "_Work":
        assert table.held is not None
        return _Work(self, step, table, table.held)

    def _created(self, step: Step, table: TableState) -> TableState:
        held, whats = Held(columns=dict(table.columns)), _whats(table)
        layouts = {what: self.layout(table, what) for what in whats}
        for what, layout in layouts.items():
            layout.require(table.name, _columns(table, what))
        ats = {what: self.identifier(table, what) for what in whats}
        self._claims.take(table.name, list(ats.values()), tells_case=self.tells_case(step.spark))
        try:
            targets = {what: Target(at=at) for what, at in ats.items()}
            for target in targets.values():
                self.taken(step.spark, table.name, target)  # both are free before one is made
        except NameTaken:
            self._claims.release(table.name)
            raise
        for what, free in targets.items():
            columns = ", ".join(self.declared(_columns(table, what)))
            action = partial(self.create, step.spark, free.at, columns, layouts[what])
            target = self.take(step, table.name, free, action)
            held = msgspec.structs.replace(held, targets={**held.targets, what: target})
        by = {name for layout in layouts.values() for name in layout.columns}
        held = msgspec.structs.replace(held, divided=tuple(sorted(by & set(held.columns))))
        return msgspec.structs.replace(table, held=held)

    def declared(self, columns: Mapping[str, str]) -> Iterator[str]:
        """Return ``columns`` as CREATE TABLE and ADD COLUMNS want them."""
        stored = struct_of({name: self.stored(kind) for name, kind in columns.items()})
        for field in stored.fields:
            yield f"{quoted(field.name)} {field.dataType.simpleString()}"

    def storable(self, frame: "DataFrame", columns: Mapping[str, str]) -> "DataFrame":
        """Return ``frame``, which has ``columns`` and perhaps more, with the types that are stored."""
        kinds = {name: self.stored(kind) for name, kind in columns.items()}
        struct = {field.name: field.dataType for field in struct_of(kinds).fields}
        return frame.select(
            *(
                column_of(name).cast(struct[name]).alias(name)
                if kinds.get(name, "") != columns.get(name, "")
                else column_of(name)
                for name in frame.columns
            )
        )

    def _left(self, step: Step, table: TableState, rows: Brought) -> "DataFrame":
        """Return what is there after changes with a truncate among them."""
        base = self.read(step.spark, table, "current")
        if table.key:
            return rows.settled(table, base).where(f"not {GONE}").drop(GONE)
        changes, base = rows.changes(table, base)
        return copies(table, [rows.group], base, changes)

    def _exchanged(self, step: Step, table: TableState, rows: Brought) -> "DataFrame":
        """Return, for a table without key, rows to take away (`GONE`: all that are equal to one of them)
        and rows to add."""
        from pyspark.sql import functions as F  # noqa: N812

        changes, base = rows.changes(table, self.read(step.spark, table, "current"))
        names = list(table.columns)
        alike = [distinguishing(name, kind) for name, kind in table.columns.items()]
        row = changes.where("_op <> 't'")
        same = [each.alias(f"__same{n}") for n, each in enumerate(alike)]
        touched = row.where("_op = 'd'").select(*map(column_of, names), *same)
        marks = touched.dropDuplicates([f"__same{n}" for n in range(len(alike))])
        keys = marks.select(*(f"__same{n}" for n in range(len(alike))))
        on = [each.eqNullSafe(F.col(f"__same{n}")) for n, each in enumerate(alike)]
        left = copies(
            table,
            [rows.group],
            base.join(keys, on, "left_semi"),
            row.join(keys, on, "left_semi"),
        )
        new = row.join(keys, on, "left_anti").select(*map(column_of, names))
        added = left.unionByName(new).withColumn(GONE, F.lit(False))
        away = marks.select(*map(column_of, names)).withColumn(GONE, F.lit(True))
        return away.unionByName(added)


class _Work:
    """Steps of one table, one after the other."""

    def __init__(self, tables: MergingFormat, step: Step, table: TableState, held: Held) -> None:
        self._format, self._step, self._table, self.held = tables, step, table, held
        self._spark = step.spark

    def at(self, what: str) -> str:
        """Return what SQL calls the target."""
        return self.held.targets[what].at

    def done(self, *, epoch: int) -> TableState:
        """Return the table after the steps."""
        held = msgspec.structs.replace(self.held, epoch=epoch)
        return msgspec.structs.replace(self._table, held=held)

    def is_taken(self, what: str) -> bool:
        """Tell whether the next step of ``what`` was taken already."""
        target = self.held.targets[what]
        return target.step + 1 in self._format.taken(self._spark, self._table.name, target)

    def take(self, what: str, action: Callable[[], object]) -> None:
        """Take one step."""
        now = self.held.targets[what]
        target = self._format.take(self._step, self._table.name, now, action)
        targets = {**self.held.targets, what: target}
        self.held = msgspec.structs.replace(self.held, targets=targets)

    # --- rows ---------------------------------------------------------------------------------------

    def insert(self, what: What, frame: "DataFrame") -> None:
        """Add rows."""
        self._write(what, frame, "INSERT INTO")

    def overwrite(self, what: What, frame: "DataFrame") -> None:
        """Put rows in place of all there are."""
        self._write(what, frame, "INSERT OVERWRITE")

    def _write(self, what: What, frame: "DataFrame", verb: str) -> None:
        def action() -> None:
            names = self._view(frame)
            listed = ", ".join(map(quoted, names))
            into = f"{verb} {self.at(what)} ({listed})"
            self._spark.sql(f"{into} SELECT {listed} FROM {VIEW}")

        self.take(what, action)

    def merge(self, settled: "DataFrame") -> None:
        """MERGE rows with `GONE` by the key."""

        def action() -> None:
            names = [name for name in self._view(settled) if name != GONE]
            key = row_key(self._table)
            on = " AND ".join(f"t.{quoted(k)} <=> s.{quoted(k)}" for k in key)
            if self._table.mode.name == "scd2":  # versions that have ended stay as they are
                on = f"t._current AND {on}"
            values = [quoted(name) for name in names if name not in key]
            update = ", ".join(f"t.{name} = s.{name}" for name in values)
            self._spark.sql(
                f"MERGE INTO {self.at('current')} t USING {VIEW} s ON {on}"
                f" WHEN MATCHED AND s.{GONE} THEN DELETE"
                + (f" WHEN MATCHED THEN UPDATE SET {update}" if update else "")
                + f" WHEN NOT MATCHED AND NOT s.{GONE} THEN {inserted(names)}"
            )

        self.take("current", action)

    def exchange(self, frame: "DataFrame") -> None:
        """MERGE rows without a key: those that are equal to one with `GONE` go, the others come."""

        def action() -> None:
            names = [name for name in self._view(frame) if name != GONE]
            kinds = self._table.columns
            on = " AND ".join(equal(quoted(name), kinds[name]) for name in names)
            self._spark.sql(
                f"MERGE INTO {self.at('current')} t USING {VIEW} s ON s.{GONE} AND {on}"
                f" WHEN MATCHED THEN DELETE WHEN NOT MATCHED AND NOT s.{GONE} THEN {inserted(names)}"
            )

        self.take("current", action)

    def _view(self, frame: "DataFrame") -> list[str]:
        columns = {**self._table.columns, **LOG_FIELDS}
        self._format.storable(frame, columns).createOrReplaceTempView(VIEW)
        return list(frame.columns)

    # --- columns ------------------------------------------------------------------------------------

    def rename(self, renames: Mapping[str, str]) -> None:
        """Rename columns, also where they take each other's names."""
        pairs = list(renames.items())
        if set(renames.values()) & set(self.held.columns):
            aside = {old: f"__waltap {n}" for n, old in enumerate(renames)}
            pairs = [*aside.items(), *((aside[old], new) for old, new in renames.items())]
        for what in _whats(self._table):
            for old, new in pairs:
                rename = self._format.rename_column
                self.take(what, partial(rename, self._spark, self.at(what), old, new))
        columns = {renames.get(name, name): kind for name, kind in self.held.columns.items()}
        divided = tuple(renames.get(name, name) for name in self.held.divided)
        self.held = msgspec.structs.replace(self.held, columns=columns, divided=divided)

    def drop(self, names: Sequence[str]) -> None:
        """Drop columns that the source has no more."""
        there = [name for name in names if name in self.held.columns]
        for what in _whats(self._table) if there else ():
            drop = self._format.drop_columns
            self.take(what, partial(drop, self._spark, self.at(what), there))
        columns = {name: kind for name, kind in self.held.columns.items() if name not in there}
        self.held = msgspec.structs.replace(self.held, columns=columns)

    def add(self, *, rows: bool) -> None:
        """Add columns; ``rows``: those that are there get the value that they have in the source."""
        new = {n: kind for n, kind in self._table.columns.items() if n not in self.held.columns}
        if not new:
            return
        for what in _whats(self._table):
            add = self._format.add_columns
            self.take(what, partial(add, self._spark, self.at(what), new))
        values = {name: older_value(self._table, {}, name) for name in new}
        known = {name: text for name, text in values.items() if text is not None}
        if known and rows and "current" in self.held.targets:
            kinds = {name: self._format.stored(new[name]) for name in known}
            types = {field.name: field.dataType for field in struct_of(kinds).fields}
            pairs = (
                f"{quoted(name)} = {literal(text, types[name].simpleString())}"
                for name, text in known.items()
            )
            sql = f"UPDATE {self.at('current')} SET {', '.join(pairs)}"
            self.take("current", lambda: self._spark.sql(sql))
        self.held = msgspec.structs.replace(self.held, columns={**self.held.columns, **new})

    def retype(self) -> None:
        """Give columns the type that the table's have now: by widening, or by rewriting the rows."""
        stored = self._format.stored
        had, have = self.held.columns, self._table.columns
        changed = {n: kind for n, kind in have.items() if stored(had[n]) != stored(kind)}
        for what in _whats(self._table) if changed else ():
            if all(self._format.widens(stored(had[n]), stored(k)) for n, k in changed.items()):
                for name, kind in changed.items():
                    widen = self._format.widen_column
                    self.take(what, partial(widen, self._spark, self.at(what), name, kind))
            else:
                self._rewrite(what, changed)
        self.held = msgspec.structs.replace(self.held, columns={**had, **have})

    def _rewrite(self, what: What, changed: Mapping[str, str]) -> None:
        own = dict(self.held.columns)
        own |= LOG_FIELDS if what == "changes" else self._table.mode.columns
        stored = struct_of({name: self._format.stored(kind) for name, kind in changed.items()})
        types = {field.name: field.dataType.simpleString() for field in stored.fields}
        target = self.held.targets[what]
        for action in self._format.rewriting(self._spark, target, list(own), types):
            self.take(what, action)


def _whats(table: TableState) -> tuple[What, ...]:
    """Return what is stored of a table."""
    return ("changes",) if table.mode.name == "append" else WHATS


def _columns(table: TableState, what: What) -> dict[str, str]:
    return {**table.columns, **LOG_FIELDS} if what == "changes" else row_columns(table)


def _refuse_alike(table: TableState) -> None:
    """Raises: FormatLimit, when names differ by case alone, which these formats do not tell apart."""
    seen: dict[str, str] = {}
    for name in [
        *table.columns,
        *LOG_FIELDS,
        *(n for n in table.mode.columns if n not in LOG_FIELDS),
    ]:
        other = seen.setdefault(name.lower(), name)
        if other != name:
            raise FormatLimit(
                f"{table.name} has columns {other} and {name}, which differ by case alone"
            )
