"""Arrays of any mapped type.

Debezium knows one dimension; bounds are ignored. What it does with a second dimension is decided by
``TypeOptions.multidimensional_arrays``; in Arrow it is a misfit.
"""

import dataclasses
import struct
from collections.abc import Callable
from hashlib import md5
from itertools import count
from typing import Any
from uuid import UUID

import msgspec

from waltap.arrow.column import lists, strings
from waltap.decode.relation import Column, DataType, TypeKind
from waltap.json.schema import quote
from waltap.mapping.connect_schema import Kind, Schema
from waltap.mapping.type_mapping import (
    ArrowMapping,
    ColumnMapping,
    JsonExpression,
    TypeMapper,
    TypeOptions,
)
from waltap.mapping.value_form import Misfit, ValueForm, column_mapping, placeholder_text
from waltap.specs import TypeSpec
from waltap_postgres.types.claims import ARRAY_ELEMENTS, BUILTIN_OIDS, builtin_name
from waltap_postgres.types.enum import written_labels
from waltap_postgres.types.quoted import quoted

__all__ = ["ARRAY_SPECS", "array_text", "parse_array"]

_OMITTED = frozenset({"money", "name", "interval", "varbit", "xml", "point", "refcursor"})
"""Element types whose arrays Debezium leaves out, even with ``include.unknown.datatypes``."""

_REQUIRED_ITEMS = frozenset({"tsvector", "vector", "halfvec", "sparsevec", "isbn"})
"""Element types that reach Debezium's general rule, which forgets to make the items optional."""

_PRINTED_BY_JAVA = frozenset(
    {
        "char",
        "varchar",
        "text",
        "bpchar",
        "inet",
        "cidr",
        "macaddr",
        "macaddr8",
        "tsrange",
        "tstzrange",
        "daterange",
        "int4range",
        "numrange",
        "int8range",
        "uuid",
        "json",
        "jsonb",
        "tsvector",
        "ltree",
    }
)
"""Element types whose inner arrays Debezium turns to text by ``toString``; others become null."""

_INNER = "an inner array, where the schema has one dimension"

JAVA_ARRAY = "[Ljava.lang.String;@0"

Nested = list[Any]
"""Elements of an array: str, None, or a list of the same for each further dimension."""


def parse_array(text: str, delimiter: str = ",") -> Nested:
    """Return the elements of an array's text; bounds before ``=`` are dropped.

    Raises: ValueError for text that is no array.
    """
    at = text.find("{") if text[:1] == "[" else 0
    if text[at : at + 1] != "{" or text[-1:] != "}":
        msg = "malformed array"
        raise ValueError(msg)
    if '"' not in text and text.find("{", at + 1) < 0:
        inner = text[at + 1 : -1]
        if not inner:
            return []
        return [None if item == "NULL" else item for item in inner.split(delimiter)]
    return _parse_nested(text, at, delimiter)


def _parse_nested(text: str, at: int, delimiter: str) -> Nested:
    """Parse an array with quotes or several dimensions, ``at`` its first brace."""
    stack: list[Nested] = []
    current: Nested = []
    end = len(text)
    while at < end:
        mark = text[at]
        if mark == "{":
            stack.append(current)
            current = []
            at += 1
        elif mark == "}":
            if not stack:
                break
            done, current = current, stack.pop()
            current.append(done)
            at += 1
        elif mark == delimiter:
            at += 1
        elif mark == '"':
            item, at = quoted(text, at + 1, "array")
            current.append(item)
        else:
            comma = text.find(delimiter, at)
            stop = text.find("}", at, comma if comma >= 0 else end)
            stop = comma if stop < 0 else stop
            if stop < 0:
                break
            item = text[at:stop]
            current.append(None if item == "NULL" else item)
            at = stop
    if stack or len(current) != 1 or not isinstance(current[0], list):
        msg = "malformed array: braces do not match"
        raise ValueError(msg)
    return current[0]


def array_text(items: Nested, delimiter: str = ",") -> str:
    """Return elements as the server prints them, without bounds."""
    return f"{{{delimiter.join(_item_text(item, delimiter) for item in items)}}}"


def _item_text(item: object, delimiter: str) -> str:
    if item is None:
        return "NULL"
    if isinstance(item, list):
        return array_text(item, delimiter)
    text = str(item)
    if not text or text.upper() == "NULL" or any(c in _UNSAFE or c == delimiter for c in text):
        escaped = text.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    return text


_UNSAFE = frozenset('{}"\\ \t\n\r\v\f')


