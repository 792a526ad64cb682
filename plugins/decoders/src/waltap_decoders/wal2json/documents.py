"""wal2json's JSON documents: read quickly by msgspec, with one careful reader behind it.

msgspec reads a document straight into the structs below, in C, numbers keeping every digit. It does
not notice a key that is given twice; but in valid JSON ``":`` without a backslash before the quote
ends a key and nothing else, so counting it tells whether a document has more keys than were read.
Whatever looks odd goes through the careful reader, which names the fault and its byte offset, or
finds nothing wrong (keys that a newer wal2json adds are passed over).
"""

import json
import re
from typing import Any, Never, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from waltap.decode_errors import UNREADABLE
from waltap.errors import DecodeError

__all__ = [
    "Action",
    "Format2Column",
    "JsonNumber",
    "OldKeys",
    "Transaction",
    "TransactionChange",
    "fail",
    "read_action",
    "read_change",
    "read_transaction",
]


class JsonNumber(str):
    """A JSON number with its digits as they were written."""

    __slots__ = ()


class Format2Column(msgspec.Struct, gc=False):
    """A column of format 2; ``value`` UNSET when it has none, which is not NULL."""

    name: str
    value: Any = UNSET
    typeoid: int = 0


class KeyColumn(msgspec.Struct, gc=False):
    """A column of the primary key in format 2."""

    name: str
    typeoid: int = 0


class KeyColumns(msgspec.Struct, kw_only=True):
    """The primary key in format 1. ``pktypes`` is empty where types are not asked for."""

    pknames: list[str]
    pktypes: list[str] = []


class Action(msgspec.Struct, kw_only=True):
    """An object of format 2."""

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
    """Old columns of format 1, in parallel arrays."""

    keynames: list[str]
    keyvalues: list[Any]
    keytypeoids: list[int] | UnsetType = UNSET


class TransactionChange(msgspec.Struct, kw_only=True):
    """A change of format 1, columns in parallel arrays."""

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
    """A whole transaction of format 1, or a message between transactions."""

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
_STRAY_COMMA = re.compile(
    rb'\s*\{\s*"change"\s*:\s*\[\s*(?=,\s*\{\s*"kind"\s*:\s*"message"\s*,\s*"transactional"\s*:\s*false\b)'
).match
"""What precedes the comma that wal2json writes before a message between transactions, where the
transaction before it has several changes: the count that decides on commas is of that one."""
_FAULTS = (*UNREADABLE, RecursionError)

_ACTION_KEYS = {"B": 6, "C": 6, "I": 8, "U": 8, "D": 7, "T": 7, "M": 8}
"""Keys of each object with the options that are asked for, lists of columns not counted inside."""


def read_action(lsn: int, data: bytes) -> Action:
    """Return an object of format 2. Raises: DecodeError."""
    try:
        action = _ACTION(data)
    except _FAULTS as cause:
        return _carefully(lsn, data, Action, cause)
    keys = _ACTION_KEYS.get(action.action, 0)
    columns, identity = action.columns, action.identity
    if columns is not UNSET:
        keys += 3 * len(columns)
    if identity is not UNSET:
        keys += 3 * len(identity) + (action.action == "U")
    if action.pk is not UNSET:
        keys += 1 + 2 * len(action.pk)
    return action if _plain(data, keys) else _carefully(lsn, data, Action, None)


def read_change(lsn: int, data: bytes) -> TransactionChange:
    """Return a change of format 1 that came in a chunk of its own. Raises: DecodeError."""
    try:
        change = _CHANGE(data)
    except _FAULTS as cause:
        return _carefully(lsn, data, TransactionChange, cause)
    plain = _plain(data, _keys(change))
    return change if plain else _carefully(lsn, data, TransactionChange, None)


def read_transaction(lsn: int, data: bytes) -> Transaction:
    """Return a transaction of format 1. Raises: DecodeError."""
    try:
        transaction = _TRANSACTION(data)
    except _FAULTS as cause:
        stray = _STRAY_COMMA(data)
        if stray is not None:  # a blank, so that places in the document stay
            return read_transaction(lsn, data[: stray.end()] + b" " + data[stray.end() + 1 :])
        return _carefully(lsn, data, Transaction, cause)
    keys = 5 if transaction.nextlsn is not None else 1
    keys += sum([_keys(change) for change in transaction.change])
    return transaction if _plain(data, keys) else _carefully(lsn, data, Transaction, None)


def fail(lsn: int, data: bytes, expected: str, found: str, *near: str) -> Never:
    """Raise a DecodeError at the byte where the first of the texts ``near`` stands that is there."""
    places = [place for text in near if (place := data.find(text.encode())) >= 0]
    raise DecodeError(
        "wal2json",
        lsn=lsn,
        offset=places[0] if places else 0,
        expected=expected,
        found=found,
        payload=data,
    )


def _keys(change: TransactionChange) -> int:
    """Return how many keys a change of format 1 has."""
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
    """Tell whether ``data`` has just that many keys, and no -0, which msgspec reads as 0."""
    found = data.count(b'":')
    if b"\\" in data:
        found -= data.count(b'\\":')
    if found != keys:
        return False
    for text in _NEGATIVE_ZEROS:  # one search per form is quicker than one pattern for all
        if text in data:
            return False
    return b"\n" not in data or _SPACED_NEGATIVE_ZERO(data) is None


def _carefully(lsn: int, data: bytes, kind: type[T], cause: Exception | None) -> T:
    """Read ``data`` by the standard library, naming what is wrong with it."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise DecodeError(
            "wal2json",
            lsn=lsn,
            offset=error.start,
            expected="UTF-8",
            found=f"byte 0x{data[error.start]:02x}",
            payload=data,
        ) from error
    try:
        value = json.loads(
            text,
            parse_int=_integer,
            parse_float=JsonNumber,
            parse_constant=_refuse_constant,
            object_pairs_hook=_unique,
        )
    except json.JSONDecodeError as error:
        end = error.pos >= len(text)
        raise DecodeError(
            "wal2json",
            lsn=lsn,
            offset=len(text[: error.pos].encode()),
            expected=f"JSON ({error.msg})",
            found="the end" if end else repr(text[error.pos : error.pos + 10]),
            payload=data,
        ) from error
    except _DocumentRefused as error:
        fail(lsn, data, error.expected, error.found, *error.near)
    except RecursionError:
        fail(lsn, data, "JSON of a few levels", "hundreds of levels")
    if not isinstance(value, dict):
        fail(lsn, data, "a JSON object", type(value).__name__)
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        fail(lsn, data, f"a wal2json {kind.__name__.lower()}", str(error), _key_of(str(error)))
    except RecursionError:
        fail(lsn, data, "JSON of a few levels", str(cause))


class _DocumentRefused(Exception):
    def __init__(self, expected: str, found: str, *near: str) -> None:
        super().__init__(expected)
        self.expected, self.found, self.near = expected, found, near


def _integer(digits: str) -> int | JsonNumber:
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
    """Return the quoted key that a validation error speaks of, as it stands in the document."""
    found = re.search(r"`\$(?:\.|.*\.)(\w+)(?:\[.*)?`|field `(\w+)`", text)
    return f'"{found[1] or found[2]}"' if found else "{"
