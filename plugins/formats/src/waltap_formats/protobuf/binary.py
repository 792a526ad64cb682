"""Protobuf's binary form of Connect values.

Each schema has one writer, made of the writers of its parts. Fields are in the order of their
numbers. Zero, "" and false are left out where the schema does not distinguish them from null. The
bytes equal the output of Confluent's converter. Source: Protobuf's "Encoding".
"""

import struct
from collections.abc import Callable
from typing import Any

from waltap.changes.decode.value_text import civil_date
from waltap.changes.mapping.connect_schema import ConnectKind, Field, Schema
from waltap.encoders.format.converter import SchemaMismatch, refusing_null
from waltap_formats.avro.binary import RANGES, unsigned
from waltap_formats.properties import ProtobufProperties
from waltap_formats.protobuf.schema import LOGICAL

Write = Callable[[Any], bytes]

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
WIRE = {
    ConnectKind.INT8: VARINT,
    ConnectKind.INT16: VARINT,
    ConnectKind.INT32: VARINT,
    ConnectKind.INT64: VARINT,
    ConnectKind.BOOLEAN: VARINT,
    ConnectKind.FLOAT32: FIXED32,
    ConnectKind.FLOAT64: FIXED64,
    ConnectKind.STRING: BYTES,
    ConnectKind.BYTES: BYTES,
}
_DOUBLE, _FLOAT = struct.Struct("<d").pack, struct.Struct("<f").pack
_DAY_MS = 86_400_000
# Years 1 to 9999: the range of google.protobuf.Timestamp.
FIRST_MS, LAST_MS = -62_135_596_800_000, 253_402_300_799_999


def message_writer(schema: Schema, options: ProtobufProperties) -> Write:
    """Return the writer of structs of ``schema``.

    It raises SchemaMismatch, TypeError or KeyError.
    """
    members = [
        (field.name, _member(field, number, options))
        for number, field in enumerate(schema.fields, start=1)
    ]
    return lambda value: b"".join([write(value.get(name)) for name, write in members])


def wrapped_writer(schema: Schema) -> Write:
    """Return the writer of values that are no structs.

    Each value is inside its type's wrapper.
    """
    if schema.name in LOGICAL:
        return _logical(schema)
    write, prefix = _scalar(schema.kind), tag(1, WIRE[schema.kind])

    def wrapped(value: Any) -> bytes:
        data = write(value)
        return b"" if _is_zero(data) else prefix + data

    return wrapped


def tag(number: int, wire: int) -> bytes:
    """Return the bytes before a field."""
    return unsigned(number << 3 | wire)


def _member(
    field: Field, number: int, options: ProtobufProperties, *, entry: bool = False
) -> Write:
    """Return the writer of a field with its tag.

    Null has no bytes. ``entry`` means a field of a map's entry, which has no label.
    """
    schema, what = field.schema, f"the field {field.name}"
    if schema.kind is ConnectKind.ARRAY:
        write = _array(schema, number, options, what)
    elif schema.kind is ConnectKind.MAP:
        write = _map(schema, number, options, what)
    else:
        write = _single(schema, number, options, labelled=options.optional and not entry)
    if schema.default is not None and not options.ignore_default:
        # A default that Protobuf lacks, such as infinity, concerns only rows with null.
        return lambda value: write(schema.default if value is None else value)
    if not schema.optional:
        return refusing_null(write, what, schema)
    return lambda value: b"" if value is None else write(value)


def _single(schema: Schema, number: int, options: ProtobufProperties, *, labelled: bool) -> Write:
    body = _body(schema, options)
    if body is not None:
        return _sized(body, tag(number, BYTES))
    write, prefix = _scalar(schema.kind), tag(number, WIRE[schema.kind])
    # With an explicit label zero is written, since a missing field means null.
    if labelled and schema.optional:
        return lambda value: prefix + write(value)
    if schema.kind is ConnectKind.STRING or schema.kind is ConnectKind.BYTES:
        return lambda value: prefix + write(value) if value else b""

    def implicit(value: Any) -> bytes:
        data = write(value)
        return b"" if _is_zero(data) else prefix + data

    return implicit


def _is_zero(data: bytes) -> bool:
    return not any(data)


def _sized(body: Write, prefix: bytes) -> Write:
    def write(value: Any) -> bytes:
        data = body(value)
        return prefix + unsigned(len(data)) + data

    return write


