"""Applying the change log to tables: one commit per call, exactly once whatever happens between."""

import itertools
import logging
import time
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from waltap_sinks.changelog import ChangeLog, Manifest
from waltap_sinks.changelog.manifest import NOTHING, Mark
from waltap_spark.column_identity import another_table, identify, renames, replaced
from waltap_spark.errors import TypeChanged
from waltap_spark.moves import settle_moves
from waltap_spark.output import BasePart, ChangeSet, Output, OutputState, TableState
from waltap_spark.plan import Group, TablePlan, plan
from waltap_spark.resolve import changes_frame, current_frame
from waltap_spark.schema import common_type, log_struct, types_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Applier", "ApplyOptions", "first_words"]

log = logging.getLogger(__name__)

MOST_PARTS: Final = 256
"""Folders that a base may have; merging keeps them far below, unless schemas alternate."""


RETRY_S: Final = 60.0
"""How long a table that stands still is left alone before it is tried again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyOptions:
    """How tables are kept.

    ``type_change``: what a column does that got a type which does not fit: fail, or become text.
    ``fold_rows`` and ``fold_share``: pending changes become part of the base when they are more
    than both that many and that share of the base's rows; ``fold_sets``: or come in so many sets.
    ``merge_sets``: so many change sets of one size become one. ``file_rows``: rows of one file.
    ``grace_s``: how long folders of earlier commits stay for those who are reading them.
    ``parallel``: tables that are applied at a time.
    """

    type_change: Literal["fail", "string"] = "fail"
    fold_rows: int = 100_000
    fold_share: float = 0.25
    fold_sets: int = 32
    merge_sets: int = 16
    file_rows: int = 1_000_000
    grace_s: float = 600.0
    parallel: int = 4


class Applier:
    """Applies manifests to an output. One at a time per output; `open` before `apply`.

    Exactly once: the commit that names the new folders names the mark of the change log too. What a
    crash leaves is a folder that no commit names; the same manifests are then applied again, from
    the same mark.
    """

    def __init__(
        self,
        spark: "SparkSession",
        changelog: ChangeLog,
        output: Output,
        options: ApplyOptions | None = None,
    ) -> None:
        self._spark, self._log, self._output = spark, changelog, output
        self._options = options or ApplyOptions()
        self.state: OutputState
        self._tried: dict[str, float] = {}

    @property
    def location(self) -> str:
        """Return where the tables are."""
        return self._output.location

    def open(self) -> OutputState:
        """Take hold of the output. Raises: OutputInUse, OutputMismatch, OutputDamaged."""
        self.state = self._output.open(self._log.store.location, self._log.identity())
        return self.state

    def close(self) -> None:
        """Let others write the output."""
        self._output.close()

    # --- one commit -------------------------------------------------------------------------------

    def apply(self, manifests: Sequence[Manifest]) -> OutputState:
        """Apply ``manifests``, which follow the mark of the last commit, as one commit.

        A table whose changes cannot be applied stands still (`TableState.failed`): all others go on,
        and it is tried again from where it stands, every `RETRY_S` and by every new applier.
        Raises: ChangeLogUnavailable, and what Spark raises for all tables alike; nothing has changed
        then.
        """
        from pyspark.errors import PySparkException

        due = self._due()
        if not manifests and not due:
            return self.state
        started = time.monotonic()
        before = self.state
        number = before.number + 1
        mark = manifests[-1].mark if manifests else before.mark
        called = {each.oid: name for name, each in before.tables.items() if each.oid}
        step = _Step(self._spark, self._log, self._output, self._options, number, called)
        tables = dict(before.tables)
        plans = self._plans(manifests, due, mark)
        with ThreadPoolExecutor(max(1, self._options.parallel)) as pool:
            applied = list(
                pool.map(lambda name: self._attempt(step, name, plans[name], before), plans)
            )
        failures = [error for _table, error in applied if error is not None]
        if len(failures) == len(applied):
            for error in failures:
                if not isinstance(error, (TypeChanged, PySparkException)):
                    raise error  # a job that fails for all tables alike is no matter of one
        tables |= {table.name: table for table, _error in applied}
        plans = {name: found for name, found in plans.items() if not tables[name].failed}
        rows = sum(group.rows for found in plans.values() for group in found.groups)
        now = time.time()
        named = {path for table in tables.values() for path in table.paths()}
        dropped = {
            path: now
            for table in before.tables.values()
            for path in table.paths()
            if path not in named
        }
        times = [found.last_commit_ts for found in manifests if found.last_commit_ts is not None]
        state = msgspec.structs.replace(
            before,
            number=number,
            mark=mark,
            committed_at=now,
            tables=tables,
            garbage={**before.garbage, **dropped},
            rows_applied=before.rows_applied + rows,
            last_commit_ts=times[-1] if times else before.last_commit_ts,
        )
        state = self._output.collect(state, self._options.grace_s)
        self._output.commit(state)
        self.state = state
        log.info(
            "applied",
            extra={
                "batch_rows": rows,
                "lsn": str(state.mark),
                "duration_ms": round((time.monotonic() - started) * 1000),
            },
        )
        return state

    def _due(self) -> list[str]:
        """Return the tables that stand still and are to be tried again now."""
        now = time.monotonic()
        return [
            name
            for name, each in self.state.tables.items()
            if each.failed and now - self._tried.get(name, -RETRY_S) >= RETRY_S
        ]

    def _plans(
        self, manifests: Sequence[Manifest], due: Sequence[str], mark: Mark
    ) -> dict[str, TablePlan]:
        tables = self.state.tables
        standing = {name for name, each in tables.items() if each.failed}
        plans = plan(manifests, {n: each for n, each in tables.items() if n not in standing})
        plans = {name: found for name, found in plans.items() if name not in standing}
        for name in due:
            since = tables[name].mark or NOTHING
            found = plan(self._log.manifests(since, mark), {name: tables[name]})
            plans[name] = found.get(name) or TablePlan(tables[name].schema, tables[name].table)
        return plans

    def _attempt(
        self, step: "_Step", name: str, found: TablePlan, before: OutputState
    ) -> tuple[TableState, Exception | None]:
        """Apply what ``found`` says to one table, or note why that cannot be done."""
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException

        table = before.tables.get(name) or _new_table(found)
        try:
            done = step.table(table, found)
        except (TypeChanged, PySparkException, Py4JJavaError) as error:
            reason = first_words(error)
            if reason != table.failed:
                log.error("%s stands still, other tables go on: %s", name, reason)  # noqa: TRY400
            self._tried[name] = time.monotonic()
            mark = table.mark or before.mark
            return msgspec.structs.replace(table, failed=reason, mark=mark), error
        self._tried.pop(name, None)
        if table.failed:
            log.info("%s goes on", name)
        return msgspec.structs.replace(done, failed="", mark=None), None


def first_words(error: BaseException) -> str:
    """Return what ``error`` says, without the trace that a JVM adds, on one line."""
    lines = [line.strip() for line in str(error).splitlines()]
    told = list(itertools.takewhile(lambda line: line not in {"", "JVM stacktrace:"}, lines))
    return " ".join(told) or type(error).__name__


class _Step:
    """One commit in the making: writes folders that nobody knows yet."""

    def __init__(
        self,
        spark: "SparkSession",
        changelog: ChangeLog,
        output: Output,
        options: ApplyOptions,
        number: int,
        called: Mapping[int, str],
    ) -> None:
        """``called``: what tables were called at the last commit, by the source's numbers."""
        self._spark, self._log, self._output, self._options = spark, changelog, output, options
        self._called = called
        attempt = uuid.uuid4().hex[:8]
        self._names = (f"{number:012d}-{attempt}-{n}" for n in itertools.count())

    def table(self, table: TableState, found: TablePlan) -> TableState:
        """Apply what ``found`` says; return the table as it is after that."""
        for group in found.groups:
            table = self._apply_group(table, group)
        pending_rows = sum(change.rows for change in table.pending)
        options = self._options
        enough = max(options.fold_rows, options.fold_share * table.base_rows)
        many = (
            pending_rows > enough
            or len(table.pending) >= options.fold_sets
            or len(table.base) > MOST_PARTS
        )
        if found.groups and many:
            table = self._fold(table, found.groups[-1].epoch)
        table = self._merge(table)
        return msgspec.structs.replace(table, staged=tuple(found.staged))

    def _apply_group(self, table: TableState, group: Group) -> TableState:
        called = self._called.get(group.oid, table.name)
        another = another_table(table, group)
        if another:
            table = replaced(table)
        if group.replaces:
            table = msgspec.structs.replace(table, base=(), pending=(), stale=())
        elif table.pending and (table.key != group.key or renames(table, group)):
            # what is pending goes by the key and the names it was written under
            table = self._fold(table, group.epoch)
        if called != table.name and table.oid != group.oid and not group.replaces:
            table = _doubted(table, f"it was called {called} before, and its rows are there")
        table = self._learn(table, group, another=another)
        if not group.rows:
            return table
        change = self._write_changes(table, group)
        table = msgspec.structs.replace(table, changes=(*table.changes, change))
        if group.replaces or _only_adds(table, group):
            part = BasePart(
                path=change.path,
                rows=change.rows,
                columns=table.versions[change.fingerprint],
                epoch=group.epoch,
                ids=table.version_ids.get(change.fingerprint, {}),
            )
            return msgspec.structs.replace(table, base=(*table.base, part))
        table = msgspec.structs.replace(table, pending=(*table.pending, change))
        if group.moved or "t" in group.operations:
            table = self._fold(table, group.epoch)
        if "t" in group.operations:
            table = msgspec.structs.replace(table, stale=())
        return table

    # --- schemas ----------------------------------------------------------------------------------

    def _learn(self, table: TableState, group: Group, *, another: bool) -> TableState:
        """Take the group's schema into the table's; ``another``: nothing of the table is left."""
        types = table.versions.get(group.fingerprint)
        self._make_readable(table, group)
        if types is None:
            types = types_of(self._read(group, first=True).schema) if group.segments else {}
        learnt = identify(table, group)
        table = learnt.table
        for doubt in learnt.doubts:
            table = _doubted(table, doubt)
        columns = dict(table.columns)
        for name, kind in types.items():
            had = kind if another else columns.get(name, kind)
            common = common_type(had, kind)
            if common is None:
                if self._options.type_change != "string":
                    raise TypeChanged(
                        f"column {name} of {table.name} changed from {had.strip(chr(34))} to "
                        f"{kind.strip(chr(34))}",
                        path=self._output.uri(table.folder),
                    )
                common = '"string"'
            columns[name] = common
        versions = table.versions
        if types:
            versions = {**versions, group.fingerprint: types}
        return msgspec.structs.replace(table, columns=columns, versions=versions)

    def _read(
        self, group: Group, types: dict[str, str] | None = None, *, first: bool = False
    ) -> "DataFrame":
        """Return the rows of ``group``; ``first``: of its first segment."""
        reader = self._spark.read
        if types is not None:
            struct = log_struct(types)
            reader = reader.schema(type(struct)([f for f in struct if f.name != "_epoch"]))
        store = self._log.store
        prefix = "file://" if store.local else ""
        paths = group.converted or [prefix + store.uri(path) for path in group.segments]
        return reader.parquet(*(paths[:1] if first else paths))

    def _make_readable(self, table: TableState, group: Group) -> None:
        """Copy segments with decimals of more than 38 digits, which Spark does not read, with text
        in their place. The change log writes none unless it is told to."""
        if not any("decimal256" in column.arrow for column in group.columns):
            return
        import pyarrow as pa
        from pyarrow import parquet

        folder = f"{table.folder}/changes/{next(self._names)}"
        for number, segment in enumerate(group.segments):
            rows = self._log.store.read_parquet(segment)
            for at, column in enumerate(rows.schema):
                if "decimal256" in str(column.type):
                    kind = pa.list_(pa.string()) if pa.types.is_list(column.type) else pa.string()
                    rows = rows.set_column(at, column.name, rows.column(at).cast(kind))
            path = f"{folder}/{number}.parquet"
            with self._output.store.create(path) as file:
                parquet.write_table(rows, file)
            group.converted.append(self._output.uri(path))

    # --- files ------------------------------------------------------------------------------------

    def _write_changes(self, table: TableState, group: Group) -> ChangeSet:
        from pyspark.sql import functions as F  # noqa: N812

        path = f"{table.folder}/changes/{next(self._names)}"
        rows = self._read(group, table.versions[group.fingerprint])
        rows = rows.withColumn("_epoch", F.lit(group.epoch).cast("int"))
        self._write(rows, path, group.rows)
        return ChangeSet(
            path=path,
            fingerprint=group.fingerprint,
            rows=group.rows,
            operations=dict(group.operations),
            unchanged=tuple(group.unchanged),
            moved=group.moved,
            crossed=group.crossed,
        )

    def _fold(self, table: TableState, epoch: int) -> TableState:
        """Write the table as it stands now: the pending changes become part of its base."""
        uri = self._output.uri
        pending = None
        if any(change.moved for change in table.pending):
            rows = changes_frame(self._spark, table, table.pending, uri, filled=True)
            base = current_frame(self._spark, msgspec.structs.replace(table, pending=()), uri)
            pending = settle_moves(table, rows, base)
        frame = current_frame(self._spark, table, uri, pending=pending)
        path = f"{table.folder}/current/{next(self._names)}"
        expected = table.base_rows + sum(change.rows for change in table.pending)
        self._write(frame, path, expected)
        stored = self._spark.read.schema(frame.schema).parquet(uri(path))
        part = BasePart(
            path=path,
            rows=stored.count(),
            columns=dict(table.columns),
            epoch=epoch,
            ids=dict(table.ids),
        )
        return msgspec.structs.replace(table, base=(part,), pending=())

    def _merge(self, table: TableState) -> TableState:
        """Make one folder of the oldest change sets of one size, when there are many of them."""
        pending = {change.path for change in table.pending}
        run: list[ChangeSet] = []
        for change in table.changes:
            if change.path in pending:
                return table
            if run and (run[-1].level, run[-1].fingerprint) != (change.level, change.fingerprint):
                run = []
            run.append(change)
            if len(run) == self._options.merge_sets:
                break
        else:
            return table
        rows = sum(change.rows for change in run)
        path = f"{table.folder}/changes/{next(self._names)}"
        uris = [self._output.uri(change.path) for change in run]
        struct = log_struct(table.versions[run[0].fingerprint])
        self._write(self._spark.read.schema(struct).parquet(*uris), path, rows)
        merged = msgspec.structs.replace(run[0], path=path, rows=rows, level=run[0].level + 1)
        first = table.changes.index(run[0])
        changes = (*table.changes[:first], merged, *table.changes[first + len(run) :])
        return msgspec.structs.replace(
            table, changes=changes, base=_merged_base(table, run, merged)
        )

    def _write(self, frame: "DataFrame", path: str, rows: int) -> None:
        files = rows // self._options.file_rows + 1
        frame.coalesce(files).write.mode("overwrite").parquet(self._output.uri(path))
        self._output.sync(path)


