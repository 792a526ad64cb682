"""Write Debezium's records as Kafka Connect's JsonConverter does.

The text of a value consists of parts that change at different rates:

    prefix {"before":…,"after":…,"source":{  a  n  b  ,"schema":…,"table":…,"txId":  x  n  c
    per relation       per row              part row part   per relation           part row batch

``a``, ``b`` and ``x`` are made once per transaction part, ``c`` once per part and operation. Only the
LSN ``n`` and the row itself vary from row to row.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from waltap.changes.decode.message import Change, Delete, LogicalMessage, Truncate, Update
from waltap.changes.decode.relation import Relation
from waltap.changes.decode.tuple_image import UNCHANGED, Tuple
from waltap.changes.events import (
    INSERTS,
    NEW_KEY,
    OLD_KEY,
    OPERATIONS,
    TRUNCATES,
    UPDATES,
    EventPlan,
    runs,
)
from waltap.changes.events.record import Header, Record
from waltap.changes.mapping import envelope
from waltap.changes.mapping.connect_schema import Schema
from waltap.changes.mapping.envelope import CONTENT_FORMS, MESSAGE_COLLECTION, EnvelopeForm
from waltap.changes.mapping.json_schema import quote
from waltap.changes.transactions.notification import Notification
from waltap.changes.transactions.order import TransactionOrder
from waltap.changes.transactions.row_block import RowBlock, texts_of
from waltap.changes.transactions.transaction import Heartbeat, SnapshotRows, TransactionPart
from waltap.encoders.format.format import Format, FormatContext
from waltap.encoders.format.record_block import RecordBlock, TextRows
from waltap.encoders.json.codec import MISFITS, ColumnCodec, RowCodec, json_text
from waltap.encoders.json.properties import JsonProperties
from waltap.encoders.json.tables import JsonTables, header_writer, wrapping
from waltap.version import VERSION

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "EnvelopeTemplate",
    "Heads",
    "JsonFormat",
    "PartTemplate",
    "key_header",
    "record_block",
    "unsent",
]


# Write the envelope text around the rows of an event.


def unsent(plan: EventPlan, row: Tuple | None) -> str:
    """Return the JSON list of unsent fields; null for none.

    The server does not send TOAST values that did not change.
    """
    if row is None:
        return "null"
    names = [quote(column.field) for column in plan.columns if row[column.index] is UNCHANGED]
    return f"[{','.join(names)}]" if names else "null"


class EnvelopeTemplate:
    """Write the texts of one envelope form."""

    def __init__(self, form: EnvelopeForm, end: str) -> None:
        # ``end`` closes the envelope and, with schemas, the payload around it.
        self._fine, self._last, self._origins = (
            form.fine_stamps,
            form.transaction_last,
            form.origins,
        )
        self._end, self.names_unsent = end, form.unsent
        self.no_origin = self.origin("null", "null", "null")

    def stamps(self, now: int) -> str:
        """Return the members with the event's creation time.

        ``now`` is in ns since 1970 UTC.
        """
        fine = f',"ts_us":{now // 1_000},"ts_ns":{now}' if self._fine else ""
        return f'"ts_ms":{now // 1_000_000}{fine}'

    def committed(self, ts: int) -> str:
        """Return the finer commit times, which follow ``sequence``.

        ``ts`` is in µs since 1970 UTC.
        """
        return f',"ts_us":{ts},"ts_ns":{ts * 1000}' if self._fine else ""

    def origin(self, xmin: str, origin: str, lsn: str) -> str:
        """Return the end of a source block from JSON texts."""
        told = f',"origin":{origin},"origin_lsn":{lsn}' if self._origins else ""
        return f',"xmin":{xmin}{told}}}'

    def after_source(self, block: str, op: str, stamps: str, unsent: str = "null") -> str:
        """Return the text from the source block to the value's end.

        ``unsent`` is the JSON list of unsent fields.
        """
        end = f',"unsent":{unsent}{self._end}' if self.names_unsent else self._end
        # Forms differ in the order of members: ``transaction`` comes last or first.
        if self._last:
            return f',"op":"{op}",{stamps},"transaction":{block}{end}'
        return f',"transaction":{block},"op":"{op}",{stamps}{end}'


# Render the records of a `RowBlock` column by column.
#
# The bytes are those of the functions that `waltap.encoders.json.codec` generates.

# Pairs of a number of rows and the text ``a`` of their source blocks.
Heads = Sequence[tuple[int, str]]


def record_block(
    codec: RowCodec, block: RowBlock, heads: Heads, b: str, x: str, c: str
) -> RecordBlock:
    """Return the records of ``block``.

    `waltap.encoders.json.format` defines the texts; ``heads`` has the text ``a`` of all rows, in order.

    Raises: one of `MISFITS` for a value that does not fit; no event was counted then.
    """
    columns = _ColumnTexts(block)
    values = _object(columns, codec.columns.values(), "")
    keys = _object(columns, codec.key_columns.values(), codec.key_tail) if codec.key else None
    before, after = codec.key_texts
    start = codec.prefix.decode() + '{"before":null,"after":'
    chunks: list[tuple[TextRows | None, TextRows]] = []
    at = 0
    for count, a in heads:
        end = f',"source":{{{a}{b}{codec.table}{x}{c}'
        key = None if keys is None else _rows([before, *keys, after], at, count)
        chunks.append((key, _rows([start, *values, end], at, count)))
        at += count
    return RecordBlock(codec.plan.topic, chunks, codec.headers)


class _ColumnTexts:
    """Convert single columns, once for value and key."""

    def __init__(self, block: RowBlock) -> None:
        self._block = block
        # By index and converter: key and value may convert one column differently.
        self._made: dict[tuple[int, int], Any] = {}

    def json(self, column: ColumnCodec) -> "list[pa.StringArray | str]":
        """Return the pieces that give the column's JSON when joined."""
        if column.constant is not None:
            return [column.constant]
        if column.column is None:
            return [self._by_value(column)]
        known = (column.index, id(column.column))
        if known not in self._made:
            self._made[known] = column.column.convert(self._block.columns[column.index])
        array = self._made[known]
        # None: the whole-column converter cannot write one of the values.
        if array is None:
            return [self._by_value(column)]
        if not array.null_count:
            return ['"', array, '"'] if column.column.quoted else [array]
        import pyarrow.compute as pc

        # Only values get quotes; the JSON of NULL has its own.
        if column.column.quoted:
            array = pc.binary_join_element_wise('"', array, '"', "")
        return [array.fill_null(column.other(None))]

    def _by_value(self, column: ColumnCodec) -> "pa.StringArray":
        import pyarrow as pa

        text, values = column.text, texts_of(self._block.columns[column.index])
        null = column.other(None)
        if text is None:
            written = [null if value is None else value for value in values]
        else:
            written = [null if value is None else text(value) for value in values]
        return pa.array(written, pa.string())


