"""Write Connect schemas and values as Kafka Connect's converter does.

A schema object has ``type``, the members of its kind (``fields``, ``items``, ``keys`` and ``values``),
``optional name version doc parameters default``, and ``field`` in members of a struct. Absent
ones are omitted. The order is Debezium's, which makes the texts easy to compare.
"""

import json
from base64 import b64encode
from collections.abc import Mapping
from json.encoder import encode_basestring

from waltap.changes.mapping.connect_schema import ConnectKind, Schema
from waltap.changes.mapping.java_number import float_text

# str → JSON string with raw non-ASCII characters; implemented in C where Python has it.
quote = encode_basestring

SPECIAL_NUMBERS = {"nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}


def schema_object(schema: Schema, field: str | None = None) -> dict[str, object]:
    """Return ``schema`` as an object; ``field`` names a struct member."""
    out: dict[str, object] = {"type": schema.kind.value}
    if schema.kind is ConnectKind.STRUCT:
        out["fields"] = [schema_object(member.schema, member.name) for member in schema.fields]
    elif schema.kind is ConnectKind.ARRAY:
        assert schema.items is not None
        out["items"] = schema_object(schema.items)
    elif schema.kind is ConnectKind.MAP:
        assert schema.keys is not None
        assert schema.values is not None
        out["keys"] = schema_object(schema.keys)
        out["values"] = schema_object(schema.values)
    out["optional"] = schema.optional
    named = {"name": schema.name, "version": schema.version, "doc": schema.doc}
    out |= {name: value for name, value in named.items() if value is not None}
    if schema.parameters:
        out["parameters"] = dict(schema.parameters)
    if schema.default is not None:
        out["default"] = json.loads(value_json(schema, schema.default))
    if field is not None:
        out["field"] = field
    return out


def schema_json(schema: Schema) -> str:
    """Return the compact text of `schema_object`."""
    return json.dumps(schema_object(schema), ensure_ascii=False, separators=(",", ":"))


def value_json(schema: Schema, value: object) -> str:
    """Return the JSON text of a Connect value.

    None is always ``null``. This function is slow and serves defaults, placeholders and fields that
    transforms set; ``ColumnMapping.to_json`` writes rows.
    """
    if value is None:
        return "null"
    match schema.kind:
        case ConnectKind.INT8 | ConnectKind.INT16 | ConnectKind.INT32 | ConnectKind.INT64:
            assert isinstance(value, int)
            return str(value)
        case ConnectKind.FLOAT32 | ConnectKind.FLOAT64:
            assert isinstance(value, float)
            return number_json(value, single=schema.kind is ConnectKind.FLOAT32)
        case ConnectKind.BOOLEAN:
            return "true" if value else "false"
        case ConnectKind.STRING:
            assert isinstance(value, str)
            return quote(value)
        case ConnectKind.BYTES:
            assert isinstance(value, bytes)
            return f'"{b64encode(value).decode()}"'
        case ConnectKind.ARRAY:
            assert isinstance(value, list)
            assert schema.items is not None
            items = schema.items
            return f"[{','.join(value_json(items, item) for item in value)}]"
        case ConnectKind.MAP:
            assert isinstance(value, Mapping)
            return _map_json(schema, value)
        case ConnectKind.STRUCT:
            assert isinstance(value, Mapping)
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
