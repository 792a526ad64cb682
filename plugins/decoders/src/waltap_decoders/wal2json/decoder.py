"""The wal2json decoder: format 2, and format 1 with or without chunks.

Source: wal2json's README and wal2json.c; recorded output of version 2.5.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, Never

from msgspec import UNSET, UnsetType

from waltap.changes.decode.builtin_types import builtin_type
from waltap.changes.decode.decoder import Decoder, DecoderContext, Frame, codec_of
from waltap.changes.decode.message import (
    Begin,
    Commit,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    OldTuple,
    Origin,
    Truncate,
    Update,
    skip,
)
from waltap.changes.decode.tuple_image import Value
from waltap.changes.transactions.position import parse_lsn
from waltap_decoders.capabilities import WAL2JSON
from waltap_decoders.named_relations import NamedRelations, RowMakeUp, RowPlan, RowPlans
from waltap_decoders.row_facts import ColumnFact, OldRowColumns, RowFacts
from waltap_decoders.wal2json.documents import (
    Action,
    Format2Column,
    JsonNumber,
    Transaction,
    TransactionChange,
    fail,
    fail_at,
    read_action,
    read_change,
    read_transaction,
)
from waltap_decoders.wal2json.properties import Wal2JsonProperties, plugin_options

# Conversions from wal2json's JSON values to the server's text.
#
# Source: wal2json.c, pg_decode_write_value and its format 1 twin. Numbers and booleans are bare,
# bytea loses its ``\\x``, and all other values are strings.

# Converts a JSON value other than null to text. Raises: ValueError with the expected values.
ToText = Callable[[Any], str]

_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?").fullmatch
_HEX = re.compile(r"(?:[0-9a-f]{2})*").fullmatch
_SPECIAL = frozenset(("NaN", "Infinity", "-Infinity"))

# Bits of an integer type's positive values.
_INTEGERS = {"int2": 15, "int4": 31, "int8": 63}


def to_text(type_oid: int, *, numbers_as_strings: bool) -> ToText:
    """Return a type's conversion; OID 0 is unknown."""
    known = builtin_type(type_oid)
    match known.name if known else "":
        case "bool":
            return _boolean
        case "bytea":
            return _bytea
        case "int2" | "int4" | "int8" as name:
            limit = 1 << _INTEGERS[name]
            return _integer(-limit, limit - 1, as_string=numbers_as_strings)
        case "oid":
            return _integer(0, (1 << 32) - 1, as_string=numbers_as_strings)
        case "float4" | "float8" | "numeric":
            return _number_or_string if numbers_as_strings else _number
        case _:
            return _text if type_oid else _anything


def _integer(low: int, high: int, *, as_string: bool) -> ToText:
    def convert(value: Any) -> str:
        if as_string and value.__class__ is str and _NUMBER(value):
            value = int(value) if len(value) < 20 else None
        if value.__class__ is int and low <= value <= high:
            return str(value)
        raise ValueError(f"an integer from {low} to {high}")

    return convert


def _number(value: Any) -> str:
    if value.__class__ is int:
        return str(value)
    if value.__class__ is JsonNumber:
        return str.__str__(value)
    raise ValueError("a number")


def _number_or_string(value: Any) -> str:
    if value.__class__ is str and (value in _SPECIAL or _NUMBER(value)):
        return str(value)
    return _number(value)


def _boolean(value: Any) -> str:
    if value is True:
        return "t"
    if value is False:
        return "f"
    raise ValueError("true or false")


def _bytea(value: Any) -> str:
    if value.__class__ is str and _HEX(value):
        return "\\x" + str(value)
    raise ValueError("an even number of hexadecimal digits")


def _text(value: Any) -> str:
    if value.__class__ is str:
        return str(value)
    raise ValueError("a string")


def _anything(value: Any) -> str:
    if value is True or value is False:
        return _boolean(value)
    if value.__class__ is int:
        return str(value)
    if isinstance(value, str):
        return str.__str__(value)
    raise ValueError("a string, a number or a boolean")


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_LSN = re.compile(r"[0-9A-F]{1,8}/[0-9A-F]{1,8}").fullmatch
_KINDS = {"insert": "I", "update": "U", "delete": "D"}


