"""Booleans, integers and floating-point numbers."""

import dataclasses
import math
import struct
from collections.abc import Callable
from decimal import Decimal

from waltap.arrow import column as arrow_column
from waltap.decode.relation import Column
from waltap.mapping.column_default import default_value
from waltap.mapping.connect_schema import Kind, Schema
from waltap.mapping.java_number import float_text
from waltap.mapping.type_mapping import ColumnMapping, JsonExpression, TypeMapper
from waltap.mapping.value_form import ValueForm, column_mapping
from waltap.specs import TypeSpec
from waltap_postgres.types.claims import builtin, builtin_name

__all__ = [
    "NUMBER_SPECS",
    "double_from_binary",
    "float_from_binary",
    "pg_double_text",
    "pg_float_text",
    "single",
    "whole_number",
]


class _Booleans(dict[str, str]):
    """``t`` and ``f`` → JSON; any other text is refused as ValueError, not KeyError."""

    def __missing__(self, text: str) -> str:
        msg = "boolean is neither t nor f"
        raise ValueError(msg)


BOOLEANS = _Booleans(t="true", f="false")


def _bool(text: str) -> bool:
    return BOOLEANS[text] == "true"


def _bool_default(text: str) -> bool:
    return text.lower() == "true"


def _bool_from_binary(data: bytes) -> str:
    if data not in {b"\0", b"\1"}:
        msg = "boolean is neither 0 nor 1"
        raise ValueError(msg)
    return "t" if data[0] else "f"


_SPECIAL = {"NaN": '"NaN"', "Infinity": '"Infinity"', "-Infinity": '"-Infinity"'}


def _whole(text: str) -> str:
    """Return the JSON of a float whose text has neither point nor exponent."""
    special = _SPECIAL.get(text)
    if special is not None:
        return special
    int(text)
    return text + ".0"


def _double_json(text: str) -> str:
    if "." in text or "e" in text:
        return text
    return _whole(text)


def _float_json(text: str) -> str:
    """Return the digits that Java gives a float.

    Where PostgreSQL prints no exponent between 0.001 and 10**6, Java's digits are the same number.
    """
    if "e" in text or text[:5] in {"0.000", "-0.00"}:
        return float_text(single(text))
    if "." in text:
        return text
    return _whole(text)


def single(text: str) -> float:
    """Return the float that ``text`` names. Raises ValueError where there is none as large."""
    try:
        value: float = struct.unpack(">f", struct.pack(">f", float(text)))[0]
    except OverflowError as cause:
        msg = "number beyond the largest float"
        raise ValueError(msg) from cause
    return value


def _layout(digits: str, exponent: int, limit: int) -> str:
    """Write digits d.ddd × 10**exponent as PostgreSQL does: fixed from -4 up to ``limit``."""
    if -4 <= exponent < limit:
        if exponent < 0:
            return f"0.{'0' * (-exponent - 1)}{digits}"
        whole, fraction = digits[: exponent + 1].ljust(exponent + 1, "0"), digits[exponent + 1 :]
        return f"{whole}.{fraction}" if fraction else whole
    mantissa = f"{digits[0]}.{digits[1:]}" if len(digits) > 1 else digits
    return f"{mantissa}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"


def _split(text: str) -> tuple[str, int]:
    """Return digits without outer zeros and the decimal exponent of a ``%e``-style number."""
    mantissa, _, exponent = text.partition("e")
    return mantissa.replace(".", "").rstrip("0") or "0", int(exponent)


def _special_text(value: float) -> str | None:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0:
        return "-0" if math.copysign(1.0, value) < 0 else "0"
    return None


def pg_double_text(value: float) -> str:
    """Return ``value`` as PostgreSQL 12 and later print a double: shortest exact digits."""
    text = repr(value)
    if "e" not in text and "n" not in text and len(text) < 16:
        # at most 13 digits: no exponent in either notation
        return text[:-2] if text[-2:] == ".0" else text
    special = _special_text(value)
    if special is not None:
        return special
    digits, exponent = _shortest(abs(value))
    return ("-" if value < 0 else "") + _layout(digits, exponent, 15)


def _shortest(value: float) -> tuple[str, int]:
    """Return the shortest digits of a positive double and its decimal exponent.

    PostgreSQL wants them strictly between the neighbours' midpoints, Python is content with a
    midpoint itself (1e23). Only whole numbers from 2**53 on can have midpoints that short.
    """
    text = repr(value)
    if value >= 2.0**53:
        below = int(math.nextafter(value, 0.0))
        above = math.nextafter(value, math.inf)
        around = below, int(value), 2 * int(value) - below if math.isinf(above) else int(above)
        places = 0
        while not _inside(text, around):
            text = f"{value:.{places}e}"
            places += 1
    if "e" in text:
        return _split(text)
    whole, _, fraction = text.partition(".")
    digits = (whole + fraction).lstrip("0")
    exponent = len(whole) - 1 if whole != "0" else -1 - (len(fraction) - len(fraction.lstrip("0")))
    return digits.rstrip("0") or "0", exponent


def _inside(text: str, around: tuple[int, int, int]) -> bool:
    """Tell whether a number's text lies strictly between the midpoints to both neighbours."""
    below, number, above = around
    return below + number < 2 * int(Decimal(text)) < number + above


