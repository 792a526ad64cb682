"""Write Debezium's records as Kafka Connect's JsonConverter does.

The text of a value consists of parts that change at different rates:

    prefix {"before":…,"after":…,"source":{  a  n  b  ,"schema":…,"table":…,"txId":  x  n  c
    per relation       per row              part row part   per relation           part row batch

``a``, ``b`` and ``x`` are made once per transaction part, ``c`` once per batch and operation. Only the
LSN ``n`` and the row itself vary from row to row. Rows of one table and operation are rendered in one
call, across transactions.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

import msgspec

from waltap.base.import_rules import np, pa
from waltap.changes.decode.message import (
    Change,
    Delete,
    InsertBlock,
    LogicalMessage,
    Update,
)
from waltap.changes.decode.relation import Relation
from waltap.changes.decode.row_block import RowBlock
from waltap.changes.decode.tuple_image import Tuple
from waltap.changes.events.event import Header, Record
from waltap.changes.events.plan import (
    CHANGED,
    DELETES,
    INSERTS,
    MESSAGES,
    OPERATIONS,
    TRUNCATES,
    UPDATES,
    alternate,
    kind_of,
    runs,
)
from waltap.changes.mapping import envelope
from waltap.changes.mapping.connect_schema import Schema
from waltap.changes.mapping.envelope import MESSAGE_COLLECTION
from waltap.changes.mapping.json_schema import quote
from waltap.changes.transactions.order import TransactionOrder
from waltap.changes.transactions.transaction import (
    Heartbeat,
    Notification,
    SnapshotRows,
    TransactionPart,
    TransactionRun,
)
from waltap.encoders.format.format import FormatContext
from waltap.encoders.format.record_block import RecordBlock, joined
from waltap.encoders.format.tables import RowFormat
from waltap.encoders.json.blocks import record_block
from waltap.encoders.json.codec import MISFITS, RowCodec, json_text
from waltap.encoders.json.event_texts import EnvelopeTemplate, PartTemplate, SourceTexts, unsent
from waltap.encoders.json.properties import JsonProperties
from waltap.encoders.json.tables import JsonTables, header_writer, wrapping
from waltap.version import VERSION

# Reserves the place of a record.
_PLACE: Final = Record("", None, None)
_new_row, _lsn = attrgetter("new"), attrgetter("lsn")
# Kind → the renderer of a codec that has the old row.
_OLD_RENDERERS: Final = {CHANGED: "updates", DELETES: "deletes"}

# Fewer rows are quicker one by one, and fewer changes of several kinds.
MIN_ROWS_TOGETHER: Final = 5
MIN_CHANGES_GATHERED: Final = 16


_UNCOUNTED = '"event_count":null,"data_collections":null'


class JsonFormat(RowFormat[RowCodec, PartTemplate]):
    """Render batches to JSON records."""

    # Whether transforms of events run before the encoding.
    _eventful = False

    def __init__(self, properties: JsonProperties, context: FormatContext) -> None:
        capture = context.capture
        shape = capture.properties
        self._headers: tuple[Header, ...] = ()
        if context.header is not None:
            self.text = context.header.text
        if shape.extended_headers:
            write = header_writer(envelope.HEADER, properties, context)
            self._headers = tuple((name, write(quote(value))) for name, value in context.headers)
        tables = self._json = JsonTables(properties, context, self._headers)
        super().__init__(tables, context)
        self._codecs, self._codec = tables.compiled, tables.of
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

        def texts(schema: Schema, *, enabled: bool) -> tuple[str, str]:
            return wrapping(envelope.renamed(schema, capture.schema_name), enabled=enabled)

        keys, values = properties.key_schemas, properties.value_schemas
        message = envelope.message_value_schema(
            context.connector, tables.source, binary=shape.binary_handling_mode == "bytes"
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
        self, parts: Sequence[TransactionPart | SnapshotRows | Heartbeat], now: int
    ) -> Sequence[Record]:
        """Return the records of ``parts`` in order.

        ``now`` is the clock in ns since 1970 UTC.

        Raises: DecodeError for a value that is not of its column's type, when
        ``event.converting.failure.handling.mode`` is fail.
        """
        stamps = self._wording.stamps(now)
        pieces: list[Sequence[Record]] = []
        single = parts
        if isinstance(parts, TransactionRun) and not self._eventful:
            block = self._run_block(parts, stamps)
            if block is not None:
                pieces, single = [block], ()
        for columns, some in groupby(single, _has_columns):
            if columns and not self._eventful:
                pieces += [self._block(part, now, stamps) for part in some]
            else:
                pieces.append(self._by_row(list(some), now, stamps))
        out = pieces[0] if len(pieces) == 1 else joined(pieces)
        if self._eventful:
            out = self._transformed(out)
        if self._tables.nulls.noted:
            self._tables.nulls.report_all(parts, self._codec)
        return out

    def _transformed(self, out: Sequence[Record]) -> Sequence[Record]:
        """Return the records of events; an eventful format transforms them first."""
        return out

    def _by_row(
        self, parts: list[TransactionPart | SnapshotRows | Heartbeat], now: int, stamps: str
    ) -> list[Record]:
        out: list[Record] = []
        for kind, some in groupby(parts, type):
            if kind is TransactionPart:
                self._transactions(list(some), now, stamps, out)  # type: ignore[arg-type]
                continue
            for part in some:
                if isinstance(part, SnapshotRows):
                    self._snapshot(part, stamps, out)
                elif isinstance(part, Heartbeat):
                    out.append(self._heartbeat(part))
        return out

    def _heartbeat(self, part: Heartbeat) -> Record:
        before, after = self._heartbeat_value
        value = f'{before}{{"ts_ms":{part.ts}}}{after}'.encode()
        return Record(self._heartbeat_topic, self._heartbeat_key, value, (), 0)

    def notifications(self, notices: Sequence[Notification], topic: str) -> list[Record]:
        (k, key_end), (v, value_end) = self._notification_key, self._notification_value
        return [
            Record(
                topic,
                f'{k}{{"id":{quote(each.identifier)}}}{key_end}'.encode(),
                v.encode() + msgspec.json.encode(each.document()) + value_end.encode(),
            )
            for each in notices
        ]

    # --- streaming --------------------------------------------------------------------------------

    def _transactions(
        self, parts: list[TransactionPart], now: int, stamps: str, out: list[Record]
    ) -> None:
        order = self._order
        if order is None:
            self._changes(self._sources(parts, now, stamps, None, out))
            return
        # Each transaction has records before and after its own.
        for part in parts:
            counted = None if part.xid is None else order
            if counted is not None:
                order.enter(part)
                if part.starts:
                    out.append(self._bound(part, "BEGIN", part.begin_lsn, _UNCOUNTED))
            self._changes(self._sources([part], now, stamps, counted, out))
            if counted is not None and part.complete:
                out.append(self._bound(part, "END", part.end_lsn, _counts(order)))

    def _sources(
        self,
        parts: list[TransactionPart],
        now: int,
        stamps: str,
        order: TransactionOrder | None,
        out: list[Record],
    ) -> "SourceTexts":
        head, middle = self._source, f',"snapshot":{self._unset}{self._database}'
        wording, now_us = self._wording, now // 1000
        fine, no_origin = wording.fine, wording.no_origin
        a: list[str] = []
        b: list[str] = []
        x: list[str] = []
        origins: list[str] = []
        for part in parts:
            ts, previous = part.commit_ts or now_us, part.previous_end_lsn
            xid: int | str | None = part.xid
            if xid is None:
                xid = "null"
                # A message outside transactions is its own commit.
                if part.changes:
                    previous = part.changes[0].lsn
            in_sequence = "null" if previous is None else f'\\"{previous}\\"'
            a.append(f'{head}{ts // 1000}{middle}{in_sequence},\\"')
            b.append(f'\\"]","ts_us":{ts},"ts_ns":{ts * 1000}' if fine else '\\"]"')
            x.append(f'{xid},"lsn":')
            plain = part.origin is None and part.xmin is None
            origins.append(no_origin if plain else self._origin(part))
        return SourceTexts(parts, (a, b, x, origins), stamps, order, out, wording)

    def _origin(self, part: TransactionPart) -> str:
        """Return the end of a source block.

        An origin means that the server replicated the transaction from another one; the engine reads
        the slot's xmin only on request.
        """
        xmin = "null" if part.xmin is None else str(part.xmin)
        origin = "null" if part.origin is None else quote(part.origin)
        lsn = "null" if part.origin_lsn is None else str(part.origin_lsn)
        return self._wording.origin(xmin, origin, lsn)

    def _changes(self, texts: "SourceTexts") -> None:
        """Append the records of changes, run by run."""
        changes, of, end = texts.changes, texts.of, 0
        # Else events of one kind differ in more than their rows.
        plain = texts.order is None and not self._wording.names_unsent and not self._eventful
        if plain and len(changes) >= MIN_CHANGES_GATHERED and alternate(changes):
            self._gather(changes, 0, texts)
            return
        for kind, relation, run in runs(changes):
            start, end = end, end + len(run)
            if kind in self._skipped:
                continue
            together = len(run) >= MIN_ROWS_TOGETHER
            new = kind is INSERTS or kind is UPDATES
            if relation is not None and new and (together or run is changes):
                codec = self._codecs.get(relation) or self._codec(relation)
                if codec is not None:
                    self._new_rows(codec, relation, OPERATIONS[kind], run, texts, start)
            elif relation is not None and together and plain:
                self._gather(run, start, texts)
            else:
                for at, change in enumerate(run, start):
                    self._single(kind, change, of(at))

    def _gather(self, changes: Sequence[Change], start: int, texts: "SourceTexts") -> None:
        """Append the records of ``changes``, rendered by table and kind.

        ``start`` is the index of the first change. Each record has a reserved place between the
        others.
        """
        skipped, of, out = self._skipped, texts.of, texts.out
        groups: dict[tuple[str, Relation], _Group] = {}
        for at, change in enumerate(changes, start):
            kind = kind_of(change)
            if kind in skipped:
                continue
            if kind is TRUNCATES or kind is MESSAGES:
                self._single(kind, change, of(at))
                continue
            relation: Relation = change.relation  # type: ignore[union-attr]
            group = groups.get((kind, relation))
            if group is None:
                codec = self._codecs.get(relation) or self._codec(relation)
                if codec is None:
                    continue
                group = groups[kind, relation] = _Group(codec)
            if kind is INSERTS or kind is UPDATES:
                group.rows.append(change.new)  # type: ignore[union-attr]
            elif not self._add_old(group, change):  # type: ignore[arg-type]
                self._single(kind, change, of(at))
                continue
            group.lsns.append(change.lsn)
            group.numbers.append(at)
            group.places.append(len(out))
            out.append(_PLACE)
            if kind is DELETES and self._tombstones:
                out.append(_PLACE)
        for (kind, relation), group in groups.items():
            self._render_group(kind, relation, group, texts)

    def _add_old(self, group: "_Group", change: Update | Delete) -> bool:
        """Add a change with an old tuple if one record holds it."""
        codec = group.codec
        if isinstance(change, Delete):
            images = codec.plan.delete(change)
            if images is None or images[0] is not images[1] or codec.plan.keyless_deletes:
                return False
            group.rows.append(images[0])
            return True
        try:
            before, after, old = codec.plan.update(change, codec.same_key)
        except MISFITS:
            return False
        if before is None or old is not None or self._skip_unchanged or self._skip_updates:
            return False
        group.rows.append(after)
        group.old_rows.append(before)
        return True

    def _render_group(
        self, kind: str, relation: Relation, group: "_Group", texts: "SourceTexts"
    ) -> None:
        """Put the records of a group in their places."""
        rows, numbers, out, deletes = group.rows, group.numbers, texts.out, kind is DELETES
        made: list[Record] = []
        ns, ends = list(map(str, group.lsns)), texts.ends(OPERATIONS[kind], numbers)
        columns = (rows, group.old_rows or rows, ns, ends, *texts.frames(numbers))
        renewed = partial(self._tables.renewed, relation)
        _render(group.codec, columns, made, renewed, _OLD_RENDERERS.get(kind, ""))
        for place, record in zip(group.places, made, strict=True):
            out[place] = record
        if deletes and self._tombstones:
            for place, record in zip(group.places, made, strict=True):
                out[place + 1] = Record(record.topic, record.key, None, record.headers)

    def _new_rows(
        self,
        codec: RowCodec,
        relation: Relation,
        op: str,
        run: Sequence[Any],
        texts: "SourceTexts",
        start: int,
    ) -> None:
        """Append the records of changes that have only a new row."""
        rows, ns = list(map(_new_row, run)), list(map(str, map(_lsn, run)))
        plan, listed = codec.plan, self._wording.names_unsent and op == "u"
        # The list of unsent fields and the transaction's counters differ from row to row.
        if listed or texts.order is not None:
            cs = [
                texts.of(at).c(op, n, plan.name, unsent(plan, row) if listed else "null")
                for at, (n, row) in enumerate(zip(ns, rows, strict=True), start)
            ]
        else:
            cs = texts.ends(op, range(start, start + len(rows)))
        renewed = partial(self._tables.renewed, relation)
        frames = texts.frames(range(start, start + len(rows)))
        _render(codec, (rows, rows, ns, cs, *frames), texts.out, renewed)

    def _add(
        self,
        table: RowCodec,
        op: str,
        lsn: int,
        frame: PartTemplate,
        *,
        key: Tuple | None,
        before: Tuple | None = None,
        after: Tuple | None = None,
        headers: tuple[Header, ...] = (),
        tombstone: bool = False,
    ) -> None:
        n, old_row = str(lsn), "null" if before is None else table.row(before)
        if after is not None:
            names = unsent(table.plan, after) if self._wording.names_unsent else "null"
            record = table.written(after, old_row, op, n, names, frame)
            if headers:
                record.headers = headers + record.headers
        else:
            key_bytes = None
            if key is not None and table.key is not None:
                start, end = table.key_texts
                key_bytes = f"{start}{table.key(key)}{end}".encode()
            value = None if tombstone else frame.value(table, old_row, op, n)
            record = Record(table.plan.topic, key_bytes, value, headers + self._headers)
        frame.out.append(record)

    def _text(self, table: RowCodec, row: Tuple) -> str:
        # NULL differs from a default, although it is written as one.
        return f"{[row[index] is None for index in table.shown]}{table.row(row)}"

    def _key_header(self, table: RowCodec, name: str, row: Tuple) -> tuple[Header, ...]:
        assert table.key is not None
        return ((name, table.key_header(table.key(row))),)

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
        codec, rows = self._reading(part.relation), part.rows
        if codec is None or not rows:
            return
        heads, b, x, c = self._read_texts(part, stamps)
        at = 0
        for count, a in heads:
            self._read(codec, rows[at : at + count], (a, b, x), c, part, out)
            at += count

    def _block(
        self, part: TransactionPart | SnapshotRows | Heartbeat, now: int, stamps: str
    ) -> Sequence[Record]:
        """Return the records of ``part``, as a `RecordBlock` where that is possible."""
        found: RecordBlock | None = None
        # Rendering by row finds a value that does not fit, and names its column.
        with contextlib.suppress(*MISFITS):
            if isinstance(part, SnapshotRows):
                found = self._read_block(part, stamps)
            elif isinstance(part, TransactionPart):
                found = self._insert_block(part, now, stamps)
        return self._by_row([part], now, stamps) if found is None else found

    def _read_block(self, part: SnapshotRows, stamps: str) -> RecordBlock | None:
        rows, codec = part.rows, self._reading(part.relation)
        if codec is None or not isinstance(rows, RowBlock) or not rows:
            return None
        heads, b, x, c = self._read_texts(part, stamps)
        return record_block(codec, rows, [(count, [a]) for count, a in heads], [b], [x], c)

    def _insert_block(self, part: TransactionPart, now: int, stamps: str) -> RecordBlock | None:
        block = part.changes
        # Each event has its own number in a transaction's order.
        if not isinstance(block, InsertBlock) or self._order is not None:
            return None
        codec = self._codec(block.relation)
        if codec is None or INSERTS in self._skipped:
            return None
        texts = self._sources([part], now, stamps, None, [])
        a, b, x = texts.frames(range(1))
        (c,) = texts.ends(OPERATIONS[INSERTS], range(1))
        n = pa.array(block.lsns).cast(pa.string())
        return record_block(codec, block.rows, [(len(block), a)], b, x, c, n)

    def _run_block(self, run: TransactionRun, stamps: str) -> RecordBlock | None:
        """Return records of one-insert transactions; None: render by row."""
        block = run.block
        inserts, codec = block.inserts, self._codec(block.inserts.relation)
        known = run.previous_end_lsn is not None and block.commit_ts.all()
        if codec is None or self._order is not None or INSERTS in self._skipped or not known:
            return None

        def texts(numbers: "np.ndarray[Any, Any]") -> "pa.StringArray":
            return pa.array(numbers).cast(pa.string())

        # These are the texts of `_sources`, with columns in them.
        before = np.append(np.array([run.previous_end_lsn], "u8"), block.end_lsns[:-1])
        middle = f',"snapshot":{self._unset}{self._database}\\"'
        a = [self._source, texts(block.commit_ts // 1000), middle, texts(before), '\\",\\"']
        b = ['\\"]"']
        if self._wording.fine:
            ts = texts(block.commit_ts)
            b = ['\\"]","ts_us":', ts, ',"ts_ns":', ts, "000"]
        x = [texts(block.xids), ',"lsn":']
        c = self._wording.no_origin
        c += self._wording.after_source("null", OPERATIONS[INSERTS], stamps)
        # Rendering by row finds a value that does not fit, and names its column.
        with contextlib.suppress(*MISFITS):
            n = texts(inserts.lsns)
            return record_block(codec, inserts.rows, [(len(block), a)], b, x, c, n)
        return None

    def _reading(self, relation: Relation) -> RowCodec | None:
        """Return the codec of a relation's snapshot rows."""
        codec = self._codec(relation)
        return None if codec is None else codec.reading()

    def _read_texts(
        self, part: SnapshotRows, stamps: str
    ) -> tuple[list[tuple[int, str]], str, str, str]:
        """Return the texts ``a`` (with row counts), ``b``, ``x`` and ``c``.

        ``part`` has at least one row.
        """
        # All rows have one LSN, so ``a`` and ``x`` contain it and ``n`` is empty. Incremental
        # rows have it in the sequence only.
        ts, incremental = part.ts, part.kind == "incremental"
        sequence = f"{_in_sequence(part.previous_end_lsn)},{_in_sequence(part.lsn)}"
        xid = "null" if incremental or part.xid is None else str(part.xid)
        lsn = "null" if incremental or part.lsn is None else str(part.lsn)
        fine = f',"ts_us":{ts},"ts_ns":{ts * 1000}' if self._wording.fine else ""
        b = f']"{fine}'
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
        columns = (rows, rows, *([text] * len(rows) for text in ("", c, *frame)))
        _render(codec, columns, out, lambda same: same)


