"""Write tables of Delta Lake and Iceberg in place.

INSERT, MERGE or `put` writes them. Every table is two of the format's: ``current``, its rows, and
``changes``, its history. Numbered steps write them once (`waltap_spark.formats.stepwise`).
`TableState.stored_table` names the last committed step and its version; readers read that version,
and ignore later ones.
"""

import contextlib
import itertools
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final
from zlib import crc32

import msgspec
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from waltap.base.files.durable_file import UNREADABLE
from waltap.errors import WaltapError
from waltap_spark.compact.compaction import copies, distinguishing
from waltap_spark.config.shared_targets import sharers
from waltap_spark.config.targets import HISTORY, OF_HISTORY, FileLayout, named, refuse_alike
from waltap_spark.errors import FormatError, NameTaken, first_words
from waltap_spark.formats.shared import SharedWork, together
from waltap_spark.formats.stepwise import (
    ROWS,
    SIGN,
    ReplaceRows,
    StepwiseFormat,
    stored_columns,
    whats,
)
from waltap_spark.formats.table_format import (
    CommitContext,
    GroupRows,
    TableChange,
    What,
)
from waltap_spark.formats.work import TableWriter
from waltap_spark.planning.plan import meets_none
from waltap_spark.planning.table_renames import catalogue_name
from waltap_spark.schema.expression import (
    GONE,
    column_of,
    namespace_of,
    quoted,
    temp,
    within_catalogue,
)
from waltap_spark.schema.schema import LOG_FIELDS, fitted_to, struct_of
from waltap_spark.state.output import TableState, TargetMove, TargetTable
from waltap_spark.state.version_maps import name_now

# A rename in a catalogue is no commit of the table, so the table's log lacks it. A driver therefore
# notes the tables' own ids, with their names before and after, before it renames the first one
# (`CommitIntent.moves`). Another driver that finishes the commit finds each table by its id. Tables that
# exchange names get a spare name in between.


def spare(move: TargetMove) -> str:
    """Return the name of a table between two renames."""
    return f"{move.new.removesuffix('`')}_waltap`"


def renamed(
    moves: Iterable[TargetMove],
    identity: Callable[[str], str | None],
    rename: Callable[[str, str], bool],
) -> dict[TargetMove, str]:
    """Rename tables where needed; return the name of each.

    ``identity`` returns the id of the table of a name, None if there is none. ``rename`` returns
    whether the catalogue took the new name; else the table keeps its name.
    """
    found = {move: _found(move, identity) for move in moves}
    at = {move: name or move.old for move, name in found.items()}
    waiting = [move for move, name in found.items() if name not in (None, move.new)]
    while waiting:
        taken = {at[move] for move in waiting}
        free = next((move for move in waiting if move.new not in taken), None)
        move = waiting[0] if free is None else free
        goal = spare(move) if free is None else move.new
        done = rename(at[move], goal)
        if done:
            at[move] = goal
        if free is not None or not done:
            waiting.remove(move)
    return at


def _found(move: TargetMove, identity: Callable[[str], str | None]) -> str | None:
    """Return the table's present name, None if it is gone."""
    names = move.old, move.new, spare(move)
    return next((name for name in names if identity(name) == move.identity), None)


# Steps of a table between two compactions of its small files.
COMPACT_STEPS: Final = 50

VACUUM_S: Final = 24 * 3600.0
# Spark's condition for a name that a catalogue refuses; Spark's own allows letters, digits and _.
NO_NAME: Final = "INVALID_SCHEMA_OR_RELATION_NAME"


log = logging.getLogger(__name__)


