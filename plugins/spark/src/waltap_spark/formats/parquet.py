"""The Parquet format: base files, and changes joined on reading.

A commit writes its changes as a change set, which is history and pending changes together; rows that
only add are part of the base immediately. Many pending changes (`ApplyOptions`) are compacted into a new
base, outside of commits (`waltap_spark.apply.compaction_worker`). No file is overwritten, so a crash
leaves only files that no commit names. Only this format uses `TableState.base`, ``pending`` and
``changes``.
"""

from collections import Counter
from typing import ClassVar, Final

import pyarrow as pa
from msgspec.structs import replace
from pyspark.sql import DataFrame, SparkSession

from waltap_spark.compact.compact_changes import FEW, LoggedChanges, carry_values, compact
from waltap_spark.compact.resolve import RetainedKeys, changes_frame, current_frame
from waltap_spark.compact.small_sets import LARGE, is_small, rows_of, write_rows
from waltap_spark.compact.timeline import live_rows
from waltap_spark.formats.table_format import (
    CommitContext,
    GroupRows,
    TableChange,
    TableFormat,
    TableFormatContext,
    What,
)
from waltap_spark.planning.plan import (
    SegmentGroup,
    only_adds,
    shared_continuity_id,
    unpacked_in_all,
)
from waltap_spark.schema.schema import log_struct
from waltap_spark.state.output import FILE, BasePart, ChangeSet, TableState, replaced_sets

# Bytes of files that the driver merges itself; Spark merges more.
MERGED: Final = 4 << 20

# Folders of a base before it is compacted, without ended versions.
# Merging keeps their number far below, unless schemas alternate.
MOST_PARTS: Final = 256


