"""JSON with a schema registry, as Confluent's JsonSchemaConverter writes it."""

import json
from typing import Any

import orjson

from waltap.changes.mapping.connect_schema import DECIMAL, ConnectKind, Schema
from waltap.changes.mapping.json_schema import value_json
from waltap.encoders.format.converter import Encode
from waltap.encoders.json.converter import json_writer
from waltap_formats.properties import JsonSchemaProperties
from waltap_formats.registry import RegistryConverter

# JSON Schemas of Connect schemas, as Confluent's converter makes them.
#
# ``title`` is the name, ``connect.index`` the position of a field, and ``connect.type`` a type
# that JSON lacks. An optional schema is a ``oneOf`` with null first. Source: behaviour of
# kafka-connect-json-schema-converter.

TYPES: dict[ConnectKind, tuple[str, str | None]] = {
    ConnectKind.INT8: ("integer", "int8"),
    ConnectKind.INT16: ("integer", "int16"),
    ConnectKind.INT32: ("integer", "int32"),
    ConnectKind.INT64: ("integer", "int64"),
    ConnectKind.FLOAT32: ("number", "float32"),
    ConnectKind.FLOAT64: ("number", "float64"),
    ConnectKind.BOOLEAN: ("boolean", None),
    ConnectKind.STRING: ("string", None),
    ConnectKind.BYTES: ("string", "bytes"),
}


def json_schema(
    schema: Schema, *, numeric: bool = False, index: int | None = None
) -> dict[str, Any]:
    """Return the JSON Schema of ``schema``.

    With ``numeric``, decimals are numbers. ``index`` is the position of a struct's field.
    """
    made = _plain(schema, numeric=numeric)
    if schema.name is not None:
        made["title"] = schema.name
    if schema.doc is not None:
        made["description"] = schema.doc
    if schema.version is not None:
        made["connect.version"] = schema.version
    if schema.parameters:
        made["connect.parameters"] = dict(schema.parameters)
    if schema.default is not None:
        made["default"] = json.loads(value_json(schema, schema.default))
    if schema.optional:
        made = {"oneOf": [{"type": "null"}, made]}
    if index is not None:
        made["connect.index"] = index
    return made


def _plain(schema: Schema, *, numeric: bool) -> dict[str, Any]:
    if schema.kind in TYPES:
        kind, connect = TYPES[schema.kind]
        if numeric and schema.name == DECIMAL:
            kind = "number"
        return {"type": kind} if connect is None else {"type": kind, "connect.type": connect}
    if schema.kind is ConnectKind.ARRAY:
        assert schema.items is not None
        return {"type": "array", "items": json_schema(schema.items, numeric=numeric)}
    if schema.kind is ConnectKind.MAP:
        return _map(schema, numeric=numeric)
    return {
        "type": "object",
        "properties": {
            field.name: json_schema(field.schema, numeric=numeric, index=index)
            for index, field in enumerate(schema.fields)
        },
    }


def _map(schema: Schema, *, numeric: bool) -> dict[str, Any]:
    assert schema.keys is not None
    assert schema.values is not None
    # JSON objects only have keys of text; other maps are arrays of entries.
    if schema.keys.kind is ConnectKind.STRING and not schema.keys.optional:
        values = json_schema(schema.values, numeric=numeric)
        return {"type": "object", "additionalProperties": values, "connect.type": "map"}
    entry = {
        "key": json_schema(schema.keys, numeric=numeric, index=0),
        "value": json_schema(schema.values, numeric=numeric, index=1),
    }
    items = {"type": "object", "properties": entry}
    return {"type": "array", "items": items, "connect.type": "map"}


class JsonSchemaConverter(RegistryConverter[JsonSchemaProperties]):
    """Write JSON behind the schema's id."""

    language = "JSON"
    # Confluent's writes the JSON value null.
    leaves_nulls = False

    def made(self, topic: str, schema: Schema) -> Encode:
        options, numeric = self._properties, self._properties.decimals == "NUMERIC"
        write = json_writer(
            schema, defaults=not options.ignore_default, numeric=numeric, entries=True
        )
        text = orjson.dumps(json_schema(schema, numeric=numeric)).decode()
        prefix = self._registered(topic, schema.name, text)
        return lambda value: prefix + write(value).encode()
