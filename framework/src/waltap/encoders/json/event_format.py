"""Transform events before they are encoded as JSON.

`JsonFormat` decides which events the changes become. This format collects them instead of records,
passes them to the transforms as one batch, and encodes the events that these return. The relation's
codec writes a row that no transform changed, so its bytes are as in a pipeline without transforms.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec

from waltap.changes.decode.relation import Relation
from waltap.changes.decode.tuple_image import Tuple, Value
from waltap.changes.events import (
    ChangeEvent,
    EventRow,
    EventTransform,
    GivenValue,
)
from waltap.changes.events.event import Header, Record
from waltap.changes.mapping import envelope
from waltap.changes.mapping.connect_schema import Field, Schema
from waltap.changes.mapping.json_schema import quote, value_json
from waltap.changes.transactions.transaction import SnapshotRows
from waltap.encoders.format.format import FormatContext
from waltap.encoders.json.codec import MISFITS, ColumnCodec, RowCodec
from waltap.encoders.json.event_texts import PartTemplate, SourceTexts, unsent
from waltap.encoders.json.format import JsonFormat
from waltap.encoders.json.properties import JsonProperties
from waltap.encoders.json.tables import header_writer
from waltap.errors import RecordError, RetryVerdict

# Cached schema texts of rows that transforms changed.
MAX_SCHEMAS = 1000


class EventTransformFailed(RecordError):
    """A transform of events failed; the batch was not delivered.

    It raised, or left an event that cannot be written. The position did not move.
    """

    code = "WT-3202"
    retry = RetryVerdict.NEVER
    remedy = "Correct the transform {transform}, or take it out of the profile."


def _failed(name: str, what: str) -> EventTransformFailed:
    return EventTransformFailed(f"the transform {name} {what}", transform=name)


def transformed_events(
    out: Sequence[Any], transforms: Sequence[tuple[str, EventTransform]]
) -> list[Any]:
    """Return ``out`` without the events that ``transforms`` removed.

    Raises: EventTransformFailed.
    """
    events = [each for each in out if type(each) is ChangeEvent]
    # The error for wrong events names the last transform, though any may be the cause.
    name = ""
    for name, transform in transforms if events else ():
        try:
            given = transform(events)
        except Exception as cause:
            raise _failed(name, f"raised {type(cause).__name__}") from cause
        if not isinstance(given, list):
            raise _failed(name, f"returned {type(given).__name__}, not a list of events")
        events = given
    # Records between the events, such as BEGIN and END, keep their order. So transforms may
    # remove events, but neither add nor reorder them.
    given_ids = {id(event) for event in events}
    remaining = [each for each in out if type(each) is not ChangeEvent or id(each) in given_ids]
    if [id(each) for each in remaining if type(each) is ChangeEvent] != [
        id(event) for event in events
    ]:
        raise _failed(name, "returned events that it did not get, or in another order")
    return remaining


def changed_fields(
    fields: Mapping[str, int | GivenValue], row: EventRow, schema: Schema
) -> tuple[Field, ...]:
    """Return the fields of ``schema`` as a transform changed them."""
    known = {field.name: field.schema for field in schema.fields}
    return tuple(
        Field(
            name,
            source.schema if isinstance(source, GivenValue) else known[row.columns[source].field],
        )
        for name, source in fields.items()
    )


@dataclass(frozen=True, slots=True)
class _EncoderInput:
    """Hold an event's data that only the encoder sees."""

    codec: RowCodec
    # The texts ``a``, ``b`` and ``x`` of `waltap.encoders.json.format`.
    frame: tuple[str, str, str]
    n: str
    c: str
    headers: tuple[Header, ...] = ()