class MergingFormat(StepwiseFormat):
    """Base of formats that have MERGE, time travel, and commit notes."""

    def identifier(self, table: TableState, what: What) -> str:
        """Return the table's name in SQL, with or without catalogue."""
        catalog = self._properties.catalog
        if not catalog:
            return self.own_identifier(table, what)
        schema, name = named(self._properties.names, *catalogue_name(table))
        parts = [*catalog.split("."), schema, name if what == "current" else name + HISTORY]
        return ".".join(map(quoted, parts))

    def layout(self, table: TableState, what: What) -> FileLayout:
        """Return the profile's layout of a new table's files. Raises: FormatLimit."""
        own = self._properties
        return FileLayout.of(layout_name(table, what), own.partition_by, own.cluster_by)

    # --- the contract -------------------------------------------------------------------------------

    def needed(self, table: TableState) -> frozenset[str]:
        """Return the columns that partition files, which must stay."""
        return frozenset(table.stored_table.divided)

    def evolve(self, commit: CommitContext, table: TableState, change: TableChange) -> TableState:
        """Rename, drop, add and retype columns, each as a step."""
        learnt = change.learn(table)
        if not learnt.columns:
            return learnt  # a table of which no row was seen yet
        stored = learnt.stored_table.columns
        if learnt.columns != stored:
            refuse_alike(learnt.name, [*learnt.columns, *LOG_FIELDS, *learnt.mode.columns])
        if not learnt.stored_table.targets:
            return self._created(commit, learnt)
        renamed = {old: new for old, new in change.renames.items() if old in stored}
        if learnt.columns == stored and not renamed and stored.keys().isdisjoint(change.forgets):
            return learnt
        work = self._work(commit, learnt)
        work.evolve(renamed, change.forgets, rows=not change.replaces)
        return work.table

    def replace(self, commit: CommitContext, table: TableState, rows: GroupRows) -> TableState:
        work = self._work(commit, table)
        self._log(work, rows)
        if table.mode.name != "append":
            work.overwrite(partial(rows.rows, table), rows.fresh_here(table))
        return work.done(epoch=rows.group.epoch, continuity_id=rows.group.continuity_id)

    def apply(self, commit: CommitContext, table: TableState, rows: GroupRows) -> TableState:
        work, mode = self._work(commit, table), table.mode
        epoch, continuity_id = rows.group.epoch, rows.group.continuity_id
        self._log(work, rows)
        if mode.name == "append":
            return work.done(epoch=epoch, continuity_id=continuity_id)
        unbroken = work.table.stored_table.continuity_id == continuity_id
        empties = rows.truncates and not mode.keeps_past
        if meets_none(table, rows.group):
            work.insert("current", partial(rows.rows, table), rows.fresh_here(table))
        elif empties:
            work.overwrite(partial(self._remaining_rows, work, rows))
        elif not table.key:
            work.exchange(partial(self._exchanged, work, rows))
        else:
            work.take("current", partial(self._put_or_merge, work, rows), ROWS)
        if empties or not work.table.stored_table.epoch:
            return work.done(epoch=epoch, continuity_id=continuity_id)
        return work.done(
            epoch=work.table.stored_table.epoch, continuity_id=continuity_id if unbroken else ""
        )

    def _put_or_merge(self, work: TableWriter, rows: GroupRows) -> None:
        table, spark = work.table, work.commit.spark
        base = partial(self.read, spark, table, "current")
        if self._replaced(work, rows, base):
            return
        listed = rows.listed(table)
        fit = listed is not None or rows.only_puts
        replace = self._replacer(spark, table, listed=listed is not None) if fit else None
        compacted = rows.compacted(table, base, live=replace is not None)
        if replace is not None:
            work.put(replace, compacted, listed)
        else:
            work.merge(compacted)

    def _replaced(self, work: TableWriter, rows: GroupRows, base: Callable[[], DataFrame]) -> bool:
        """Write few net changes without Spark; return whether the format did."""
        table, mode = work.table, work.table.mode
        if table.place is not None or mode.keeps_past or mode.columns:
            return False
        target = table.stored_table.targets["current"]
        net = partial(rows.compacted_here, table, base)
        write = self.replacing(work.commit.spark, target, table.key, net)
        if write is not None:
            write()
        return write is not None

    def _replacer(
        self, spark: SparkSession, table: TableState, *, listed: bool
    ) -> ReplaceRows | None:
        """Return the replacer if it may replace ``table``'s rows.

        Not in a shared target with ended rows or with columns of another source.
        """
        plain = table.place is None and not table.mode.keeps_past
        flat = not any(kind.startswith("{") for kind in table.columns.values())
        if not plain or not flat or not table.stored_table.targets:
            return None
        found = self.replacer(spark, listed=listed)
        if found is None:
            return None
        there = spark.table(table.stored_table.targets["current"].at).columns
        return found if set(there) == set(self.all_columns(table, "current")) else None

    def truncate(self, commit: CommitContext, table: TableState) -> TableState:
        if not table.stored_table.targets or table.mode.name == "append":
            return table
        work = self._work(commit, table)
        work.clear()
        return work.done(epoch=0, continuity_id="")

    def read(self, spark: SparkSession, table: TableState, what: What) -> DataFrame:
        if table.mode.name == "append":
            what = "changes"
        own = stored_columns(table, what)
        if not table.stored_table.targets:
            return spark.createDataFrame([], struct_of(own))
        stored = {self.stored_name(name): name for name in table.mode.columns}
        frame = self.at_version(spark, table.stored_table.targets[what])
        if stored:
            frame = frame.withColumnsRenamed(stored)
        if table.place is not None:
            mine = column_of(table.place.column) == table.place.source
            return fitted_to(frame.where(mine), own)
        there = {field.name: field.dataType.json() for field in frame.schema.fields}
        if there == own and list(there) == list(own):
            return frame
        names = [*(n for n in own if n in there), *(n for n in there if n not in own)]
        is_ours = {n: n in own and there[n] == self.stored(own[n]) for n in names}
        return fitted_to(frame, {n: own[n] if is_ours[n] else there[n] for n in names})

    def maintain(self, commit: CommitContext, table: TableState) -> TableState:
        """Compact every `COMPACT_STEPS` steps; remove files daily (`afterwards`).

        Tables that change together have their first compaction at different times: the commit of
        all would take minutes.
        """
        targets, vacuumed = table.stored_table.targets, table.stored_table.vacuumed
        if not targets:
            return table
        steps, now = sum(target.step for target in targets.values()), time.time()
        compacted = table.stored_table.compacted
        later = 0 if compacted else crc32(table.name.encode()) % COMPACT_STEPS
        if steps - compacted >= COMPACT_STEPS + later and not self.is_awaited(table):
            targets = {w: self._compacted(commit, table, each) for w, each in targets.items()}
            table = table.with_storage(compacted=steps, targets=targets)
        # a clock that was ahead must not end it until then
        if vacuumed and (abs(now - vacuumed) < VACUUM_S or self.is_awaited(table)):
            return table
        if vacuumed:
            self._cluttered[table.name] = [target.at for target in targets.values()]
        return table.with_storage(vacuumed=now)

    def _compacted(
        self, commit: CommitContext, table: TableState, target: TargetTable
    ) -> TargetTable:
        """Return ``target`` at its compacted version.

        One commit compacts it once for all of its sources.
        """
        if self.has_few_files(target):
            return target
        with self.alone(target.at), _forgiven(target.at, "compacted"):
            if self._maintained.get(target.at) != commit.log_position:
                self._maintained[target.at] = commit.log_position
                self.compact_files(commit.spark, target.at)
            return self.newest(commit.spark, table, target)
        return target

    def afterwards(self) -> Sequence[Callable[[SparkSession], None]]:
        """Remove old files after a commit, which may have needed them."""
        if not self._cluttered:
            return ()
        asked, self._cluttered = self._cluttered, {}
        tables = self._tables()
        found = ((tables.get(name), ats) for name, ats in asked.items())
        fine = [ats for each, ats in found if each and not (each.failed or self.is_awaited(each))]
        return [partial(self._cleared, at) for at in dict.fromkeys(itertools.chain(*fine))]

    def _cleared(self, at: str, spark: SparkSession) -> None:
        with _forgiven(at, "vacuumed"):
            self.vacuum(spark, at)

    def is_awaited(self, table: TableState) -> bool:
        """Return whether a suspended source needs a version of the target."""
        place = table.place
        return place is not None and any(
            each.failed and each.place is not None and each.place.name == place.name
            for each in self._tables().values()
        )

    def moves(self, spark: SparkSession, tables: Iterable[TableState]) -> tuple[TargetMove, ...]:
        found = []
        for table in tables if self._in_catalogue else ():
            for what, target in table.stored_table.targets.items():
                new = self.identifier(table, "current" if what == "current" else "changes")
                own = None if new == target.at else self.identity_of(spark, target.at)
                if own is not None:
                    found.append(
                        TargetMove(
                            table=table.name, what=what, identity=own, old=target.at, new=new
                        )
                    )
        return tuple(found)

    def rename_targets(
        self, spark: SparkSession, tables: Mapping[str, TableState], moves: Sequence[TargetMove]
    ) -> Mapping[str, TableState]:
        found: dict[str, TableState] = {}
        there, rename = partial(self.identity_of, spark), partial(self.rename_table, spark)
        for move, at in renamed(moves, there, rename).items():
            table = found.get(move.table) or tables[move.table]
            target = msgspec.structs.replace(table.stored_table.targets[move.what], at=at)
            found[move.table] = table.with_storage(
                targets={**table.stored_table.targets, move.what: target}
            )
        return found

    def rename_table(self, spark: SparkSession, old: str, new: str) -> bool:
        try:
            spark.sql(f"CREATE SCHEMA IF NOT EXISTS {namespace_of(new)}")
            spark.sql(f"ALTER TABLE {old} RENAME TO {within_catalogue(new)}")
        except (Py4JJavaError, PySparkException) as error:
            log.warning("%s keeps its name, and is not %s: %s", old, new, first_words(error))
            return False
        return True

    def located(self, spark: SparkSession, table: TableState, number: int) -> TableState:
        """Return ``table`` with its targets' names in the catalogue.

        A later commit may have renamed them, or has begun to; their old names may be other tables'.
        """
        intent = self._output.intent() if self._in_catalogue and table.place is None else None
        newest = None if intent is None or intent.number <= number else self._output.state()
        if newest is None:
            return table
        name = name_now(self._output, newest, number, table.name)
        now = newest.tables.get(name, table).stored_table.targets
        begun = self._output.begun(newest)
        moves = {move.old: move for move in (() if begun is None else begun.moves)}
        targets = {}
        for what, target in table.stored_table.targets.items():
            at = now[what].at if what in now else target.at
            if at in moves:
                at = _found(moves[at], partial(self.identity_of, spark)) or at
            targets[what] = msgspec.structs.replace(target, at=at)
        return table.with_storage(targets=targets)

    def aligned(
        self, spark: SparkSession, tables: Mapping[str, TableState], moved: Iterable[str]
    ) -> Mapping[str, TableState]:
        """Move the sources of a written target to one version.

        A source whose rows are newer than its commit is left out (`TableState.failed`).
        """
        wrote = {tables[name].target_name for name in moved if tables[name].place is not None}
        found: dict[str, TableState] = {}
        for name, sources in sharers(tables.values()).items() if wrote else ():
            fine = [each for each in sources if each.stored_table.targets and not each.failed]
            if name not in wrote or len(fine) < 2:
                continue
            newest: dict[str, int] = {}
            for what in whats(fine[0]):
                targets = [each.stored_table.targets[what] for each in fine]
                versions = {target.version for target in targets}
                newest[what] = self.newest_of(spark, targets[0].at, versions)
            for each in fine:
                had = each.stored_table.targets
                has = {
                    what: msgspec.structs.replace(target, version=newest.get(what, target.version))
                    for what, target in had.items()
                }
                if has != had:
                    found[each.name] = each.with_storage(targets=has)
        return found

    def move_idle(
        self, commit: CommitContext, tables: Mapping[str, TableState]
    ) -> Mapping[str, TableState]:
        """Move tables to the newest versions that have their rows.

        If another program compacts the files, it also expires old versions. In a target that other
        outputs write, a suspended table stays at its version and signs it. A failure affects only
        its own target.
        """
        found = dict[str, TableState]()
        for table in tables.values():
            current, targets = table, tuple(table.stored_table.targets)
            # the targets of a shared table must move together
            for what in [targets] if table.place else [(each,) for each in targets]:
                try:
                    current = self._move_idle(commit, current, what)
                except (WaltapError, PySparkException, Py4JJavaError) as error:
                    log.info("%s stays at its version: %s", table.name, first_words(error))
            if current is not table:
                found[table.name] = current
        return found

    def _move_idle(
        self, commit: CommitContext, table: TableState, moving: Iterable[str]
    ) -> TableState:
        targets = dict(table.stored_table.targets)
        for what in moving:
            target = targets[what]
            if table.place is None:
                if self.commits(commit.spark, target) != []:
                    targets[what] = self.newest(commit.spark, table, target)
                continue
            foreign = (each.note for each in self._foreign(commit.spark, target))
            if all(note is None or note.kind == SIGN for note in foreign):
                continue
            note = self.note(commit, table, 0, target, SIGN)
            with self.alone(target.at), self.noted(commit.spark, note):
                self.sign(commit.spark, target.at)
            if not table.failed:
                version = self.newest(commit.spark, table, target).version
                targets[what] = msgspec.structs.replace(target, version=version)
        return (
            table if targets == table.stored_table.targets else table.with_storage(targets=targets)
        )

    def read_together(
        self, spark: SparkSession, tables: Sequence[TableState], what: What
    ) -> DataFrame:
        """Return the rows of a target's tables; read equal versions once."""
        return together(self, spark, tables, what)

    # --- rows ---------------------------------------------------------------------------------------

    def _work(self, commit: CommitContext, table: TableState) -> TableWriter:
        kind = TableWriter if table.place is None else SharedWork
        return kind(self, commit, table)

    def _made(
        self, spark: SparkSession, table: TableState, at: str, columns: str, layout: FileLayout
    ) -> None:
        """Create a table. Raises: NameTaken if the catalogue refuses the name."""
        try:
            self.create(spark, at, columns, layout)
        except AnalysisException as error:
            if error.getCondition() != NO_NAME:
                raise
            self._claims.release(table.name)
            text = f"{table.name} would be stored as {at}, and the catalogue takes no such name"
            raise NameTaken(text, table=table.name) from None

    def _created(self, commit: CommitContext, table: TableState) -> TableState:
        layouts = {what: self.layout(table, what) for what in whats(table)}
        stored = {what: self.all_columns(table, what) for what in layouts}
        for what, layout in layouts.items():
            layout.require(table.name, stored[what])
        ats = {what: self.identifier(table, what) for what in layouts}
        source = "" if table.place is None else table.place.source
        is_case_sensitive = self.is_case_sensitive(commit.spark)
        self._claims.take(
            table.name, list(ats.values()), is_case_sensitive=is_case_sensitive, source=source
        )
        try:
            targets = {what: TargetTable(at=at) for what, at in ats.items()}
            for target in targets.values():
                self.taken(commit.spark, table, target)  # check both names before creating a table
        except NameTaken:
            self._claims.release(table.name)
            raise
        for what, free in targets.items():
            columns = ", ".join(self.declared(stored[what]))
            action = partial(self._made, commit.spark, table, free.at, columns, layouts[what])
            if table.place is not None:
                shared = SharedWork(self, commit, table)
                shared.make_room(what, free.at, action)
                action = partial(shared.begin, what, free.at)
            target = self.take(commit, table, free, action, "create")
            targets[what] = target
        by = {name for layout in layouts.values() for name in layout.columns}
        divided = tuple(sorted(by & set(table.columns)))
        return table.with_storage(targets=targets, columns=dict(table.columns), divided=divided)

    @staticmethod
    def _log(work: TableWriter, rows: GroupRows) -> None:
        table = work.table
        if table.mode.history:
            work.insert("changes", partial(rows.log, table), rows.read_here(table))

    def _remaining_rows(self, work: TableWriter, rows: GroupRows) -> DataFrame:
        """Return the rows after changes that include a truncate."""
        table = work.table
        base = self.read(work.commit.spark, table, "current")
        if table.key:
            return rows.compacted(table, lambda: base, live=True)
        changes, base = rows.changes(table, base)
        return copies(table, [rows.group], base, changes)

    def _exchanged(self, work: TableWriter, rows: GroupRows) -> DataFrame:
        """Return rows to remove and add, for a table without key.

        A row with `GONE` removes all rows that are equal to it.
        """
        table = work.table
        changes, base = rows.changes(table, self.read(work.commit.spark, table, "current"))
        names = list(table.columns)
        alike = [distinguishing(name, kind) for name, kind in table.comparable.items()]
        row = changes.where("_op <> 't'")
        own = temp("same")
        same = [each.alias(f"{own}{n}") for n, each in enumerate(alike)]
        touched = row.where("_op = 'd'").select(*map(column_of, names), *same)
        touched_keys = touched.dropDuplicates([f"{own}{n}" for n in range(len(alike))])
        keys = touched_keys.select(*(f"{own}{n}" for n in range(len(alike))))
        on = [each.eqNullSafe(F.col(f"{own}{n}")) for n, each in enumerate(alike)]
        copied = copies(
            table,
            [rows.group],
            base.join(keys, on, "left_semi"),
            row.join(keys, on, "left_semi"),
        )
        new = row.join(keys, on, "left_anti").select(*map(column_of, names))
        added = copied.unionByName(new).withColumn(GONE, F.lit(False))
        away = touched_keys.select(*map(column_of, names)).withColumn(GONE, F.lit(True))
        return away.unionByName(added)


def layout_name(table: TableState, what: What) -> str:
    """Return the name of rows or history in layout rules."""
    return table.target_name + ("" if what == "current" else OF_HISTORY)


@contextlib.contextmanager
def _forgiven(at: str, what: str) -> Iterator[None]:
    """Log a failed compaction: the written rows count, and it runs again."""
    try:
        yield
    except (Py4JError, PySparkException, FormatError, *UNREADABLE) as error:
        log.warning("%s was not %s, and will be another time: %s", at, what, first_words(error))
