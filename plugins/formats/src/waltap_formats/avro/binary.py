"""Avro's binary form of Connect values.

Each schema has one writer, made of the writers of its parts. Source: the Avro 1.11 specification,
"Binary Encoding". Unions are as in `waltap_formats.avro.schema`: null and one type, with null
second where the schema has a default.
"""

import struct
from collections.abc import Callable
from typing import Any

from waltap.changes.mapping.connect_schema import ConnectKind, Schema
from waltap.encoders.format.converter import SchemaMismatch, refusing_null
from waltap_formats.avro.schema import is_map, json_default

Write = Callable[[Any], bytes]

# Numbers below this, mostly lengths, are looked up instead of encoded.
SMALL = 8192
# Avro writes floating-point numbers little-endian.
_DOUBLE, _FLOAT = struct.Struct("<d").pack, struct.Struct("<f").pack
_TRUE, _FALSE = b"\x01", b"\x00"
# Bits of each integer kind without its sign.
RANGES = {ConnectKind.INT8: 7, ConnectKind.INT16: 15, ConnectKind.INT32: 31, ConnectKind.INT64: 63}


# Tables of two bytes: one look-up replaces two rounds of shifts. In MORE further bytes follow, in
# LAST none.
_STEP = 1 << 14
MORE = [bytes((value & 0x7F | 0x80, value >> 7 | 0x80)) for value in range(_STEP)]
LAST = [
    bytes((value,)) if value < 0x80 else bytes((value & 0x7F | 0x80, value >> 7))
    for value in range(_STEP)
]


def unsigned(value: int) -> bytes:
    """Return an integer that is not negative.

    It has seven bits per byte, the lowest first.
    """
    if value < 0x4000:
        return LAST[value]
    if value < 0x10000000:
        return MORE[value & 0x3FFF] + LAST[value >> 14]
    out = MORE[value & 0x3FFF] + MORE[value >> 14 & 0x3FFF]
    value >>= 28
    while value >= 0x4000:
        out += MORE[value & 0x3FFF]
        value >>= 14
    return out + LAST[value]


def _varint(value: int) -> bytes:
    """Return the zig-zag form of an integer of 64 bits."""
    return unsigned((value << 1) ^ (value >> 63))


_LENGTHS = [_varint(value) for value in range(SMALL)]


def long_bytes(value: int) -> bytes:
    """Return an int or long."""
    return _LENGTHS[value] if 0 <= value < SMALL else _varint(value)


def _text(value: str) -> bytes:
    # Cutting a text may leave half of a surrogate pair: Java writes a question mark.
    data = value.encode("utf-8", "replace")
    return long_bytes(len(data)) + data


def avro_writer(schema: Schema, *, defaults: bool = True, what: str = "the value") -> Write:
    """Return the writer of values of ``schema``.

    With ``defaults``, null in a field with a default is written as that default, like Confluent's
    converter does. The writer raises SchemaMismatch, TypeError or KeyError.
    """
    write = _writer(schema, defaults=defaults)
    branch = value_branch(schema)
    if defaults and schema.default is not None:
        null = branch + write(schema.default)
    elif schema.optional:
        null = b"\x00" if branch == b"\x02" else b"\x02"
    else:
        return refusing_null(write, what, schema)
    return lambda value: null if value is None else branch + write(value)


def value_branch(schema: Schema) -> bytes:
    """Return the union branch of a value, or nothing."""
    if not schema.optional:
        return b""
    # Avro requires a field's default to be of the union's first type.
    return b"\x02" if json_default(schema) is None else b"\x00"


def _writer(schema: Schema, *, defaults: bool) -> Write:
    def part(of: Schema, what: str) -> Write:
        return avro_writer(of, defaults=defaults, what=what)

    match schema.kind:
        case ConnectKind.INT8 | ConnectKind.INT16 | ConnectKind.INT32 | ConnectKind.INT64:
            return integer_writer(schema.kind)
        case ConnectKind.FLOAT32:
            return _FLOAT
        case ConnectKind.FLOAT64:
            return _DOUBLE
        case ConnectKind.BOOLEAN:
            return lambda value: _TRUE if value else _FALSE
        case ConnectKind.STRING:
            return _text
        case ConnectKind.BYTES:
            return lambda value: long_bytes(len(value)) + value
        case ConnectKind.ARRAY:
            assert schema.items is not None
            return _blocks(part(schema.items, "an element"))
        case ConnectKind.MAP:
            return _map(schema, part)
        # A record is its fields in order, without names or tags.
        case ConnectKind.STRUCT:
            members = [
                (field.name, part(field.schema, f"the field {field.name}"))
                for field in schema.fields
            ]
            return lambda value: b"".join([write(value.get(name)) for name, write in members])


def integer_writer(kind: ConnectKind) -> Write:
    """Return the writer of integers of ``kind``.

    It raises SchemaMismatch for a number out of range.
    """
    limit = 1 << RANGES[kind]

    def write(value: int) -> bytes:
        # The table holds zig-zag forms of lengths, and a small number has the same form.
        if 0 <= value < SMALL and value < limit:
            return _LENGTHS[value]
        if not -limit <= value < limit:
            raise SchemaMismatch(f"a number that is no {kind.value}")
        return _varint(value)

    return write


def _blocks(item: Write) -> Write:
    # One block has all items, and an empty block ends the array.
    return lambda value: (
        long_bytes(len(value)) + b"".join(map(item, value)) + b"\x00" if value else b"\x00"
    )


def _map(schema: Schema, part: Callable[[Schema, str], Write]) -> Write:
    assert schema.keys is not None
    assert schema.values is not None
    key, item = part(schema.keys, "a key"), part(schema.values, "a map's value")
    # Keys of an Avro map are plain strings, without a union.
    if is_map(schema):
        key = _text
    entry: Write = lambda pair: key(pair[0]) + item(pair[1])  # noqa: E731 - it is handed on
    blocks = _blocks(entry)
    return lambda value: blocks(value.items())