class JsonEventFormat(JsonFormat):
    """Render batches to JSON records through events."""

    _eventful = True
    _renders = False

    def __init__(self, properties: JsonProperties, context: FormatContext) -> None:
        super().__init__(properties, context)
        self._transforms: Sequence[tuple[str, EventTransform]] = context.transforms
        self._prefix_of = lru_cache(MAX_SCHEMAS)(self._json.value_prefix)
        self._header = header_writer(envelope.HEADER, properties, context)

    def _transformed(self, out: Sequence[Any]) -> Sequence[Record]:
        """Transform the events of ``out``, and encode them.

        Raises: EventTransformFailed.
        """
        if not any(type(each) is ChangeEvent for each in out):
            return out
        remaining = transformed_events(out, self._transforms)
        return [self._encoded(each) if type(each) is ChangeEvent else each for each in remaining]

    # --- events instead of records ------------------------------------------------------------------

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
        part, plan, n = frame.part, table.plan, str(lsn)
        # `frame.c` counts the event; its tombstone does not count.
        c = "" if tombstone else frame.c(op, n, plan.name, unsent(plan, after))
        event = ChangeEvent(
            op,
            plan.relation,
            plan.topic,
            key=None if key is None or table.key is None else EventRow(plan.key_columns, key),
            before=None if before is None else EventRow(plan.columns, before),
            after=None if after is None else EventRow(plan.columns, after),
            source=_EncoderInput(table, frame.frame, n, c, headers),
            lsn=lsn,
            commit_ts=part.commit_ts,
            xid=part.xid,
            tombstone=tombstone,
        )
        frame.out.append(event)  # type: ignore[arg-type]

    def _new_rows(
        self,
        codec: RowCodec,
        relation: Relation,
        op: str,
        run: Sequence[Any],
        texts: SourceTexts,
        start: int,
    ) -> None:
        for at, change in enumerate(run, start):
            self._add(codec, op, change.lsn, texts.of(at), key=change.new, after=change.new)

    def _read(
        self,
        codec: RowCodec,
        rows: Sequence[Tuple],
        frame: tuple[str, str, str],
        c: str,
        part: SnapshotRows,
        out: list[Record],
    ) -> None:
        plan = codec.plan
        for row in rows:
            event = ChangeEvent(
                "r",
                plan.relation,
                plan.topic,
                key=None if codec.key is None else EventRow(plan.key_columns, row),
                before=None,
                after=EventRow(plan.columns, row),
                source=_EncoderInput(codec, frame, "", c),
                lsn=part.lsn,
                commit_ts=part.ts,
                xid=part.xid,
            )
            out.append(event)  # type: ignore[arg-type]

    # --- encoding -----------------------------------------------------------------------------------

    def _encoded(self, event: ChangeEvent) -> Record:
        source: _EncoderInput = event.source
        codec, seen = source.codec, source.codec.plan.seen
        try:
            return self._record(event, source, codec)
        except _WrongFieldType as misgiven:
            names = " or ".join(name for name, _ in self._transforms)
            raise _failed(names, str(misgiven)) from misgiven
        except MISFITS:
            # An enum's label may be new: read the types again, then render column by column.
            codec = self._tables.renewed(seen, codec)
            if event.op == "r":
                codec = codec.reading()
            try:
                return self._record(event, source, codec.careful())
            except MISFITS as cause:
                raise codec.plan.wrong_tuple("json", event.lsn or 0) from cause

    def _record(self, event: ChangeEvent, source: _EncoderInput, codec: RowCodec) -> Record:
        a, b, x = source.frame
        n, added = source.n, self._added(event)
        headers = source.headers + added + self._headers
        key = None if event.key is None else self._key_bytes(event.key, codec)
        if event.tombstone:
            return Record(event.topic, key, None, headers)
        before, after = (self._image(row, codec) for row in (event.before, event.after))
        text = (
            f'{{"before":{before},"after":{after},"source":{{{a}{n}{b}{codec.table}{x}{n}{source.c}'
        )
        return Record(event.topic, key, self._prefix(event, codec) + text.encode(), headers)

    def _added(self, event: ChangeEvent) -> tuple[Header, ...]:
        if not event.headers:
            return ()
        return tuple((name, self._header(quote(value))) for name, value in event.headers)

    @staticmethod
    def _image(row: EventRow | None, codec: RowCodec) -> str:
        if row is None:
            return "null"
        if row.changed is None:
            return codec.row(row.image)
        return _object(row, row.changed, codec.columns)

    def _key_bytes(self, row: EventRow, codec: RowCodec) -> bytes:
        assert codec.key is not None
        if row.changed is None:
            before, after = codec.key_texts
            return f"{before}{codec.key(row.image)}{after}".encode()
        before, after = self._json.key_texts(_schema(row.changed, row, codec.key_schema))
        return f"{before}{_object(row, row.changed, codec.key_columns)}{after}".encode()

    def _prefix(self, event: ChangeEvent, codec: RowCodec) -> bytes:
        """Return the text before the payload of a value."""
        # Both images share one schema: the one of ``after``, or of ``before`` in a delete.
        row = event.after if event.after is not None else event.before
        if not codec.prefix or row is None or row.changed is None:
            return codec.prefix
        return self._prefix_of(codec.plan.topic, _schema(row.changed, row, codec.row_schema))


def _object(
    row: EventRow, fields: Mapping[str, int | GivenValue], codecs: Mapping[int, ColumnCodec]
) -> str:
    members = []
    for name, source in fields.items():
        if isinstance(source, GivenValue):
            text = _given(name, source)
        else:
            text = _cell(codecs[row.columns[source].index], row.image)
        members.append(f"{quote(name)}:{text}")
    return f"{{{','.join(members)}}}"


class _WrongFieldType(Exception):
    """A transform gave a field a value of another type."""


def _given(name: str, given: GivenValue) -> str:
    try:
        return value_json(given.schema, given.value)
    except (TypeError, KeyError) as cause:
        wanted, found = given.schema.kind.value, type(given.value).__name__
        raise _WrongFieldType(f"gave the field {name}, of type {wanted}, a {found}") from cause


def _cell(codec: ColumnCodec, values: Tuple) -> str:
    value: Value = values[codec.index]
    if codec.constant is not None:
        return codec.constant
    if isinstance(value, str):
        return value if codec.text is None else codec.text(value)
    return codec.other(value)


def _schema(fields: Mapping[str, int | GivenValue], row: EventRow, schema: Schema) -> Schema:
    return msgspec.structs.replace(schema, fields=changed_fields(fields, row, schema))