def _from_binary(element: Callable[[bytes], str], delimiter: str) -> Callable[[bytes], str]:
    """Return a reader of the array send format.

    Dimensions, a flag, the element's oid, length and lower bound of each dimension, then the
    elements, row-major, each with its size or -1. Source: ``array_send`` of arrayfuncs.c.
    """

    def read(data: bytes) -> str:
        (dimensions,) = _INT.unpack_from(data)
        if not dimensions:
            return "{}"
        shape = [_PAIR.unpack_from(data, 12 + 8 * n) for n in range(dimensions)]
        at = 12 + 8 * dimensions
        items: Nested = []
        while at < len(data):
            (size,) = _INT.unpack_from(data, at)
            at += 4
            if size < 0:
                items.append(None)
            else:
                items.append(element(data[at : at + size]))
                at += size
        for length, _ in reversed(shape[1:]):
            items = [items[n : n + length] for n in range(0, len(items), length)]
        text = array_text(items, delimiter)
        if all(lower == 1 for _, lower in shape):
            return text
        return "".join(f"[{low}:{low + length - 1}]" for length, low in shape) + "=" + text

    return read


_INT, _PAIR = struct.Struct(">i"), struct.Struct(">ii")


def _element_type(data_type: DataType) -> DataType | None:
    """Return the element type, also of a built-in array that only its oid names."""
    if data_type.element is not None:
        return data_type.element
    name = ARRAY_ELEMENTS.get(data_type.oid)
    if name is None:
        return None
    return DataType(oid=BUILTIN_OIDS.get(name, 0), schema="pg_catalog", name=name)


def _claims(data_type: DataType) -> bool:
    return data_type.kind is TypeKind.ARRAY or data_type.oid in ARRAY_ELEMENTS


def _unavailable(name: str | None, items: Schema, options: TypeOptions) -> object:
    """Return the placeholder of an unchanged array, where Debezium has one that fits its items."""
    placeholder = options.unavailable_value_placeholder
    text = placeholder_text(options)
    match name:
        case "text" | "varchar" | "bpchar" | "json" | "jsonb":
            return [text]
        case "bytea" if items.kind is Kind.BYTES:
            return [placeholder]
        case "int4":
            return _signed_bytes(placeholder)
        case "date" if items.name == "io.debezium.time.Date":
            return _signed_bytes(placeholder)
        case "int8":
            return _signed_bytes(placeholder)
        case "uuid":
            return [str(UUID(bytes=md5(placeholder, usedforsecurity=False).digest(), version=3))]
        case _:
            return None


def _signed_bytes(data: bytes) -> list[int]:
    return [byte - 256 if byte > 127 else byte for byte in data]


def _build(column: Column, mapper: TypeMapper) -> ColumnMapping | None:
    assert column.data_type is not None
    element_type = _element_type(column.data_type)
    if element_type is None:
        return None
    name = builtin_name(element_type)
    if name in _OMITTED:
        return None
    element = _element_mapping(column, element_type, mapper)
    if element is None:
        return None
    if name == "bit":
        return _bit_array(column, element, mapper)
    required = (
        element.opaque
        or element_type.kind is TypeKind.ENUM
        or _known_name(element_type) in _REQUIRED_ITEMS
    )
    items = msgspec.structs.replace(element.schema, optional=not required)
    misfit = Misfit(column.name, mapper.options)
    reader = _Reader(column.data_type, element_type, element, misfit, mapper.options)
    form = ValueForm(
        schema=Schema(kind=Kind.ARRAY, items=items),
        to_json=reader.json(element.to_json, required=required),
        to_connect=reader.connect(required=required),
        zero=[],
        unavailable=_unavailable(name, items, mapper.options),
        from_binary=None
        if element.from_binary is None
        else _from_binary(element.from_binary, column.data_type.delimiter),
        arrow=_arrow(element, column.data_type.delimiter, mapper.options),
        json_expression=_by_label(reader, element_type),
    )
    return column_mapping(column, mapper.options, form, misfit)


def _by_label(reader: "_Reader", element_type: DataType) -> JsonExpression | None:
    """Return an expression for arrays of an enum that knows its labels alone, as that of the enum does."""
    if element_type.kind is not TypeKind.ENUM:
        return None
    name = f"array_of_labels_{next(_NUMBERS)}"
    known = reader.json(written_labels(element_type.labels).__getitem__, required=True)
    return JsonExpression(template=f"{name}({{v}})", names={name: known})


_NUMBERS = count()


def _arrow(element: ColumnMapping, delimiter: str, options: TypeOptions) -> ArrowMapping:
    return lists(element.arrow or strings(), lambda text: parse_array(text, delimiter), options)


def _known_name(data_type: DataType) -> str:
    return builtin_name(data_type) or data_type.name


