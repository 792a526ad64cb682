"""Write header values as Kafka Connect's SimpleHeaderConverter does.

Strings are plain text; other values resemble JSON.
"""

import base64
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from waltap.changes.mapping.connect_schema import DATA, ConnectKind, Schema, decimal_of, scale_of
from waltap.changes.mapping.java_number import double_text, float_text
from waltap.encoders.format.converter import Converter, ConverterContext, Encode

DAY_MS = 86_400_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class SimpleHeaderConverter(Converter):
    """Write header values as text without schema.

    A string is plain text, a struct is ``{"id":1030}``.
    """

    def __init__(self, _properties: None, _context: ConverterContext) -> None:
        pass

    def encoder(self, topic: str, schema: Schema | None) -> Encode:
        return lambda value: (
            None if value is None else simple_text(value, schema).encode("utf-8", "replace")
        )


def simple_text(value: Any, schema: Schema | None, *, inner: bool = False) -> str:
    """Return a Connect value as ``Values.convertToString`` does.

    ``inner`` means that the value is part of a struct, list or map.
    """
    if value is None and inner and schema is not None:
        value = schema.default
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    name = schema.name if schema is not None else None
    if name is not None and name.startswith(DATA) and name.removeprefix(DATA) in LOGICAL:
        assert schema is not None
        return LOGICAL[name.removeprefix(DATA)](value, schema)
    # Only strings inside another value have quotes.
    if isinstance(value, str):
        return _quoted(value) if inner else value
    if isinstance(value, float):
        single = schema is not None and schema.kind is ConnectKind.FLOAT32
        return float_text(value) if single else double_text(value)
    if isinstance(value, bytes):
        text = base64.b64encode(value).decode()
        return _quoted(text) if inner else text
    if isinstance(value, list | tuple):
        items = schema.items if schema is not None else None
        return f"[{','.join(simple_text(each, items, inner=True) for each in value)}]"
    if isinstance(value, dict) and schema is not None and schema.kind is ConnectKind.STRUCT:
        fields = (
            f"{_quoted(each.name)}:{simple_text(value.get(each.name), each.schema, inner=True)}"
            for each in schema.fields
        )
        return f"{{{','.join(fields)}}}"
    if isinstance(value, dict):
        keys, values = (schema.keys, schema.values) if schema is not None else (None, None)
        pairs = (
            f"{simple_text(k, keys, inner=True)}:{simple_text(v, values, inner=True)}"
            for k, v in value.items()
        )
        return f"{{{','.join(pairs)}}}"
    return str(value)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _decimal(value: Any, schema: Schema) -> str:
    # Python's text of a decimal is the same as Java's toString.
    return str(decimal_of(value, scale_of(schema)))


def _instant(value: int, unit_ms: int) -> str:
    """Return a ``java.util.Date`` as Connect writes it."""
    # Connect looks at the value, not at the schema: below one day it writes a time, at midnight a
    # date, else both.
    total = value * unit_ms
    days, of_day = divmod(total, DAY_MS)
    time = f"{(EPOCH + timedelta(milliseconds=of_day)).time().isoformat('milliseconds')}Z"
    if total < DAY_MS:
        return time
    date = _date(days)
    return date if not of_day else f"{date}T{time}"


def _date(days: int) -> str:
    # The calendar repeats after 400 years. Java has dates after the year 9999, Python does not.
    cycles, days = divmod(days, 146_097)
    day = EPOCH + timedelta(days=days)
    return f"{day.year + 400 * cycles:04}-{day.month:02}-{day.day:02}"


# Connect's logical types, by the end of their names.
LOGICAL: dict[str, Callable[[Any, Schema], str]] = {
    "Decimal": _decimal,
    "Date": lambda value, _schema: _instant(value, DAY_MS),
    "Time": lambda value, _schema: _instant(value, 1),
    "Timestamp": lambda value, _schema: _instant(value, 1),
}