def _doubted(table: TableState, doubt: str) -> TableState:
    """Note that rows of ``table`` may differ from the source's, and say so once."""
    if doubt in table.stale:
        return table
    log.warning("%s needs a new snapshot: %s", table.name, doubt)
    return msgspec.structs.replace(table, stale=(*table.stale, doubt))


def _only_adds(table: TableState, group: Group) -> bool:
    """Tell whether the group's rows are new rows beside the base, and nothing but that.

    Inserts alone meet no row of their key, unless one of them was delivered in an earlier epoch.
    """
    return (
        set(group.operations) == {"c"}
        and not table.pending
        and all(part.epoch == group.epoch for part in table.base)
    )


def _merged_base(
    table: TableState, run: list[ChangeSet], merged: ChangeSet
) -> tuple[BasePart, ...]:
    """Return the base with one part in place of those whose change sets were merged."""
    paths = {change.path for change in run}
    replaced = [part for part in table.base if part.path in paths]
    if len(replaced) != len(run):
        return table.base  # some are in the base, some were folded: the old folders stay for it
    kept = [part for part in table.base if part.path not in paths]
    part = msgspec.structs.replace(replaced[0], path=merged.path, rows=merged.rows)
    return (part, *kept)


def _new_table(found: TablePlan) -> TableState:
    return TableState(schema=found.schema, table=found.table)
