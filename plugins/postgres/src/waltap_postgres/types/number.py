"""Booleans, integers and floating-point numbers."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import msgspec

from waltap.changes.arrow import column as arrow_column
from waltap.changes.decode.relation import Column
from waltap.changes.mapping.connect_schema import ConnectKind, Schema
from waltap.changes.mapping.java_number import float_text, single
from waltap.changes.mapping.type_mapping import (
    ColumnMapping,
    JsonColumn,
    JsonExpression,
    TypeMapper,
)
from waltap.changes.mapping.value_form import ValueForm, column_mapping, default_value
from waltap.encoders.json import columns
from waltap_postgres.types.builtin import builtin_name


class _BooleanTexts(dict[str, str]):
    """Map ``t`` and ``f`` to JSON.

    Any other text raises ValueError instead of KeyError.
    """

    def __missing__(self, text: str) -> str:
        raise ValueError("boolean is neither t nor f")


BOOLEANS = _BooleanTexts(t="true", f="false")


_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)").fullmatch
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?").fullmatch


def whole_json(text: str) -> str:
    """Return the JSON of an integer, which is its text.

    Raises ValueError for any other text.
    """
    if text != "0" and _INTEGER(text) is None:
        raise ValueError("integer is not digits")
    return text


@dataclass(frozen=True, slots=True)
class _IntegerText:
    """Read the text of integers from ``low`` to ``high``."""

    # Text → int; raises MsgspecError. A JSON parser in C accepts exactly the integers of JSON, with
    # blanks around them.
    to_connect: Callable[[str], object]
    to_json: Callable[[str], str]
    expression: JsonExpression
    column: JsonColumn
    list_of: Callable[[str], object]


def _integer_text(name: str, low: int, high: int) -> _IntegerText:
    kind = Annotated[int, msgspec.Meta(ge=low, le=high)]
    read = msgspec.json.Decoder(kind).decode

    def to_json(text: str) -> str:
        read(whole_json(text))
        return text

    # `strip` returns the same object where there are no blanks; otherwise `to_json` reads the text.
    expression = JsonExpression(
        template=f"({{v}} if {{v}}.strip() is {{v}} and read_{name}({{v}}) is not None"
        f" else {name}_json({{v}}))",
        names={f"{name}_json": to_json, f"read_{name}": read},
    )
    lists = msgspec.json.Decoder(list[kind]).decode
    return _IntegerText(read, to_json, expression, columns.integers(low, high), lists)


_INT2 = _integer_text("int2", -(1 << 15), (1 << 15) - 1)
_INT4 = _integer_text("int4", -(1 << 31), (1 << 31) - 1)
_INT8 = _integer_text("int8", -(1 << 63), (1 << 63) - 1)
_OID = _integer_text("oid", 0, (1 << 32) - 1)

# ``to_json`` of an integer type → reader of a JSON list of them, which raises MsgspecError.
INTEGER_LISTS: dict[Callable[[str], str], Callable[[str], object]] = {
    text.to_json: text.list_of for text in (_INT2, _INT4, _INT8, _OID)
}

_read_number = msgspec.json.Decoder(float).decode

_SPECIAL = {"NaN": '"NaN"', "Infinity": '"Infinity"', "-Infinity": '"-Infinity"'}


def _float_without_point(text: str) -> str:
    """Return the JSON of a float without point and exponent."""
    special = _SPECIAL.get(text)
    return _number(text) + ".0" if special is None else special


def _double_json(text: str) -> str:
    if "." in text or "e" in text:
        return _number(text)
    return _float_without_point(text)


def _number(text: str) -> str:
    """Return the text of a number unchanged.

    Raises ValueError for any other text, and for a number that would be infinity.
    """
    # Only an exponent or very many digits can lead beyond the largest number.
    if _NUMBER(text) is None or ((len(text) > 38 or "e" in text) and math.isinf(float(text))):
        raise ValueError("floating-point number is not digits of a finite number")
    return text


def _float_json(text: str) -> str:
    """Return the digits that Java prints for a float."""
    # PostgreSQL prints no exponent between 0.001 and 10**6; there Java's digits are the same
    # number.
    if "e" in text or text[:5] in {"0.000", "-0.00"}:
        return float_text(single(_number(text)))
    if "." in text:
        return _number(text)
    return _float_without_point(text)


_INTEGERS = {
    "int2": (ConnectKind.INT16, 2, _INT2),
    "int4": (ConnectKind.INT32, 4, _INT4),
    "int8": (ConnectKind.INT64, 8, _INT8),
    "oid": (ConnectKind.INT64, 8, _OID),
}


def build_bool(column: Column, mapper: TypeMapper) -> ColumnMapping:
    """Map ``bool``."""
    form = ValueForm(
        schema=Schema(kind=ConnectKind.BOOLEAN),
        to_json=BOOLEANS.__getitem__,
        to_connect=lambda text: BOOLEANS[text] == "true",
        zero=False,
        # A default is an SQL literal (true), not the server's output (t).
        default=default_value(column.default, "false", lambda text: text.lower() == "true"),
        arrow=arrow_column.booleans(),
        json_expression=JsonExpression(template="booleans[{v}]", names={"booleans": BOOLEANS}),
        json_column=columns.BOOLEANS,
    )
    return column_mapping(column, mapper.options, form)


def build_integer(column: Column, mapper: TypeMapper) -> ColumnMapping:
    """Map ``int2``, ``int4``, ``int8`` and ``oid``, which has no default in Debezium."""
    assert column.data_type is not None
    name = builtin_name(column.data_type) or "int4"
    kind, size, text = _INTEGERS[name]

    def default(literal: str) -> object:  # SQL may write it with leading zeros
        return text.to_connect(str(int(literal)))

    form = ValueForm(
        schema=Schema(kind=kind),
        to_json=text.to_json,
        to_connect=text.to_connect,
        zero=0,
        default=None if name == "oid" else default_value(column.default, "0", default),
        arrow=arrow_column.integers(8 * size),
        json_expression=text.expression,
        json_column=text.column,
        integers=name != "oid",
    )
    return column_mapping(column, mapper.options, form)


def build_float(column: Column, mapper: TypeMapper) -> ColumnMapping:
    """Map ``float4`` and ``float8``."""
    assert column.data_type is not None
    double = builtin_name(column.data_type) == "float8"
    convert = float if double else single
    form = ValueForm(
        schema=Schema(kind=ConnectKind.FLOAT64 if double else ConnectKind.FLOAT32),
        to_json=_double_json if double else _float_json,
        to_connect=convert,
        zero=0.0,
        default=default_value(column.default, "0.0", convert),
        arrow=arrow_column.floats(64 if double else 32),
        json_expression=JsonExpression(
            template='({v} if "." in {v} and {v}.strip() is {v} and read_number({v}) is not None'
            " else double_json({v}))",
            names={"double_json": _double_json, "read_number": _read_number},
        )
        if double
        else None,
        json_column=columns.doubles(_double_json) if double else None,
    )
    return column_mapping(column, mapper.options, form)
