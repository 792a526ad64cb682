"""Write Connect schemas and values as Kafka Connect's converter does.

A schema object has ``type``, the members of its kind (``fields``, ``items``, ``keys`` and ``values``),
``optional name version doc parameters default``, and ``field`` in members of a struct. Absent
ones are omitted. The order is Debezium's, which makes the texts easy to compare.
"""

from base64 import b64encode
from collections.abc import Mapping
from json.encoder import encode_basestring
from typing import Any

from waltap.changes.mapping.connect_schema import (
    DECIMAL,
    ConnectKind,
    Schema,
    decimal_of,
    scale_of,
)
from waltap.changes.mapping.java_number import float_text

# str → JSON string with raw non-ASCII characters; implemented in C where Python has it.
quote = encode_basestring

VALUES: dict[ConnectKind, type[Any]] = {
    **dict.fromkeys(
        (ConnectKind.INT8, ConnectKind.INT16, ConnectKind.INT32, ConnectKind.INT64), int
    ),
    **dict.fromkeys((ConnectKind.FLOAT32, ConnectKind.FLOAT64), float),
    ConnectKind.BOOLEAN: bool,
    ConnectKind.STRING: str,
    ConnectKind.BYTES: bytes,
    ConnectKind.ARRAY: list,
    **dict.fromkeys((ConnectKind.MAP, ConnectKind.STRUCT), Mapping),
}
"""The types of values."""

SPECIAL_NUMBERS = {"nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}


def schema_json(schema: Schema, field: str | None = None, *, numeric: bool = False) -> str:
    """Return the compact text of a schema object.

    ``field`` names a struct member. ``numeric`` writes the defaults of decimals as numbers.
    """

    def inside(part: Schema | None) -> str:
        assert part is not None
        return schema_json(part, numeric=numeric)

    out = {"type": quote(schema.kind.value)}
    if schema.kind is ConnectKind.STRUCT:
        members = (schema_json(each.schema, each.name, numeric=numeric) for each in schema.fields)
        out["fields"] = f"[{','.join(members)}]"
    elif schema.kind is ConnectKind.ARRAY:
        out["items"] = inside(schema.items)
    elif schema.kind is ConnectKind.MAP:
        out["keys"], out["values"] = inside(schema.keys), inside(schema.values)
    out["optional"] = "true" if schema.optional else "false"
    for name, text in (("name", schema.name), ("version", schema.version), ("doc", schema.doc)):
        if text is not None:
            out[name] = quote(text) if isinstance(text, str) else str(text)
    if schema.parameters:
        parameters = (f"{quote(name)}:{quote(text)}" for name, text in schema.parameters)
        out["parameters"] = f"{{{','.join(parameters)}}}"
    if numeric and schema.name == DECIMAL and isinstance(schema.default, bytes):
        out["default"] = decimal_json(schema.default, scale_of(schema))
    elif schema.default is not None:
        out["default"] = value_json(schema, schema.default)
    if field is not None:
        out["field"] = quote(field)
    return f"{{{','.join(f'{quote(name)}:{text}' for name, text in out.items())}}}"


def decimal_json(unscaled: bytes, scale: int) -> str:
    """Return a decimal as a JSON number with all its digits."""
    if not scale:
        return str(int.from_bytes(unscaled, "big", signed=True))
    return f"{decimal_of(unscaled, scale):f}"


def value_json(schema: Schema, value: Any) -> str:
    """Return the JSON text of a Connect value. Raises: TypeError.

    None is always ``null``. This function is slow and serves defaults, placeholders and fields that
    transforms set; ``ColumnMapping.to_json`` writes rows.
    """
    if value is None:
        return "null"
    # True is an int in Python, and no number in Connect.
    mixed = isinstance(value, bool) is not (schema.kind is ConnectKind.BOOLEAN)
    if mixed or not isinstance(value, VALUES[schema.kind]):
        raise TypeError(f"{type(value).__name__} is no {schema.kind.value}")
    match schema.kind:
        case ConnectKind.INT8 | ConnectKind.INT16 | ConnectKind.INT32 | ConnectKind.INT64:
            return str(value)
        case ConnectKind.FLOAT32 | ConnectKind.FLOAT64:
            return number_json(value, single=schema.kind is ConnectKind.FLOAT32)
        case ConnectKind.BOOLEAN:
            return "true" if value else "false"
        case ConnectKind.STRING:
            return quote(value)
        case ConnectKind.BYTES:
            return f'"{b64encode(value).decode()}"'
        case ConnectKind.ARRAY:
            assert schema.items is not None
            items = schema.items
            return f"[{','.join(value_json(items, item) for item in value)}]"
        case ConnectKind.MAP:
            return _map_json(schema, value)
        case ConnectKind.STRUCT:
            members = (
                f"{quote(member.name)}:{value_json(member.schema, value.get(member.name))}"
                for member in schema.fields
            )
            return f"{{{','.join(members)}}}"


def number_json(value: float, *, single: bool) -> str:
    """Return a floating-point number with a fraction or exponent."""
    # JSON has no NaN or infinity; Connect writes them as strings.
    special = SPECIAL_NUMBERS.get(str(value))
    if special is not None:
        return special
    return float_text(value) if single else repr(value)


def _map_json(schema: Schema, value: Mapping[object, object]) -> str:
    """Return the JSON text of a map.

    A map with string keys is an object, any other an array of pairs.
    """
    assert schema.keys is not None
    assert schema.values is not None
    keys, values = schema.keys, schema.values
    pairs = ((value_json(keys, k), value_json(values, v)) for k, v in value.items())
    if keys.kind is ConnectKind.STRING:
        return f"{{{','.join(f'{k}:{v}' for k, v in pairs)}}}"
    return f"[{','.join(f'[{k},{v}]' for k, v in pairs)}]"
