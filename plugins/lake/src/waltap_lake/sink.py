"""Append changes to tables of a lake.

Each commit of a table has the position behind its rows.
"""

import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from waltap.base.import_rules import pa
from waltap.changes.transactions.position import Position
from waltap.changes.transactions.transaction import Batch, SnapshotRows, TransactionPart
from waltap.errors import SinkError, WaltapError
from waltap.ports.sink.refusal import FailStop
from waltap.ports.sink.sink import Sink, SinkCapabilities, SinkContext
from waltap.ports.sink.stored_position import DestinationBehind, delivered_changes
from waltap.ports.source.connector import PreflightCheck
from waltap_lake.errors import LakeTableUnfit, LakeTransactionGap
from waltap_lake.lake import (
    GONE,
    LakeConnection,
    LakeOffset,
    LakeTable,
    LakeTableName,
    LakeTableVersion,
    WrittenTable,
)
from waltap_lake.properties import LakeProperties
from waltap_sinks.changelog.segment import (
    SNAPSHOT_SEQUENCE,
    TableBuffer,
    by_relation,
    estimated_bytes,
)
from waltap_sinks.changelog.table_version import TableVersion, TableVersions

log = logging.getLogger(__name__)


class PendingBuffers:
    """Collect rows of one table since the last commit.

    Each buffer has rows of one relation version; the buffers are in order.
    """

    def __init__(self) -> None:
        self._buffers: list[TableBuffer] = []

    @property
    def version(self) -> TableVersion:
        """Return the version of the last rows."""
        return self._buffers[-1].version

    def buffer(self, version: TableVersion) -> TableBuffer:
        if not self._buffers or self._buffers[-1].version.fingerprint != version.fingerprint:
            self._buffers.append(TableBuffer(version))
        self._buffers[-1].continue_as(version)
        return self._buffers[-1]

    @property
    def bytes(self) -> int:
        return sum(buffer.bytes for buffer in self._buffers)

    def convert(self) -> None:
        """Convert the collected rows to columns."""
        for buffer in self._buffers:
            buffer.convert()

    def rows(self, fitted: "Callable[[pa.Table], pa.Table]") -> "pa.Table | None":
        """Return all rows as one table, None if there are none.

        Columns that a version lacks are null. ``fitted`` casts the rows of a version.

        Raises: pyarrow.ArrowInvalid if a column has types in two versions that have no common type.
        """
        tables: Sequence[pa.Table] = [
            fitted(pa.Table.from_batches(batches))
            for buffer in self._buffers
            if (batches := buffer.batches)
        ]
        if not tables:
            return None
        # delta-rs would write each chunk to a file of its own, so combine them.
        return pa.concat_tables(tables, promote_options="permissive").combine_chunks()


# From this number of rows or bytes on changes are converted to columns.
UNCONVERTED_ROWS: Final = 16_384
UNCONVERTED_BYTES: Final = 8 * 1024 * 1024


