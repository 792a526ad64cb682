"""Apply each table's changes in one attempt at a commit."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Final

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from waltap_sinks.changelog import ChangeLog
from waltap_sinks.changelog.errors import ColumnNameTaken
from waltap_spark.apply.damage import damage
from waltap_spark.apply.external_snapshots import ExternalSnapshots
from waltap_spark.compact.compaction import of_touched_keys
from waltap_spark.compact.log_columns import logged, logged_types, with_epoch
from waltap_spark.compact.resolve import RetainedKeys
from waltap_spark.compact.small_sets import is_small, make_readable
from waltap_spark.config.options import ApplyOptions
from waltap_spark.config.shared_targets import SharedShapes, require_place
from waltap_spark.errors import FormatLimit, TypeChanged
from waltap_spark.formats.table_format import CommitContext, GroupRows, TableChange, TableFormat
from waltap_spark.planning.column_identity import (
    dropped,
    forgotten,
    former_columns_renamed,
    former_numbers,
    identify,
    needs_snapshot,
    renames,
    renews_columns,
    replaced,
    spare_names,
)
from waltap_spark.planning.plan import (
    COLUMNLESS,
    SegmentGroup,
    TableTask,
    another_table,
    doubles,
)
from waltap_spark.planning.redelivery import lacks_values, may_repeat, remaining_rows
from waltap_spark.schema.expression import column_of
from waltap_spark.schema.schema import LOG_FIELDS, common_type, log_struct
from waltap_spark.session.failures import OF_ONE
from waltap_spark.state.modes import mode_errors, of_rules
from waltap_spark.state.output import SparkOutput, TableState

# A sequence number before all changes and rows of a snapshot (-1).
BEHIND_NOTHING: Final = -3


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitAttempt:
    """One attempt at a commit; no reader sees its writes yet."""

    commit: CommitContext
    changelog: ChangeLog
    output: SparkOutput
    options: ApplyOptions
    format: TableFormat
    # `whereabouts` of the tables at the last commit.
    called: Mapping[int, tuple[str, str]]
    # The time of the last transaction (µs since 1970).
    at_us: int
    # The highest LSN of each earlier epoch.
    reach: Mapping[int, int]
    external_snapshots: ExternalSnapshots
    # Shared targets of the applier.
    shapes: SharedShapes
    # Whether the commit was started before.
    repeats: bool

    def table(self, session: SparkSession, table: TableState, found: TableTask) -> TableState:
        """Apply ``found`` in ``session``; return the resulting table."""
        commit = replace(self.commit, spark=session)
        if found.unreadable is not None:
            raise found.unreadable
        for group in found.groups:
            found.tried.append(group)
            if not group.columns and (group.rows or group.external_snapshot):
                # no format stores a row without columns
                group.rows, group.external_snapshot, group.snapshot_reason = 0, "", COLUMNLESS
            for each in (group, *group.others):
                self.options.names.name(each, table.name, ruled_as=table.target_name)
            try:
                snapshot_reason = group.snapshot_reason or doubles(table, group)
                table = self._apply_group(replace(commit, until=group.until), table, group)
                table = needs_snapshot(table, snapshot_reason) if snapshot_reason else table
            except OF_ONE:
                raise
            except Exception as error:
                # a damaged segment fails Spark with many errors; name the segment instead
                wrong = damage(self.changelog.store, group, whole=True)
                if wrong is not None:
                    raise wrong from error
                raise
        if found.groups and self.format.writes_in_place:
            table = self.format.maintain(commit, table)
        epoch = table.oid_epoch
        if found.staged and found.entries and not table.oid:
            epoch = found.entries[-1][0]
        return msgspec.structs.replace(table, staged=tuple(found.staged), oid_epoch=epoch)

    def _apply_group(
        self, commit: CommitContext, table: TableState, group: SegmentGroup
    ) -> TableState:
        if group.lost:
            return table
        another = another_table(table, group)
        self._require_fit(table, group)
        # this process reads small groups, and checks their number of rows
        wrong = None if is_small(group) else damage(self.changelog.store, group, whole=False)
        if wrong is not None:
            raise wrong
        again = may_repeat(table, group, self.reach)
        if again and table.mode.history:
            self._leave_out_known(commit, table, group, all_or_none=another)
            if not group.rows:
                return table
        elif again and lacks_values(table, group):
            table = needs_snapshot(table, "changes came again that lack values which its rows have")
        past = table.mode.keeps_past and bool(table.file_schemas) and not group.external_snapshot
        if another:
            if past:
                # rows of the dropped table end, and stay as its past
                gone = self._end(commit, table, group)
                table = replaced(gone, keeps_rows=True)
                if not self.format.writes_in_place:
                    types = self._readable_types(commit, gone, group)
                    table = former_columns_renamed(table, gone, group, types, {})
            else:
                gone, table = table, self.format.truncate(commit, replaced(table))
                table = self._with_spare_names(commit, gone, table, group)
        elif table.incarnation and table.place is None:
            table = self._with_former_numbers(commit, table, group)
        if group.replaces or another:
            table = msgspec.structs.replace(table, snapshot_epoch=group.epoch)
        if group.replaces:
            table = msgspec.structs.replace(table, stale=(), widened=(), split_nulls=())
        # an older schema lacks columns that were added later, so it drops none
        drops = not again and of_rules(self.options.dropped, table.target_name, "keep") == "drop"
        called = renames(table, group)
        stay = {called.get(name, name) for name in self.format.needed(table)}
        # columns that divide files stay
        lost = tuple(n for n in dropped(table, group) if n not in stay) if drops else ()

        def learn(before: TableState) -> TableState:
            return forgotten(self._learn(commit, before, group, another=another), lost)

        change = TableChange(
            key=group.key,
            renames=called,
            replaces=group.replaces and not past,
            learn=learn,
            forgets=lost,
            renews_columns=renews_columns(table, group),
        )
        if group.external_snapshot and self.format.writes_in_place:
            # the copied rows need the columns first, so the schema is learnt before the step
            known = learn(table)
            self.external_snapshots.wait_for(commit, known, group)
            change = replace(change, learn=lambda _table: known)
        table = self.format.evolve(commit, table, change)
        if group.external_snapshot:
            return self.external_snapshots.replaced(self.format, commit, table, group)
        if not group.rows:
            if not (group.replaces or group.operations["t"]):
                return table
            return self._end(commit, table, group) if past else self.format.truncate(commit, table)
        types, store = table.file_schemas[group.fingerprint], self.changelog.store
        brought = GroupRows(
            group=group,
            read=lambda: with_epoch(logged(commit.spark, store, group, types), group.epoch),
            files=store,
            # Parquet tables get small groups without Spark
            spark=commit.spark if self.format.writes_in_place else None,
        )
        if group.replaces and not past:
            return self.format.replace(commit, table, brought)
        if group.others and table.mode.deletes != "kept":
            brought = replace(brought, spared=self._spared(commit, table, group, brought.frame))
        table = self.format.apply(commit, table, brought)
        return msgspec.structs.replace(table, stale=(), widened=()) if brought.truncates else table

    def _spared(
        self, commit: CommitContext, table: TableState, group: SegmentGroup, rows: DataFrame
    ) -> RetainedKeys | None:
        """Return keys of ``table`` that ``group`` must not remove.

        None means that the group is the whole snapshot.
        """
        others = [each for each in group.others if each.key == group.key]
        if not others or not group.key:
            return None
        frames = []
        for each in others:
            types = self._readable_types(commit, table, each)
            types = {name: types[name] for name in each.key}
            found = logged(commit.spark, self.changelog.store, each, types)
            frames.append(found.select(*map(column_of, each.key)))
        keys = reduce(lambda one, other: one.unionByName(other), frames)
        return RetainedKeys(of_touched_keys(keys, group.key, rows, [group], "left_anti"), others)

    def _with_former_numbers(
        self, commit: CommitContext, table: TableState, group: SegmentGroup
    ) -> TableState:
        """Number a former table's columns whose names ``group`` uses otherwise."""
        if all(n.name in table.ids or n.name not in table.columns for n in group.columns):
            return table
        types = self._readable_types(commit, table, group)
        needed = self.format.needed(table)
        numbers = former_numbers(table, types)
        ids = {name: number for name, number in numbers.items() if name not in needed}
        return msgspec.structs.replace(table, ids={**table.ids, **ids})

    def _leave_out_known(
        self, commit: CommitContext, table: TableState, group: SegmentGroup, *, all_or_none: bool
    ) -> None:
        types = self._readable_types(commit, table, group)
        rows = logged(commit.spark, self.changelog.store, group, types)
        history = self.format.read(commit.spark, table, "changes")
        remaining = remaining_rows(group, rows, history, all_or_none=all_or_none)
        if remaining is not None:
            path = self.output.uri(commit.path(table, "changes"))
            remaining.write.mode("overwrite").parquet(path)
            group.called, group.converted = {}, [path]

    def _require_fit(self, table: TableState, group: SegmentGroup) -> None:
        """Check that the output can hold the group's table.

        Raises: ColumnNameTaken, SourcesDiffer, MadeOtherwise, ModeUnfit.
        """
        for name in (*group.called, *(column.name for column in group.columns)):
            if name in LOG_FIELDS:
                raise ColumnNameTaken(
                    f"{table.name} has a column {name}, which the tables' histories have themselves",
                    column=rf"{table.schema}\.{table.table}\.{name}",
                )
        require_place(table, self.options.places, (column.name for column in group.columns))
        target, names = table.target_name, (column.name for column in group.columns)
        modes = table.mode, self.options.modes.of(target)
        for error in mode_errors(table.name, target, modes, group.key, names):
            raise error

    def _end(self, commit: CommitContext, table: TableState, group: SegmentGroup) -> TableState:
        """End present rows' validity before ``group`` adds its rows.

        A truncate that no server sent does that: a snapshot found the table empty, or another table
        took its name. Without rows it is at the position of the empty snapshot.
        """
        # kept rows never end
        if table.mode.deletes == "kept":
            return table
        first, seq = None, BEHIND_NOTHING
        if group.segments:
            least = "min(struct(_commit_lsn, _seq, cast(unix_micros(_commit_ts) as bigint) as at))"
            row = logged(commit.spark, self.changelog.store, group).selectExpr(least).first()
            first = None if row is None else row[0]
        if first is not None:
            lsn, number, at = first
            # the transaction changed the earlier table too: these changes end as well
            if number > 0:
                seq = number - 1
        else:
            lsn, ts = group.at or ((group.until or commit.log_position).end_lsn, None)
            at = self.at_us if ts is None else ts
        fingerprint = next(reversed(table.file_schemas))
        values = {
            "_op": "'t'",
            "_commit_lsn": f"{lsn}L",
            "_seq": str(seq),
            "_sub": "0",
            "_lsn": f"{lsn}L",
            "_commit_ts": f"timestamp_micros({at})",
            "_epoch": str(group.epoch),
        }
        fields = log_struct(table.file_schemas[fingerprint]).fields
        frame = commit.spark.range(1).select(
            *(F.expr(values.get(f.name, "null")).cast(f.dataType).alias(f.name) for f in fields)
        )
        truncate = SegmentGroup(
            fingerprint,
            group.epoch,
            table.key,
            group.columns,
            oid=group.oid,
            rows=1,
            operations=Counter(t=1),
            until=group.until,
            continuity_id=group.continuity_id,
        )
        files = self.changelog.store
        rows = GroupRows(group=truncate, read=lambda: frame, files=files)
        return self.format.apply(commit, table, rows)

    def _with_spare_names(
        self, commit: CommitContext, gone: TableState, table: TableState, group: SegmentGroup
    ) -> TableState:
        """Return ``table`` with conflicting columns of ``gone`` renamed.

        ``table`` took the place of ``gone``, a dropped table whose history stays, and gets columns
        of ``group``. Where no type holds the values of both, the old column gets another name, as a
        dropped column does whose name a new one takes. Columns that divide files, and columns of a
        shared target, keep their names.
        """
        # without a history no value of the dropped table remains
        if table.place is not None or not (table.mode.history or table.mode.name == "append"):
            return table
        types = self._readable_types(commit, gone, group)
        spares = spare_names(gone, types, by_number=not self.format.writes_in_place)
        needed = self.format.needed(table)
        spares = {name: new for name, new in spares.items() if name not in needed}

        def learn(before: TableState) -> TableState:
            return former_columns_renamed(before, gone, group, types, spares)

        if not spares:
            return learn(table)
        change = TableChange(key=table.key, renames=spares, replaces=False, learn=learn)
        return self.format.evolve(commit, table, change)

    def _readable_types(
        self, commit: CommitContext, table: TableState, group: SegmentGroup
    ) -> dict[str, str]:
        """Return the columns of ``group``, and make its segments readable."""
        store, folder = self.changelog.store, partial(commit.path, table, "changes")
        make_readable(store, self.output, group, folder)
        known = table.file_schemas.get(group.fingerprint)
        if known is not None:
            return known
        return logged_types(commit.spark, store, group) if group.segments else {}

    def _learn(
        self, commit: CommitContext, table: TableState, group: SegmentGroup, *, another: bool
    ) -> TableState:
        called, rows = self.called.get(group.oid, (table.name, ""))
        if called != table.name and table.oid != group.oid and not group.replaces:
            table = needs_snapshot(
                table, f"it was called {called} before, and its rows {rows} there"
            )
        types = self._readable_types(commit, table, group)
        table, snapshot_reasons = identify(table, group, types)
        for snapshot_reason in () if another or group.replaces else snapshot_reasons:
            table = needs_snapshot(table, snapshot_reason)
        columns, empty = dict(table.columns), another and not table.mode.keeps_past
        for name, kind in types.items():
            if name in table.key and '"map"' in kind and table.mode.name != "append":
                raise FormatLimit(
                    f"{name}, of the key of {table.name}, is a map: Spark compares none"
                )
            had = columns.get(name, kind)
            common = kind if had == kind else common_type(had, kind)
            if empty:  # without rows a column may take any type
                common = common or kind
            if common is None:
                if self.options.type_change != "string" and not table.as_text:
                    raise TypeChanged(
                        f"column {name} of {table.name} changed from {had.strip(chr(34))} to "
                        f"{kind.strip(chr(34))}",
                        table=table.name,
                        output=self.output.location,
                    )
                common = '"string"'
            columns[name] = common
        schemas = {**table.file_schemas, **({group.fingerprint: types} if types else {})}
        return self.shapes.required(
            msgspec.structs.replace(table, columns=columns, file_schemas=schemas)
        )
