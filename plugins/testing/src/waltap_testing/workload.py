"""A known stream of changes for sinks, and the expected destination.

Every event has its own ``serial``, and each ``id`` is deleted at most once. Each event found in a
destination is thus identified, and a missing, doubled or misplaced event shows.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import msgspec
import orjson

from waltap.base.import_rules import np, pa
from waltap.changes.arrow.tuples import RelationCodec
from waltap.changes.decode.message import (
    Change,
    Delete,
    Insert,
    InsertBlock,
    OldTuple,
    TransactionBlock,
    Truncate,
    Update,
)
from waltap.changes.decode.relation import Column, DataType, Relation
from waltap.changes.decode.row_block import RowBlock
from waltap.changes.decode.tuple_image import ABSENT, UNCHANGED, Tuple
from waltap.changes.events.event import Header, Record
from waltap.changes.transactions.position import START, Position, TableChunks
from waltap.changes.transactions.transaction import (
    Batch,
    Heartbeat,
    SnapshotRows,
    TransactionPart,
    TransactionRun,
)
from waltap.encoders.format.record_block import MixedRecords, RecordBlock
from waltap_testing.installed import mapper

TEXTS = {
    "empty": "",
    "blank": "  \t ",
    "control characters": "".join(map(chr, range(1, 32))) + "\x7f",
    "quotes and backslashes": "\"'`\\\\n\\",
    "line ends": "a\nb\r\nc\rd\u2028e\u2029f\u0085g",
    "beyond the plane": "naïve Ω 漢字 🐘👩‍👩‍👧‍👦 \U0010ffff",
    "combining": "e\u0301 vs \u00e9",
    "looks like null": "null",
    "looks like json": '{"a": [1, null]}',
    "long": "0123456789" * 20_000,
}

# 2026-01-01 00:00 UTC in µs.
COMMIT_TS = 1_767_225_600_000_000
# A fixed time of processing, so that records repeat.
NOW = 1_767_225_601_123_456_789
# OIDs of pg_type, the same on every server.
TYPE_OIDS = {
    "bool": 16,
    "bytea": 17,
    "int8": 20,
    "int2": 21,
    "int4": 23,
    "text": 25,
    "float8": 701,
    "date": 1082,
    "timestamptz": 1184,
    "numeric": 1700,
}


def relation(
    table: str,
    columns: Sequence[tuple[str, str]],
    *,
    oid: int,
    typmods: dict[str, int] | None = None,
) -> Relation:
    """Return ``public.table`` as a connector describes it.

    The key is ``id``, the replica identity is DEFAULT, and a column is (name, type name).
    """
    return Relation(
        oid=oid,
        schema="public",
        table=table,
        primary_key=("id",),
        columns=tuple(
            Column(
                name=name,
                type_oid=TYPE_OIDS[kind],
                typmod=(typmods or {}).get(name, -1),
                in_identity=name == "id",
                data_type=DataType(oid=TYPE_OIDS[kind], schema="pg_catalog", name=kind),
                nullable=name != "id",
                type_text=kind,
            )
            for name, kind in columns
        ),
    )


ITEMS = relation("items", [("id", "int4"), ("serial", "int8"), ("name", "text")], oid=16401)
NOTES = relation("notes", [("id", "int4"), ("serial", "int8"), ("body", "text")], oid=16402)
# Properties that hide ``items.name``; properties of a family are in its field.
NAME = r"public\.items\.name"
HIDDEN: dict[str, dict[str, object]] = {
    "left out": {"column.exclude.list": NAME},
    "masked": {"column_mask": {"column.mask.with.3.chars": NAME}},
    "hashed": {"column_hash_v2": {"column.mask.hash.v2.SHA-256.with.salt.s": NAME}},
    "cut": {"column_truncate": {"column.truncate.to.3.chars": NAME}},
}


@dataclass(frozen=True, slots=True)
class ExpectedEvent:
    """One event that a destination must show."""

    table: str
    # As Debezium's: c, u, d, r, t; None for a tombstone.
    op: str | None
    # None for a truncate.
    id: int | None
    # None for deletes, tombstones and truncates: they carry no other column.
    serial: int | None


@dataclass(slots=True)
class ScriptedWorkload:
    """A server whose transactions are made by hand."""

    # Whole transactions in commit order.
    parts: list[TransactionPart] = field(default_factory=list)
    # The expected events in the same order.
    events: list[ExpectedEvent] = field(default_factory=list)
    # The tables at the end: table → id → row of texts.
    rows: dict[str, dict[int, tuple[str | None, ...]]] = field(default_factory=dict)
    # LSN of a change → the records of a format; a delete has two, with its tombstone.
    rendered: dict[int, list[Record]] = field(default_factory=dict)
    _lsn: int = 0x1000000
    _xid: int = 700
    _serial: int = 0
    _changes: list[Change] = field(default_factory=list)

    # --- statements ---

    def insert(self, table: Relation, identifier: int, *values: str | None) -> None:
        """INSERT a row; ``values`` follow id and serial."""
        row = self._row(table, identifier, values)
        self._add(
            Insert(table, self._step(), row),
            ExpectedEvent(table.name, "c", identifier, self._serial),
        )
        self._render(table, "c", row)

    def update(self, table: Relation, identifier: int, *values: str | None) -> None:
        row = self._row(table, identifier, values)
        self._add(
            Update(table, self._step(), row),
            ExpectedEvent(table.name, "u", identifier, self._serial),
        )
        self._render(table, "u", row)

    def update_unsent(
        self, table: Relation, identifier: int, *, moved_to: int | None = None
    ) -> None:
        """UPDATE a row or key without its last value.

        The server omits a large value that the statement did not change.
        """
        self._serial += 1
        to = identifier if moved_to is None else moved_to
        row = (str(to), str(self._serial), *self.rows[table.name].pop(identifier)[2:])
        old: Tuple = (str(identifier), *[ABSENT] * (len(row) - 1))
        kind = OldTuple.NONE if moved_to is None else OldTuple.KEY
        self._add(
            Update(table, self._step(), (*row[:-1], UNCHANGED), old if moved_to else (), kind),
            ExpectedEvent(table.name, "u", to, self._serial),
        )
        self.rows[table.name][to] = row

    def read_again(self, table: Relation, identifier: int, *values: str | None) -> SnapshotRows:
        """Return a snapshot piece with a row without change."""
        row = self._row(table, identifier, values)
        self.events.append(ExpectedEvent(table.name, "r", identifier, self._serial))
        return SnapshotRows(
            relation=table,
            rows=[row],
            ts=COMMIT_TS,
            lsn=None,
            xid=None,
            first_marker="incremental",
            last_marker="incremental",
            kind="incremental",
        )

    def delete(self, table: Relation, identifier: int) -> None:
        """DELETE a row; its id is never used again."""
        old: Tuple = (str(identifier), *[ABSENT] * (len(table.columns) - 1))
        self._add(
            Delete(table, self._step(), old, OldTuple.KEY),
            ExpectedEvent(table.name, "d", identifier, None),
        )
        del self.rows[table.name][identifier]
        self._render(table, "d", (str(identifier),))

    def truncate(self, table: Relation) -> None:
        """TRUNCATE a table once: two truncates look the same."""
        self._add(Truncate((table,), self._step()), ExpectedEvent(table.name, "t", None, None))
        self.rows[table.name] = {}
        self._render(table, "t", ())

    def truncate_all(self, *tables: Relation) -> None:
        """TRUNCATE several tables at once, for sinks of changes."""
        lsn = self._step()
        self._changes.append(Truncate(tables, lsn))
        for table in tables:
            self.events.append(ExpectedEvent(table.name, "t", None, None))
            self.rows[table.name] = {}

    def commit(self) -> None:
        begin, commit = self._lsn, self._step()
        self._xid += 1
        self.parts.append(
            TransactionPart(
                xid=self._xid,
                begin_lsn=begin,
                commit_lsn=commit,
                commit_ts=COMMIT_TS + self._xid,
                end_lsn=self._step(),
                previous_end_lsn=self.parts[-1].end_lsn if self.parts else None,
                changes=self._changes,
            )
        )
        self._changes = []

    def snapshot(
        self, tables: Iterable[Relation], most: int = 1_000, *, records: bool
    ) -> list[Batch]:
        """Return the current rows as the batches of a snapshot.

        The pieces have ``most`` rows, and the closing batch follows (the contract:
        `SnapshotRows`). With ``records`` each row has its record too.

        The rows become events, so call it only before the first streamed statement.
        """
        pieces = [piece for table in tables for piece in self._pieces_of(table, most)]
        if pieces:
            pieces[0].opens = True
        # Debezium marks the last row of the snapshot, which no empty table has.
        full = [piece for piece in pieces if piece.rows]
        if full:
            full[-1].last_marker = "last"
        made = []
        for piece in pieces:
            table, rows = piece.relation, [tuple(map(_text, row)) for row in piece.rows]
            self.events += [
                ExpectedEvent(table.name, "r", int(row[0] or 0), int(row[1] or 0)) for row in rows
            ]
            rendered = [_record(table, "r", row) for row in rows] if records else None
            made.append(self._read([piece], len(rows), rendered))
        made.append(self._read([], 0, [] if records else None))
        return made

    def _pieces_of(self, table: Relation, most: int) -> Iterator[SnapshotRows]:
        rows: list[Tuple] = [tuple(row) for row in self.rows.get(table.name, {}).values()]
        # An empty table gives one empty piece: the sink must learn that it is complete.
        for at in range(0, max(1, len(rows)), most):
            complete = at + most >= len(rows)
            yield SnapshotRows(
                relation=table,
                rows=rows[at : at + most],
                ts=COMMIT_TS,
                lsn=self._lsn,
                xid=self._xid,
                first_marker="true" if at else "first_in_data_collection",
                last_marker="last_in_data_collection" if complete else "true",
                complete=complete,
                chunk=at // most,
                ends_chunk=True,
            )

    def _read(self, parts: list[SnapshotRows], events: int, records: list[Record] | None) -> Batch:
        return Batch(
            parts=list(parts),
            position=Position(self._lsn),
            events=events,
            records=records,
            snapshot=True,
        )

    def begin_again(self) -> None:
        """Forget the transactions and events, but keep the rows.

        The following changes are the stream after a snapshot.
        """
        self.parts, self.events = [], []

    def move_to_another_server(self) -> None:
        """Continue with lower LSNs; the earlier transactions do not come again."""
        self.parts, self._lsn = [], 0x1000

    # --- batches of an engine ---

    def batches(self, most: int, after: Position = START, *, records: bool) -> Iterator[Batch]:
        """Yield the batches that follow ``after``.

        A batch has at least one transaction, or ``most`` changes of a larger one. With ``records``
        it has the records too.
        """
        return batches(_after(self.parts, after), most, after, self.rendered if records else None)

    # --- making ---

    def _row(
        self, table: Relation, identifier: int, values: tuple[str | None, ...]
    ) -> tuple[str | None, ...]:
        """Store and return a row with a serial of its own."""
        self._serial += 1
        row = (str(identifier), str(self._serial), *values)
        self.rows.setdefault(table.name, {})[identifier] = row
        return row

    def _step(self) -> int:
        self._lsn += 0x40
        return self._lsn

    def _add(self, change: Change, event: ExpectedEvent) -> None:
        self._changes.append(change)
        self.events.append(event)
        if event.op == "d":
            # A tombstone follows each delete.
            self.events.append(ExpectedEvent(event.table, None, event.id, None))

    def _render(self, table: Relation, operation: str, row: tuple[str | None, ...]) -> None:
        records = [_record(table, operation, row)]
        if operation == "d":
            records.append(Record(records[0].topic, records[0].key, None))
        self.rendered[self._lsn] = records


def batches(
    parts: Iterable[TransactionPart],
    most: int,
    after: Position,
    rendered: dict[int, list[Record]] | None,
) -> Iterator[Batch]:
    """Yield ``parts`` as batches, as an engine does.

    A batch has whole transactions up to ``most`` changes; larger transactions come in pieces.
    """
    waiting: list[TransactionPart] = []
    count, position = 0, after
    for piece in _pieces(parts, most):
        if waiting and count + len(piece.changes) > most:
            batch = _batch(waiting, position, rendered)
            position = batch.position
            yield batch
            waiting, count = [], 0
        waiting.append(piece)
        count += len(piece.changes)
    if waiting:
        yield _batch(waiting, position, rendered)


def _pieces(parts: Iterable[TransactionPart], most: int) -> Iterator[TransactionPart]:
    for part in parts:
        changes = part.changes
        if len(changes) <= most:
            yield part
            continue
        for at in range(0, len(changes), most):
            final = at + most >= len(changes)
            yield msgspec.structs.replace(
                part,
                changes=changes[at : at + most],
                first_index=part.first_index + at,
                starts=part.starts and at == 0,
                complete=final,
                # Inside a transaction no position may be confirmed.
                end_lsn=part.end_lsn if final else 0,
            )


def _after(parts: Iterable[TransactionPart], position: Position) -> Iterator[TransactionPart]:
    for part in parts:
        if part.end_lsn <= position.end_lsn:
            continue
        # The position is inside this transaction: its first changes were delivered.
        if part.commit_lsn == position.commit_lsn and position.index:
            yield msgspec.structs.replace(
                part,
                changes=part.changes[position.index :],
                first_index=position.index,
                starts=False,
            )
        else:
            yield part


def _batch(
    parts: list[TransactionPart], before: Position, rendered: dict[int, list[Record]] | None
) -> Batch:
    position = before
    for part in parts:
        position = part.position(position)
    given: list[TransactionPart | SnapshotRows | Heartbeat] = list(parts)
    return Batch(
        parts=given,
        position=position,
        events=sum(len(part.changes) for part in parts),
        records=None
        if rendered is None
        else [record for part in parts for c in part.changes for record in rendered[c.lsn]],
    )


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def as_block(rows: Sequence[Tuple]) -> RowBlock:
    """Return ``rows``, of texts and NULL, as columns."""
    block = RowBlock.of(rows)
    assert block is not None
    return block


def as_typed_block(relation: Relation, rows: Sequence[Tuple]) -> RowBlock:
    """Return ``rows`` as columns of their Arrow types."""
    return RowBlock(RelationCodec(relation, mapper()).batch(rows).columns, len(rows))


def as_columns(batch: Batch, *, typed: bool = False) -> Batch:
    """Return a snapshot's batch with its rows and records as columns.

    ``typed``: values have their Arrow types (`SinkCapabilities.typed_columns`).
    """
    parts = [
        msgspec.structs.replace(
            part, rows=as_typed_block(part.relation, part.rows) if typed else as_block(part.rows)
        )
        if isinstance(part, SnapshotRows) and part.rows
        else part
        for part in batch.parts
    ]
    records = batch.records
    if records:
        keys, values = _texts(r.key for r in records), _texts(r.value for r in records)
        # Two chunks, since a `RecordBlock` may hold several.
        chunks = [(keys[:1], values[:1]), (keys[1:], values[1:])]
        records = RecordBlock(records[0].topic, chunks, records[0].headers)
    return msgspec.structs.replace(batch, parts=parts, records=records)


def inserts_as_columns(batch: Batch) -> Batch:
    """Return ``batch`` with `InsertBlock`s for runs of inserts.

    Its records are `MixedRecords`: blocks, and lists of those that no block can have.
    """
    parts: list[TransactionPart | SnapshotRows | Heartbeat] = []
    for part in batch.parts:
        published = part
        if isinstance(part, TransactionPart):
            inserts = [change for change in part.changes if isinstance(change, Insert)]
            relations = {change.relation for change in inserts}
            if len(inserts) == len(part.changes) and len(relations) == 1:
                block = insert_block(relations.pop(), inserts)
                published = msgspec.structs.replace(part, changes=block)
        parts.append(published)
    return msgspec.structs.replace(batch, parts=parts, records=_mixed(batch.records))


def _mixed(records: Sequence[Record] | None) -> Sequence[Record] | None:
    pieces: list[Sequence[Record]] = []
    for (topic, headers, fits), some in groupby(records or (), _form_of):
        run = list(some)
        if fits:
            keys, values = _texts([r.key for r in run]), _texts([r.value for r in run])
            pieces.append(RecordBlock(topic, [(keys, values)], headers))
        else:
            pieces.append(run)
    return MixedRecords(pieces) if pieces else records


def _form_of(record: Record) -> tuple[str, tuple[Header, ...], bool]:
    """Return topic, headers, and whether a block can have it."""
    plain = record.partition is None and record.timestamp is None
    return record.topic, record.headers, plain and None not in (record.key, record.value)


def _texts(values: Iterable[bytes | None]) -> "pa.StringArray":
    """Return ``values`` as an Arrow array of texts; None becomes empty."""
    return pa.array([(value or b"").decode() for value in values], pa.string())


def transactions_as_columns(batch: Batch) -> Batch:
    """Return ``batch`` with a `TransactionRun`.

    A batch whose transactions have other changes than one insert each stays as it is.
    """
    parts = [part for part in batch.parts if isinstance(part, TransactionPart)]
    changes = [change for part in parts for change in part.changes]
    inserts = {change.relation for change in changes if isinstance(change, Insert)}
    single_inserts = all(part.starts and part.complete and len(part.changes) == 1 for part in parts)
    if not (single_inserts and len(inserts) == 1 and len(parts) == len(batch.parts)):
        return batch
    return msgspec.structs.replace(batch, parts=transaction_run(parts))


def transaction_run(parts: Sequence[TransactionPart]) -> TransactionRun:
    """Return one-insert transactions of one table as columns."""
    inserts = [change for part in parts for change in part.changes if isinstance(change, Insert)]
    begins = np.array([part.begin_lsn for part in parts], "u8")
    ends = np.array([part.end_lsn for part in parts], "u8")
    block = TransactionBlock(
        insert_block(inserts[0].relation, inserts),
        (begins, ends),
        xids=np.array([part.xid for part in parts], "i8"),
        commit_lsns=np.array([part.commit_lsn for part in parts], "u8"),
        end_lsns=ends,
        commit_ts=np.array([part.commit_ts for part in parts], "i8"),
    )
    return TransactionRun(block, parts[0].previous_end_lsn)


def insert_block(table: Relation, inserts: Sequence[Insert]) -> InsertBlock:
    """Return ``inserts`` into ``table``, of texts and NULL, as columns."""
    lsns = np.array([insert.lsn for insert in inserts], "u8")
    return InsertBlock(table, lsns, as_block([insert.new for insert in inserts]))


def _record(table: Relation, operation: str, row: tuple[str | None, ...]) -> Record:
    names = [column.name for column in table.columns]
    value: dict[str, object] = {"op": operation, **dict(zip(names, row, strict=False))}
    key = orjson.dumps({"id": row[0]}) if row else None
    return Record(f"server.{table.name}", key, orjson.dumps(value))


def lone_part(change: Change, *, xid: int | None = None, behind: int = 0) -> TransactionPart:
    """Return a transaction of one change, ended ``behind`` bytes later."""
    return TransactionPart(
        xid=xid,
        begin_lsn=change.lsn,
        commit_lsn=change.lsn,
        commit_ts=COMMIT_TS,
        end_lsn=change.lsn + behind,
        changes=[change],
    )


def large_transaction() -> ScriptedWorkload:
    """Return three transactions; the second has eight changes."""
    workload = ScriptedWorkload()
    workload.insert(ITEMS, 1, "alone")
    workload.commit()
    for number in range(2, 10):
        workload.insert(ITEMS, number, "together")
    workload.commit()
    workload.insert(ITEMS, 20, "after")
    workload.commit()
    return workload


def mixed(*, truncate: bool) -> ScriptedWorkload:
    """Return seven transactions with every operation.

    The fourth is larger than the batches of the suites, so it arrives in several.
    """
    workload = ScriptedWorkload()
    for number in range(1, 4):
        workload.insert(ITEMS, number, f"item {number}")
    workload.commit()
    workload.insert(NOTES, 1, "first note")
    workload.update(ITEMS, 1, "item 1 again")
    workload.commit()
    workload.delete(ITEMS, 2)
    workload.commit()
    for number in range(10, 20):
        workload.insert(ITEMS if number % 3 else NOTES, number, "in one transaction")
    workload.update(ITEMS, 1, "item 1 for the last time")
    workload.commit()
    if truncate:
        workload.truncate(NOTES)
    workload.insert(NOTES, 30, "last but two")
    workload.commit()
    workload.delete(ITEMS, 3)
    workload.insert(ITEMS, 31, "last but one")
    workload.commit()
    workload.insert(NOTES, 32, "last")
    workload.commit()
    return workload


def snapshot_and_stream() -> Iterator[Batch]:
    """Yield a snapshot of two tables, then `mixed` transactions, without records."""
    workload = ScriptedWorkload()
    for number in range(1, 4):
        workload.insert(ITEMS, number, "old")
        workload.insert(NOTES, number, None)
    workload.commit()
    yield from workload.snapshot([ITEMS, NOTES], records=False)
    yield from mixed(truncate=True).batches(4, records=False)


# A table whose old tuples are whole rows, and one without key.
FULL_ROWS = msgspec.structs.replace(
    ITEMS,
    table="full_rows",
    oid=16404,
    identity="f",
    columns=tuple(msgspec.structs.replace(column, in_identity=True) for column in ITEMS.columns),
)
KEYLESS = msgspec.structs.replace(
    ITEMS,
    table="keyless",
    oid=16405,
    primary_key=(),
    columns=tuple(msgspec.structs.replace(c, in_identity=False) for c in ITEMS.columns),
)

SHOWN = "a text of its own"


def life_of_a_row() -> list[list[TransactionPart | SnapshotRows]]:
    """Return parts with a row of ``items`` whose text is `SHOWN`.

    It is created, read, updated, deleted.
    """
    table = msgspec.structs.replace(FULL_ROWS, table=ITEMS.table, oid=ITEMS.oid)
    row, lsn = ("1", "1", SHOWN), 0x7000000
    changes: list[Change] = [
        Insert(table, lsn + 1, row),
        Update(table, lsn + 2, ("1", "2", "another"), row, OldTuple.FULL),
        Delete(table, lsn + 3, row, OldTuple.FULL),
    ]
    parts: list[list[TransactionPart | SnapshotRows]]
    parts = [[lone_part(change, xid=7, behind=8)] for change in changes]
    parts.insert(1, [SnapshotRows(relation=table, rows=[row], ts=COMMIT_TS, lsn=lsn, xid=7)])
    return parts


def rare_parts() -> list[TransactionPart | SnapshotRows | Heartbeat]:
    """Return rare parts: a changed key, unsent values, pieces of snapshots.

    Every field has another value than its default.
    """
    lsn = 0x6000000
    changes: list[Change] = [
        Update(ITEMS, lsn + 1, ("2", "1", "moved"), ("1", ABSENT, ABSENT), OldTuple.KEY),
        Update(ITEMS, lsn + 2, ("2", "2", UNCHANGED)),
        Insert(FULL_ROWS, lsn + 3, ("1", "3", "whole")),
        Update(FULL_ROWS, lsn + 4, ("1", "4", UNCHANGED), ("1", "3", "whole"), OldTuple.FULL),
        Delete(FULL_ROWS, lsn + 5, ("1", "4", None), OldTuple.FULL),
        Insert(KEYLESS, lsn + 6, ("1", "5", "of no key")),
        Truncate((ITEMS, NOTES), lsn + 7),
    ]
    begins = {"16401": TableChunks(plan="by key", count=4)}
    read = SnapshotRows(
        relation=ITEMS,
        rows=[("7", "6", "read beside the stream"), ("8", "7", None)],
        ts=COMMIT_TS,
        lsn=None,
        xid=None,
        previous_end_lsn=lsn + 0x20,
        first_marker="incremental",
        last_marker="incremental",
        kind="incremental",
        visible="701:702:@0/6000000",
        chunk=3,
        ends_chunk=True,
        begins=begins,
    )
    blocking = msgspec.structs.replace(
        read,
        rows=[("9", "8", "read at once")],
        lsn=lsn,
        xid=701,
        first_marker="first",
        last_marker="last",
        kind="blocking",
        opens=True,
        complete=True,
        resumed=True,
        restarts=True,
        all_rows=True,
    )
    part = TransactionPart(
        xid=702,
        begin_lsn=lsn,
        commit_lsn=lsn + 0x10,
        commit_ts=COMMIT_TS,
        end_lsn=lsn + 0x20,
        previous_end_lsn=lsn - 8,
        changes=changes,
        origin="another server",
        origin_lsn=0x77,
        xmin=690,
    )
    return [part, read, blocking, Heartbeat(ts=COMMIT_TS // 1000)]


def _one_create() -> ScriptedWorkload:
    workload = ScriptedWorkload()
    workload.insert(ITEMS, 1, "one")
    workload.commit()
    return workload


def _delete_then_tombstone() -> ScriptedWorkload:
    workload = _one_create()
    workload.delete(ITEMS, 1)
    workload.commit()
    return workload


def _one_row_many_times() -> ScriptedWorkload:
    workload = _one_create()
    for number in range(60):
        workload.update(ITEMS, 1, f"version {number}")
        # Several changes of one row within a transaction, and across transactions.
        if number % 7 == 0:
            workload.commit()
    workload.commit()
    return workload


def _larger_than_buffers() -> ScriptedWorkload:
    workload = ScriptedWorkload()
    for number in range(1, 3_001):
        # Rows of different lengths, so that buffers do not end with a row.
        workload.insert(ITEMS, number, "x" * (number % 300))
        if number % 400 == 0:
            workload.commit()
    workload.commit()
    return workload


def _two_tables() -> ScriptedWorkload:
    workload = ScriptedWorkload()
    for number in range(1, 40):
        workload.insert(ITEMS if number % 2 else NOTES, number, "turn by turn")
    workload.commit()
    return workload


SCENARIOS: Mapping[str, Callable[[], ScriptedWorkload]] = {
    "one create": _one_create,
    "delete then tombstone": _delete_then_tombstone,
    "one row many times": _one_row_many_times,
    "larger than buffers": _larger_than_buffers,
    "two tables": _two_tables,
    "transaction larger than a batch": large_transaction,
    "mixed": lambda: mixed(truncate=False),
    "truncate": lambda: mixed(truncate=True),
}
