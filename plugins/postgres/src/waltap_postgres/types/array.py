"""Arrays of any mapped type.

Debezium knows one dimension; bounds are ignored. ``TypeOptions.multidimensional_arrays`` decides
the form of a second dimension; in Arrow it is a misfit.
"""

import re
from collections.abc import Callable
from hashlib import md5
from itertools import count
from typing import Any
from uuid import UUID

import msgspec

from waltap.changes.arrow.column import lists, strings
from waltap.changes.decode.builtin_types import ARRAY_ELEMENTS, BUILTIN_TYPES
from waltap.changes.decode.relation import Column, DataType, TypeKind
from waltap.changes.mapping.connect_schema import ConnectKind, Schema
from waltap.changes.mapping.json_schema import quote
from waltap.changes.mapping.type_mapping import (
    ColumnMapping,
    JsonExpression,
    TypeMapper,
    TypeOptions,
)
from waltap.changes.mapping.value_form import (
    OutOfRange,
    ValueForm,
    column_mapping,
    placeholder_text,
)
from waltap_postgres.types.builtin import builtin_name
from waltap_postgres.types.number import INTEGER_LISTS
from waltap_postgres.types.text import written_labels

# Strings in double quotes, as arrays and hstore print them.
#
# After a backslash, a character is itself.


def quoted(text: str, at: int, what: str) -> tuple[str, int]:
    """Return the string at ``at``, and its end.

    ``at`` is after the opening quote, the returned offset after the closing one. ``what`` names
    the malformed value in the error. Raises ValueError.
    """
    parts: list[str] = []
    while True:
        close = text.find('"', at)
        if close < 0:
            raise ValueError(f"malformed {what}: a quote is never closed")
        # `find` per part is quicker than a pattern: most strings have no backslash, or few.
        slash = text.find("\\", at, close)
        if slash < 0:
            parts.append(text[at:close])
            return "".join(parts), close + 1
        parts.append(text[at:slash])
        parts.append(text[slash + 1])
        at = slash + 2


# Element types whose arrays Debezium leaves out, even with `include.unknown.datatypes`.
_OMITTED = frozenset({"money", "name", "interval", "varbit", "xml", "point", "refcursor"})

# Element types whose inner arrays Debezium turns to text by `toString`; others become null.
_PRINTED_BY_JAVA = frozenset(
    {
        *("char", "varchar", "text", "bpchar", "inet", "cidr", "macaddr", "macaddr8", "uuid"),
        *("tsrange", "tstzrange", "daterange", "int4range", "numrange", "int8range"),
        *("json", "jsonb", "tsvector", "ltree"),
    }
)

# `int2vector` and `oidvector`: arrays whose text is the elements with blanks between them.
_VECTORS = frozenset({22, 30})

_WHOLE_NUMBERS = re.compile(r"\{(?:-?(?:0|[1-9][0-9]*)(?:,-?(?:0|[1-9][0-9]*))*)?\}").fullmatch

_INNER = "an inner array, where the schema has one dimension"

# Java prints an array as its class and hash code; the hash differs in every run, so ours is 0.
JAVA_ARRAY = "[Ljava.lang.String;@0"

# Elements of an array: str, None, or a list of the same for each further dimension.
Nested = list[Any]


def parse_array(text: str, delimiter: str = ",") -> Nested:
    """Return the elements of an array's text.

    Bounds before ``=`` are dropped. Raises ValueError for text that is no array.
    """
    at = text.find("{") if text[:1] == "[" else 0
    if text[at : at + 1] != "{" or text[-1:] != "}":
        raise ValueError("malformed array")
    # The usual case: one dimension without quotes is a plain split.
    if '"' not in text and text.find("{", at + 1) < 0:
        inner = text[at + 1 : -1]
        if not inner:
            return []
        # Only NULL without quotes is a null; the server quotes the text "NULL".
        return [None if item == "NULL" else item for item in inner.split(delimiter)]
    return _parse_nested(text, at, delimiter)


def _parse_nested(text: str, at: int, delimiter: str) -> Nested:
    """Parse an array with quotes or dimensions; ``at`` is its first brace."""
    stack: list[Nested] = []
    current: Nested = []
    end = len(text)
    while at < end:
        char = text[at]
        if char == "{":
            stack.append(current)
            current = []
            at += 1
        elif char == "}":
            if not stack:
                break
            done, current = current, stack.pop()
            current.append(done)
            at += 1
        elif char == delimiter:
            at += 1
        elif char == '"':
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
        raise ValueError("malformed array: braces do not match")
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
    # The server's own conditions for quotes: `array_out` of arrayfuncs.c.
    if not text or text.upper() == "NULL" or any(c in _UNSAFE or c == delimiter for c in text):
        escaped = text.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    return text


_UNSAFE = frozenset('{}"\\ \t\n\r\v\f')


def _parser(data_type: DataType) -> Callable[[str], Nested]:
    """Return the function that splits an array's text."""
    if data_type.oid in _VECTORS:
        return str.split
    delimiter = data_type.delimiter
    return lambda text: parse_array(text, delimiter)


def _element_type(data_type: DataType) -> DataType | None:
    """Return the element type, even if only its OID is known."""
    if data_type.element is not None:
        return data_type.element
    name = ARRAY_ELEMENTS.get(data_type.oid)
    if name is None:
        return None
    return DataType(oid=BUILTIN_TYPES[name].oid, schema="pg_catalog", name=name)


def is_array(data_type: DataType) -> bool:
    """Return whether the type is an array."""
    return data_type.kind is TypeKind.ARRAY or data_type.oid in ARRAY_ELEMENTS


