"""Write records by converters.

This is the format of pipelines whose keys or values are not plain JSON. It follows the same plans as the
JSON format. Key, value and headers are Connect values until the converter of each part writes them last.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from waltap.base.cache import BoundedDict
from waltap.base.plugin_errors import part_of
from waltap.changes.decode.message import Change, InsertBlock, LogicalMessage
from waltap.changes.decode.relation import Relation
from waltap.changes.decode.tuple_image import UNCHANGED, Tuple
from waltap.changes.events import (
    INSERTS,
    OPERATIONS,
    UPDATES,
    ChangeEvent,
    EventRow,
    EventTransform,
    GivenValue,
    runs,
)
from waltap.changes.events.event import Header, Record
from waltap.changes.mapping import envelope
from waltap.changes.mapping.connect_schema import Field, Schema
from waltap.changes.mapping.envelope import MESSAGE_COLLECTION
from waltap.changes.transactions.transaction import (
    Heartbeat,
    Notification,
    SnapshotRows,
    TransactionPart,
)
from waltap.encoders.format.converter import (
    Converter,
    EncodeHeaded,
    EventFrame,
    RecordPart,
    WriteCreates,
    WriteKeys,
    value_unfit,
)
from waltap.encoders.format.format import FormatContext
from waltap.encoders.format.record_stage import RecordStage
from waltap.encoders.format.record_transform import ConnectHeader, ConnectRecord, SchemaMemory
from waltap.encoders.format.tables import ConnectTable, ConnectTables, ImageLayout, RowFormat
from waltap.encoders.json.codec import MISFITS
from waltap.encoders.json.event_format import changed_fields, transformed_events
from waltap.version import VERSION

# Cached schemas of rows that transforms changed.
MAX_SCHEMAS = 1000


@dataclass(slots=True, eq=False, repr=False)
class PlannedRecord:
    """Hold the parts of a record that transforms may still change."""

    table: ConnectTable
    rows: ImageLayout
    frame: EventFrame
    lsn: int | None
    key: Tuple | None
    before: Tuple | None
    after: Tuple | None
    headers: tuple[ConnectHeader, ...]
    tombstone: bool
    block: dict[str, Any] | None = None


MakeRecord = Callable[[str, str, PlannedRecord, ChangeEvent | None], ConnectRecord]


class EventStage:
    """Call the transforms with the events of a batch.

    Raises: EventTransformFailed.
    """

    def __init__(
        self, transforms: Sequence[tuple[str, EventTransform]], tables: ConnectTables
    ) -> None:
        self._transforms, self._tables = transforms, tables
        self._schemas = SchemaMemory(self._made, most=MAX_SCHEMAS)

    def event(
        self, op: str, intent: PlannedRecord, ts: int, xid: int | None, *, lsn: int | None = None
    ) -> ChangeEvent:
        plan = intent.table.plan
        key = None if intent.key is None or intent.rows.key_schema is None else intent.key
        return ChangeEvent(
            op,
            plan.relation,
            plan.topic,
            key=None if key is None else EventRow(plan.key_columns, key),
            before=None if intent.before is None else EventRow(plan.columns, intent.before),
            after=None if intent.after is None else EventRow(plan.columns, intent.after),
            source=intent,
            lsn=intent.lsn if lsn is None else lsn,
            commit_ts=ts,
            xid=xid,
            tombstone=intent.tombstone,
        )

    def transformed(self, out: list[Any], record: MakeRecord) -> list[ConnectRecord]:
        """Return ``out`` with records instead of events.

        The transforms get the events first.
        """
        remaining = transformed_events(out, self._transforms)
        return [self._of(each, record) if type(each) is ChangeEvent else each for each in remaining]

    def _of(self, event: ChangeEvent, record: MakeRecord) -> ConnectRecord:
        intent: PlannedRecord = event.source
        try:
            return record(event.op, event.topic, intent, event)
        except MISFITS:
            # An enum's label may be new: read the types again, then convert with care.
            table = self._tables.renewed(intent.table.plan.seen, intent.table).careful()
            intent.rows = table.read if intent.rows is intent.table.read else table.streamed
            intent.table = table
            return record(event.op, event.topic, intent, event)

    def values(
        self, event: ChangeEvent, intent: PlannedRecord
    ) -> tuple[Any, Any, Any, Schema | None, Schema]:
        """Return key, before, after, and the schemas of key and value.

        They contain the changes of the transforms.
        """
        rows, shape = intent.rows, intent.table.shape
        read = rows is intent.table.read and rows is not intent.table.streamed
        row_schema = shape.read_row if read else shape.row
        key_schema, value_schema = rows.key_schema, rows.value_schema
        before, after = (
            None if row is None else self._row(row, rows.row) for row in (event.before, event.after)
        )
        # Both images share one schema: the one of ``after``, or of ``before`` in a delete.
        changed = event.after if event.after is not None else event.before
        if changed is not None and changed.changed is not None:
            value_schema = self._schema(
                row_schema, changed, changed.changed, intent.table.plan.topic
            )
        key = None if event.key is None else self._row(event.key, rows.key)
        if key_schema is not None and event.key is not None and event.key.changed is not None:
            key_schema = self._schema(key_schema, event.key, event.key.changed, "")
        return key, before, after, key_schema, value_schema

    @staticmethod
    def _row(row: EventRow, convert: Callable[[Tuple], dict[str, Any]]) -> dict[str, Any]:
        values = convert(row.image)
        if row.changed is None:
            return values
        return {
            name: source.value
            if isinstance(source, GivenValue)
            else values[row.columns[source].field]
            for name, source in row.changed.items()
        }

    def _schema(
        self, schema: Schema, row: EventRow, fields: Mapping[str, int | GivenValue], topic: str
    ) -> Schema:
        """Return ``schema`` with the fields of a changed row.

        With a ``topic``, return the envelope's schema around it.
        """
        chosen = changed_fields(fields, row, schema)
        return self._schemas.of(schema, topic, chosen)

    def _made(self, schema: Schema, topic: str, chosen: tuple[Field, ...]) -> Schema:
        made = msgspec.structs.replace(schema, fields=chosen)
        return self._tables.envelope_schema(topic, made) if topic else made


# Cached encoders.
MAX_ENCODERS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordConverters:
    """Hold the converters of keys, values and header values."""

    key: Converter
    value: Converter
    header: Converter


class ConvertedFormat(RowFormat[ConnectTable, EventFrame]):
    """Render batches to records by converters."""

    _encoder = "records"
    _tables: ConnectTables

    def __init__(self, converters: RecordConverters, context: FormatContext) -> None:
        # Null stays null in rows, since the converters replace it by defaults.
        super().__init__(ConnectTables(context, null_to_default=False), context)
        capture = context.capture
        shape = capture.properties
        self._connector, self._database = context.connector, context.database
        self._form = context.envelope
        self._events = EventStage(context.transforms, self._tables) if context.transforms else None
        self._stage = RecordStage(context.record_steps) if context.record_steps else None
        self._headers: tuple[ConnectHeader, ...] = ()
        if shape.extended_headers:
            self._headers = tuple((name, envelope.HEADER, value) for name, value in context.headers)
        self.text = converters.key.text and converters.value.text and converters.header.text
        self._key = _PartConverter("key", converters.key)
        self._value = _PartConverter("value", converters.value)
        self._header = _PartConverter("header", converters.header)
        self._written: dict[int, tuple[tuple[ConnectHeader, ...], tuple[Header, ...]]] = {}

        def renamed(schema: Schema) -> Schema:
            return envelope.renamed(schema, capture.schema_name)

        binary = shape.binary_handling_mode == "bytes"
        message = envelope.message_value_schema(
            context.connector, self._tables.source, binary=binary
        )
        self._message_key = renamed(envelope.message_key_schema(context.connector))
        self._message_value = renamed(message)
        self._bound_key = renamed(envelope.TRANSACTION_KEY)
        self._bound_value = renamed(envelope.TRANSACTION_VALUE)
        self._heartbeat_key = renamed(envelope.HEARTBEAT_KEY)
        self._heartbeat_value = renamed(envelope.HEARTBEAT_VALUE)

    def render(
        self, parts: Sequence[TransactionPart | SnapshotRows | Heartbeat], now: int
    ) -> list[Record]:
        """Return the records of ``parts`` in order.

        ``now`` is the clock in ns since 1970 UTC.

        Raises: DecodeError for a value that is not of its column's type, when
        ``event.converting.failure.handling.mode`` is fail; RecordTransformFailed; ValueUnfit; WaltapError
        of a registry.
        """
        records = self.records(parts, now)
        return [each if type(each) is Record else self._encoded(each) for each in records]

    def records(
        self, parts: Sequence[TransactionPart | SnapshotRows | Heartbeat], now: int
    ) -> list[Any]:
        """Return the records of ``parts``, some before encoding.

        Records that were written directly from row images are bytes already.
        """
        out: list[Any] = []
        for part in parts:
            if isinstance(part, TransactionPart):
                self._transaction(part, now, out)
            elif isinstance(part, SnapshotRows):
                self._snapshot(part, now, out)
            else:
                out.append(self._heartbeat(part))
        if self._events is not None:
            out = self._events.transformed(out, self._record)
        if self._stage is not None:
            out = self._stage.transformed(out)
        if self._tables.nulls.noted:
            self._tables.nulls.report_all(parts, self._tables.of)
        return out

    def notifications(self, notices: Sequence[Notification], topic: str) -> list[Record]:
        records = [
            ConnectRecord(
                topic,
                envelope.NOTIFICATION_KEY,
                {"id": each.identifier},
                envelope.NOTIFICATION_VALUE,
                each.document(),
            )
            for each in notices
        ]
        if self._stage is not None:
            records = self._stage.transformed(records)
        return [self._encoded(each) for each in records]

    def writer(self, record_part: str) -> tuple[object, str]:
        made = {"key": self._key, "value": self._value, "header": self._header}
        return made[record_part].converter, "encoder"

    def forget(self, oid: int) -> None:
        topics = {table.plan.topic for table in self._tables.made(oid)}
        super().forget(oid)
        self._key.forget(topics)
        self._value.forget(topics)

    # --- encoding -----------------------------------------------------------------------------------

    def _encoded(self, record: ConnectRecord) -> Record:
        topic = record.topic
        key, _ = self._key.written(topic, record.key_schema, record.key)
        value, added = self._value.written(topic, record.value_schema, record.value, record.headers)
        headers = added + self._written_headers(topic, record.headers)
        return Record(topic, key, value, headers, record.partition, record.timestamp)

    def _written_headers(
        self, topic: str, headers: tuple[ConnectHeader, ...]
    ) -> tuple[Header, ...]:
        # Most records have only the context headers, whose bytes are cached.
        if headers is self._headers and id(headers) in self._written:
            return self._written[id(headers)][1]
        write = self._header.written
        written = tuple(
            (name, write(topic, schema, value)[0] or b"") for name, schema, value in headers
        )
        if headers is self._headers:
            self._written[id(headers)] = headers, written
        return written

    # --- streaming ----------------------------------------------------------------------------------

    def _transaction(self, part: TransactionPart, now: int, out: list[Any]) -> None:
        order = self._order if part.xid is not None else None
        if order is not None:
            order.enter(part)
            if part.starts:
                out.append(self._bound(part, "BEGIN", part.begin_lsn, None, None))
        ts = part.commit_ts or now // 1000
        previous = part.previous_end_lsn
        # A message outside transactions is its own commit.
        if part.xid is None and part.changes:
            previous = part.changes[0].lsn
        source = self._source(ts, part.xid, None, previous)
        source["xmin"] = part.xmin
        source["origin"], source["origin_lsn"] = part.origin, part.origin_lsn
        if part.origin is None:
            source["origin_lsn"] = None
        frame = EventFrame(part=part, source=source, stamps=_stamps(now), order=order, out=out)
        for kind, relation, run in runs(part.changes):
            if kind not in self._skipped:
                self._run(kind, relation, run, frame)
        if order is not None and part.complete:
            counts = [
                {"data_collection": name, "event_count": count}
                for name, count in order.counts().items()
            ]
            out.append(self._bound(part, "END", part.end_lsn, order.total, counts))

    def _source(
        self, ts: int, xid: int | None, marker: str | None, previous: int | None
    ) -> dict[str, Any]:
        return {
            "version": f"waltap {VERSION}",
            "connector": self._connector,
            "name": self._capture.properties.topic_prefix,
            "ts_ms": ts // 1000,
            "snapshot": marker,
            "db": self._database,
            # Open: the event's own LSN follows.
            "sequence": f"[{_quoted(previous)},",
            "ts_us": ts,
            "ts_ns": ts * 1000,
            "txId": xid,
            "xmin": None,
            "origin": None,
            "origin_lsn": None,
        }

    def _run(
        self, kind: str, relation: Relation | None, run: Sequence[Change], frame: EventFrame
    ) -> None:
        new = kind is INSERTS or kind is UPDATES
        # The counters of transaction metadata differ from row to row.
        if relation is not None and new and frame.order is None:
            table = self._tables.of(relation)
            if table is None:
                return
            images: Sequence[Tuple]
            if isinstance(run, InsertBlock):
                images, lsns = run.rows, run.lsns.tolist()
            else:
                images = [change.new for change in run]  # type: ignore[union-attr]
                lsns = [change.lsn for change in run]
            if self._straight(table, images, lsns, OPERATIONS[kind], frame, read=False):
                return
        for change in run:
            self._single(kind, change, frame)

    def _straight(
        self,
        table: ConnectTable,
        images: Sequence[Tuple],
        lsns: Sequence[int | None],
        op: str,
        frame: EventFrame,
        *,
        read: bool,
    ) -> bool:
        """Append the records of rows that have only ``after``.

        The converters write them directly from row images. Return whether that was possible.
        """
        # Transforms need events or records. Careful conversions exist for single rows only, and
        # direct writers for the newest envelope only.
        special = self._events is not None or self._stage is not None
        if special or table.renewed or self._form is not envelope.NEWEST:
            return False
        if read not in table.compiled:
            table.compiled[read] = self._compiled(table, read=read)
        writers = table.compiled[read]
        if writers is None:
            return False
        keys, creates = writers
        made: Sequence[bytes | None] | None
        topic, headers = table.plan.topic, self._written_headers(table.plan.topic, self._headers)
        try:
            made, values = creates(images, lsns, op, frame)
            if made is None:
                made = [None] * len(values) if keys is None else keys(images)
        except MISFITS:
            # Conversion row by row finds the value and names its column.
            return False
        frame.out += [
            Record(topic, key, value, headers) for key, value in zip(made, values, strict=True)
        ]
        return True

    def _compiled(
        self, table: ConnectTable, *, read: bool
    ) -> tuple[WriteKeys | None, WriteCreates] | None:
        rows = table.read if read else table.streamed
        key = self._key.converter
        creates = self._value.converter.creates(table.shape, rows.value_schema, key, read=read)
        if creates is None:
            return None
        keys = None
        if rows.key_schema is not None:
            keys = self._key.converter.keys(table.shape, read=read)
            if keys is None:
                of, topic, schema = rows.key, table.plan.topic, rows.key_schema
                encode = self._key.converter.encoder(topic, schema)
                keys = lambda images: [encode(of(image)) for image in images]  # type: ignore[misc] # noqa: E731
        return keys, creates

    def _text(self, table: ConnectTable, row: Tuple) -> str:
        # The text of `alike`.
        return repr(table.streamed.row(row))

    def _key_header(self, table: ConnectTable, name: str, row: Tuple) -> tuple[ConnectHeader, ...]:
        rows = table.streamed
        assert rows.key_schema is not None
        return ((name, rows.key_schema, rows.key(row)),)

    def _add(
        self,
        table: ConnectTable,
        op: str,
        lsn: int,
        frame: EventFrame,
        *,
        key: Tuple | None,
        before: Tuple | None = None,
        after: Tuple | None = None,
        headers: tuple[ConnectHeader, ...] = (),
        tombstone: bool = False,
    ) -> None:
        """Append a record, or its event if transforms follow."""
        intent = PlannedRecord(
            table, table.streamed, frame, lsn, key, before, after, headers, tombstone
        )
        if self._events is None:
            frame.out.append(self._record(op, table.plan.topic, intent, None))
            return
        # Count the event now, in order: `_record` runs after the transforms. Tombstones do not count.
        if not tombstone:
            intent.block = frame.block(lsn, table.plan.name)
        frame.out.append(self._events.event(op, intent, frame.ts, frame.part.xid))

    def _record(
        self, op: str, topic: str, intent: PlannedRecord, event: ChangeEvent | None
    ) -> ConnectRecord:
        """Return the record of ``intent``.

        Transforms may have changed the rows and headers of its ``event``.
        """
        rows, frame = intent.rows, intent.frame
        key_schema, value_schema = rows.key_schema, rows.value_schema
        headers = intent.headers + self._headers if intent.headers else self._headers
        if event is None:
            key = None if intent.key is None else rows.key(intent.key)
            before = None if intent.before is None else rows.row(intent.before)
            after = None if intent.after is None else rows.row(intent.after)
        else:
            assert self._events is not None
            key, before, after, key_schema, value_schema = self._events.values(event, intent)
            if event.headers:
                added = tuple((name, envelope.HEADER, text) for name, text in event.headers)
                headers = intent.headers + added + self._headers
        if intent.key is None or key_schema is None:
            key = key_schema = None
        if intent.tombstone:
            return ConnectRecord(topic, key_schema, key, None, None, headers)
        plan = intent.table.plan
        block = frame.block(intent.lsn, plan.name) if event is None else intent.block
        value: dict[str, Any] = {
            "before": before,
            "after": after,
            "source": frame.source_of(plan.relation.schema, plan.relation.table, intent.lsn),
            "transaction": block,
            "op": op,
            **frame.stamps,
        }
        if self._form.unsent:
            image = intent.after or ()
            names = [c.field for c in plan.columns if image and image[c.index] is UNCHANGED]
            value["unsent"] = names or None
        return ConnectRecord(topic, key_schema, key, value_schema, value, headers)

    # --- heartbeats, messages and transactions ------------------------------------------------------

    def _heartbeat(self, part: Heartbeat) -> ConnectRecord:
        return ConnectRecord(
            self._capture.heartbeat_topic,
            self._heartbeat_key,
            {"serverName": self._capture.properties.topic_prefix},
            self._heartbeat_value,
            {"ts_ms": part.ts},
            partition=0,
        )

    def _message(self, change: LogicalMessage, frame: EventFrame) -> None:
        value = {
            "op": "m",
            "ts_ms": frame.stamps["ts_ms"],
            "source": frame.source_of("", "", change.lsn),
            "transaction": frame.block(change.lsn, MESSAGE_COLLECTION),
            "message": {"prefix": change.prefix, "content": self._content(change.content)},
        }
        topic, key = self._capture.message_topic, {"prefix": change.prefix}
        frame.out.append(ConnectRecord(topic, self._message_key, key, self._message_value, value))

    def _bound(
        self,
        part: TransactionPart,
        status: str,
        lsn: int,
        count: int | None,
        collections: list[dict[str, Any]] | None,
    ) -> ConnectRecord:
        identifier = f"{part.xid}:{lsn}"
        value = {
            "status": status,
            "id": identifier,
            "event_count": count,
            "data_collections": collections,
            "ts_ms": part.commit_ts // 1000,
        }
        topic, key = self._capture.transaction_topic, {"id": identifier}
        return ConnectRecord(topic, self._bound_key, key, self._bound_value, value)

    # --- snapshots ----------------------------------------------------------------------------------

    def _snapshot(self, part: SnapshotRows, now: int, out: list[Any]) -> None:
        table = self._tables.of(part.relation)
        if table is None or not part.rows:
            return
        incremental, rows = part.kind == "incremental", part.rows
        xid, lsn = (None, None) if incremental else (part.xid, part.lsn)
        # The first and the last row of a table may have their own markers.
        pieces = [(rows, "incremental")]
        if not incremental:
            first, last = (rows[:1], part.first_marker), (rows[-1:], part.last_marker)
            pieces = [last] if len(rows) == 1 else [first, (rows[1:-1], "true"), last]
        for some, marker in pieces:
            source = self._source(part.ts, xid, marker, part.previous_end_lsn)
            # Incremental rows have the LSN in the sequence only.
            source["sequence"] += f"{_quoted(part.lsn)}]"
            frame = EventFrame(part=part, source=source, stamps=_stamps(now), order=None, out=out)
            if not self._straight(table, some, [lsn] * len(some), "r", frame, read=True):
                table = self._each_read(table, some, lsn, frame, part)

    def _each_read(
        self,
        table: ConnectTable,
        rows: Sequence[Tuple],
        lsn: int | None,
        frame: EventFrame,
        part: SnapshotRows,
    ) -> ConnectTable:
        """Append the records of rows of ``part``, one by one.

        Return the table for later rows, which a row that does not fit replaces.
        """
        for row in rows:
            try:
                frame.out.append(self._read(table, row, lsn, frame, part))
            except MISFITS:
                table = self._tables.renewed(part.relation, table)
                careful = table.careful()
                try:
                    frame.out.append(self._read(careful, row, lsn, frame, part))
                except MISFITS as cause:
                    raise table.plan.wrong_tuple("records", part.lsn or 0) from cause
        return table

    def _read(
        self,
        table: ConnectTable,
        row: Tuple,
        lsn: int | None,
        frame: EventFrame,
        part: SnapshotRows,
    ) -> Any:
        intent = PlannedRecord(table, table.read, frame, lsn, row, None, row, (), False)
        if self._events is None:
            return self._record("r", table.plan.topic, intent, None)
        return self._events.event("r", intent, part.ts, part.xid, lsn=part.lsn)


class _PartConverter:
    """Hold the converter of keys, values or headers, and its encoders."""

    __slots__ = ("_known", "_record_part", "converter")

    def __init__(self, record_part: RecordPart, converter: Converter) -> None:
        self._record_part, self.converter = record_part, converter
        self._known = BoundedDict[tuple[str, int], tuple[Schema | None, EncodeHeaded]](MAX_ENCODERS)

    def written(
        self,
        topic: str,
        schema: Schema | None,
        value: Any,
        headers: tuple[ConnectHeader, ...] = (),
    ) -> tuple[bytes | None, tuple[Header, ...]]:
        """Return the bytes of ``value`` and the headers they need.

        ``headers`` are the record's. Raises: ValueUnfit.
        """
        if schema is None and value is None:
            return None, ()
        key = topic, id(schema)
        entry = self._known.get(key)
        if entry is None:
            # The entry keeps the schema alive, so that no other object gets its id.
            entry = self._known[key] = schema, self._made(topic, schema)
        try:
            return entry[1](value, headers)
        except MISFITS as cause:
            name = "" if schema is None or schema.name is None else f" ({schema.name})"
            unwritten = f"a {self._record_part} for topic {topic}{name}"
            raise value_unfit(cause, unwritten, record_part=self._record_part) from cause

    def forget(self, topics: Collection[str]) -> None:
        # Other relations with these topics get new encoders at their next record.
        for key in [key for key in self._known if key[0] in topics]:
            del self._known[key]

    def _made(self, topic: str, schema: Schema | None) -> EncodeHeaded:
        headed = self.converter.headed(topic, schema)
        if headed is not None:
            return headed
        encode = part_of(self.converter.encoder, 1, topic, schema)
        return lambda value, _headers: (encode(value), ())


def _stamps(now: int) -> dict[str, int]:
    return {"ts_ms": now // 1_000_000, "ts_us": now // 1_000, "ts_ns": now}


def _quoted(lsn: int | None) -> str:
    return "null" if lsn is None else f'"{lsn}"'