class _ImageColumns(NamedTuple):
    """Hold the columns of one row image in parallel."""

    names: tuple[str, ...]
    oids: tuple[int, ...]
    values: list[Any]


# A missing image. An image that is present may have no columns, too, hence a sentinel.
_NO_COLUMNS = _ImageColumns((), (), [])


def _image(columns: list[Format2Column] | UnsetType) -> _ImageColumns:
    """Return the columns of a row image in format 2."""
    if columns is UNSET:
        return _NO_COLUMNS
    return _ImageColumns(
        tuple([column.name for column in columns]),
        tuple([column.typeoid for column in columns]),
        [column.value for column in columns],
    )


def _parallel(
    names: list[str] | UnsetType, oids: list[int] | UnsetType, values: list[Any] | UnsetType
) -> _ImageColumns:
    """Return the columns of a row image in format 1."""
    if names is UNSET or values is UNSET:
        return _NO_COLUMNS
    # Without their OIDs the types are unknown.
    return _ImageColumns(tuple(names), (0,) * len(names) if oids is UNSET else tuple(oids), values)


class Wal2Json(Decoder):
    """Decode wal2json.

    The state belongs to one session, and a DecodeError ends that session.
    """

    name = "wal2json"

    def __init__(self, context: DecoderContext) -> None:
        properties = Wal2JsonProperties.model_validate(dict(context.options))
        self._options = plugin_options(properties)
        self._as_strings = properties.numbers_as_strings
        self._first_format = properties.format_version == "1"
        self._read = self._action
        if self._first_format:
            self._read = self._chunk if properties.write_in_chunks else self._transaction
        self.capabilities = replace(
            WAL2JSON, truncate=not self._first_format, special_numbers=properties.numbers_as_strings
        )
        self._codec = codec_of(context.server.encoding)
        self._relations = NamedRelations(context)
        self._plans = RowPlans[ToText](self._relations)
        self._begin: Begin | None = None
        # Changes of the open transaction so far: all but the first begin with a comma.
        self._chunks = 0
        self._end_lsn: int | None = None

    def start_options(self) -> dict[str, str]:
        return dict(self._options)

    def feed(self, frames: Sequence[Frame]) -> list[Message]:
        messages: list[Message] = []
        if self._codec is not None:
            frames = [(frame[0], _as_utf8(frame, self._codec)) for frame in frames]
        for frame in frames:
            self._read(frame, messages)
        self._relations.pause(messages)
        return messages

    # --- format 2 --------------------------------------------------------------------------------

    def _action(self, frame: Frame, messages: list[Message]) -> None:
        action = read_action(frame)
        kind, begin = action.action, self._begin
        if kind == "B":
            if begin is not None:
                fail(frame, "C before the next B", "B", '"B"')
            commit_lsn = _lsn(frame, action.lsn, "lsn")
            self._start(frame, messages, action, commit_lsn)
            return
        if kind == "M" and action.transactional is False:
            self._message(frame, action, messages)
            return
        if begin is None:
            fail(frame, "B first", kind, f'"{kind}"')
        if action.xid is not None and action.xid != begin.xid:
            fail(frame, f"xid {begin.xid} as in B", str(action.xid), '"xid"')
        if kind in ("I", "U", "D"):
            self._action_row(frame, action, messages)
        elif kind == "C":
            commit_lsn = _lsn(frame, action.lsn, "lsn")
            if commit_lsn != begin.commit_lsn:
                fail(frame, f"lsn {begin.commit_lsn:#x} as in B", str(action.lsn), '"lsn"')
            # The frame's own LSN replaces a nextlsn that is missing.
            end_lsn = _lsn(frame, action.nextlsn, "nextlsn") or frame[0]
            self._commit(frame[0], begin, end_lsn, messages, commit_lsn)
        elif kind == "T":
            self._truncate(frame, action, messages)
        elif kind == "M":
            self._message(frame, action, messages)
        else:
            fail(frame, "action B, C, I, U, D, T or M", repr(kind), f'"{kind}"')

    def _action_row(self, frame: Frame, action: Action, messages: list[Message]) -> None:
        kind, columns, identity = action.action, action.columns, action.identity
        schema, table = _table(frame, action)
        if not self._relations.captured(schema, table):
            skip(messages)
            return
        new, old = _image(columns), _image(identity)
        if (columns is UNSET) != (kind == "D"):
            wanted = "no columns" if kind == "D" else "columns"
            fail(frame, f"{wanted} in {kind}", "the opposite", '"columns"')
        if (identity is UNSET and kind == "D") or (identity is not UNSET and kind == "I"):
            wanted = "identity" if kind == "D" else "no identity"
            fail(frame, f"{wanted} in {kind}", "the opposite", '"identity"')
        pk = None if action.pk is UNSET else tuple([column.name for column in action.pk])
        self._row(frame, kind, schema, table, new, old, pk, messages)

    def _truncate(self, frame: Frame, action: Action, messages: list[Message]) -> None:
        schema, table = _table(frame, action)
        if not self._relations.captured(schema, table):
            skip(messages)
            return
        relation = self._relations.relation(schema, table)
        if relation is None:
            skip(messages)
            return
        self._plans.show(relation, messages)
        messages.append(Truncate((relation,), frame[0]))

    # --- format 1 --------------------------------------------------------------------------------

    def _transaction(self, frame: Frame, messages: list[Message]) -> None:
        transaction = read_transaction(frame)
        if self._is_message(transaction):
            self._message(frame, transaction.change[0], messages)
            return
        begin = self._start(frame, messages, transaction, 0)
        for change in transaction.change:
            self._change(frame, change, messages)
        end_lsn = _lsn(frame, transaction.nextlsn, "nextlsn") or frame[0]
        self._commit(frame[0], begin, end_lsn, messages)

    def _chunk(self, frame: Frame, messages: list[Message]) -> None:
        lsn, data = frame
        body = data.strip(b"\r\n\t ")
        if self._begin is None:
            if body.startswith(b",") or body == b"]}":
                fail(frame, "a transaction's opener first", repr(data[:10]))
            if body.endswith(b"["):
                opener = read_transaction((lsn, body + b"]}"))
                if opener.xid is None:  # a message between transactions, truncated
                    fail(frame, "xid in a transaction's opener", "none")
                self._end_lsn = _lsn(frame, opener.nextlsn, "nextlsn")
                self._start(frame, messages, opener, 0)
                self._chunks = 0
                return
            transaction = read_transaction(frame)
            if not self._is_message(transaction):
                fail(frame, "an opener, or a message between transactions", "neither")
            self._message(frame, transaction.change[0], messages)
        elif body == b"]}":
            self._commit(lsn, self._begin, self._end_lsn or lsn, messages)
        else:
            # A comma precedes each change after the first.
            comma = body.startswith(b",")
            if comma != (self._chunks > 0) or body.endswith(b"["):
                wanted = "a comma and a change" if self._chunks else "a change"
                fail(frame, f"{wanted}, or ]}}", repr(data[:10]))
            self._chunks += 1
            self._change(frame, read_change((lsn, body[comma:])), messages)

    def _change(self, frame: Frame, change: TransactionChange, messages: list[Message]) -> None:
        if change.kind == "message":
            if not change.transactional:
                fail(frame, "a transactional message inside a transaction", "another")
            self._message(frame, change, messages)
            return
        kind = _KINDS.get(change.kind)
        if kind is None:
            expected = "kind insert, update, delete or message"
            fail(frame, expected, repr(change.kind), f'"{change.kind}"')
        schema, table = _table(frame, change)
        if not self._relations.captured(schema, table):
            skip(messages)
            return
        new = _parallel(change.columnnames, change.columntypeoids, change.columnvalues)
        keys = change.oldkeys
        old = _NO_COLUMNS
        if keys is not UNSET:
            old = _parallel(keys.keynames, keys.keytypeoids, keys.keyvalues)
        for columns, what in ((new, "column"), (old, "key")):
            sizes = {len(columns.names), len(columns.oids), len(columns.values)}
            if len(sizes) > 1:
                expected = f"{what} names, types and values of one length"
                fail(frame, expected, f"{sorted(sizes)}", f'"{what}names"')
        if (new is _NO_COLUMNS) != (kind == "D") or (kind == "D" and old is _NO_COLUMNS):
            expected = "old keys and no columns" if kind == "D" else "columns"
            fail(frame, f"{expected} in {change.kind}", "others", f'"{change.kind}"')
        pk = None if change.pk is UNSET else tuple(change.pk.pknames)
        self._row(frame, kind, schema, table, new, old, pk, messages)

    def _is_message(self, transaction: Transaction) -> bool:
        """Return whether this is a message outside of transactions.

        wal2json wraps it like a transaction.
        """
        changes = transaction.change
        if len(changes) != 1 or transaction.nextlsn is not None or transaction.xid is not None:
            return False
        return changes[0].kind == "message" and changes[0].transactional is False

    # --- both ------------------------------------------------------------------------------------

    def _start(
        self, frame: Frame, messages: list[Message], head: Action | Transaction, commit_lsn: int
    ) -> Begin:
        lsn, xid = frame[0], head.xid or 0
        if not 0 <= xid < 1 << 32:
            fail(frame, "xid from 0 to 4294967295", str(xid), '"xid"')
        begin = self._begin = Begin(lsn, xid, commit_lsn, _time(frame, head.timestamp))
        self._plans.began(xid, lsn)
        messages.append(begin)
        if head.origin:
            messages.append(Origin(lsn, str(head.origin), 0))
        return begin

    def _commit(
        self, lsn: int, begin: Begin, end_lsn: int, messages: list[Message], commit_lsn: int = 0
    ) -> None:
        self._relations.commit(begin, messages)
        messages.append(Commit(lsn, commit_lsn, end_lsn, begin.commit_ts, begin.xid))
        self._begin = None

    def _message(
        self, frame: Frame, source: Action | TransactionChange, messages: list[Message]
    ) -> None:
        if source.prefix is None or source.content is None or source.transactional is None:
            fail(frame, "transactional, prefix and content in a message", "less", '"prefix"')
        if source.transactional != (self._begin is not None):
            where = "inside a transaction" if self._begin else "between transactions"
            expected = "messages inside transactions if and only if they are transactional"
            fail(frame, expected, f"it {where}", '"transactional"')
        content = source.content.encode()
        messages.append(LogicalMessage(frame[0], source.transactional, source.prefix, content))

    def _row(
        self,
        frame: Frame,
        kind: str,
        schema: str,
        table: str,
        new: _ImageColumns,
        old: _ImageColumns,
        pk: tuple[str, ...] | None,
        messages: list[Message],
    ) -> None:
        lsn, none = frame[0], old is _NO_COLUMNS
        key = (kind, schema, table, new.names, new.oids, old.names, old.oids, none, pk)
        plan = self._plans.get(key) or self._plan(frame, key, new, old, pk)
        if plan is None:
            skip(messages)
            return
        layout = plan.layout
        relation = layout.relation
        self._plans.show(relation, messages)
        if kind == "D":
            before = layout.old_tuple(_texts(frame, old, plan.old))
            messages.append(Delete(relation, lsn, before, layout.old_kind))
            return
        after = layout.new_tuple(_texts(frame, new, plan.new))
        if kind == "I":
            if None in after and any(new.values[index] is None for index in plan.key):
                index = next(index for index in plan.key if new.values[index] is None)
                _keyless(frame, new.names[index], "null")
            messages.append(Insert(relation, lsn, after))
            return
        if not none:
            before = layout.old_tuple(_texts(frame, old, plan.old))
            # wal2json also sends the old key of an update that did not change it; pgoutput does
            # not, so it is dropped.
            if layout.old_kind is OldTuple.FULL or not layout.key_is_same(after, before):
                messages.append(Update(relation, lsn, after, before, layout.old_kind))
                return
        messages.append(Update(relation, lsn, after))

    def _plan(
        self,
        frame: Frame,
        key: RowMakeUp,
        new: _ImageColumns,
        old: _ImageColumns,
        pk: tuple[str, ...] | None,
    ) -> RowPlan[ToText] | None:
        """Compile and store the plan of rows like this one.

        None means that the rows are a materialized view's.
        """
        kind, schema, table, *_ = key
        for columns in (new, old):
            if len(set(columns.names)) != len(columns.names):
                name = next(name for name in columns.names if columns.names.count(name) > 1)
                fail(frame, "each column once", f"column {name!r} again", f'"{name}"')
        required = (pk or ()) if kind == "I" else ()
        for name in required:
            if name not in new.names:
                _keyless(frame, name, "none")
        row = RowFacts(
            kind,
            _facts(new),
            _facts(old),
            OldRowColumns.SET if self._first_format else OldRowColumns.IDENTITY,
            frozenset(old.names),
            pk,
            only_nulls=old is not _NO_COLUMNS and not old.names,
        )
        layout = self._relations.layout(schema, table, row)
        if layout is None:
            return None
        types = {column.name: column.type_oid for column in layout.relation.columns}
        new_texts, old_texts = (
            tuple(
                to_text(types[name], numbers_as_strings=self._as_strings) for name in columns.names
            )
            for columns in (new, old)
        )
        indexes = map(new.names.index, required)
        return self._plans.add(key, layout, new_texts, old_texts, indexes)