def _has_columns(part: TransactionPart | SnapshotRows | Heartbeat) -> bool:
    if type(part) is TransactionPart:
        return type(part.changes) is InsertBlock
    return type(part) is SnapshotRows and type(part.rows) is RowBlock


def _counts(order: TransactionOrder) -> str:
    items = ",".join(
        f'{{"data_collection":{quote(name)},"event_count":{count}}}'
        for name, count in order.counts().items()
    )
    return f'"event_count":{order.total},"data_collections":[{items}]'


def _in_sequence(lsn: int | None) -> str:
    """Return ``lsn`` escaped for the text of ``source.sequence``."""
    return "null" if lsn is None else f'\\"{lsn}\\"'


@dataclass(slots=True)
class _Group:
    """Hold changes of one table and kind."""

    codec: RowCodec
    # New rows; the old ones of deletes.
    rows: list[Tuple] = field(default_factory=list)
    # The old rows of updates that have one, else empty.
    old_rows: list[Tuple] = field(default_factory=list)
    lsns: list[int] = field(default_factory=list)
    # The indexes of the changes in their batch, and of their records.
    numbers: list[int] = field(default_factory=list)
    places: list[int] = field(default_factory=list)


def _render(
    codec: RowCodec,
    columns: Sequence[Sequence[Any]],
    out: list[Record],
    renewed: Callable[[RowCodec], RowCodec],
    old: str = "",
) -> None:
    """Append the records of rows.

    ``old`` names their renderer in `RowCodec.old`; it is empty for new rows. ``columns`` are the rows,
    their old rows and, for each row, the texts ``n``, ``c``, ``a``, ``b`` and ``x``. ``renewed``
    replaces the codec after a row that does not fit; the new codec renders the later rows too.
    """
    while columns[0]:
        # The number of appended records shows which row failed.
        before = len(out)
        try:
            render = codec.old(old) if old else codec.creates
            render(out.append, *columns)
        except MISFITS:
            at = len(out) - before
            codec, after = renewed(codec), at + 1
            try:
                careful = codec.careful()
                render = careful.old(old) if old else careful.creates
                render(out.append, *(column[at:after] for column in columns))
            except MISFITS as cause:
                raise codec.plan.wrong_tuple("json", int(columns[2][at] or 0)) from cause
            columns = [column[after:] for column in columns]
        else:
            return
