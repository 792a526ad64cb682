"""Convert any Connect value to JSON, as Kafka Connect's JsonConverter does.

A pipeline with JSON keys, values and headers uses `waltap.encoders.json.format`, which works from the
server's text. This converter is for JSON beside another format, and for records that transforms changed.
"""

from collections.abc import Callable
from typing import Any, Literal

from waltap.base.generated import define
from waltap.base.property import Properties, declare
from waltap.changes.mapping.connect_schema import DECIMAL, ConnectKind, Schema, scale_of
from waltap.changes.mapping.json_schema import decimal_json, number_json, quote, schema_json
from waltap.encoders.format.converter import Converter, ConverterContext, Encode, refusing_null
from waltap.encoders.json.codec import json_text

Write = Callable[[Any], str]

# Kind → the expression of the JSON of a value ``v`` that is not null.
INLINE = {
    **dict.fromkeys(
        (ConnectKind.INT8, ConnectKind.INT16, ConnectKind.INT32, ConnectKind.INT64), "_number(v)"
    ),
    ConnectKind.BOOLEAN: "'true' if v else 'false'",
    ConnectKind.STRING: "t if (t := _quote(v)).isascii() else _text(v)",
}


class JsonConverterProperties(Properties):
    """Declare the JSON options of keys, values or headers."""

    schemas: bool = declare(
        "schemas.enable",
        default=True,
        profile_default=False,
        summary="Write the schema beside each value.",
    )
    null_to_default: bool = declare(
        "replace.null.with.default",
        default=True,
        summary="Write the column's default for NULL.",
    )
    decimals: Literal["BASE64", "NUMERIC"] = declare(
        "decimal.format",
        default="BASE64",
        summary="How precise decimals are written: base64 of the unscaled number, or as JSON numbers.",
    )


class JsonConverter(Converter):
    """Convert values to JSON, with or without schemas."""

    text = True

    def __init__(self, properties: JsonConverterProperties, _context: ConverterContext) -> None:
        self._properties = properties

    def encoder(self, topic: str, schema: Schema | None) -> Encode:
        options = self._properties
        before, after = b"", b""
        numeric = options.decimals == "NUMERIC"
        if options.schemas:
            text = "null" if schema is None else schema_json(schema, numeric=numeric)
            before, after = f'{{"schema":{text},"payload":'.encode(), b"}"
        if schema is None:
            return lambda value: before + plain_json(value).encode() + after
        write = json_writer(schema, defaults=options.null_to_default, numeric=numeric)
        return lambda value: before + write(value).encode() + after


def json_writer(
    schema: Schema,
    *,
    defaults: bool,
    numeric: bool = False,
    entries: bool = False,
    what: str = "the value",
) -> Write:
    """Return the JSON writer of values of ``schema``.

    ``defaults`` writes the schema's default for null, ``numeric`` writes decimals as numbers.
    ``entries`` writes a map without string keys as objects of key and value, not as pairs. The
    writer raises an error for null in a required field, which it calls ``what``.
    """
    write = _writer(schema, defaults=defaults, numeric=numeric, entries=entries)
    if defaults and schema.default is not None:
        null = write(schema.default)
    elif schema.optional:
        null = "null"
    else:
        return refusing_null(write, what, schema)
    return lambda value: null if value is None else write(value)


def _writer(schema: Schema, *, defaults: bool, numeric: bool, entries: bool) -> Write:
    def part(of: Schema, what: str) -> Write:
        return json_writer(of, defaults=defaults, numeric=numeric, entries=entries, what=what)

    match schema.kind:
        case ConnectKind.INT8 | ConnectKind.INT16 | ConnectKind.INT32 | ConnectKind.INT64:
            return int.__repr__
        case ConnectKind.FLOAT32:
            return lambda value: number_json(float(value), single=True)
        case ConnectKind.FLOAT64:
            return lambda value: number_json(float(value), single=False)
        case ConnectKind.BOOLEAN:
            return lambda value: "true" if value else "false"
        case ConnectKind.BYTES if numeric and schema.name == DECIMAL:
            scale = scale_of(schema)
            return lambda value: decimal_json(value, scale)
        case ConnectKind.STRING | ConnectKind.BYTES:
            return json_text
        case ConnectKind.ARRAY:
            assert schema.items is not None
            item = part(schema.items, "an element")
            return lambda value: f"[{','.join(map(item, value))}]"
        case ConnectKind.MAP:
            return _map_writer(schema, part, entries=entries)
        case ConnectKind.STRUCT:
            return _struct_writer(schema, part, defaults=defaults)


def _struct_writer(
    schema: Schema, part: Callable[[Schema, str], Write], *, defaults: bool
) -> Write:
    # Numbers, texts and booleans are the most frequent fields, so `INLINE` saves them a call.
    names: dict[str, Any] = {"_number": int.__repr__, "_quote": quote, "_text": json_text}
    texts: list[str] = []
    for number, field in enumerate(schema.fields):
        head = f"{',' if number else '{'}{quote(field.name)}:"
        write, got = f"_write{number}", f"_get({field.name!r})"
        names[write] = part(field.schema, f"the field {field.name}")
        plain = INLINE.get(field.schema.kind)
        # The inlined expressions know no default; the field's writer does.
        if plain is None or (defaults and field.schema.default is not None):
            texts += [repr(head), f"{write}({got})"]
        else:
            # The writer of a required field raises the error for null.
            null = "'null'" if field.schema.optional else f"{write}(None)"
            texts += [repr(head), f"{null} if (v := {got}) is None else {plain}"]
    texts.append(repr("}" if texts else "{}"))
    body = f"def write(value):\n _get = value.get\n return ''.join(({', '.join(texts)},))\n"
    write_all: Write = define(body, f"JSON writer of {schema.name or 'a struct'}", names)["write"]
    return write_all


def _map_writer(schema: Schema, part: Callable[[Schema, str], Write], *, entries: bool) -> Write:
    """Return the writer of maps.

    A map with string keys becomes an object, any other an array of pairs.
    """
    assert schema.keys is not None
    assert schema.values is not None
    key, item = part(schema.keys, "a key"), part(schema.values, "a map's value")
    if schema.keys.kind is ConnectKind.STRING:
        return lambda value: f"{{{','.join(f'{key(k)}:{item(v)}' for k, v in value.items())}}}"
    pair = '{{"key":{},"value":{}}}' if entries else "[{},{}]"
    return lambda value: f"[{','.join(pair.format(key(k), item(v)) for k, v in value.items())}]"


def plain_json(value: Any) -> str:
    """Return the JSON of a value without schema."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return number_json(value, single=False)
    if isinstance(value, str | bytes):
        return json_text(value)
    if isinstance(value, dict):
        return f"{{{','.join(f'{quote(str(k))}:{plain_json(v)}' for k, v in value.items())}}}"
    return f"[{','.join(map(plain_json, value))}]"
