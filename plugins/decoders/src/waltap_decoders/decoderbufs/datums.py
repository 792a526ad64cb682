"""Conversions from datums to the text that PostgreSQL prints.

Each type has one member of the oneof (decoderbufs.c, set_datum_value). Another member is a fault
of the producer and is refused.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from waltap.changes.decode.builtin_types import ARRAY_ELEMENTS, builtin_type
from waltap.changes.decode.value_text import (
    DAY_MICROS,
    clock_text,
    day_text,
    float4_text,
    float8_text,
)

# Conversions from decoderbufs' dates and times to PostgreSQL's text.
#
# DateStyle is ISO. Source: decoderbufs.c, with its overflows, and datetime.c of PostgreSQL.

_INFINITY, _MINUS_INFINITY = (1 << 63) - 1, -(1 << 63)
# 4714-11-24 BC, PostgreSQL's earliest timestamp, in µs since 1970. Anything lower wrapped when
# decoderbufs added the epoch.
_EARLIEST = -210_866_803_200_000_000
# 4714-11-24 BC and 5874897-12-31, in days since 1970.
_FIRST_DAY, _LAST_DAY = -2_440_588, 2_145_042_905
# decoderbufs adds 10957 days to ±infinity (INT_MAX and INT_MIN) as well; these are the wrapped
# results.
_DAY_INFINITY, _DAY_MINUS_INFINITY = -2_147_472_692, -2_147_472_691


def date_text(days: int) -> str:
    """Return the date ``days`` after 1970-01-01. Raises: ValueError."""
    if days == _DAY_INFINITY:
        return "infinity"
    if days == _DAY_MINUS_INFINITY:
        return "-infinity"
    if not _FIRST_DAY <= days <= _LAST_DAY:
        raise ValueError(f"days from {_FIRST_DAY} to {_LAST_DAY}")
    day, era = day_text(days)
    return day + era


def timestamp_text(micros: int, *, zone: str = "") -> str:
    """Return the timestamp ``micros`` after 1970-01-01.

    ``zone`` follows the time of day.
    """
    if micros == _INFINITY:
        return "infinity"
    if micros == _MINUS_INFINITY:
        return "-infinity"
    if micros < _EARLIEST:
        micros += 1 << 64
    days, rest = divmod(micros, DAY_MICROS)
    day, era = day_text(days)
    return f"{day} {clock_text(rest)}{zone}{era}"


def time_text(micros: int) -> str:
    """Return the time of day ``micros`` after midnight. Raises: ValueError."""
    if not 0 <= micros <= DAY_MICROS:
        raise ValueError(f"microseconds from 0 to {DAY_MICROS}")
    return clock_text(micros)


def timetz_text(micros: float) -> str:
    """Return the time of day in UTC.

    The original zone does not arrive. Midnight at the end of a day becomes midnight at its start.
    Raises: ValueError.
    """
    if not -DAY_MICROS <= micros <= 2 * DAY_MICROS or micros != int(micros):
        raise ValueError(f"whole microseconds from {-DAY_MICROS} to {2 * DAY_MICROS}")
    return clock_text(int(micros) % DAY_MICROS) + "+00"


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
    known = builtin_type(type_oid)
    return _KINDS.get(known.name, _TEXT_BYTES) if known else _TEXT_BYTES


def typmod(type_oid: int, modifier: str) -> int | None:
    """Return the typmod of a type written by format_type.

    None means that the text does not determine it. Source: the typmodout functions of the types.
    """
    known = builtin_type(type_oid)
    name = ARRAY_ELEMENTS.get(type_oid, known.name if known else None)
    if name not in _MODIFIED:
        return None
    found = _MODIFIER(modifier)
    if found is None:
        return -1
    first = int(found[1])
    if name == "numeric":
        # With all 16 bits a negative scale is one, as Debezium reads it here. The server's own
        # modifier has 11 bits, and Debezium takes those for a positive scale.
        return ((first << 16) | (int(found[2] or 0) & 0xFFFF)) + 4
    return first + 4 if name in ("bpchar", "varchar") else first


# Types whose typmod this module can compute from the printed modifier.
_MODIFIED = frozenset(
    ("numeric", "bpchar", "varchar", "time", "timestamp", "timestamptz", "timetz", "bit", "varbit")
)
_MODIFIER = re.compile(r"\((\d+)(?:,(-?\d+))?\)").search


def _between(low: int, high: int) -> Callable[[int], str]:
    def text(value: int) -> str:
        if not low <= value <= high:
            raise ValueError(f"a number from {low} to {high}")
        return str(value)

    return text


def _money(cents: int) -> str:
    """Return an amount as lc_monetary C prints it.

    Two decimals, commas and a dollar sign.
    """
    dollars, rest = divmod(abs(cents), 100)
    return f"{'-' if cents < 0 else ''}${dollars:,}.{rest:02d}"


def _timestamptz(micros: int) -> str:
    return timestamp_text(micros, zone="+00" if abs(micros) < 1 << 63 else "")


def _string(value: str) -> str:
    if value.__class__ is not str:  # protobuf hands out a string that is not UTF-8 as bytes
        raise ValueError("text in UTF-8")
    if "\0" in value:
        raise ValueError("text without NUL")
    return value


def _text_bytes(value: bytes) -> str:
    try:
        return _string(value.decode())
    except UnicodeDecodeError as error:
        raise ValueError(f"text in UTF-8 (byte {error.start} of it is not)") from error


_STRING = DatumKind("datum_string", _string)
_TEXT_BYTES = DatumKind("datum_bytes", _text_bytes)
_KINDS: dict[str, DatumKind] = {
    "bool": DatumKind("datum_bool", lambda value: "t" if value else "f"),
    "bytea": DatumKind("datum_bytes", lambda value: "\\x" + value.hex()),
    "int8": DatumKind("datum_int64", str),
    "int2": DatumKind("datum_int32", _between(-(1 << 15), (1 << 15) - 1)),
    "int4": DatumKind("datum_int32", str),
    "oid": DatumKind("datum_int64", _between(0, (1 << 32) - 1)),
    "point": DatumKind(
        "datum_point", lambda value: f"({float8_text(value.x)},{float8_text(value.y)})"
    ),
    "float4": DatumKind("datum_float", float4_text),
    "float8": DatumKind("datum_double", float8_text),
    "money": DatumKind("datum_int64", _money),
    "date": DatumKind("datum_int32", date_text),
    "time": DatumKind("datum_int64", time_text),
    "timestamp": DatumKind("datum_int64", timestamp_text),
    "timestamptz": DatumKind("datum_int64", _timestamptz),
    "timetz": DatumKind("datum_double", timetz_text),
    **dict.fromkeys(("char", "text", "json", "xml", "bpchar", "varchar", "interval"), _STRING),
    **dict.fromkeys(("bit", "varbit", "numeric", "uuid", "jsonb"), _STRING),
}