def pg_float_text(value: float) -> str:
    """Return ``value``, exactly a float, as PostgreSQL 12 and later print it."""
    special = _special_text(value)
    if special is not None:
        return special
    size = abs(value)
    # Six digits of a normal float always identify a decimal of six digits; nine always a float.
    for places in range(5 if size >= 2**-126 else 0, 9):
        text = f"{size:.{places}e}"
        if _means(text, size):
            break
        # Above a power of two floats are twice as far apart as below it: the nearest text may lie
        # outside while the next one up is inside.
        step = Decimal(1).scaleb(int(text.partition("e")[2]) - places)
        text = f"{Decimal(text) + step:.{places}e}"
        if _means(text, size):
            break
    digits, exponent = _split(text)
    return ("-" if value < 0 else "") + _layout(digits, exponent, 6)


def _means(text: str, size: float) -> bool:
    """Tell whether ``text`` lies strictly nearer to the float ``size`` than to any other."""
    try:
        return single(text) == size and (size < 2**24 or _inside(text, _around(size)))
    except ValueError:  # rounds beyond the largest float
        return False


def _around(value: float) -> tuple[int, int, int]:
    """Return a whole positive float between its neighbours; the largest has none above it."""
    (bits,) = struct.unpack(">i", struct.pack(">f", value))
    below, above = (struct.unpack(">f", struct.pack(">i", bits + n))[0] for n in (-1, 1))
    step = value - below
    return int(below), int(value), int(value + step if math.isinf(above) else above)


def double_from_binary(data: bytes) -> str:
    """Return the text of a ``float8`` in send format."""
    (value,) = _DOUBLE(data)
    return pg_double_text(value)


def float_from_binary(data: bytes) -> str:
    """Return the text of a ``float4`` in send format."""
    (value,) = _FLOAT(data)
    return pg_float_text(value)


_DOUBLE, _FLOAT = struct.Struct(">d").unpack, struct.Struct(">f").unpack


def whole_number(layout: str) -> Callable[[bytes], str]:
    """Return send format → text of an integer with the `struct` layout ``layout``."""
    unpack = struct.Struct(layout).unpack

    def read(data: bytes) -> str:
        (value,) = unpack(data)
        return str(value)

    return read


_INTEGERS = {
    "int2": (Kind.INT16, 2, whole_number(">h")),
    "int4": (Kind.INT32, 4, whole_number(">i")),
    "int8": (Kind.INT64, 8, whole_number(">q")),
}


def _ranged(size: int) -> Callable[[str], int]:
    """Return a parser of default literals that refuses what the type cannot hold."""
    limit = 1 << (8 * size - 1)

    def convert(text: str) -> int:
        value = int(text)
        if not -limit <= value < limit:
            msg = "integer out of range"
            raise ValueError(msg)
        return value

    return convert


_OID_ARROW = dataclasses.replace(arrow_column.integers(64), binary=None)
"""An oid has 32 bits without sign, sent as four bytes."""


def _build_bool(column: Column, mapper: TypeMapper) -> ColumnMapping:
    form = ValueForm(
        schema=Schema(kind=Kind.BOOLEAN),
        to_json=BOOLEANS.__getitem__,
        to_connect=_bool,
        zero=False,
        default=default_value(column.default, "false", _bool_default),
        from_binary=_bool_from_binary,
        arrow=arrow_column.booleans(),
        json_expression=JsonExpression(template="booleans[{v}]", names={"booleans": BOOLEANS}),
    )
    return column_mapping(column, mapper.options, form)


def _build_integer(column: Column, mapper: TypeMapper) -> ColumnMapping:
    assert column.data_type is not None
    kind, size, reader = _INTEGERS[builtin_name(column.data_type) or "int4"]
    form = ValueForm(
        schema=Schema(kind=kind),
        to_json=None,
        to_connect=int,
        zero=0,
        default=default_value(column.default, "0", _ranged(size)),
        from_binary=reader,
        arrow=arrow_column.integers(8 * size),
    )
    return column_mapping(column, mapper.options, form)


def _build_oid(column: Column, mapper: TypeMapper) -> ColumnMapping:
    form = ValueForm(
        schema=Schema(kind=Kind.INT64),
        to_json=None,
        to_connect=int,
        zero=0,
        from_binary=whole_number(">I"),
        arrow=_OID_ARROW,
    )
    return column_mapping(column, mapper.options, form)


def _build_float(column: Column, mapper: TypeMapper) -> ColumnMapping:
    assert column.data_type is not None
    double = builtin_name(column.data_type) == "float8"
    convert = float if double else single
    form = ValueForm(
        schema=Schema(kind=Kind.FLOAT64 if double else Kind.FLOAT32),
        to_json=_double_json if double else _float_json,
        to_connect=convert,
        zero=0.0,
        default=default_value(column.default, "0.0", convert),
        from_binary=double_from_binary if double else float_from_binary,
        arrow=arrow_column.floats(64 if double else 32),
        json_expression=JsonExpression(
            template='({v} if "." in {v} else double_json({v}))',
            names={"double_json": _double_json},
        )
        if double
        else None,
    )
    return column_mapping(column, mapper.options, form)


NUMBER_SPECS = (
    TypeSpec(
        name="boolean",
        summary="true and false",
        claims=builtin("bool"),
        build=_build_bool,
        order=100,
    ),
    TypeSpec(
        name="integer",
        summary="smallint, integer, bigint and the serial types",
        claims=builtin("int2", "int4", "int8"),
        build=_build_integer,
        order=100,
    ),
    TypeSpec(
        name="oid",
        summary="object identifiers, unsigned 32 bits",
        claims=builtin("oid"),
        build=_build_oid,
        order=100,
    ),
    TypeSpec(
        name="floating point",
        summary="real and double precision",
        claims=builtin("float4", "float8"),
        build=_build_float,
        order=100,
    ),
)
