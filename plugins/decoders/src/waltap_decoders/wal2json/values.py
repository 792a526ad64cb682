r"""Conversions from wal2json's JSON values to the server's text.

Source: wal2json.c, pg_decode_write_value and its format 1 twin. Numbers and booleans are bare,
bytea loses its ``\\x``, and all other values are strings.
"""

import re
from collections.abc import Callable
from typing import Any

from waltap_decoders.wal2json.documents import JsonNumber

__all__ = ["ToText", "WrongValue", "to_text"]

# Converts a JSON value other than null to text. Raises: WrongValue.
ToText = Callable[[Any], str]

_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?").fullmatch
_HEX = re.compile(r"(?:[0-9a-f]{2})*").fullmatch
_SPECIAL = frozenset(("NaN", "Infinity", "-Infinity"))

_BOOL, _BYTEA, _OID = 16, 17, 26
_INTEGERS = {21: 15, 23: 31, 20: 63}
_NUMBERS = frozenset((700, 701, 1700))


class WrongValue(ValueError):
    """Refuse a value that a column of its type cannot have.

    The text names the expected values.
    """


def to_text(type_oid: int, *, numbers_as_strings: bool) -> ToText:
    """Return the conversion of values of a type.

    OID 0 means that the type is unknown.
    """
    if type_oid == _BOOL:
        return _boolean
    if type_oid == _BYTEA:
        return _bytea
    if type_oid in _INTEGERS:
        limit = 1 << _INTEGERS[type_oid]
        return _integer(-limit, limit - 1, as_string=numbers_as_strings)
    if type_oid == _OID:
        return _integer(0, (1 << 32) - 1, as_string=numbers_as_strings)
    if type_oid in _NUMBERS:
        return _number_or_string if numbers_as_strings else _number
    return _text if type_oid else _anything


def _integer(low: int, high: int, *, as_string: bool) -> ToText:
    def convert(value: Any) -> str:
        if as_string and value.__class__ is str and _NUMBER(value):
            value = int(value) if len(value) < 20 else None
        if value.__class__ is int and low <= value <= high:
            return str(value)
        message = f"an integer from {low} to {high}"
        raise WrongValue(message)

    return convert


def _number(value: Any) -> str:
    if value.__class__ is int:
        return str(value)
    if value.__class__ is JsonNumber:
        return str.__str__(value)
    message = "a number"
    raise WrongValue(message)


def _number_or_string(value: Any) -> str:
    if value.__class__ is str and (value in _SPECIAL or _NUMBER(value)):
        return str(value)
    return _number(value)


def _boolean(value: Any) -> str:
    if value is True:
        return "t"
    if value is False:
        return "f"
    message = "true or false"
    raise WrongValue(message)


def _bytea(value: Any) -> str:
    if value.__class__ is str and _HEX(value):
        return "\\x" + str(value)
    message = "an even number of hexadecimal digits"
    raise WrongValue(message)


def _text(value: Any) -> str:
    if value.__class__ is str:
        return str(value)
    message = "a string"
    raise WrongValue(message)


def _anything(value: Any) -> str:
    if value is True or value is False:
        return _boolean(value)
    if value.__class__ is int:
        return str(value)
    if isinstance(value, str):
        return str.__str__(value)
    message = "a string, a number or a boolean"
    raise WrongValue(message)
