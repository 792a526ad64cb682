"""Avro schemas of Connect schemas, as Confluent's AvroConverter makes them.

Names are the Connect schemas', divided at their last dot. Facts that Avro cannot express are
properties (``connect.name``, ``connect.version``, ``connect.parameters``, ``connect.default``,
``connect.type``, ``connect.doc``). They are in the order in which Avro's Java library prints them,
so that a topic written by the other product gets no new version. Source: results of
kafka-connect-avro-data 7.0.
"""

import json
import re
from typing import Any

from waltap.changes.mapping.connect_schema import (
    DATE,
    DECIMAL,
    TIME,
    TIMESTAMP,
    ConnectKind,
    Field,
    Schema,
)
from waltap.changes.mapping.java_number import float_text
from waltap.errors import ConfigurationError

NAMESPACE = "io.confluent.connect.avro"
DEFAULT_NAME = "ConnectDefault"
MAP_ENTRY = "MapEntry"
LOGICAL = {
    DATE: "date",
    DECIMAL: "decimal",
    TIME: "time-millis",
    TIMESTAMP: "timestamp-millis",
}
# Confluent's precision for decimals without one.
DEFAULT_PRECISION = 64
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

PRIMITIVES = {
    ConnectKind.INT8: "int",
    ConnectKind.INT16: "int",
    ConnectKind.INT32: "int",
    ConnectKind.INT64: "long",
    ConnectKind.FLOAT32: "float",
    ConnectKind.FLOAT64: "double",
    ConnectKind.BOOLEAN: "boolean",
    ConnectKind.STRING: "string",
    ConnectKind.BYTES: "bytes",
}

AvroSchema = str | dict[str, Any] | list[Any]


def avro_schema(schema: Schema, *, connect_metadata: bool = True) -> AvroSchema:
    """Return the Avro schema of ``schema`` as parsed JSON.

    Raises: ConfigurationError for names that Avro refuses.
    """
    return _AvroSchemaBuilder(connect_metadata=connect_metadata).build(schema, None)


def is_map(schema: Schema) -> bool:
    """Return whether a Connect map is an Avro map.

    Its keys must be strings; otherwise it becomes an array of entries.
    """
    assert schema.keys is not None
    return schema.keys.kind is ConnectKind.STRING and not schema.keys.optional