def _object(
    columns: _ColumnTexts, codecs: Iterable[ColumnCodec], tail: str
) -> "list[pa.StringArray | str]":
    """Return the pieces of a JSON object.

    ``tail`` becomes its last member.
    """
    pieces: list[pa.StringArray | str] = []
    opening = "{"
    for codec in codecs:
        pieces += [f"{opening}{quote(codec.field)}:", *columns.json(codec)]
        opening = ","
    if tail:
        return [*pieces, f"{opening}{tail}}}"]
    return [*pieces, "}" if pieces else "{}"]


def _rows(pieces: "Sequence[pa.StringArray | str]", start: int, count: int) -> TextRows:
    """Return the joined ``pieces`` of some rows."""
    return TextRows(
        [p if isinstance(p, str) or count == len(p) else p.slice(start, count) for p in pieces],
        count,
    )


_UNCOUNTED = '"event_count":null,"data_collections":null'


class JsonFormat(Format):
    """Render batches to JSON records."""

    # Whether transforms of events run before the encoding.
    _eventful = False

    def __init__(self, properties: JsonProperties, context: FormatContext) -> None:
        capture = context.capture
        shape = capture.properties
        self._capture = capture
        self._tombstones, self._skip_unchanged = shape.tombstones, shape.skip_unchanged
        self._order = context.order if shape.provide_transaction_metadata else None
        self._headers: tuple[Header, ...] = ()
        if context.header is not None:
            self.text = context.header.text
        if shape.extended_headers:
            self._headers = _context_headers(properties, context)
        self._tables = JsonTables(properties, context, self._headers)
        self._codecs, self._codec = self._tables.compiled, self._tables.of
        self._skipped = frozenset(k for k, op in OPERATIONS.items() if op in capture.skipped)
        # These texts are the same in all batches.
        self._wording = EnvelopeTemplate(
            context.envelope, "}}" if properties.value_schemas else "}"
        )
        self._source = (
            f'"version":{quote(f"waltap {VERSION}")},"connector":{quote(context.connector)},'
            f'"name":{quote(shape.topic_prefix)},"ts_ms":'
        )
        self._unset = '"false"' if properties.value_null_to_default else "null"
        self._database = f',"db":{quote(context.database)},"sequence":"['
        self._heartbeat_topic = capture.heartbeat_topic
        self._transaction_topic = capture.transaction_topic
        self._message_topic = capture.message_topic
        self._content = CONTENT_FORMS[shape.binary_handling_mode]

        def texts(schema: Schema, *, enabled: bool) -> tuple[str, str]:
            return wrapping(envelope.renamed(schema, capture.schema_name), enabled=enabled)

        keys, values = properties.key_schemas, properties.value_schemas
        message = envelope.message_value_schema(
            context.connector, self._tables.source, binary=shape.binary_handling_mode == "bytes"
        )
        self._message_key = texts(envelope.message_key_schema(context.connector), enabled=keys)
        self._message_value = texts(message, enabled=values)
        self._transaction_key = texts(envelope.TRANSACTION_KEY, enabled=keys)
        self._transaction_value = texts(envelope.TRANSACTION_VALUE, enabled=values)
        self._heartbeat_value = texts(envelope.HEARTBEAT_VALUE, enabled=values)
        self._notification_key = wrapping(envelope.NOTIFICATION_KEY, enabled=keys)
        self._notification_value = wrapping(envelope.NOTIFICATION_VALUE, enabled=values)
        before, after = texts(envelope.HEARTBEAT_KEY, enabled=keys)
        server = f'{{"serverName":{quote(shape.topic_prefix)}}}'
        self._heartbeat_key = f"{before}{server}{after}".encode()

    def render(
        self, parts: list[TransactionPart | SnapshotRows | Heartbeat], now: int
    ) -> Sequence[Record]:
        """Return the records of ``parts`` in order.

        ``now`` is the clock in ns since 1970 UTC.

        Raises: DecodeError for a value that is not of its column's type, when
        ``event.converting.failure.handling.mode`` is fail.
        """
        stamps = self._wording.stamps(now)
        # A single `RowBlock` can be rendered by columns, which gives a `RecordBlock`.
        block = self._block(parts[0], stamps) if len(parts) == 1 else None
        out = self._by_row(parts, now, stamps) if block is None else block
        if self._tables.nulls.noted:
            self._tables.nulls.place(parts, self._codec)
        return out

    def _by_row(
        self, parts: list[TransactionPart | SnapshotRows | Heartbeat], now: int, stamps: str
    ) -> list[Record]:
        out: list[Record] = []
        for part in parts:
            if isinstance(part, TransactionPart):
                self._transaction(part, now, stamps, out)
            elif isinstance(part, SnapshotRows):
                self._snapshot(part, stamps, out)
            else:
                before, after = self._heartbeat_value
                value = f'{before}{{"ts_ms":{part.ts}}}{after}'.encode()
                out.append(Record(self._heartbeat_topic, self._heartbeat_key, value, (), 0))
        return out

    def notifications(self, told: Sequence[Notification], topic: str) -> list[Record]:
        (k, key_end), (v, value_end) = self._notification_key, self._notification_value
        return [
            Record(
                topic,
                f'{k}{{"id":{quote(each.identifier)}}}{key_end}'.encode(),
                v.encode() + msgspec.json.encode(each.document()) + value_end.encode(),
            )
            for each in told
        ]

    def prepare(self, relation: Relation) -> None:
        self._codec(relation)

    def forget(self, oid: int) -> None:
        """Discard the codecs of a dropped relation."""
        self._tables.forget(oid)

    # --- streaming --------------------------------------------------------------------------------

    def _transaction(self, part: TransactionPart, now: int, stamps: str, out: list[Record]) -> None:
        order = self._order if part.xid is not None else None
        if order is not None:
            order.enter(part)
            if part.starts:
                out.append(self._bound(part, "BEGIN", part.begin_lsn, _UNCOUNTED))
        ts = part.commit_ts or now // 1000
        previous = part.previous_end_lsn
        # A message outside transactions is its own commit.
        if part.xid is None and part.changes:
            previous = part.changes[0].lsn
        a = (
            f'{self._source}{ts // 1000},"snapshot":{self._unset}{self._database}'
            f'{_in_sequence(previous)},\\"'
        )
        b = f'\\"]"{self._wording.committed(ts)}'
        texts = PartTemplate(part, a, b, self._origin(part), stamps, order, out, self._wording)
        self._changes(part.changes, texts)
        if order is not None and part.complete:
            out.append(self._bound(part, "END", part.end_lsn, _counts(order)))

    def _origin(self, part: TransactionPart) -> str:
        """Return the end of a source block."""
        # An origin means that the server replicated the transaction from another one; the engine
        # reads the slot's xmin only on request.
        if part.origin is None and part.xmin is None:
            return self._wording.no_origin
        xmin = "null" if part.xmin is None else str(part.xmin)
        origin = "null" if part.origin is None else quote(part.origin)
        lsn = "null" if part.origin_lsn is None else str(part.origin_lsn)
        return self._wording.origin(xmin, origin, lsn)

    def _changes(self, changes: list[Change], texts: "PartTemplate") -> None:
        """Append the records of ``changes``, run by run."""
        codecs, skipped, out = self._codecs, self._skipped, texts.out
        (a, b, x), alone = texts.frame, texts.order is None and not self._eventful
        names_unsent = self._wording.names_unsent
        for kind, relation, run in runs(changes):
            if kind in skipped:
                continue
            if relation is None:
                for change in run:
                    if kind is TRUNCATES:
                        self._truncate(change, texts)  # type: ignore[arg-type]
                    elif self._capture.message_prefix(change.prefix):  # type: ignore[union-attr]
                        self._message(change, texts)  # type: ignore[arg-type]
                continue
            codec = codecs[relation] if relation in codecs else self._codec(relation)
            if codec is None:
                continue
            if kind is INSERTS or kind is UPDATES:
                # A run of one row is the most frequent case in streams of small transactions, so
                # it is rendered here without further calls.
                if alone and len(run) == 1 and not (names_unsent and kind is UPDATES):
                    (change,), c = run, texts.c(OPERATIONS[kind], "", "")
                    try:
                        codec.creates((change.new,), (str(change.lsn),), (c,), a, b, x, out.append)  # type: ignore[union-attr]
                    except MISFITS:
                        pass  # `_new_rows` renders it again, column by column
                    else:
                        continue
                self._new_rows(codec, relation, OPERATIONS[kind], run, texts)
                continue
            for change in run:
                try:
                    self._change(codec, change, texts)  # type: ignore[arg-type]
                except MISFITS:
                    # All images are rendered before any event is counted or appended, so the
                    # second attempt does not count twice.
                    codec = self._tables.renewed(relation, codec)
                    try:
                        self._change(codec.careful(), change, texts)  # type: ignore[arg-type]
                    except MISFITS as cause:
                        raise codec.plan.wrong_tuple("json", change.lsn) from cause

    def _new_rows(
        self,
        codec: RowCodec,
        relation: Relation,
        op: str,
        run: Sequence[Any],
        texts: "PartTemplate",
    ) -> None:
        """Append the records of changes that have only a new row."""
        rows = [change.new for change in run]
        ns = [str(change.lsn) for change in run]
        # The list of unsent fields and the transaction's counters differ from row to row.
        if self._wording.names_unsent and op == "u":
            plan = codec.plan
            cs = [
                texts.c(op, n, plan.name, unsent(plan, row))
                for n, row in zip(ns, rows, strict=True)
            ]
        elif texts.order is None:
            cs = [texts.c(op, "", "")] * len(rows)
        else:
            cs = [texts.c(op, n, codec.plan.name) for n in ns]
        renewed = self._tables.renewed
        _render(codec, rows, ns, cs, *texts.frame, texts.out, partial(renewed, relation))

    def _change(self, codec: RowCodec, change: Update | Delete, texts: "PartTemplate") -> None:
        if isinstance(change, Delete):
            images = codec.plan.delete(change)
            if images is not None:
                self._delete(codec, *images, str(change.lsn), texts)
            return
        before, after, old = codec.plan.update(change, codec.same_key)
        n = str(change.lsn)
        if old is not None:
            self._key_change(codec, old, after, n, texts)
            return
        self._updated(codec, before, after, n, texts)

    def _updated(
        self, codec: RowCodec, before: Tuple | None, after: Tuple, n: str, texts: "PartTemplate"
    ) -> None:
        key, row = _key(codec, after), codec.row(after)
        old_row = "null" if before is None else codec.row(before)
        if not (self._skip_unchanged and old_row == row):
            value = texts.value(codec, old_row, row, "u", n)
            texts.out.append(Record(codec.plan.topic, key, value, self._headers))

    def _delete(
        self,
        codec: RowCodec,
        before: Tuple,
        key: Tuple,
        n: str,
        texts: "PartTemplate",
        *,
        extra: tuple[Header, ...] = (),
    ) -> None:
        """Append a delete and its tombstone.

        The ``extra`` headers precede the usual ones.
        """
        keyed = not codec.plan.keyless_deletes
        key_bytes, row = _key(codec, key) if keyed else None, codec.row(before)
        headers = extra + self._headers if extra else self._headers
        value = texts.value(codec, row, "null", "d", n)
        texts.out.append(Record(codec.plan.topic, key_bytes, value, headers))
        if self._tombstones and keyed:
            texts.out.append(Record(codec.plan.topic, key_bytes, None, headers))

    def _key_change(
        self, codec: RowCodec, old: Tuple, new: Tuple, n: str, texts: "PartTemplate"
    ) -> None:
        """Append a delete and a create for a key change."""
        # Both images are rendered first, since the delete counts its event.
        row, new_key = codec.row(new), _key(codec, new)
        newkey, oldkey = key_header(codec, NEW_KEY, new), key_header(codec, OLD_KEY, old)
        self._delete(codec, old, old, n, texts, extra=newkey)
        value = texts.value(codec, "null", row, "c", n)
        texts.out.append(Record(codec.plan.topic, new_key, value, oldkey + self._headers))

    def _truncate(self, change: Truncate, texts: "PartTemplate") -> None:
        n = str(change.lsn)
        for relation in change.relations:
            codec = self._codec(relation)
            if codec is not None:
                self._truncated(codec, n, texts)

    def _truncated(self, codec: RowCodec, n: str, texts: "PartTemplate") -> None:
        value = texts.value(codec, "null", "null", "t", n)
        texts.out.append(Record(codec.plan.topic, None, value, self._headers))

    # --- messages and transactions ----------------------------------------------------------------

    def _message(self, change: LogicalMessage, texts: "PartTemplate") -> None:
        n, prefix = str(change.lsn), f'"prefix":{quote(change.prefix)}'
        before, after = self._message_key
        key = f"{before}{{{prefix}}}{after}"
        before, after = self._message_value
        stamp = texts.stamps.partition(",")[0]
        value = (
            f'{before}{{"op":"m",{stamp},"source":{{{texts.a}{n}{texts.b},"schema":"","table":"",'
            f'"txId":{texts.x}{n}{texts.origin},"transaction":{texts.block(n, MESSAGE_COLLECTION)},'
            f'"message":{{{prefix},"content":{json_text(self._content(change.content))}}}}}{after}'
        )
        texts.out.append(Record(self._message_topic, key.encode(), value.encode()))

    def _bound(self, part: TransactionPart, status: str, lsn: int, counts: str) -> Record:
        """Return a BEGIN or END record."""
        identifier = f'"id":"{part.xid}:{lsn}"'
        before, after = self._transaction_key
        key = f"{before}{{{identifier}}}{after}"
        before, after = self._transaction_value
        value = (
            f'{before}{{"status":"{status}",{identifier},{counts},'
            f'"ts_ms":{part.commit_ts // 1000}}}{after}'
        )
        return Record(self._transaction_topic, key.encode(), value.encode())

    # --- snapshots --------------------------------------------------------------------------------

    def _snapshot(self, part: SnapshotRows, stamps: str, out: list[Record]) -> None:
        """Append the rows of one table."""
        codec, rows = self._reading(part.relation), part.rows
        if codec is None or not rows:
            return
        heads, b, x, c = self._read_texts(part, stamps)
        at = 0
        for count, a in heads:
            self._read(codec, rows[at : at + count], (a, b, x), c, part, out)
            at += count

    def _block(
        self, part: TransactionPart | SnapshotRows | Heartbeat, stamps: str
    ) -> RecordBlock | None:
        """Return the records of rows that arrive as columns.

        Returns None where they must be rendered by row.
        """
        if self._eventful or not isinstance(part, SnapshotRows):
            return None
        rows = part.rows
        if not isinstance(rows, RowBlock) or not rows:
            return None
        codec = self._reading(part.relation)
        if codec is None:
            return None
        try:
            return record_block(codec, rows, *self._read_texts(part, stamps))
        except MISFITS:
            # Rendering by row finds the value and names its column.
            return None

    def _reading(self, relation: Relation) -> RowCodec | None:
        """Return the codec of a relation's snapshot rows."""
        codec = self._codec(relation)
        return codec if codec is None or codec.snapshot is None else codec.snapshot()

    def _read_texts(self, part: SnapshotRows, stamps: str) -> tuple[Heads, str, str, str]:
        """Return the texts ``a`` (with row counts), ``b``, ``x`` and ``c``.

        ``part`` has at least one row.
        """
        # All rows have one LSN, so ``a`` and ``x`` contain it and ``n`` is empty. Incremental
        # rows have it in the sequence only.
        ts, incremental = part.ts, part.kind == "incremental"
        sequence = f"{_in_sequence(part.previous_end_lsn)},{_in_sequence(part.lsn)}"
        xid = "null" if incremental or part.xid is None else str(part.xid)
        lsn = "null" if incremental or part.lsn is None else str(part.lsn)
        b = f']"{self._wording.committed(ts)}'
        x = f'{xid},"lsn":{lsn}'
        c = self._wording.no_origin + self._wording.after_source("null", "r", stamps)

        def a(marker: str) -> str:
            return f'{self._source}{ts // 1000},"snapshot":"{marker}"{self._database}{sequence}'

        count = len(part.rows)
        if incremental:
            return [(count, a("incremental"))], b, x, c
        # The first and the last row of a table may have their own markers.
        markers = ["true"] * min(3, count)
        markers[0] = part.first_marker
        markers[-1] = part.last_marker
        heads: list[tuple[int, str]] = []
        sizes = [1] if count == 1 else [1, 1] if count == 2 else [1, count - 2, 1]
        for size, marker in zip(sizes, markers, strict=True):
            if heads and heads[-1][1] == a(marker):
                heads[-1] = heads[-1][0] + size, heads[-1][1]
            else:
                heads.append((size, a(marker)))
        return heads, b, x, c

    def _read(
        self,
        codec: RowCodec,
        rows: Sequence[Tuple],
        frame: tuple[str, str, str],
        c: str,
        part: SnapshotRows,
        out: list[Record],
    ) -> None:
        """Append the records of rows of ``part`` that share their texts."""
        count = len(rows)
        _render(codec, rows, [""] * count, [c] * count, *frame, out, lambda same: same)