def _body(schema: Schema, options: ProtobufProperties) -> Write | None:
    """Return the writer of values that are messages.

    None means that the type is a scalar.
    """
    if schema.name in LOGICAL:
        return _logical(schema)
    if schema.kind is ConnectKind.STRUCT:
        return message_writer(schema, options)
    return wrapped_writer(schema) if options.wrappers and schema.optional else None


def _array(schema: Schema, number: int, options: ProtobufProperties, what: str) -> Write:
    items = schema.items
    assert items is not None

    def present(value: Any) -> Any:
        if None in value:
            raise SchemaMismatch(f"{what}: Protobuf has no null inside of an array")
        return value

    body = _body(items, options)
    prefix = tag(number, BYTES)
    if body is not None:
        each = _sized(body, prefix)
        return lambda value: b"".join(map(each, present(value)))
    write = _scalar(items.kind)
    if WIRE[items.kind] == BYTES:
        return lambda value: b"".join([prefix + write(each) for each in present(value)])

    # proto3 packs numbers: one tag for all of them.
    def packed(value: Any) -> bytes:
        data = b"".join(map(write, present(value)))
        return prefix + unsigned(len(data)) + data if data else b""

    return packed


def _map(schema: Schema, number: int, options: ProtobufProperties, what: str) -> Write:
    assert schema.keys is not None
    assert schema.values is not None
    key = _member(Field(f"key of {what}", schema.keys), 1, options, entry=True)
    item = _member(Field(f"value of {what}", schema.values), 2, options, entry=True)
    entry = _sized(lambda pair: key(pair[0]) + item(pair[1]), tag(number, BYTES))
    return lambda value: b"".join(map(entry, value.items()))


# --- values -------------------------------------------------------------------------------------------


def _signed(value: int) -> bytes:
    # Protobuf writes a negative int as its 64 bits.
    return unsigned(value & 0xFFFF_FFFF_FFFF_FFFF)


def _scalar(kind: ConnectKind) -> Write:
    match kind:
        case ConnectKind.STRING:
            return _text
        case ConnectKind.BYTES:
            return lambda value: unsigned(len(value)) + value
        case ConnectKind.BOOLEAN:
            return lambda value: b"\x01" if value else b"\x00"
        case ConnectKind.FLOAT32:
            return _FLOAT
        case ConnectKind.FLOAT64:
            return _DOUBLE
    limit = 1 << RANGES[kind]

    def integer(value: int) -> bytes:
        if not -limit <= value < limit:
            raise SchemaMismatch(f"a number that is no {kind.value}")
        return _signed(value)

    return integer


def _text(value: str) -> bytes:
    data = value.encode("utf-8", "replace")  # half of a surrogate pair: Java writes ``?``
    return unsigned(len(data)) + data


def _logical(schema: Schema) -> Write:
    match (schema.name or "").rpartition(".")[2]:
        case "Decimal":
            return _decimal(int(dict(schema.parameters).get("scale", 0)))
        case "Date":
            return _date
        case "Time":
            return _time
        case _:
            return _instant


def _date(days: int) -> bytes:
    year, month, day = civil_date(days, java=True)
    # A year before Christ is its positive number, as Java's calendar returns it.
    return _numbers(year if year > 0 else 1 - year, month, day)


def _numbers(*values: int) -> bytes:
    """Return a message of integers, numbered from 1."""
    return b"".join(
        [
            tag(number, VARINT) + _signed(value)
            for number, value in enumerate(values, start=1)
            if value
        ]
    )


def _decimal(scale: int) -> Write:
    after = tag(3, VARINT) + _signed(scale) if scale else b""

    def write(value: bytes) -> bytes:
        # The message has the precision of this number, not of the column.
        precision = len(str(abs(int.from_bytes(value, "big", signed=True))))
        return b"".join(
            (b"\x0a", unsigned(len(value)), value, tag(2, VARINT), unsigned(precision), after)
        )

    return write


def _time(value: int) -> bytes:
    # PostgreSQL allows 24:00:00, so the end of the day is included.
    if not 0 <= value <= _DAY_MS:
        raise SchemaMismatch("a time that is no time of a day")
    seconds, ms = divmod(value, 1000)
    minutes, seconds = divmod(seconds, 60)
    return _numbers(minutes // 60, minutes % 60, seconds, ms * 1_000_000)


def _instant(value: int) -> bytes:
    if not FIRST_MS <= value <= LAST_MS:
        raise SchemaMismatch(
            "a time that google.protobuf.Timestamp does not have, which ends with year 9999"
        )
    seconds, ms = divmod(value, 1000)
    return _numbers(seconds, ms * 1_000_000)
