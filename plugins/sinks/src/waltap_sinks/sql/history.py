"""Write versions of rows with their validity and cause."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from waltap.base.text import escaped
from waltap.changes.capture.java_regex import NameMatcher
from waltap.changes.decode.message import Change, Delete, Truncate, Update
from waltap.changes.decode.tuple_image import UNCHANGED, Tuple
from waltap.changes.events import DELETES, INSERTS, TRUNCATES, runs
from waltap.changes.mapping.type_mapping import TypeMapper
from waltap.changes.transactions.transaction import TransactionPart
from waltap_sinks.sql.net_changes import (
    HistoryChanges,
    KeyOwners,
    RowVersion,
    VersionCause,
    WaitingRows,
    filled,
    null_missing,
    with_values,
)
from waltap_sinks.sql.properties import SqlProperties
from waltap_sinks.sql.rows import RowWriter
from waltap_sinks.sql.shape import HistoryShape, TargetName, TargetShape, TargetShapes
from waltap_sinks.sql.tables import TargetTables
from waltap_sinks.sql.targets.target import Assignments, BoundTable, SqlTarget, changing, shape_of

# ``seq`` of rows that a snapshot read: before the first change at the same LSN.
READ_SEQ: Final = -1


class HistoryWriter:
    """Write the histories of tables in the open transaction.

    `add` and `read` collect versions, and `apply` writes them. A snapshot closes every version of
    its tables and begins one for each row. Where DDL commits by itself, these versions are opened
    when the snapshot ends, so that an aborted snapshot leaves none.
    """

    def __init__(
        self,
        target: SqlTarget,
        tables: TargetTables,
        shapes: TargetShapes,
        types: TypeMapper | None,
        properties: SqlProperties,
        waiting: WaitingRows,
        rows: RowWriter,
    ) -> None:
        self._target, self._tables, self._shapes = target, tables, shapes
        self._types, self._properties, self._rows = types, properties, rows
        self._matches = NameMatcher(properties.history_tables)
        self._has_any = properties.history != "none"
        self._logs: dict[TargetName, HistoryChanges] = {}
        self._waiting = waiting
        self._loading: dict[TargetName, tuple[HistoryShape, int]] = {}
        self._deferred = not target.transactional_ddl
        # An inserted row may exist: changes before it were refused or come again later.
        self.doubtful = False

    def of(self, shape: TargetShape) -> HistoryShape | None:
        """Return the history's shape of ``shape``, or None.

        Raises: SqlOwnColumnTaken.
        """
        if shape.history is None:
            assert self._types is not None
            matches = not self._properties.history_tables or self._matches(shape.source)
            has_history = self._has_any and bool(matches)
            shape.history = has_history and HistoryShape(shape, self._types, self._properties)
        found: HistoryShape | None = shape.history or None
        return found

    def replaces(self, shape: TargetShape) -> bool:
        return self._properties.history == "instead" and self.of(shape) is not None

    def forget(self) -> None:
        """Drop unwritten versions after the transaction was undone."""
        self._logs = {}

    # --- taking changes ---------------------------------------------------------------------------

    def _log(self, shape: TargetShape | None) -> HistoryChanges | None:
        versions = None if shape is None else self.of(shape)
        if versions is None:
            return None
        log = self._logs.get(versions.name)
        if log is None or log.shape is not versions:
            for other in self._waiting.follow(versions):
                self.resolve(other, self._waiting.resolved(other))
            self.apply()  # another version or name of its table may have rows
            oid = versions.relation.oid
            self._logs = {
                n: each for n, each in self._logs.items() if each.shape.relation.oid != oid
            }
            log = self._logs[versions.name] = HistoryChanges(versions)
        return log

    def resolve(self, shape: TargetShape, owners: Mapping[Any, KeyOwners]) -> None:
        """Begin the versions of rows that shared a key."""
        assert isinstance(shape, HistoryShape)
        log = self._log(shape.base)
        assert log is not None
        for key, (_, rows) in owners.items():
            for _row, version in rows:
                assert version is not None
                if self.doubtful:
                    log.end(key, version.cause.ts)
                log.begin(key, version)

    def add(self, part: TransactionPart) -> None:
        if not self._has_any:
            return
        cause = VersionCause(part.commit_lsn, part.commit_ts, part.xid)
        numbers = iter(part.numbers())
        for kind, relation, run in runs(part.changes):
            if relation is None:
                for change in run:
                    number = next(numbers)
                    if kind is TRUNCATES:
                        self._truncate(change, cause, number)  # type: ignore[arg-type]
                continue
            log = self._log(self._shapes.of(relation))
            if log is None:
                for _ in run:
                    next(numbers)
            elif not log.shape.key:
                self._keyless(log, run, cause, numbers)
            elif kind is INSERTS:
                key_of = log.shape.key_of
                for change in run:
                    row: Tuple = change.new  # type: ignore[union-attr]
                    version = RowVersion(row, "c", cause, next(numbers))
                    if log.shape.deferrable:
                        self._waiting.arrive(log.shape, row, version)
                        continue
                    if self.doubtful:
                        log.end(key_of(row), cause.ts)
                    log.begin(key_of(row), version)
            elif kind is DELETES:
                for change in run:
                    self._delete(log, change, cause, next(numbers))  # type: ignore[arg-type]
            else:
                for change in run:
                    self._update(log, change, cause, next(numbers))  # type: ignore[arg-type]

    def _update(
        self, log: HistoryChanges, change: Update, cause: VersionCause, number: int
    ) -> None:
        key_of = log.shape.key_of
        before, row, old = log.shape.plan.update(change)
        if log.shape.deferrable:
            self._leave(log, key_of(old or row), before, cause.ts)
            version = RowVersion(
                row, "u" if old is None else "c", cause, number, int(old is not None)
            )
            self._waiting.arrive(log.shape, row, version)
        elif old is None:
            self._put(log, row, "u", cause, number)
        else:
            row, lender = log.replace(key_of(old), row, cause.ts)
            log.end(key_of(row), cause.ts)
            log.begin(key_of(row), RowVersion(row, "c", cause, number, sub=1, lender=lender))
        if old is not None:
            log.close(null_missing(old), "d", cause, number)

    def _leave(self, log: HistoryChanges, key: Any, before: Tuple | None, ts: int) -> None:
        """End the version of a row that leaves ``key``."""
        found = self._waiting.leave(log.shape, key, before) if log.shape.deferrable else None
        if found is None:
            log.end(key, ts)
        elif found.version is not None:
            log.versions.append(replace(found.version, ends=ts))

    def _put(
        self, log: HistoryChanges, row: Tuple, op: str, cause: VersionCause, number: int
    ) -> None:
        """Add the new state of a row whose key stays."""
        key = log.shape.key_of(row)
        row, lender = log.replace(key, row, cause.ts)
        log.begin(key, RowVersion(row, op, cause, number, lender=lender))

    def _delete(
        self, log: HistoryChanges, change: Delete, cause: VersionCause, number: int
    ) -> None:
        images = log.shape.plan.delete(change)
        if images is not None:
            before, identifying = images
            key = log.shape.key_of(identifying)
            self._leave(log, key, before, cause.ts)
            log.close(filled(before, identifying), "d", cause, number)

    def _keyless(
        self,
        log: HistoryChanges,
        run: Sequence[Change],
        cause: VersionCause,
        numbers: Iterator[int],
    ) -> None:
        for change in run:
            number = next(numbers)
            if isinstance(change, Update):
                before, row, _old = log.shape.plan.update(change)
                if before is not None:
                    self._end_row(log, before, cause.ts)
                    log.versions.append(RowVersion(filled(row, before), "u", cause, number))
                else:  # the old row is unknown, so no later change could close this version
                    log.close(row, "u", cause, number)
            elif isinstance(change, Delete):
                images = log.shape.plan.delete(change)
                if images is not None:
                    self._end_row(log, images[0], cause.ts)
                    log.close(null_missing(images[0]), "d", cause, number)
            else:
                log.versions.append(RowVersion(change.new, "c", cause, number))  # type: ignore[union-attr]

    def _end_row(self, log: HistoryChanges, row: Tuple, ts: int) -> None:
        self._apply(log)
        table = self._bound(log.shape)
        if not self._target.change_row(
            table, log.shape.base, row, self._ended(table), self._current(table), ts
        ):
            self._rows.refuse(table, "UPDATE")

    def _truncate(self, change: Truncate, cause: VersionCause, number: int) -> None:
        # One truncate of several tables is an entry in each history.
        for relation in change.relations:
            log = self._log(self._shapes.of(relation))
            if log is not None:
                self.resolve(log.shape, self._waiting.resolved(log.shape))
                self._apply(log)
                self._close_all(self._bound(log.shape), cause.ts)
                nothing: Tuple = (None,) * len(log.shape.base.relation.columns)
                log.close(nothing, "t", cause, number)

    def read(self, shape: TargetShape, rows: Sequence[Tuple], cause: VersionCause) -> None:
        """Add rows that a snapshot read while the table was streamed.

        They may exist in the target.
        """
        log = self._log(shape)
        if log is None:
            return
        for row in rows:
            if not log.shape.key:
                log.versions.append(RowVersion(row, "r", cause, READ_SEQ))
            else:
                self._put(log, row, "r", cause, READ_SEQ)

    # --- snapshots --------------------------------------------------------------------------------

    def opens_snapshot(self) -> None:
        """Forget an aborted snapshot."""
        self._loading = {}

    def bind(self, shape: TargetShape) -> None:
        """Find or create the table before the transaction's first row."""
        versions = self.of(shape)
        if versions is not None:
            self._tables.of(versions)

    def empty(self, shape: TargetShape, ts: int) -> None:
        """Close every version at ``ts`` for a new snapshot."""
        versions = self.of(shape)
        if versions is None:
            return
        table = self._bound(versions)
        # Versions of an aborted snapshot were inserted, but never opened.
        if self._deferred:
            waiting = f"{self._valid_to(table)} IS NULL AND NOT {self._current(table)}"
            self._target.run(f"DELETE FROM {table.quoted} WHERE {waiting}")
            self._loading[versions.name] = versions, ts
        else:
            self._close_all(table, ts)

    def load(self, shape: TargetShape, rows: Sequence[Tuple], cause: VersionCause) -> None:
        versions = self.of(shape)
        if versions is None:
            return
        own = cause.values("r", READ_SEQ, current=not self._deferred)
        self._rows.insert(self._bound(versions), with_values(rows, own))

    def ends_snapshot(self) -> None:
        """Open the versions of the snapshot if that was deferred."""
        for versions, ts in self._loading.values():
            table = self._bound(versions)
            self._close_all(table, ts)
            self._target.run(
                f"UPDATE {table.quoted} SET {self._current(table)} = TRUE"
                f" WHERE {self._valid_to(table)} IS NULL"
            )
        self._loading = {}

    # --- writing ----------------------------------------------------------------------------------

    def apply(self) -> None:
        for log in self._logs.values():
            self._apply(log)

    def _apply(self, log: HistoryChanges) -> None:
        if not (log.versions or log.closes):
            log.clear()
            return
        table = self._bound(log.shape)
        complete: list[Tuple] = []
        missing: dict[tuple[int, ...], list[RowVersion]] = {}
        indexes = [column.index for column in log.shape.base.columns]
        for version in log.versions:
            unsent: tuple[int, ...] = ()
            if UNCHANGED in version.row:
                unsent = tuple(n for n in indexes if version.row[n] is UNCHANGED)
            if unsent and version.lender is not None:
                missing.setdefault(unsent, []).append(version)
            else:
                complete.append(version.all_values())
        opened: list[Any] = []
        for unsent, versions in missing.items():
            # The open version that lends values to these must stay the only open one.
            rows = [version.values(current=False) for version in versions]
            columns = [column for column in log.shape.base.columns if column.index in unsent]
            count = self._target.insert_filled(table, rows, columns, [v.lender for v in versions])
            key_of = log.shape.key_of
            if count < len(rows):
                self._rows.refuse(table, "INSERT", [key_of(v.row) for v in versions])
            opened += [key_of(version.row) for version in versions if version.ends is None]
        if log.closes:  # a new key has no open version
            keys, times, where = list(log.closes), list(log.closes.values()), self._current(table)
            count = self._target.change_keys(table, keys, self._ended(table), where, times)
            if count < len(keys):
                self._rows.require(table, keys, "UPDATE", there=False, where=where)
        if opened:
            current = self._current(table)
            waiting = f"NOT {current} AND {self._valid_to(table)} IS NULL"
            count = self._target.change_keys(table, opened, {current: "TRUE"}, waiting)
            if count < len(opened):
                self._rows.refuse(table, "UPDATE", opened)
        if complete:
            self._rows.insert(table, complete)
        log.clear()

    def _close_all(self, table: BoundTable, ts: int) -> None:
        target, current = self._target, escaped(self._current(table))
        update = changing(table, self._ended(table), target.moment_sql)
        target.change(f"{update} WHERE {current}", [target.moment(ts)])
        self._rows.require_none(table, "UPDATE", self._current(table))

    def _current(self, table: BoundTable) -> str:
        return self._target.quoted(shape_of(table).current)

    def _valid_to(self, table: BoundTable) -> str:
        return self._target.quoted(shape_of(table).valid_to)

    def _ended(self, table: BoundTable) -> Assignments:
        return {self._valid_to(table): None, self._current(table): "FALSE"}

    def _bound(self, shape: HistoryShape) -> BoundTable:
        return self._tables.of(shape)
