"""Write columns of values as PostgreSQL prints them.

It is the way back from `column`, for readers of blocks that need text.
"""

from collections.abc import Callable
from typing import Any

from waltap.base.arrow import pa, pc
from waltap.changes.decode.value_text import float4_text, float8_text


def text_column(values: "pa.Array") -> "pa.StringArray":
    """Return ``values`` as text; a column of text as it is.

    `waltap.changes.arrow.column` maps to these types; lists have no text here. A timestamp with a zone
    is in UTC. Raises: TypeError for another type.
    """
    kind, types = values.type, pa.types
    if types.is_string(kind):
        return values
    if types.is_null(kind) or types.is_integer(kind) or types.is_date(kind):
        return values.cast(pa.string())
    if types.is_boolean(kind):
        return pc.if_else(values, "t", "f")
    if types.is_timestamp(kind):
        text = _clock(values.cast(pa.timestamp("us")))
        return text if kind.tz is None else _zoned(text)
    if types.is_time(kind):
        return _clock(values)
    if types.is_decimal(kind):
        return _each(values, "{:f}".format)
    if types.is_floating(kind):
        return _each(values, float8_text if kind.bit_width == 64 else float4_text)
    if types.is_binary(kind):
        return _each(values, lambda value: f"\\x{value.hex()}")
    raise TypeError(f"a column of {kind} has no text of PostgreSQL")


def _clock(values: "pa.Array") -> "pa.StringArray":
    """Return times with as many digits of a second as they need."""
    # Arrow prints all six digits, so that the pattern meets no other zeros.
    return pc.replace_substring_regex(values.cast(pa.string()), r"\.?0*$", "")


def _zoned(text: "pa.StringArray") -> "pa.StringArray":
    return pc.binary_join_element_wise(text, "+00", "")


def _each(values: "pa.Array", text: Callable[[Any], str]) -> "pa.StringArray":
    found = [None if value is None else text(value) for value in values.to_pylist()]
    return pa.array(found, pa.string())