def _unavailable(name: str | None, items: Schema, options: TypeOptions) -> object:
    """Return the placeholder of an unchanged array.

    None means that Debezium has no placeholder that fits the items.
    """
    placeholder = options.unavailable_value_placeholder
    text = placeholder_text(options)
    match name:
        case "text" | "varchar" | "bpchar" | "json" | "jsonb":
            return [text]
        case "bytea" if items.kind is ConnectKind.BYTES:
            return [placeholder]
        # Debezium puts the placeholder's bytes into arrays of numbers, one item a byte.
        case "int4" | "int8":
            return _signed_bytes(placeholder)
        case "date" if items.name == "io.debezium.time.Date":
            return _signed_bytes(placeholder)
        # Java's `UUID.nameUUIDFromBytes`: version 3, from MD5.
        case "uuid":
            return [str(UUID(bytes=md5(placeholder, usedforsecurity=False).digest(), version=3))]
        case _:
            return None


def _signed_bytes(data: bytes) -> list[int]:
    # A byte of Java has a sign.
    return [byte - 256 if byte > 127 else byte for byte in data]


def build_array(column: Column, mapper: TypeMapper) -> ColumnMapping | None:
    """Map an array."""
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
    items = element.schema
    misfit = OutOfRange(column.name, mapper.options)
    reader = _ArrayReader(column.data_type, element_type, element, misfit, mapper.options)
    form = ValueForm(
        schema=Schema(kind=ConnectKind.ARRAY, items=items),
        to_json=reader.json(element.to_json),
        to_connect=reader.connect,
        zero=[],
        unavailable=_unavailable(name, items, mapper.options),
        arrow=lists(element.arrow or strings(), _parser(column.data_type), mapper.options),
        json_expression=_by_label(reader, element_type),
    )
    return column_mapping(column, mapper.options, form, misfit)


def _by_label(reader: "_ArrayReader", element_type: DataType) -> JsonExpression | None:
    """Return an expression for arrays of an enum, or None.

    The expression knows only the present labels, like the enum's own.
    """
    if element_type.kind is not TypeKind.ENUM:
        return None
    name = f"array_of_labels_{next(_NUMBERS)}"
    known = reader.json(written_labels(element_type.labels).__getitem__)
    return JsonExpression(template=f"{name}({{v}})", names={name: known})


_NUMBERS = count()


def _element_mapping(
    column: Column, element_type: DataType, mapper: TypeMapper
) -> ColumnMapping | None:
    """Map an element as a nullable column with the array's modifier."""
    item = Column(
        name=f"{column.name}-element",
        type_oid=element_type.oid,
        typmod=column.typmod,
        data_type=element_type,
        nullable=True,
    )
    if element_type.kind is not TypeKind.DOMAIN:
        found = mapper.column(item)
        # Debezium reads elements as a snapshot does, also while streaming.
        return found.read or found if found else None
    # Debezium does not look through a domain in an array: such elements are of an unknown type.
    hidden = msgspec.structs.replace(element_type, kind=TypeKind.PSEUDO, base=None, name="")
    return mapper.column(msgspec.structs.replace(item, data_type=hidden))


class _ArrayReader:
    """Convert the values of one array column."""

    __slots__ = ("_delimiter", "_element", "_inner", "_misfit", "_parse")

    def __init__(
        self,
        array: DataType,
        element_type: DataType,
        element: ColumnMapping,
        misfit: OutOfRange,
        options: TypeOptions,
    ) -> None:
        self._delimiter, self._parse = array.delimiter, _parser(array)
        self._element = element
        self._misfit = misfit
        self._inner = self._inner_form(element_type, options)

    def _inner_form(
        self, element_type: DataType, options: TypeOptions
    ) -> Callable[[Nested], str | None]:
        """Return a function: inner array → its string placeholder, or None."""
        printed = element_type.kind is TypeKind.ENUM or (
            (builtin_name(element_type) or element_type.name) in _PRINTED_BY_JAVA
        )
        if self._element.schema.kind is not ConnectKind.STRING:
            return lambda _: None
        if options.multidimensional_arrays == "literal":
            delimiter = self._delimiter
            return lambda items: array_text(items, delimiter)
        return lambda _: JAVA_ARRAY if printed else None

    def json(self, to_json: Callable[[str], str] | None) -> Callable[[str], str]:
        """Return text → JSON. ``to_json`` is the element's, as in `ColumnMapping`."""
        convert: Callable[[str], str] = str if to_json is None else to_json
        inner, misfit, parse = self._inner, self._misfit, self._parse

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
            return f"[{','.join(parts)}]"

        def general(text: str) -> str:
            return nested(parse(text))

        in_range = INTEGER_LISTS.get(to_json) if to_json is not None else None
        if in_range is None or self._delimiter != ",":
            return general

        def integers(text: str) -> str:
            """Convert integers, whose text is JSON except for the braces."""
            # Quotes, inner braces or NULL take the general way.
            if _WHOLE_NUMBERS(text) is None:
                return general(text)
            found = f"[{text[1:-1]}]"
            in_range(found)
            return found

        return integers

    def connect(self, text: str) -> object:
        convert, inner = self._element.to_connect, self._inner
        values: list[object] = []
        for item in self._parse(text):
            if isinstance(item, list):
                stand_in = inner(item)
                values.append(self._misfit.connect(_INNER) if stand_in is None else stand_in)
            else:
                values.append(None if item is None else convert(item))
        return values
