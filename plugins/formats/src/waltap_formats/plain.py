"""Texts, bytes and numbers without an envelope.

They match the simple converters of Kafka Connect and Debezium.
"""

import struct
from typing import Any, Literal

from pydantic import field_validator

from waltap.base.property import Maybe, Properties, declare
from waltap.changes.decode.value_text import civil_date, clock_text
from waltap.changes.mapping.connect_schema import (
    DATE,
    DECIMAL,
    TIME,
    TIMESTAMP,
    ConnectKind,
    Schema,
)
from waltap.changes.mapping.java_number import double_text, float_text
from waltap.encoders.format.converter import Converter, ConverterContext, Encode, SchemaMismatch
from waltap.encoders.format.simple_header import simple_text
from waltap.encoders.json.converter import JsonConverter, JsonConverterProperties

# Which transform of Kafka Connect makes such values.
WAYS = {
    "key": "A transform makes such keys: ExtractField$Key takes one field out, Cast$Key changes its kind",
    "value": "A transform makes such values: ExtractField$Value takes one field out, Cast$Value changes "
    "its kind",
    "header": "extended.headers.enabled=false leaves out the headers of every record, which are texts",
}
PACKED = {
    ConnectKind.INT16: ">h",
    ConnectKind.INT32: ">i",
    ConnectKind.INT64: ">q",
    ConnectKind.FLOAT32: ">f",
    ConnectKind.FLOAT64: ">d",
    ConnectKind.BOOLEAN: ">?",
}


# Connect's types of dates, with the milliseconds of their units.
DATE_UNITS_MS = {DATE: 86_400_000, TIME: 1, TIMESTAMP: 1}
# Names in English, whatever the locale.
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
MONTHS = (
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
)  # fmt: skip


class StringProperties(Properties):
    """The encoding of texts."""

    encoding: Literal["UTF-8", "UTF8"] = declare(
        "converter.encoding",
        default="UTF-8",
        summary="Accepted for Kafka Connect's sake: texts are UTF-8.",
    )


class StringConverter(Converter):
    """Write values as Java prints them.

    A text is unchanged, and a struct becomes ``Struct{id=1,name=bolt}``.
    """

    def __init__(self, _properties: StringProperties, _context: ConverterContext) -> None:
        pass

    def encoder(self, topic: str, schema: Schema | None) -> Encode:
        return lambda value: (
            None if value is None else printed(value, schema).encode("utf-8", "replace")
        )


class BytesProperties(Properties):
    """The format of values that are no bytes."""

    delegate: Maybe[str] = declare(
        "delegate.converter.type",
        summary="Format of values that are no bytes, such as heartbeats beside the bytes of an outbox; "
        "without one they are refused. Only JSON can be one, by name or Kafka Connect class.",
        examples=("json",),
    )
    schemas: bool = declare(
        "delegate.converter.type.schemas.enable",
        default=True,
        profile_default=False,
        summary="Write the schema beside each of these values.",
    )
    null_to_default: bool = declare(
        "delegate.converter.type.replace.null.with.default",
        default=True,
        summary="Write the default for null in these values.",
    )

    @field_validator("delegate")
    @classmethod
    def _json(cls, value: str | None) -> str | None:
        if value is not None and value.strip().rpartition(".")[2].lower() not in JSON_NAMES:
            raise ValueError("must be json: no other format can be a delegate")
        return value


# Names of the JSON format, without package and in small letters.
JSON_NAMES = ("json", "jsonconverter")


class BytesConverter(Converter):
    """Pass bytes through. Other values are JSON, or refused without a delegate."""

    def __init__(self, properties: BytesProperties, context: ConverterContext) -> None:
        self._record_part = context.record_part
        self._delegate = None
        if properties.delegate is not None:
            options = JsonConverterProperties(
                schemas=properties.schemas, null_to_default=properties.null_to_default
            )
            self._delegate = JsonConverter(options, context)

    def encoder(self, topic: str, schema: Schema | None) -> Encode:
        others = None if self._delegate is None else self._delegate.encoder(topic, schema)
        # A decimal is bytes in its schema alone.
        plain = schema is None or (schema.kind is ConnectKind.BYTES and schema.name != DECIMAL)
        if others is not None and not plain:
            return others

        def encode(value: Any) -> bytes | None:
            if others is not None and value is not None and not isinstance(value, bytes):
                return others(value)
            if value is not None and not isinstance(value, bytes):
                raise _mismatch(ConnectKind.BYTES, value, schema, self._record_part)
            return value

        return encode


class NumberConverter(Converter):
    """Write numbers of one kind, or booleans, big-endian.

    Kafka's serializers have the same form.
    """

    def __init__(self, kind: ConnectKind, context: ConverterContext) -> None:
        self._kind, self._pack = kind, struct.Struct(PACKED[kind]).pack
        self._record_part = context.record_part

    def encoder(self, topic: str, schema: Schema | None) -> Encode:
        kind, pack = self._kind, self._pack

        def encode(value: Any) -> bytes | None:
            if value is None:
                return None
            # Kafka's serializers accept one class of numbers only.
            if schema is None or schema.kind is not kind:
                raise _mismatch(kind, value, schema, self._record_part)
            return pack(value)

        return encode


def _mismatch(
    kind: ConnectKind, value: Any, schema: Schema | None, record_part: str
) -> SchemaMismatch:
    found = schema.kind.value if schema is not None else type(value).__name__
    return SchemaMismatch(
        f"the format writes values of the kind {kind.value}, and this is of the kind {found}",
        way=WAYS[record_part],
    )


def printed(value: Any, schema: Schema | None) -> str:
    """Return a Connect value as Java's ``toString`` prints it."""
    if isinstance(value, str):
        return value
    if value is None:
        return "null"
    name = schema.name if schema is not None else None
    if name == DECIMAL:
        return simple_text(value, schema)
    if name in DATE_UNITS_MS:
        return _date(value * DATE_UNITS_MS[name])
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        single = schema is not None and schema.kind is ConnectKind.FLOAT32
        return float_text(value) if single else double_text(value)
    if isinstance(value, bytes):
        # Java prints the state of the buffer, not its bytes.
        return f"java.nio.HeapByteBuffer[pos=0 lim={len(value)} cap={len(value)}]"
    if isinstance(value, list):
        items = schema.items if schema is not None else None
        return f"[{', '.join(printed(each, items) for each in value)}]"
    if isinstance(value, dict) and schema is not None and schema.kind is ConnectKind.STRUCT:
        members = (
            f"{field.name}={printed(value[field.name], field.schema)}"
            for field in schema.fields
            if value.get(field.name) is not None
        )
        return f"Struct{{{','.join(members)}}}"
    if isinstance(value, dict):
        parts = schema.values if schema is not None else None
        return f"{{{', '.join(f'{k}={printed(v, parts)}' for k, v in value.items())}}}"
    return str(value)


def _date(millis: int) -> str:
    """Return a ``java.util.Date`` as its ``toString`` prints it in UTC."""
    days, of_day = divmod(millis // 1000, 86_400)
    year, month, day = civil_date(days, java=True)
    # 1970 began on a Thursday. A year before Christ is its positive number.
    weekday, year = DAYS[(days + 3) % 7], year if year > 0 else 1 - year
    return f"{weekday} {MONTHS[month - 1]} {day:02} {clock_text(of_day * 1_000_000)} UTC {year}"