def _element_mapping(
    column: Column, element_type: DataType, mapper: TypeMapper
) -> ColumnMapping | None:
    """Map an element as a nullable column with the array's modifier.

    Debezium does not look through a domain in an array: such elements are of an unknown type.
    """
    item = Column(
        name=f"{column.name}-element",
        type_oid=element_type.oid,
        typmod=column.typmod,
        data_type=element_type,
        nullable=True,
    )
    if element_type.kind is not TypeKind.DOMAIN:
        found = mapper.column(item)
        return found.read or found if found else None
    hidden = msgspec.structs.replace(element_type, kind=TypeKind.PSEUDO, base=None, name="")
    opaque = mapper.column(msgspec.structs.replace(item, data_type=hidden))
    base = mapper.column(item)
    if opaque is None or base is None:
        return opaque
    return dataclasses.replace(opaque, from_binary=base.from_binary)


def _bit_array(column: Column, element: ColumnMapping, mapper: TypeMapper) -> ColumnMapping:
    """Map ``bit[]`` as Debezium does: the schema of one bit string, and no value ever fits it."""
    misfit = Misfit(column.name, mapper.options)
    form = ValueForm(
        schema=msgspec.structs.replace(element.schema, optional=False),
        to_json=lambda _: misfit.json("arrays of bit strings have no Connect form"),
        to_connect=lambda _: misfit.connect("arrays of bit strings have no Connect form"),
        zero=False if element.schema.kind is Kind.BOOLEAN else b"",
        from_binary=None if element.from_binary is None else _from_binary(element.from_binary, ","),
        arrow=_arrow(element, ",", mapper.options),
    )
    return column_mapping(column, mapper.options, form, misfit)


class _Reader:
    """Converters of one array column, bound once."""

    __slots__ = ("_delimiter", "_element", "_inner", "_misfit")

    def __init__(
        self,
        array: DataType,
        element_type: DataType,
        element: ColumnMapping,
        misfit: Misfit,
        options: TypeOptions,
    ) -> None:
        self._delimiter = array.delimiter
        self._element = element
        self._misfit = misfit
        self._inner = self._inner_form(element_type, options)

    def _inner_form(
        self, element_type: DataType, options: TypeOptions
    ) -> Callable[[Nested], str | None]:
        """Return inner array → the string that stands for it, or None."""
        printed = element_type.kind is TypeKind.ENUM or (
            _known_name(element_type) in _PRINTED_BY_JAVA
        )
        if self._element.schema.kind is not Kind.STRING:
            return lambda _: None
        if options.multidimensional_arrays == "literal":
            delimiter = self._delimiter
            return lambda items: array_text(items, delimiter)
        return lambda _: JAVA_ARRAY if printed else None

    def json(self, to_json: Callable[[str], str] | None, *, required: bool) -> Callable[[str], str]:
        """Return text → JSON; ``to_json`` is that of an element, as in `ColumnMapping`; ``required``: a
        null element makes the whole array a misfit."""
        delimiter = self._delimiter
        convert: Callable[[str], str] = str if to_json is None else to_json
        inner, misfit = self._inner, self._misfit

        def nested(items: Nested) -> str:
            parts = []
            for item in items:
                if isinstance(item, list):
                    stand_in = inner(item)
                    if stand_in is None:
                        misfit.connect(_INNER)
                    part = "null" if stand_in is None else quote(stand_in)
                else:
                    part = "null" if item is None else convert(item)
                parts.append(part)
            if required and "null" in parts:
                return misfit.json("array with a null element, where its schema has no null")
            return f"[{','.join(parts)}]"

        def general(text: str) -> str:
            return nested(parse_array(text, delimiter))

        def whole(text: str) -> str:
            """Integers without quotes, braces or NULL are JSON but for the braces."""
            if text[:1] == "{" and "N" not in text and text.find("{", 1) < 0:
                return f"[{text[1:-1]}]"
            return general(text)

        return whole if to_json is None and delimiter == "," else general

    def connect(self, *, required: bool) -> Callable[[str], object]:
        """Return text → list of Connect values; ``required`` as in `json`."""
        convert, delimiter = self._element.to_connect, self._delimiter
        inner, misfit = self._inner, self._misfit

        def to_connect(text: str) -> object:
            values: list[object] = []
            for item in parse_array(text, delimiter):
                if isinstance(item, list):
                    stand_in = inner(item)
                    values.append(misfit.connect(_INNER) if stand_in is None else stand_in)
                else:
                    values.append(None if item is None else convert(item))
            if required and None in values:
                return misfit.connect("array with a null element, where its schema has no null")
            return values

        return to_connect


ARRAY_SPECS = (
    TypeSpec(
        name="array",
        summary="arrays; one dimension, as Debezium",
        claims=_claims,
        build=_build,
        order=90,
    ),
)