def _as_utf8(frame: Frame, codec: str) -> bytes:
    data = frame[1]
    try:
        return data.decode(codec).encode()
    except UnicodeDecodeError as error:
        fail_at(frame, error.start, f"text in {codec}", f"0x{data[error.start]:02x}", error)


def _keyless(frame: Frame, name: str, found: str) -> Never:
    """Raise a DecodeError for a new row without its key."""
    fail(frame, f"a value of column {name!r}, which identifies the new row", found, f'"{name}"')


def _facts(columns: _ImageColumns) -> tuple[ColumnFact, ...]:
    """Return a row's facts about its columns."""
    return tuple(
        # wal2json prints type OIDs as signed numbers.
        ColumnFact(name, oid & 0xFFFFFFFF)
        for name, oid in zip(columns.names, columns.oids, strict=True)
    )


def _texts(frame: Frame, columns: _ImageColumns, texts: tuple[ToText, ...]) -> list[Value]:
    """Return the values of a row's columns as text."""
    try:
        return [
            None if value is None else text(value)
            for value, text in zip(columns.values, texts, strict=True)
        ]
    except ValueError:
        pass
    # A conversion failed: find the column, which the fast path does not track.
    for name, value, text in zip(columns.names, columns.values, texts, strict=True):
        near = f'"{name}"'
        if value is UNSET:
            fail(frame, f"a value of column {name!r}", "none", near)
        if value is not None:
            try:
                text(value)
            except ValueError as error:
                fail(frame, f"column {name!r}: {error}", type(value).__name__, near)
    return []


def _table(frame: Frame, source: Action | TransactionChange) -> tuple[str, str]:
    if source.schema is None or source.table is None:
        missing = "schema" if source.schema is None else "table"
        fail(frame, f"a {missing}", "none", '"table"', '"schema"')
    return source.schema, source.table


def _lsn(frame: Frame, text: str | None, name: str) -> int:
    """Return an LSN field, or 0 if it is missing."""
    if text is None:
        return 0
    if not _LSN(text):
        fail(frame, f"an LSN in {name}", repr(text[:20]), f'"{name}"')
    return parse_lsn(text)


def _time(frame: Frame, text: str | None) -> int:
    """Return a timestamptz text in µs since 1970 UTC.

    0 means that the text is missing.
    """
    if text is None:
        return 0
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        fail(frame, "a timestamp", repr(text[:40]), '"timestamp"')
    if moment.tzinfo is None:
        fail(frame, "a timestamp with its zone", repr(text[:40]), '"timestamp"')
    return (moment - _EPOCH) // _MICROSECOND
