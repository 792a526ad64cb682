"""The JSON format: Debezium's records as Kafka Connect's JsonConverter writes them.

The text of a value is put together from what changes at different paces:

    prefix {"before":…,"after":…,"source":{  a  n  b  ,"schema":…,"table":…,"txId":  x  n  c
    per relation       per row              part row part   per relation           part row batch

``a``, ``b`` and ``x`` are made once per transaction part, ``c`` once per part and operation; only
``n``, the LSN, and the row itself vary from row to row.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from waltap.decode.message import Change, Delete, LogicalMessage, Truncate, Update
from waltap.decode.relation import Relation
from waltap.decode.tuple_image import Tuple
from waltap.errors import DecodeError
from waltap.events import INSERTS, NEW_KEY, OLD_KEY, OPERATIONS, TRUNCATES, UPDATES, runs
from waltap.format.format import Format, FormatContext
from waltap.format.record import Header, Record
from waltap.format.record_block import RecordBlock
from waltap.json.block import Heads, record_block
from waltap.json.codec import MISFITS, RowCodec, json_text
from waltap.json.envelope_template import EnvelopeTemplate, unsent
from waltap.json.properties import JsonProperties
from waltap.json.schema import quote
from waltap.json.tables import JsonTables, header_writer, wrapping
from waltap.mapping import envelope
from waltap.mapping.connect_schema import Schema
from waltap.mapping.message_content import CONTENT_FORMS, MESSAGE_COLLECTION
from waltap.notifications.notification import Notification
from waltap.transactions.order import TransactionOrder
from waltap.transactions.row_block import RowBlock
from waltap.transactions.transaction import Heartbeat, SnapshotRows, TransactionPart
from waltap.version import VERSION

__all__ = ["JsonFormat", "PartTemplate", "key_header", "wrong_tuple"]

PREFIXES_KEPT = 10_000
_UNCOUNTED = '"event_count":null,"data_collections":null'


class JsonFormat(Format):
    """Renders batches to JSON records. ``_eventful``: transforms of events come before the encoding."""

    _eventful = False

    def __init__(self, properties: JsonProperties, context: FormatContext) -> None:
        capture = context.capture
        shape = capture.properties
        self._capture = capture
        self._tombstones, self._skip_unchanged = shape.tombstones, shape.skip_unchanged
        self._order = context.order if shape.provide_transaction_metadata else None
        self._prefixes: dict[str, bool] = {}
        self._headers: tuple[Header, ...] = ()
        if context.header is not None:
            self.text = context.header.text
        if shape.extended_headers:
            self._headers = _context_headers(properties, context)
        self._tables = JsonTables(properties, context, self._headers)
        self._codecs, self._codec = self._tables.compiled, self._tables.of
        self._skipped = frozenset(k for k, op in OPERATIONS.items() if op in capture.skipped)
        # texts that no batch changes
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
        """Return the records of ``parts``, in order; ``now`` is the clock in ns since 1970 UTC. Those of
        a single `RowBlock` are a `RecordBlock`.

        Raises: DecodeError for a value that is not of its column's type, when
        ``event.converting.failure.handling.mode`` is fail.
        """
        stamps = self._wording.stamps(now)
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
        """Drop the codecs of a relation that is gone."""
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
        if part.xid is None and part.changes:  # a message outside transactions is its own commit
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
        """Return the end of a source block: of a transaction that was replayed from elsewhere, or whose
        slot is asked for its xmin, with that."""
        if part.origin is None and part.xmin is None:
            return self._wording.no_origin
        xmin = "null" if part.xmin is None else str(part.xmin)
        origin = "null" if part.origin is None else quote(part.origin)
        lsn = "null" if part.origin_lsn is None else str(part.origin_lsn)
        return self._wording.origin(xmin, origin, lsn)

    def _changes(self, changes: list[Change], texts: "PartTemplate") -> None:
        """Append the records of ``changes``, run by run. One new row by itself, the bulk of streams of
        small transactions, is done in line."""
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
                    elif self._takes(change.prefix):  # type: ignore[union-attr]
                        self._message(change, texts)  # type: ignore[arg-type]
                continue
            codec = codecs[relation] if relation in codecs else self._codec(relation)
            if codec is None:
                continue
            if kind is INSERTS or kind is UPDATES:
                if alone and len(run) == 1 and not (names_unsent and kind is UPDATES):
                    (change,), c = run, texts.c(OPERATIONS[kind], "", "")
                    try:
                        codec.creates((change.new,), (str(change.lsn),), (c,), a, b, x, out.append)  # type: ignore[union-attr]
                    except MISFITS:
                        pass  # again below, with care
                    else:
                        continue
                self._new_rows(codec, relation, OPERATIONS[kind], run, texts)
                continue
            for change in run:
                try:
                    self._change(codec, change, texts)  # type: ignore[arg-type]
                except MISFITS:
                    # whatever may not fit was rendered before anything was counted or appended
                    codec = self._tables.renewed(relation, codec)
                    try:
                        self._change(codec.careful(), change, texts)  # type: ignore[arg-type]
                    except MISFITS as cause:
                        raise wrong_tuple(codec, change.lsn) from cause

    def _new_rows(
        self,
        codec: RowCodec,
        relation: Relation,
        op: str,
        run: Sequence[Any],
        texts: "PartTemplate",
    ) -> None:
        """Append the records of changes that consist of their new row."""
        rows = [change.new for change in run]
        ns = [str(change.lsn) for change in run]
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
        """Append a delete and its tombstone; ``extra`` headers precede the usual ones."""
        key_bytes, row = _key(codec, key), codec.row(before)
        headers = extra + self._headers if extra else self._headers
        value = texts.value(codec, row, "null", "d", n)
        texts.out.append(Record(codec.plan.topic, key_bytes, value, headers))
        if self._tombstones:
            texts.out.append(Record(codec.plan.topic, key_bytes, None, headers))

    def _key_change(
        self, codec: RowCodec, old: Tuple, new: Tuple, n: str, texts: "PartTemplate"
    ) -> None:
        """Append what an update that changes the key becomes: a delete, then a create."""
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

    # --- what is no row ---------------------------------------------------------------------------

    def _takes(self, prefix: str) -> bool:
        """Tell whether logical messages with ``prefix`` become events; answers are kept."""
        known = self._prefixes.get(prefix)
        if known is None:
            if len(self._prefixes) >= PREFIXES_KEPT:
                self._prefixes.clear()
            known = self._prefixes[prefix] = self._capture.message_prefix(prefix)
        return known

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
        """Return the records of rows that come as columns; None where they must be written by row."""
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
            return None

    def _reading(self, relation: Relation) -> RowCodec | None:
        """Return the codec of rows of ``relation`` that a snapshot reads."""
        codec = self._codec(relation)
        return codec if codec is None or codec.snapshot is None else codec.snapshot()

    def _read_texts(self, part: SnapshotRows, stamps: str) -> tuple[Heads, str, str, str]:
        """Return the texts of rows of ``part``, of which there are some. All have one LSN, so it stands
        in ``a`` and ``x`` and ``n`` is empty; incremental rows have it in the sequence alone. ``a`` comes
        with the number of rows that have it: the first and the last row may have markers of their own.
        """
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
    """What the events of one part share (see the module's docstring), and where they go."""

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
        """Return the text after the LSN of an event of ``op``, which is counted; ``unsent`` as
        `EnvelopeTemplate.after_source` has it."""
        if self.order is None:
            text = self._c.get(op + unsent)
            if text is None:
                text = self._wording.after_source("null", op, self.stamps, unsent)
                text = self._c[op + unsent] = f"{self.origin}{text}"
            return text
        after = self._wording.after_source(self.block(n, collection), op, self.stamps, unsent)
        return f"{self.origin}{after}"

    def block(self, n: str, collection: str) -> str:
        """Return the transaction block of an event at LSN ``n``, which is counted."""
        if self.order is None:
            return "null"
        total, place = self.order.next(collection)
        return f'{{"id":"{self.xid}:{n}","total_order":{total},"data_collection_order":{place}}}'

    def value(self, codec: RowCodec, before: str, after: str, op: str, n: str) -> bytes:
        """Return a value with these row images; the event is counted."""
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
    values = (
        ("connectorLogicalName", context.capture.properties.topic_prefix),
        ("taskId", "0"),
        ("connectorName", context.connector),
        ("runId", context.run_id),
    )
    return tuple((f"__debezium.context.{name}", write(quote(value))) for name, value in values)


def _counts(order: TransactionOrder) -> str:
    """Return what an END record tells of a transaction's events."""
    items = ",".join(
        f'{{"data_collection":{quote(name)},"event_count":{count}}}'
        for name, count in order.counts().items()
    )
    return f'"event_count":{order.total},"data_collections":[{items}]'


def _in_sequence(lsn: int | None) -> str:
    """Return ``lsn`` as it stands inside the text of ``source.sequence``."""
    return "null" if lsn is None else f'\\"{lsn}\\"'


def key_header(codec: RowCodec, name: str, values: Tuple) -> tuple[Header, ...]:
    """Return the header ``name`` with the key of a row image."""
    assert codec.key is not None
    return ((name, codec.key_header(codec.key(values))),)


def _key(codec: RowCodec, values: Tuple) -> bytes | None:
    """Return the key of a row image as it is sent."""
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
    """Append the records of ``rows``. One that does not fit is rendered again, column by column, by what
    ``renewed`` makes of the codec; that one takes the rest too."""
    while rows:
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
                raise wrong_tuple(codec, int(ns[at] or 0)) from cause
            rows, ns, cs = rows[after:], ns[after:], cs[after:]
        else:
            return


def wrong_tuple(codec: RowCodec, lsn: int) -> DecodeError:
    """Return the error of a tuple that no codec can render."""
    return DecodeError(
        "json",
        lsn=lsn,
        offset=0,
        expected=f"tuples as wide as {codec.plan.name}",
        found="one that is not",
    )