class LakeSink(Sink):
    """Append changes to tables of a lake, with the columns of the change log.

    Life cycle: open, (write*, flush)*, close. `flush` commits table by table, each with the position. Then
    it commits the offset: the position that every table has. `open` returns that position. After a crash
    between two commits some tables are ahead of the offset; they skip the changes that they have.

    The next snapshot deletes the rows of an aborted one. The offset has the version of each written table:
    a table that lost it ends the run. Single-threaded.
    """

    capabilities = SinkCapabilities(records=False, exactly_once=True, whole_transactions=True)

    def __init__(
        self, lake: LakeConnection, properties: LakeProperties, context: SinkContext
    ) -> None:
        self._lake, self._properties, self._context = lake, properties, context
        self._fail_stop, self._write_stop = FailStop(lake.location), FailStop(lake.location)
        self._versions = TableVersions(context)
        self._offset = LakeOffset()
        self._written: dict[LakeTableName, WrittenTable] = {}
        self._forget()

    def _forget(self) -> None:
        """Drop uncommitted rows and the known state of tables."""
        self._tables: dict[LakeTableName, LakeTable] = {}
        # The version of each table at its last read or commit.
        self._seen: dict[LakeTableName, LakeTableVersion] = {}
        # Schema, name and OID of the relation whose rows came last.
        self._sources: dict[LakeTableName, tuple[str, str, int]] = {}
        # Positions of tables that are ahead of the offset.
        self._behind: dict[LakeTableName, Position] = {}
        self._pending: dict[LakeTableName, PendingBuffers] = {}
        # Tables with rows of the present snapshot.
        self._read: set[LakeTableName] = set()
        self._position = self._offset.position
        self._snapshot, self._snapshot_lsn = False, 0
        self._broken_off: tuple[int, ...] = ()
        self._unconverted = self._unconverted_bytes = 0

    def forget(self, oid: int) -> None:
        self._versions.forget(oid)
        # The relation is gone, so the owner may remove the table now.
        for name in [n for n, written in self._written.items() if written.oid == oid]:
            del self._written[name]
        for name in [n for n, source in self._sources.items() if source[2] == oid]:
            del self._sources[name]
            if name not in self._pending:
                self._tables.pop(name, None)

    # --- life cycle -------------------------------------------------------------------------------

    def check(self) -> list[PreflightCheck]:
        """Check that the lake answers. Raises: SinkError, LibraryMissing."""
        self._lake.check()
        return [PreflightCheck.ok("sink", self._lake.location)]

    def open(self) -> Position | None:
        """Connect and return the position of the offset.

        Each table must have the commits of this pipeline, unless the run repairs.

        Raises: SinkError, LibraryMissing.
        """
        if self._context.types is None:
            raise WaltapError("the sink of a lake was made without a type mapper")
        self._fail_stop.reset()
        self._write_stop.reset()
        offset = self._lake.open() or LakeOffset()
        generation = max(offset.generation + 1, time.time_ns())
        offset = msgspec.structs.replace(offset, generation=generation)
        # Without a stored offset the tables have rows of another history.
        if not self._context.has_offset:
            offset = msgspec.structs.replace(
                offset, epoch=offset.epoch + 1, position=None, tables=()
            )
        tables = tuple(
            known_table
            for each in offset.tables
            if (known_table := self._found(each, offset)) is not None
        )
        self._written = {LakeTableName(each.space, each.name): each for each in tables}
        self._keep(offset, tables=tables)
        self._forget()
        return self._offset.position

    def stored_position(self) -> Position | None:
        return self._offset.position

    def close(self) -> None:
        """Release the lake and drop uncommitted rows. May be called twice."""
        self._forget()
        self._lake.close()

    # --- batches ----------------------------------------------------------------------------------

    def write(self, batch: Batch) -> None:
        """Collect the changes of ``batch``.

        They are committed when they exceed ``memory.max.bytes``.

        Raises: SinkError.
        """
        self._fail_stop.check()
        with self._write_stop:
            before = self._position or Position(0)
            for part in batch.parts:
                if isinstance(part, TransactionPart):
                    self._take_part(part, before)
                    before = part.position(before)
                elif isinstance(part, SnapshotRows):
                    self._take_rows(part, batch)
            if self._position is None or batch.position > self._position or batch.snapshot:
                self._position = batch.position
            if batch.snapshot and not batch.parts:
                self._snapshot = False
            self._unconverted += batch.events
            self._unconverted_bytes += estimated_bytes(batch)
            if (
                self._unconverted >= UNCONVERTED_ROWS
                or self._unconverted_bytes >= UNCONVERTED_BYTES
            ):
                self._convert()

    def flush(self) -> Position | None:
        """Commit collected rows and return the position that every table has.

        Raises: SinkError.
        """
        self._fail_stop.check()
        # After a failed write the buffers may have only a part of a batch.
        if not self._write_stop.failed:
            with self._fail_stop:
                self._commit()
        return self._offset.position

    def _take_part(self, part: TransactionPart, before: Position) -> None:
        """Collect the changes of ``part``, which follows the position ``before``."""
        if self._position is not None and part.commit_lsn < self._position.end_lsn:
            return  # sent again after a reconnect
        groups = [
            (version, self._name(relation.schema, relation.table), changes, numbers)
            for relation, changes, numbers in by_relation(part)
            if (version := self._versions.of(relation)) is not None
        ]
        retyped = self._first_retyped(groups)
        if retyped is not None:
            # No commit has a column in two types. Rows of the former one are committed before, so a
            # start continues behind them, with a new table if need be.
            at = bisect_left(part.numbers(), retyped)
            if at:
                first, part = part.split(at)
                self._take_part(first, before)
                before = first.position(before)
            self._position = before
            self._commit()
            self._take_part(part, before)
            return
        for version, name, changes, numbers in groups:
            self._table(name, version)
            # The buffers have redelivered changes; a table ahead of the offset has some, too.
            skipped = max(
                delivered_changes(part.commit_lsn, numbers, stored_position)
                for stored_position in (self._position, self._behind.get(name))
            )
            if skipped < len(changes):
                buffer = self._pending.setdefault(name, PendingBuffers()).buffer(version)
                buffer.add_changes(part, changes[skipped:], numbers[skipped:])

    def _first_retyped(
        self, groups: Iterable[tuple[TableVersion, LakeTableName, object, Sequence[int]]]
    ) -> int | None:
        """Return the number of the first change with a column of another type.

        The table cannot take the type beside the one of rows before.
        """
        last = dict[LakeTableName, TableVersion]()
        for version, name, _changes, numbers in groups:
            pending = self._pending.get(name)
            had = last.get(name) or (pending and pending.version)
            if had and had.fingerprint != version.fingerprint and not self._join(had, version):
                return numbers[0]
            last[name] = version
        return None

    def _join(self, one: TableVersion, other: TableVersion) -> bool:
        """Return whether one commit may have rows of both versions."""
        had, has = (
            self._lake.fitted(each.segment_schema.empty_table()).schema for each in (one, other)
        )
        return all(
            self._lake.takes(had.field(field.name).type, field.type)
            for field in has
            if field.name in had.names
        )

    # --- snapshots --------------------------------------------------------------------------------

    def _take_rows(self, part: SnapshotRows, batch: Batch) -> None:
        initial = part.kind == "initial"
        if initial and part.opens:
            self._begin_snapshot(batch.position.end_lsn if part.lsn is None else part.lsn)
        elif initial and not self._snapshot:
            raise LakeTransactionGap(
                f"a snapshot continues in {part.relation.name} without its start"
            )
        version = self._versions.of(part.relation)
        if version is None:
            return
        name = self._name(part.relation.schema, part.relation.table)
        table = self._table(name, version)
        if initial and name not in self._read:
            self._read.add(name)
            if self._broken_off:
                listed = ", ".join(map(str, self._broken_off))
                self._context.may_write()
                table.take_out(f"_seq = {SNAPSHOT_SEQUENCE} AND _commit_lsn IN ({listed})")
            self._seen[name] = table.version()
        end_lsn = 0 if self._position is None else self._position.end_lsn
        if part.rows:
            buffer = self._pending.setdefault(name, PendingBuffers()).buffer(version)
            buffer.add_snapshot(part, self._snapshot_lsn if initial else end_lsn)

    def _begin_snapshot(self, lsn: int) -> None:
        # Until the snapshot ends no position is durable in every table.
        broken_off = self._offset.unfinished
        unfinished = tuple(dict.fromkeys((*broken_off, lsn)))
        epoch = self._offset.epoch + 1
        self._keep(self._offset, epoch=epoch, position=None, unfinished=unfinished, tables=())
        self._written = {}
        self._forget()
        self._snapshot, self._snapshot_lsn, self._broken_off = True, lsn, broken_off

    # --- tables -----------------------------------------------------------------------------------

    def _name(self, schema: str, table: str) -> LakeTableName:
        space, dot, name = self._properties.table_format.partition(".")
        if not dot:
            space, name = "", space
        named = {"schema": schema, "table": table}
        return LakeTableName(space.format(**named), name.format(**named))

    def _table(self, name: LakeTableName, version: TableVersion) -> LakeTable:
        table = self._tables.get(name)
        if table is None:
            self._context.may_write()
            written = self._written.get(name)
            if written is None:
                empty = self._lake.fitted(version.segment_schema.empty_table())
                table = self._lake.table(name, empty.schema)
            else:
                table = self._having(name, self._lake.existing(name), written.version, self._offset)
            self._tables[name], self._seen[name] = table, table.version()
            there = table.position(self._offset.epoch)
            if there is not None:
                self._behind[name] = there
        self._sources[name] = version.relation.schema, version.relation.table, version.relation.oid
        return table

    def _found(self, written: WrittenTable, offset: LakeOffset) -> WrittenTable | None:
        """Return the entry of a table for the new offset.

        The result is None if the run creates the table again.

        Raises: SinkError.
        """
        name, capture = LakeTableName(written.space, written.name), self._context.capture
        captured = capture is None or capture.captures(written.schema, written.table)
        # The owner may remove a table that the pipeline does not capture now.
        if not captured or self._name(written.schema, written.table) != name:
            return written
        table = self._lake.existing(name)
        if not self._context.repairs:
            self._having(name, table, written.version, offset)
            return written
        if table is None:
            return None
        return msgspec.structs.replace(written, version=table.version())

    def _having(
        self,
        name: LakeTableName,
        table: LakeTable | None,
        known: LakeTableVersion,
        offset: LakeOffset,
    ) -> LakeTable:
        """Return ``table`` if it lost no commit since ``known``.

        Raises: DestinationBehind, SinkError.
        """
        lost = GONE if table is None else table.lost(known)
        if table is None or lost is not None:
            had = (
                f"everything up to {offset.position}"
                if offset.position
                else "rows of this snapshot"
            )
            raise DestinationBehind(
                f"table {name} of {self._lake.location} {lost}; it had {had}", replay=""
            )
        return table

    # --- commits ----------------------------------------------------------------------------------

    def _convert(self) -> None:
        self._unconverted = self._unconverted_bytes = 0
        for pending in self._pending.values():
            pending.convert()
        used = sum(pending.bytes for pending in self._pending.values())
        if used > self._properties.memory_bytes:
            self._commit()

    def _commit(self) -> None:
        position = self._position
        if position is None:
            return
        # Tables first, offset last: an offset never has a position that a table lacks.
        for name, pending in self._pending.items():
            try:
                self._append(name, pending, position)
            except LakeTableUnfit:
                # The remedy of WT-5553 renames the table away. The next start then creates a new one.
                others = tuple(each for n, each in self._written.items() if n != name)
                with suppress(SinkError):
                    self._keep(self._offset, tables=others)
                raise
        self._pending = {}
        tables = tuple(self._written.values())
        had = self._offset.position, self._offset.tables
        if not self._snapshot and (position, tables) != had:
            self._keep(self._offset, position=position, unfinished=(), tables=tables)

    def _append(self, name: LakeTableName, pending: PendingBuffers, position: Position) -> None:
        pending.convert()
        try:
            rows = pending.rows(self._lake.fitted)
        except pa.ArrowException as error:
            raise LakeTableUnfit(f"{name}: {error}", table=name) from error
        if rows is None:
            return
        self._context.may_write()
        table = self._having(name, self._tables[name], self._seen[name], self._offset)
        table.append(rows, self._offset.epoch, position)
        self._seen[name] = version = table.version()
        self._behind.pop(name, None)
        source = self._sources.get(name)
        if source is None:  # the relation is gone, see `forget`
            del self._tables[name]
            return
        schema, relation, oid = source
        self._written[name] = WrittenTable(name.space, name.name, schema, relation, oid, version)

    def _keep(self, offset: LakeOffset, **changes: object) -> None:
        """Store ``offset`` with ``changes``."""
        offset = msgspec.structs.replace(offset, **changes)
        self._context.may_write()
        self._lake.keep(offset)
        self._offset = offset
