"""Conversions from datums to the text that PostgreSQL prints.

Each type has one member of the oneof (decoderbufs.c, set_datum_value). Another member is a fault
of the producer and is refused.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from waltap_decoders.decoderbufs.floats import float4_text, float8_text
from waltap_decoders.decoderbufs.moments import (
    date_text,
    time_text,
    timestamp_text,
    timetz_text,
)

__all__ = ["DatumKind", "datum_kind", "typmod"]


@dataclass(frozen=True, slots=True)
class DatumKind:
    """Name the oneof member of a type and its conversion."""

    # The only member that values of this type may use.
    member: str
    # Converts a value to text; raises ValueError.
    text: Callable[[Any], str]


def datum_kind(type_oid: int) -> DatumKind:
    """Return the member and conversion of a type.

    Types without an entry arrive as text in bytes.
    """
    return _KINDS.get(type_oid, _TEXT_BYTES)


def typmod(type_oid: int, modifier: str) -> int | None:
    """Return the typmod of a type written by format_type.

    None means that the text does not determine it. Source: the typmodout functions of the types.
    """
    if type_oid not in _MODIFIED:
        return None
    found = _MODIFIER(modifier)
    if found is None:
        return -1
    first = int(found[1])
    if type_oid == _NUMERIC:
        if (found[2] or "").startswith("-"):
            return -1  # as Debezium, which reads no modifier there
        return ((first << 16) | (int(found[2] or 0) & 0x7FF)) + 4
    return first + 4 if type_oid in (_BPCHAR, _VARCHAR) else first


_NUMERIC, _BPCHAR, _VARCHAR = 1700, 1042, 1043
# Types whose typmod this module can compute from the printed modifier.
_MODIFIED = frozenset((_NUMERIC, _BPCHAR, _VARCHAR, 1083, 1114, 1184, 1266, 1560, 1562))
_MODIFIER = re.compile(r"\((\d+)(?:,(-?\d+))?\)").search


def _between(low: int, high: int) -> Callable[[int], str]:
    def text(value: int) -> str:
        if not low <= value <= high:
            message = f"a number from {low} to {high}"
            raise ValueError(message)
        return str(value)

    return text


def _bool(value: bool) -> str:
    return "t" if value else "f"


def _money(cents: int) -> str:
    """Return an amount as lc_monetary C prints it.

    Two decimals, commas and a dollar sign.
    """
    whole, rest = divmod(abs(cents), 100)
    return f"{'-' if cents < 0 else ''}${whole:,}.{rest:02d}"


def _timestamptz(micros: int) -> str:
    return timestamp_text(micros, zone="+00" if abs(micros) < 1 << 63 else "")


def _bytea(value: bytes) -> str:
    return "\\x" + value.hex()


def _point(value: Any) -> str:
    return f"({float8_text(value.x)},{float8_text(value.y)})"


def _string(value: str) -> str:
    if value.__class__ is not str:  # protobuf hands out a string that is not UTF-8 as bytes
        message = "text in UTF-8"
        raise ValueError(message)
    if "\0" in value:
        message = "text without NUL"
        raise ValueError(message)
    return value


def _text_bytes(value: bytes) -> str:
    try:
        return _string(value.decode())
    except UnicodeDecodeError as error:
        message = f"text in UTF-8 (byte {error.start} of it is not)"
        raise ValueError(message) from error


_STRING = DatumKind("datum_string", _string)
_TEXT_BYTES = DatumKind("datum_bytes", _text_bytes)
_KINDS = {
    16: DatumKind("datum_bool", _bool),
    17: DatumKind("datum_bytes", _bytea),
    20: DatumKind("datum_int64", str),
    21: DatumKind("datum_int32", _between(-(1 << 15), (1 << 15) - 1)),
    23: DatumKind("datum_int32", str),
    26: DatumKind("datum_int64", _between(0, (1 << 32) - 1)),
    600: DatumKind("datum_point", _point),
    700: DatumKind("datum_float", float4_text),
    701: DatumKind("datum_double", float8_text),
    790: DatumKind("datum_int64", _money),
    1082: DatumKind("datum_int32", date_text),
    1083: DatumKind("datum_int64", time_text),
    1114: DatumKind("datum_int64", timestamp_text),
    1184: DatumKind("datum_int64", _timestamptz),
    1266: DatumKind("datum_double", timetz_text),
} | dict.fromkeys((18, 25, 114, 142, 1042, 1043, 1186, 1560, 1562, 1700, 2950, 3802), _STRING)
