"""Structs of wal2json's JSON documents, and their checked reading.

msgspec reads a document into the structs below and keeps every digit of numbers. It does not
notice a repeated key. In valid JSON, ``":`` without a backslash before the quote ends a key and
occurs nowhere else. Counting it therefore shows whether a document has more keys than were read.
The careful reader reads every odd document again. It names the fault and its byte offset, or finds
none: keys of a newer wal2json are ignored.
"""

import json
import re
from typing import Any, Never, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from waltap.base.files.durable_file import UNREADABLE
from waltap.changes.decode.decoder import Frame
from waltap.errors import DecodeError


class JsonNumber(str):
    """Keep a JSON number with its original digits."""

    __slots__ = ()


class Format2Column(msgspec.Struct, gc=False):
    """Describe a column of format 2."""

    name: str
    # UNSET means that there is no value, which differs from NULL.
    value: Any = UNSET
    typeoid: int = 0


class KeyColumn(msgspec.Struct, gc=False):
    """Describe a column of the primary key in format 2."""

    name: str
    typeoid: int = 0


class KeyColumns(msgspec.Struct, kw_only=True):
    """List the primary key in format 1."""

    pknames: list[str]
    # Empty where the options do not ask for types.
    pktypes: list[str] = []


class Action(msgspec.Struct, kw_only=True):
    """Hold an object of format 2."""

    action: str
    xid: int | None = None
    timestamp: str | None = None
    origin: int | None = None
    lsn: str | None = None
    nextlsn: str | None = None
    schema: str | None = None
    table: str | None = None
    columns: list[Format2Column] | UnsetType = UNSET
    identity: list[Format2Column] | UnsetType = UNSET
    pk: list[KeyColumn] | UnsetType = UNSET
    transactional: bool | None = None
    prefix: str | None = None
    content: str | None = None


class OldKeys(msgspec.Struct, kw_only=True):
    """Hold old columns of format 1 in parallel arrays."""

    keynames: list[str]
    keyvalues: list[Any]
    keytypeoids: list[int] | UnsetType = UNSET


class TransactionChange(msgspec.Struct, kw_only=True):
    """Hold a change of format 1. Its columns are in parallel arrays."""

    kind: str
    schema: str | None = None
    table: str | None = None
    columnnames: list[str] | UnsetType = UNSET
    columntypeoids: list[int] | UnsetType = UNSET
    columnvalues: list[Any] | UnsetType = UNSET
    oldkeys: OldKeys | UnsetType = UNSET
    pk: KeyColumns | UnsetType = UNSET
    transactional: bool | None = None
    prefix: str | None = None
    content: str | None = None


class Transaction(msgspec.Struct, kw_only=True):
    """Hold a transaction of format 1.

    A message outside of transactions has the same form.
    """

    change: list[TransactionChange]
    xid: int | None = None
    nextlsn: str | None = None
    timestamp: str | None = None
    origin: int | None = None


T = TypeVar("T")

_ACTION = msgspec.json.Decoder(Action, float_hook=JsonNumber).decode
_CHANGE = msgspec.json.Decoder(TransactionChange, float_hook=JsonNumber).decode
_TRANSACTION = msgspec.json.Decoder(Transaction, float_hook=JsonNumber).decode
_NEGATIVE_ZEROS = (b":-0,", b":-0}", b",-0,", b",-0]", b"[-0,", b"[-0]")
_SPACED_NEGATIVE_ZERO = re.compile(rb"\s-0[,}\]\s]").search
# wal2json writes a comma before a message outside of transactions if the transaction before it had
# several changes, because its counter still belongs to that one. This pattern matches the text
# before the comma.
_STRAY_COMMA = re.compile(
    rb'\s*\{\s*"change"\s*:\s*\[\s*(?=,\s*\{\s*"kind"\s*:\s*"message"\s*,\s*"transactional"\s*:\s*false\b)'
).match
_FAULTS = (*UNREADABLE, RecursionError)

# Keys of each object with the requested options, without those inside lists of columns.
_ACTION_KEYS = {"B": 6, "C": 6, "I": 8, "U": 8, "D": 7, "T": 7, "M": 8}


def read_action(frame: Frame) -> Action:
    """Read an object of format 2. Raises: DecodeError."""
    data = frame[1]
    try:
        action = _ACTION(data)
    except _FAULTS as cause:
        return _carefully(frame, Action, cause)
    keys = _ACTION_KEYS.get(action.action, 0)
    columns, identity = action.columns, action.identity
    if columns is not UNSET:
        keys += 3 * len(columns)
    if identity is not UNSET:
        keys += 3 * len(identity) + (action.action == "U")
    if action.pk is not UNSET:
        keys += 1 + 2 * len(action.pk)
    return action if _plain(data, keys) else _carefully(frame, Action, None)