class ParquetFormat(TableFormat):
    """Tables as folders of Parquet files that the commit file names."""

    writes_in_place: ClassVar[bool] = False

    def __init__(self, context: TableFormatContext) -> None:
        self._output, self._options = context.output, context.options

    def evolve(self, commit: CommitContext, table: TableState, change: TableChange) -> TableState:
        """Change columns and key, after compacting older changes."""
        if change.replaces:
            table = replace(table, base=(), pending=())
        elif table.pending and (
            table.key != change.key
            or change.renames
            or change.forgets
            or (change.renews_columns and (table.mode.keeps_past or not table.key))
        ):
            # Pending changes need the key and names under which they were written.
            table = self._compact(commit, table)
        return change.learn(table)

    def replace(self, commit: CommitContext, table: TableState, rows: GroupRows) -> TableState:
        """Write the rows once, as history and as the complete base."""
        table, written = self._write_changes(commit, table, rows)
        if table.mode.name == "append":
            return table
        replaced = replace(table, base=(), pending=())
        return _without_unused(_with_base(replaced, rows.group, written))

    def apply(self, commit: CommitContext, table: TableState, rows: GroupRows) -> TableState:
        """Write the changes; only additions join the base at once."""
        # A snapshot of a table with history ends the versions of before, so these must be complete.
        if rows.group.replaces and table.pending:
            table = self._compact(commit, table)
        table, written = self._write_changes(commit, table, rows)
        if table.mode.name == "append":
            return table
        if _only_adds(table, rows.group):
            return _without_unused(_with_base(table, rows.group, written))
        table = replace(table, pending=(*table.pending, written))
        # Readers join pending changes by key; changed keys and truncates would need more for each
        # read.
        if rows.group.key_changes or rows.truncates or rows.group.replaces:
            table = self._compact(commit, table, rows.spared)
        return _without_unused(table)

    def truncate(self, commit: CommitContext, table: TableState) -> TableState:
        """Remove the base and pending changes; the history stays."""
        return _without_unused(replace(table, base=(), pending=()))

    def read(self, spark: SparkSession, table: TableState, what: What) -> DataFrame:
        if what == "changes" or table.mode.name == "append":
            return changes_frame(spark, table, table.changes, self._output.uri)
        return current_frame(spark, table, self._output.uri)

    def maintain(self, commit: CommitContext, table: TableState) -> TableState:
        pending_rows = sum(change.rows for change in table.pending)
        options = self._options
        # Relative to the base, so that each of its rows is rewritten a bounded number of times.
        enough = max(options.compact_rows, options.compact_share * table.open_rows)
        many = (
            pending_rows > enough
            or 0 < options.compact_sets <= len(table.pending)
            or sum(not part.closed for part in table.base) > MOST_PARTS
        )
        if many:
            table = self._compact(commit, table)
        return self._merge(commit, self._merge_closed(commit, _without_unused(table)))

    # --- files ------------------------------------------------------------------------------------

    def _write_changes(
        self, commit: CommitContext, table: TableState, rows: GroupRows
    ) -> tuple[TableState, ChangeSet]:
        group, size = rows.group, 0
        # The driver writes one file, Spark a folder of files.
        small = is_small(group)
        path = commit.path(table, "changes", FILE if small else "")
        if small:
            few = rows_of(rows.files, group, list(table.file_schemas[group.fingerprint]))
            size = self._write_file(path, few)
        elif group.external_snapshot:
            self._write(rows.frame, path)
            group.count(self._count(commit, rows.frame, path))
        else:
            self._write(rows.frame, path, group.rows)
        written = ChangeSet(
            path=path,
            fingerprint=group.fingerprint,
            rows=group.rows,
            operations=dict(group.operations),
            unchanged=tuple(group.unchanged),
            key_changes=group.key_changes,
            key_reused=group.key_reused,
            epoch=group.epoch,
            continuity_id=group.continuity_id,
            replaces=group.replaces and table.mode.keeps_past,
            bytes=size,
            unpacked=group.unpacked,
        )
        return replace(table, changes=(*table.changes, written)), written

    def _compact(
        self, commit: CommitContext, table: TableState, spared: RetainedKeys | None = None
    ) -> TableState:
        """Compact the pending changes into a new base.

        Rows of ``spared`` do not end because the changes lack them. Ended versions stay in their files,
        so the cost depends on the open versions, not on the history.
        """
        uri = self._output.uri
        ended = tuple(part for part in table.base if part.closed)
        table = replace(table, base=tuple(part for part in table.base if not part.closed))
        rows, after = self._compacted(commit, table) if table.pending else (None, None)
        frame = current_frame(commit.spark, table, uri, pending=rows, after=after, spared=spared)
        expected = table.stored_rows
        epoch, continuity_id = _epoch_of_compaction(table), _continuity_of_compaction(table)
        if table.mode.name != "scd2":
            parts = [self._part(commit, table, frame, expected, epoch, continuity_id)]
        else:
            frame = frame.persist()  # both parts are of one computation
            ends = frame.where("not _current")
            try:
                parts = [
                    self._part(
                        commit, table, frame.where("_current"), expected, epoch, continuity_id
                    ),
                    self._part(commit, table, ends, expected, epoch, closed=True),
                ]
            finally:
                frame.unpersist()
            parts = [part for part in parts if part.rows]
        return replace(table, base=(*ended, *parts), pending=())

    def _compacted(
        self, commit: CommitContext, table: TableState
    ) -> tuple[DataFrame, DataFrame | None]:
        """Return rows with pending keys, and their net changes.

        The net changes are None where the mode needs every change, or the table has no key.
        """
        rows = changes_frame(commit.spark, table, table.pending, self._output.uri, filled=True)
        base = current_frame(commit.spark, replace(table, pending=()), self._output.uri)
        if table.mode.keeps_past:
            return carry_values(table, table.pending, rows, live_rows(table, base)), None
        if not table.key:
            return rows, None
        after = compact(
            LoggedChanges(commit.spark, table, table.pending, lambda: rows, lambda: base)
        )
        # the driver has the keys of few changes; many changes are read faster than compacted
        few = sum(change.rows for change in table.pending) <= FEW
        return after if few else rows, after

    def _part(
        self,
        commit: CommitContext,
        table: TableState,
        frame: DataFrame,
        expected: int,
        epoch: int,
        continuity_id: str = "",
        *,
        closed: bool = False,
    ) -> BasePart:
        """Write about ``expected`` rows as a part of the base."""
        path = commit.path(table, "current")
        self._write(frame, path, expected)
        return BasePart(
            path=path,
            rows=self._count(commit, frame, path),
            columns=dict(table.columns),
            epoch=epoch,
            ids=dict(table.ids),
            closed=closed,
            continuity_id=continuity_id,
        )

    def _merge_closed(self, commit: CommitContext, table: TableState) -> TableState:
        few = [part for part in table.base if part.closed and part.rows < self._options.file_rows]
        if len(few) < self._options.merge_sets:
            return table
        alone = replace(table, base=tuple(few), pending=())
        frame = current_frame(commit.spark, alone, self._output.uri)
        epoch = min((part.epoch for part in few if part.epoch), default=0)
        part = self._part(commit, alone, frame, alone.base_rows, epoch, closed=True)
        rest = tuple(each for each in table.base if each not in few)
        return replace(table, base=(part, *rest))

    def _merge(self, commit: CommitContext, table: TableState) -> TableState:
        """Merge the oldest change sets of a level if many."""
        pending = {change.path for change in table.pending}
        run: list[ChangeSet] = []
        for change in table.changes:
            if run and _kind(run[-1], pending) != _kind(change, pending):
                run = []
            run.append(change)
            if len(run) == self._options.merge_sets:
                break
        else:
            return table
        rows, size = sum(change.rows for change in run), 0
        packed = [change.bytes for change in run]
        # Spark's sets have 0 bytes here, and merging needs all sizes.
        small = all(packed) and sum(packed) <= MERGED and unpacked_in_all(run) <= LARGE
        path = commit.path(table, "changes", FILE if small else "")
        if small:
            store = self._output.store
            merged_rows = pa.concat_tables([store.read_parquet(change.path) for change in run])
            size = self._write_file(path, merged_rows)
        else:
            uris = [self._output.uri(change.path) for change in run]
            struct = log_struct(table.file_schemas[run[0].fingerprint])
            self._write(commit.spark.read.schema(struct).parquet(*uris), path, rows)
        # Levels as in a log-structured merge: a row is merged a logarithmic number of times.
        level = run[0].level + 1
        merged = replace(
            run[0],
            path=path,
            rows=rows,
            level=level,
            bytes=size,
            unpacked=unpacked_in_all(run),
            operations=dict(sum((Counter(each.operations) for each in run), Counter())),
            unchanged=tuple(dict.fromkeys(name for each in run for name in each.unchanged)),
            key_changes=sum(each.key_changes for each in run),
            key_reused=any(each.key_reused for each in run),
        )
        return replace(
            table,
            changes=replaced_sets(table.changes, run, [merged]) or table.changes,
            pending=replaced_sets(table.pending, run, [merged]) or table.pending,
            base=_merged_base(table, run, merged),
        )

    def _write_file(self, path: str, rows: pa.Table) -> int:
        size = write_rows(self._output.store, path, rows)
        self._output.sync(path, size)
        return size

    def _count(self, commit: CommitContext, frame: DataFrame, path: str) -> int:
        stored = commit.spark.read.schema(frame.schema).parquet(self._output.uri(path))
        return int(stored.count())

    def _write(self, frame: DataFrame, path: str, rows: int | None = None) -> None:
        """Write ``frame`` to ``path``.

        ``rows`` is their approximate number, for the number of files. None: one file for each task.
        """
        if rows is not None:
            frame = frame.coalesce(rows // self._options.file_rows + 1)
        frame.write.mode("overwrite").parquet(self._output.uri(path))
        self._output.sync(path)


def _kind(change: ChangeSet, pending: set[str]) -> tuple[object, ...]:
    """Return the properties that merged sets must share."""
    return (
        change.level,
        change.fingerprint,
        change.epoch,
        change.continuity_id,
        change.path in pending,
    )


def _without_unused(table: TableState) -> TableState:
    """Return ``table`` without unneeded history.

    With ``history = none`` only change sets stay from which rows are read.
    """
    if table.mode.history:
        return table
    used = {part.path for part in table.base} | {change.path for change in table.pending}
    changes = tuple(change for change in table.changes if change.path in used)
    return table if changes == table.changes else replace(table, changes=changes)


def _with_base(table: TableState, group: SegmentGroup, written: ChangeSet) -> TableState:
    part = BasePart(
        path=written.path,
        rows=written.rows,
        columns=table.file_schemas[written.fingerprint],
        epoch=group.epoch,
        ids=table.version_ids.get(written.fingerprint, {}),
        logged=bool(table.mode.columns),
        continuity_id=group.continuity_id,
    )
    return replace(table, base=(*table.base, part))


def _only_adds(table: TableState, group: SegmentGroup) -> bool:
    """Return whether the group only adds rows to the base.

    Inserts meet no row of their key, unless one was delivered in an earlier epoch, a delete may be
    missing, or deleted rows stay.
    """
    return (
        only_adds(table, group)
        and (table.mode.adds_alone or not table.base)
        and not table.pending
        and all(part.epoch == group.epoch for part in table.base)
        and (
            not table.key
            or all(p.closed or p.continuity_id == group.continuity_id for p in table.base)
        )
    )


def _continuity_of_compaction(table: TableState) -> str:
    emptied = [n for n, change in enumerate(table.pending) if "t" in change.operations]
    if emptied and not table.mode.keeps_past:
        return shared_continuity_id(table.pending[emptied[-1] :])
    return shared_continuity_id([*(part for part in table.base if not part.closed), *table.pending])


def _epoch_of_compaction(table: TableState) -> int:
    """Return a compacted base's epoch, the earliest of its parts.

    A later epoch may still deliver again rows that the base has.
    """
    if any("t" in change.operations for change in table.pending):
        return max(change.epoch for change in table.pending)
    epochs = [*(part.epoch for part in table.base), *(change.epoch for change in table.pending)]
    return min((epoch for epoch in epochs if epoch), default=0)


def _merged_base(
    table: TableState, run: list[ChangeSet], merged: ChangeSet
) -> tuple[BasePart, ...]:
    paths = {change.path for change in run}
    old = next((part for part in table.base if part.path in paths), None)
    if old is None:
        return table.base
    part = replace(old, path=merged.path, rows=merged.rows)
    # some are in the base, some were folded: the old folders stay for it
    return replaced_sets(table.base, run, [part]) or table.base