class PartTemplate:
    """Hold the texts that the events of one part share.

    The module's docstring explains them.
    """

    __slots__ = (
        "_c", "_wording", "a", "b", "frame", "order", "origin", "out", "part", "stamps", "x", "xid",
    )  # fmt: skip

    def __init__(
        self,
        part: TransactionPart,
        a: str,
        b: str,
        origin: str,
        stamps: str,
        order: TransactionOrder | None,
        out: list[Record],
        wording: EnvelopeTemplate,
    ) -> None:
        self.part, self._wording = part, wording
        self.xid = "null" if part.xid is None else str(part.xid)
        self.a, self.b, self.x = a, b, f'{self.xid},"lsn":'
        self.origin, self.stamps, self.order, self.out = origin, stamps, order, out
        self.frame = self.a, self.b, self.x
        self._c: dict[str, str] = {}

    def c(self, op: str, n: str, collection: str, unsent: str = "null") -> str:
        """Count an event and return its text after the LSN.

        `EnvelopeTemplate.after_source` explains ``unsent``.
        """
        # Without transaction metadata the text is the same for all events of one operation.
        if self.order is None:
            text = self._c.get(op + unsent)
            if text is None:
                text = self._wording.after_source("null", op, self.stamps, unsent)
                text = self._c[op + unsent] = f"{self.origin}{text}"
            return text
        after = self._wording.after_source(self.block(n, collection), op, self.stamps, unsent)
        return f"{self.origin}{after}"

    def block(self, n: str, collection: str) -> str:
        """Count an event at LSN ``n`` and return its transaction block."""
        if self.order is None:
            return "null"
        total, place = self.order.next(collection)
        return f'{{"id":"{self.xid}:{n}","total_order":{total},"data_collection_order":{place}}}'

    def value(self, codec: RowCodec, before: str, after: str, op: str, n: str) -> bytes:
        """Count an event and return its value."""
        return (
            codec.prefix
            + (
                f'{{"before":{before},"after":{after},"source":{{{self.a}{n}{self.b}'
                f"{codec.table}{self.x}{n}{self.c(op, n, codec.plan.name)}"
            ).encode()
        )