def read_change(frame: Frame) -> TransactionChange:
    """Read a change of format 1 from its own chunk. Raises: DecodeError."""
    try:
        change = _CHANGE(frame[1])
    except _FAULTS as cause:
        return _carefully(frame, TransactionChange, cause)
    plain = _plain(frame[1], _keys(change))
    return change if plain else _carefully(frame, TransactionChange, None)


def read_transaction(frame: Frame) -> Transaction:
    """Read a transaction of format 1. Raises: DecodeError."""
    lsn, data = frame
    try:
        transaction = _TRANSACTION(data)
    except _FAULTS as cause:
        stray = _STRAY_COMMA(data)
        if stray is not None:  # a blank keeps the offsets in the document
            return read_transaction((lsn, data[: stray.end()] + b" " + data[stray.end() + 1 :]))
        return _carefully(frame, Transaction, cause)
    keys = 5 if transaction.nextlsn is not None else 1
    keys += sum([_keys(change) for change in transaction.change])
    return transaction if _plain(data, keys) else _carefully(frame, Transaction, None)


def fail(frame: Frame, expected: str, found: str, *near: str) -> Never:
    """Raise a DecodeError at the first text of ``near`` that occurs.

    Without any, the offset is 0.
    """
    offsets = [offset for text in near if (offset := frame[1].find(text.encode())) >= 0]
    fail_at(frame, offsets[0] if offsets else 0, expected, found)


def fail_at(
    frame: Frame, offset: int, expected: str, found: str, cause: Exception | None = None
) -> Never:
    """Raise a DecodeError, of a ``cause``."""
    lsn, data = frame
    raise DecodeError(
        "wal2json", lsn=lsn, offset=offset, expected=expected, found=found, payload=data
    ) from cause


def _keys(change: TransactionChange) -> int:
    """Return the number of keys in a change of format 1."""
    if change.kind == "message":
        return 4
    keys = 3
    if change.columnnames is not UNSET:
        keys += 3
    if change.oldkeys is not UNSET:
        keys += 4
    if change.pk is not UNSET:
        keys += 3
    return keys


def _plain(data: bytes, keys: int) -> bool:
    """Return whether ``data`` needs no careful reading.

    It has exactly ``keys`` keys and no -0, which msgspec reads as 0.
    """
    found = data.count(b'":')
    if b"\\" in data:
        found -= data.count(b'\\":')
    if found != keys:
        return False
    for text in _NEGATIVE_ZEROS:  # one search per form is quicker than one pattern for all
        if text in data:
            return False
    return b"\n" not in data or _SPACED_NEGATIVE_ZERO(data) is None


# What errors call the documents.
_CALLED: dict[type, str] = {
    Action: "action",
    TransactionChange: "change",
    Transaction: "transaction",
}


def _carefully(frame: Frame, kind: type[T], cause: Exception | None) -> T:
    """Read a document by the standard library and name its fault."""
    data = frame[1]
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        fail_at(frame, error.start, "UTF-8", f"byte 0x{data[error.start]:02x}", error)
    try:
        value = json.loads(
            text,
            parse_int=_integer,
            parse_float=JsonNumber,
            parse_constant=_refuse_constant,
            object_pairs_hook=_unique,
        )
    except json.JSONDecodeError as error:
        found = repr(text[error.pos : error.pos + 10]) if error.pos < len(text) else "the end"
        at = len(text[: error.pos].encode())
        fail_at(frame, at, f"JSON ({error.msg})", found, error)
    except _DocumentRefused as error:
        fail(frame, error.expected, error.found, *error.near)
    except RecursionError:
        fail(frame, "JSON of a few levels", "hundreds of levels")
    if not isinstance(value, dict):
        fail(frame, "a JSON object", type(value).__name__)
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        fail(frame, f"a wal2json {_CALLED[kind]}", str(error), _key_of(str(error)))
    except RecursionError:
        fail(frame, "JSON of a few levels", str(cause))


class _DocumentRefused(Exception):
    def __init__(self, expected: str, found: str, *near: str) -> None:
        super().__init__(expected)
        self.expected, self.found, self.near = expected, found, near


def _integer(digits: str) -> int | JsonNumber:
    # int drops the sign of -0, and Python refuses to convert more than 4300 digits.
    return JsonNumber(digits) if digits == "-0" or len(digits) > 4000 else int(digits)


def _refuse_constant(name: str) -> Never:
    raise _DocumentRefused("a JSON number", f"bare {name}", f":{name}", f",{name}", name)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        name = next(name for name in names if names.count(name) > 1)
        raise _DocumentRefused("each key once", f"key {name!r} again", f'"{name}"')
    return result


def _key_of(text: str) -> str:
    """Return the document's key that a validation error names."""
    found = re.search(r"`\$(?:\.|.*\.)(\w+)(?:\[.*)?`|field `(\w+)`", text)
    return f'"{found[1] or found[2]}"' if found else "{"