class _AvroSchemaBuilder:
    """Build one schema."""

    def __init__(self, *, connect_metadata: bool) -> None:
        self._metadata = connect_metadata
        # Full name → fields of its definition: Avro allows only one definition of a name.
        self._defined: dict[str, Any] = {}

    def build(self, schema: Schema, space: str | None) -> AvroSchema:
        base = self._base(schema, space)
        if not schema.optional:
            return base
        return ["null", base] if json_default(schema) is None else [base, "null"]

    def _base(self, schema: Schema, space: str | None) -> AvroSchema:
        plain = schema.kind in PRIMITIVES
        if plain:
            made: dict[str, Any] = {"type": PRIMITIVES[schema.kind]}
        elif schema.kind is ConnectKind.ARRAY:
            assert schema.items is not None
            made = {"type": "array", "items": self.build(schema.items, space)}
        elif schema.kind is ConnectKind.MAP:
            made = self._map(schema, space)
        else:
            name, record = self._record(schema.name, schema.fields, space, self._properties(schema))
            return record if record is not None else name
        if schema.name == DECIMAL:
            parameters = dict(schema.parameters)
            made["scale"] = int(parameters.get("scale", 0))
            made["precision"] = int(parameters.get("connect.decimal.precision", DEFAULT_PRECISION))
        made.update(self._properties(schema))
        if schema.name in LOGICAL:
            made["logicalType"] = LOGICAL[schema.name]
        # A type without properties is a bare string, as in the Java library's text.
        return str(made["type"]) if plain and len(made) == 1 else made

    def _record(
        self,
        full_name: str | None,
        fields: tuple[Field, ...],
        space: str | None,
        properties: dict[str, Any],
    ) -> tuple[str, dict[str, Any] | None]:
        """Return a record's name, and its definition at the first use."""
        namespace, name = _split(full_name)
        number, known = 1, self._defined.get(_joined(namespace, name))
        while known is not None and known != fields:  # another record of the same name
            number += 1
            known = self._defined.get(_joined(namespace, f"{name}{number}"))
        if number > 1:
            name = f"{name}{number}"
        if known is not None:
            return name if namespace == space else _joined(namespace, name), None
        self._defined[_joined(namespace, name)] = fields
        made: dict[str, Any] = {"type": "record", "name": name}
        # An inherited namespace is left out, as in the Java library's text.
        if namespace != space:
            made["namespace"] = namespace or ""
        made["fields"] = [self._field(field, namespace) for field in fields]
        made.update(properties)
        return name, made

    def _field(self, field: Field, space: str | None) -> dict[str, Any]:
        schema = field.schema
        made: dict[str, Any] = {
            "name": _checked(field.name, "field.name.adjustment.mode", "field"),
            "type": self.build(schema, space),
        }
        default = json_default(schema)
        # With null as the default, readers of a newer schema can read older values.
        if default is not None or schema.optional:
            made["default"] = default
        return made

    def _map(self, schema: Schema, space: str | None) -> dict[str, Any]:
        assert schema.keys is not None
        assert schema.values is not None
        if is_map(schema):
            return {"type": "map", "values": self.build(schema.values, space)}
        fields = Field("key", schema.keys), Field("value", schema.values)
        named = schema.name or f"{NAMESPACE}.{MAP_ENTRY}"
        internal = {"connect.internal.type": MAP_ENTRY} if schema.name else {}
        name, record = self._record(named, fields, space, internal)
        return {"type": "array", "items": name if record is None else record}

    def _properties(self, schema: Schema) -> dict[str, Any]:
        if not self._metadata:
            return {}
        made: dict[str, Any] = {}
        if schema.doc is not None:
            made["connect.doc"] = schema.doc
        if schema.version is not None:
            made["connect.version"] = schema.version
        if schema.parameters:
            made["connect.parameters"] = dict(schema.parameters)
        default = json_default(schema)
        if default is not None:
            # Java prints the fewest digits of a single here, but all of a double in a field default.
            single = schema.kind is ConnectKind.FLOAT32
            made["connect.default"] = float(float_text(default)) if single else default
        if schema.name is not None:
            made["connect.name"] = schema.name
        # Avro has no integers of 8 and 16 bits.
        if schema.kind in {ConnectKind.INT8, ConnectKind.INT16}:
            made["connect.type"] = schema.kind.value
        return made


def _split(full_name: str | None) -> tuple[str | None, str]:
    """Return namespace and name of a record. Raises: ConfigurationError."""
    if full_name is None:
        return NAMESPACE, DEFAULT_NAME
    namespace, _, name = full_name.rpartition(".")
    # Avro's Java library accepts any namespace, as with a hyphen, and checks only the name.
    _checked(name, "schema.name.adjustment.mode", f"schema {full_name}, whose name is")
    return namespace or None, name


def _joined(namespace: str | None, name: str) -> str:
    return f"{namespace}.{name}" if namespace else name


def _checked(name: str, property_name: str, what: str) -> str:
    if not _NAME.fullmatch(name):
        problem = f"Avro takes no {what} {json.dumps(name, ensure_ascii=False)}"
        raise ConfigurationError.of(property_name, problem, allowed="avro, avro_unicode")
    return name


def json_default(schema: Schema) -> Any:
    """Return a schema's default in Avro's JSON, or None.

    JSON has no NaN and no infinity, and registries refuse them as texts, too: such a default is left out.
    """
    if schema.default is None:
        return None
    default = _default(schema, schema.default)
    try:
        json.dumps(default, allow_nan=False)
    except ValueError:
        return None
    return default


def _default(schema: Schema, value: Any) -> Any:
    """Return a default in Avro's JSON. Bytes become a text of one character per byte."""
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if schema.kind is ConnectKind.ARRAY:
        assert schema.items is not None
        return [_default(schema.items, each) for each in value]
    if schema.kind is ConnectKind.MAP:
        assert schema.values is not None
        return {key: _default(schema.values, each) for key, each in value.items()}
    if schema.kind is ConnectKind.STRUCT:
        return {field.name: _default(field.schema, value[field.name]) for field in schema.fields}
    return value