def _context_headers(properties: JsonProperties, context: FormatContext) -> tuple[Header, ...]:
    """Return the headers that name pipeline, task, connector and run."""
    write = header_writer(envelope.HEADER, properties, context)
    return tuple((name, write(quote(value))) for name, value in context.headers)


def _counts(order: TransactionOrder) -> str:
    """Return the event counts of an END record."""
    items = ",".join(
        f'{{"data_collection":{quote(name)},"event_count":{count}}}'
        for name, count in order.counts().items()
    )
    return f'"event_count":{order.total},"data_collections":[{items}]'


def _in_sequence(lsn: int | None) -> str:
    """Return ``lsn`` escaped for the text of ``source.sequence``."""
    return "null" if lsn is None else f'\\"{lsn}\\"'


def key_header(codec: RowCodec, name: str, values: Tuple) -> tuple[Header, ...]:
    """Return a header with the key of a row image."""
    assert codec.key is not None
    return ((name, codec.key_header(codec.key(values))),)


def _key(codec: RowCodec, values: Tuple) -> bytes | None:
    """Return the key bytes of a row image."""
    if codec.key is None:
        return None
    before, after = codec.key_texts
    return f"{before}{codec.key(values)}{after}".encode()


def _render(
    codec: RowCodec,
    rows: Sequence[Tuple],
    ns: Sequence[str],
    cs: Sequence[str],
    a: str,
    b: str,
    x: str,
    out: list[Record],
    renewed: Callable[[RowCodec], RowCodec],
) -> None:
    """Append the records of ``rows``.

    ``renewed`` replaces the codec after a row that does not fit; the new codec renders the later rows too.
    """
    while rows:
        # The number of appended records shows which row failed.
        before = len(out)
        try:
            codec.creates(rows, ns, cs, a, b, x, out.append)
        except MISFITS:
            at = len(out) - before
            codec, after = renewed(codec), at + 1
            one = rows[at:after], ns[at:after], cs[at:after]
            try:
                codec.careful().creates(*one, a, b, x, out.append)
            except MISFITS as cause:
                raise codec.plan.wrong_tuple("json", int(ns[at] or 0)) from cause
            rows, ns, cs = rows[after:], ns[after:], cs[after:]
        else:
            return
