"""Turn changes into statements: net changes by key where possible."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from waltap.changes.decode.message import Change, Delete, InsertBlock, Truncate, Update
from waltap.changes.decode.tuple_image import UNCHANGED, Tuple
from waltap.changes.events import CHANGED, DELETES, INSERTS, TRUNCATES, UPDATES, runs
from waltap.changes.mapping.type_mapping import TypeMapper
from waltap.changes.transactions.transaction import SnapshotRows, TransactionPart
from waltap_sinks.sql.history import HistoryWriter
from waltap_sinks.sql.net_changes import NetChanges, VersionCause, WaitingRows
from waltap_sinks.sql.properties import SqlProperties
from waltap_sinks.sql.rows import RowWriter
from waltap_sinks.sql.shape import HistoryShape, TargetName, TargetShape, TargetShapes
from waltap_sinks.sql.tables import TargetTables
from waltap_sinks.sql.targets.target import BoundTable, SqlTarget

AppliedPart = TransactionPart | SnapshotRows
Parts = Sequence[AppliedPart]

# After a new row existed already, so many batches insert by upserts.
UNSURE_FOR = 64


class SqlApplier:
    """Apply changes in the target's open transaction.

    `add` collects net changes, and `apply` writes them. A change that must not be combined with others is
    written at once.
    """

    def __init__(
        self,
        target: SqlTarget,
        tables: TargetTables,
        shapes: TargetShapes,
        types: TypeMapper | None,
        properties: SqlProperties,
    ) -> None:
        self._target, self._tables, self._shapes = target, tables, shapes
        self.rows = RowWriter(target)
        self._properties = properties
        self._inserts_only = properties.mode == "insert"
        self._net_changes: dict[TargetName, NetChanges] = {}
        self._appended: dict[TargetShape, list[Tuple]] = {}
        # Rows of the open transaction that may share a key.
        self.waiting = WaitingRows()
        self._unsure: dict[TargetName, int] = {}
        # Old rows are deleted before others may take their unique values.
        self.replaces = False
        self.history = HistoryWriter(
            target, tables, shapes, types, properties, self.waiting, self.rows
        )

    def forget(self) -> None:
        """Drop unwritten changes after the transaction was undone."""
        self._appended = {}
        self.waiting.clear()
        for net in self._net_changes.values():
            net.clear()
        self.history.forget()

    def distrust(self) -> None:
        """Insert by upserts for some batches.

        A row that is new at the source existed in the target.
        """
        for name in self._net_changes:
            self._unsure[name] = UNSURE_FOR

    def begins_batch(self) -> None:
        """Count a batch, whatever pieces it is applied in."""
        self._unsure = {name: left - 1 for name, left in self._unsure.items() if left > 1}

    # --- taking changes ---------------------------------------------------------------------------

    def by_version(self, parts: Parts) -> list[list[AppliedPart]]:
        """Divide ``parts``: no piece has two versions of a table."""
        pieces: list[list[AppliedPart]] = [[]]
        held: dict[int | TargetName, TargetShape] = {}
        for part in parts:
            rest, done = part, 0
            for at, shapes in self._shapes_in(part):
                keys = {key: shape for shape in shapes for key in self._identities(shape)}
                if any(held.get(key, shape) is not shape for key, shape in keys.items()):
                    if at > done:
                        assert isinstance(rest, TransactionPart)
                        first, rest = rest.split(at - done)
                        pieces[-1].append(first)
                        done = at
                    pieces.append([])
                    held.clear()
                held.update(keys)
            pieces[-1].append(rest)
        return pieces

    def _identities(self, shape: TargetShape) -> Iterator[int | TargetName]:
        yield shape.relation.oid
        # Tables that share a topic share their target on purpose.
        if "{topic}" not in self._properties.table_format:
            yield shape.name

    def _shapes_in(self, part: AppliedPart) -> Iterator[tuple[int, list[TargetShape]]]:
        """Yield the index of each run of changes with its shapes."""
        if isinstance(part, SnapshotRows):
            shape = self._shapes.read(part.relation)
            yield 0, [] if shape is None else [shape]
            return
        at = 0
        for kind, relation, run in runs(part.changes):
            if relation is not None:
                shapes = [self._shapes.of(relation)]
            elif kind is TRUNCATES:
                shapes = [self._shapes.of(each) for change in run for each in change.relations]  # type: ignore[union-attr]
            else:
                shapes = []
            yield at, [shape for shape in shapes if shape is not None]
            at += len(run)

    def unbound(self, parts: Parts) -> list[TargetShape]:
        """Return the shapes of ``parts`` that have no bound table yet."""
        found: dict[TargetShape, None] = {}
        for part in parts:
            for _, shapes in self._shapes_in(part):
                found.update(dict.fromkeys(shapes))
        needed: list[TargetShape] = []
        for shape in found:
            versions = self.history.of(shape)
            if versions is not None:
                needed.append(versions)
            if not self.history.replaces(shape):
                needed.append(shape)
        return [shape for shape in needed if not self._tables.is_bound(shape)]

    def add(self, part: TransactionPart) -> None:
        self._add(part.changes, part.commit_ts)
        self.history.add(part)
        if part.complete and self.waiting:
            self._resolve(self.waiting)

    def end_transaction(self) -> None:
        """Write the rows that wait for the end of a transaction."""
        if self.waiting:
            self._resolve(self.waiting)
            self._write()

    def _resolve(self, shapes: Iterable[TargetShape], *, ended: bool = True) -> None:
        """Add the rows that have a key alone, which all have at the end."""
        for shape in list(shapes):
            resolved = self.waiting.resolved(shape, None if ended else partial(self._held, shape))
            if not isinstance(shape, HistoryShape):
                self._changes_of(shape).resolve(resolved)
            else:
                self.history.resolve(shape, resolved)

    def _held(self, shape: TargetShape, keys: Sequence[Any]) -> Sequence[Any]:
        """Return the keys that the target has."""
        where = self._target.quoted(shape.current) if isinstance(shape, HistoryShape) else ""
        count = self._target.holding(self._tables.of(shape), keys, where) if keys else 0
        if count in (0, len(keys)):
            return keys if count else ()
        half = len(keys) // 2
        return [*self._held(shape, keys[:half]), *self._held(shape, keys[half:])]

    def _add(self, changes: Sequence[Change], ts: int) -> None:
        """Add changes of a transaction that committed at ``ts`` (µs)."""
        for kind, relation, run in runs(changes):
            if relation is None:
                if kind is TRUNCATES:
                    for change in run:
                        self._truncate(change)  # type: ignore[arg-type]
                continue
            shape = self._shapes.of(relation)
            if shape is None or self.history.replaces(shape):
                continue
            if kind is INSERTS:
                if isinstance(run, InsertBlock):
                    self._insert(shape, run.rows)
                else:
                    self._insert(shape, [change.new for change in run])  # type: ignore[union-attr]
            elif self._inserts_only:
                continue
            elif not shape.key:
                self._keyless(shape, kind, run)
            else:
                self._keyed(shape, kind, run, ts)

    def _changes_of(self, shape: TargetShape) -> NetChanges:
        net = self._net_changes.get(shape.name)
        if net is None or net.shape is not shape:
            self._follow(shape)
            net = self._net_changes[shape.name] = NetChanges(shape)
        return net

    def _insert(self, shape: TargetShape, rows: Sequence[Tuple]) -> None:
        if not shape.key:
            self._append(shape, rows)
        elif self._is_shared(shape):
            for row in rows:
                self.waiting.arrive(shape, row)
        else:
            self._changes_of(shape).insert(rows)

    def _is_shared(self, shape: TargetShape) -> bool:
        """Return whether several rows may have a key until the commit."""
        if not shape.deferrable or self._inserts_only or self._properties.delete_mode != "delete":
            return False
        self._changes_of(shape)
        return not self._tables.of(shape).cascades

    def _append(self, shape: TargetShape, rows: Sequence[Tuple]) -> None:
        if shape not in self._appended:
            self._follow(shape)
        self._appended.setdefault(shape, []).extend(rows)

    def _follow(self, shape: TargetShape) -> None:
        """Write waiting rows of other shapes with its relation or name."""
        self._resolve(self.waiting.follow(shape))
        others = [net.shape for net in self._net_changes.values()]
        oid = shape.relation.oid
        alike = [
            other
            for other in (*others, *self._appended)
            if other is not shape and (other.relation.oid == oid or other.name == shape.name)
        ]
        if any(other in self._appended or self._net_changes[other.name] for other in alike):
            self._write()
        # An earlier version may return, and must then be seen as another one.
        for other in alike:
            self._net_changes.pop(other.name, None)

    def _keyed(self, shape: TargetShape, kind: str, run: Sequence[Change], ts: int) -> None:
        net = self._changes_of(shape)
        if kind is UPDATES:
            for change in run:
                net.put(change.new)  # type: ignore[union-attr]
        elif kind is CHANGED:
            for change in run:
                assert isinstance(change, Update)
                self._changed(shape, change, ts)
        elif kind is DELETES and self._properties.delete_mode != "ignore":
            for change in run:
                assert isinstance(change, Delete)
                images = shape.plan.delete(change)
                if images is not None:
                    key = shape.key_of(images[1])
                    if self._is_shared(shape):
                        self.waiting.leave(shape, key, images[0])
                    else:
                        net.delete(key, ts)

    def _changed(self, shape: TargetShape, change: Update, ts: int) -> None:
        net, key_of = self._changes_of(shape), shape.key_of
        before, row, old = shape.plan.update(change)
        if self._is_shared(shape):
            self.waiting.leave(shape, key_of(old or row), before)
            self.waiting.arrive(shape, row)
        elif old is None:
            net.put(row)
        # The row continues to exist: neither is it marked deleted nor do rows that refer to it end.
        elif (
            self._properties.delete_mode != "delete"
            or self._tables.of(shape).cascades
            or not net.move(key_of(old), row, ts)
        ):
            self._move(shape, key_of(old), row)

    def _move(self, shape: TargetShape, old: object, row: Tuple) -> None:
        """Change a key in place; only the target has unsent values."""
        self._write()
        table = self._tables.of(shape)
        if self._properties.delete_mode != "delete" and shape.key:
            new, where = shape.key_of(row), f"{table.soft} IS NOT NULL" if table.soft else ""
            # A row that the source deleted may have the new key; the target can equate both keys.
            # Where the key is deferrable, that row may live.
            if table.soft or (not shape.deferrable and self._target.holding(table, [old, new]) > 1):
                self._target.change_keys(table, [new], where=where)
        self.rows.move(table, old, row)

    def _keyless(self, shape: TargetShape, kind: str, run: Sequence[Change]) -> None:
        self._write()
        table = self._tables.of(shape)
        for change in run:
            if isinstance(change, Update):
                before, row, _old = shape.plan.update(change)
                if before is None:
                    continue  # the old row is unknown
                self.rows.delete_row(table, before)
                self.rows.insert(table, [row])
            elif isinstance(change, Delete) and self._properties.delete_mode != "ignore":
                images = shape.plan.delete(change)
                if images is not None:
                    self.rows.delete_row(table, images[0])

    def _truncate(self, change: Truncate) -> None:
        if self._inserts_only or self._properties.truncate == "skip":
            return
        found = (self._shapes.of(relation) for relation in change.relations)
        shapes = [s for s in found if s is not None and not self.history.replaces(s)]
        self._write()
        if not shapes:
            return
        for shape in shapes:
            self.waiting.pop(shape, None)
        tables = [self._tables.of(shape) for shape in shapes]
        self._tables.at = tables[0]
        as_sent = self._properties.truncate == "as_sent"
        self.rows.truncate(
            tables, cascade=as_sent and change.cascade, restart=as_sent and change.restart_identity
        )

    def read(self, shape: TargetShape, rows: Sequence[Tuple], cause: VersionCause) -> None:
        """Add rows that a snapshot read while the table was streamed.

        They may exist in the target.
        """
        self.history.read(shape, rows, cause)
        if self.history.replaces(shape):
            return
        if not shape.key:
            self._append(shape, rows)
        elif self._inserts_only:
            self._changes_of(shape).insert(rows)
        else:
            net = self._changes_of(shape)
            for row in rows:
                net.put(row)

    def load(self, shape: TargetShape, rows: Sequence[Tuple], cause: VersionCause) -> None:
        """Insert rows of a snapshot into an emptied table."""
        self.history.load(shape, rows, cause)
        if not self.history.replaces(shape):
            table = self._tables.of(shape)
            self.rows.insert(table, rows)

    def empty(self, shape: TargetShape, ts: int) -> None:
        """Delete every row; in the history the rows end at ``ts``."""
        self.history.bind(shape)
        table = None if self.history.replaces(shape) else self._tables.renewed(shape)
        self.history.empty(shape, ts)
        if table is not None:
            self._tables.at = table
            self.rows.delete_all(table)

    # --- writing ----------------------------------------------------------------------------------

    def apply(self) -> None:
        """Write all changes except rows that share a key in an open transaction."""
        self._write()
        if self.waiting:
            self._resolve(self.waiting, ended=False)
            self._write()

    def _write(self) -> None:
        """Write net changes: deletes (children first), updates, inserts."""
        by_table = {self._tables.of(net.shape): net for net in self._net_changes.values() if net}
        order = self._target.ordered(list(by_table)) if len(by_table) > 1 else list(by_table)
        for table in reversed(order):
            self._gone(table, by_table[table])
        for step in (self._puts, self._fresh):
            for table in order:
                step(table, by_table[table])
        for shape, rows in self._appended.items():
            table = self._tables.of(shape)
            self.rows.insert(table, rows)
        for net in by_table.values():
            net.clear()
        self._appended = {}
        self.history.apply()

    def _gone(self, table: BoundTable, net: NetChanges) -> None:
        if not net.gone:
            return
        self._tables.at = table
        keys, due = list(net.gone), len(net.gone) - len(net.brief)
        if table.soft is None:
            self.rows.delete(table, keys, due)
        else:
            self.rows.mark_deleted(table, keys, list(net.gone.values()), due)

    def _puts(self, table: BoundTable, net: NetChanges) -> None:
        if not net.puts:
            return
        self._tables.at = table
        complete: list[Tuple] = []
        partial: dict[tuple[int, ...], list[Tuple]] = {}
        for row in net.puts.values():
            if UNCHANGED in row:
                unsent = tuple(n for n, value in enumerate(row) if value is UNCHANGED)
                partial.setdefault(unsent, []).append(row)
            else:
                complete.append(row)
        if complete and self.replaces and not (table.only_key or table.shared or table.cascades):
            self._target.change_keys(table, list(map(net.shape.key_of, complete)))
        for rows in partial.values():
            self.rows.update(table, net.shape.sent(rows[0]), rows)
        if complete:
            self.rows.upsert(table, complete)

    def _fresh(self, table: BoundTable, net: NetChanges) -> None:
        rows = net.inserted()
        if not rows:
            return
        self._tables.at = table
        name = net.shape.name
        if self._inserts_only:
            self.rows.upsert(table, rows, keep=True)
        elif name in self._unsure or table.soft is not None:  # a soft-deleted row may return
            self.rows.upsert(table, rows)
        else:
            self.rows.insert(table, rows)
