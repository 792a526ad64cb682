"""Values of every type through each binary format, read back by another library."""

import io
import json
import math
from typing import Any

import fastavro
import pytest
from jsonschema import Draft7Validator
from tests.harness.protobuf import protobuf_reader
from tests.harness.typed_records import (
    typed_records,
)
from tests.harness.typed_values import typed  # noqa: F401 - a fixture

from waltap.changes.mapping.connect_schema import ConnectKind, Schema
from waltap.encoders.format.converter import ConverterContext, SchemaMismatch
from waltap_formats.avro.binary import avro_writer
from waltap_formats.avro.schema import avro_schema, is_map
from waltap_formats.json_schema import JsonSchemaConverter
from waltap_formats.properties import JsonSchemaProperties
from waltap_formats.protobuf.binary import NullPresence, message_writer
from waltap_formats.protobuf.schema import message_file


def plain(schema: Schema, value: object) -> object:
    """Return a Connect value as a reader sees it that knows no Connect: defaults in place of null."""
    if value is None:
        value = schema.default
    if value is None:
        return None
    match schema.kind:
        case ConnectKind.STRUCT:
            return {f.name: plain(f.schema, value.get(f.name)) for f in schema.fields}
        case ConnectKind.ARRAY:
            return [plain(schema.items, each) for each in value]
        case ConnectKind.MAP if is_map(schema):
            return {key: plain(schema.values, each) for key, each in value.items()}
        case ConnectKind.MAP:
            return [
                {"key": plain(schema.keys, key), "value": plain(schema.values, each)}
                for key, each in value.items()
            ]
        case ConnectKind.STRING:
            return value.encode("utf-8", "replace").decode()
    return value


def same(one: object, other: object) -> bool:
    """Return whether two values are equal; NaN equals itself, floats are those of 32 bits where one is."""
    if isinstance(one, float) and isinstance(other, float):
        return (math.isnan(one) and math.isnan(other)) or math.isclose(one, other, rel_tol=1e-6)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


def without_logical_types(schema: object) -> object:
    if isinstance(schema, dict):
        return {k: without_logical_types(v) for k, v in schema.items() if k != "logicalType"}
    return list(map(without_logical_types, schema)) if isinstance(schema, list) else schema


def test_avro_is_read_back_as_it_was(typed):
    count = 0
    for name, records in typed_records(typed):
        for record in records:
            if record.value is None:
                continue
            schema = without_logical_types(avro_schema(record.value_schema))
            data = io.BytesIO(avro_writer(record.value_schema)(record.value))
            found = fastavro.schemaless_reader(data, fastavro.parse_schema(schema))
            assert not data.read(), name
            wanted = plain(record.value_schema, record.value)
            assert same(found, wanted), (name, found["after"], wanted["after"])
            assert json.dumps(schema)
            count += 1
    assert count > 600


PRESENCE = {"nothing": {}, "optional": {"optional": True}, "wrappers": {"wrappers": True}}


def as_protobuf(schema: Schema, value: object, presence: str) -> object:
    """Return a Connect value as Google's library reads it; what is not there has no entry in a struct."""
    if value is None:
        value = schema.default
    if value is None:
        return None
    if schema.name == "org.apache.kafka.connect.data.Decimal":
        digits = len(str(abs(int.from_bytes(value, "big", signed=True))))
        return {"value": value, "precision": digits, "scale": int(dict(schema.parameters)["scale"])}
    match schema.kind:
        case ConnectKind.STRUCT:
            found = {f.name: member(f.schema, value.get(f.name), presence) for f in schema.fields}
            return {name: each for name, each in found.items() if each is not None}
        case ConnectKind.ARRAY:
            of = member if presence == "wrappers" else as_protobuf
            return [of(schema.items, each, presence) for each in value]
        case ConnectKind.MAP:
            pairs = [
                (("key", schema.keys, k), ("value", schema.values, v)) for k, v in value.items()
            ]
            inner = "wrappers" if presence == "wrappers" else "nothing"
            return [
                {n: found for n, s, each in pair if (found := member(s, each, inner)) is not None}
                for pair in pairs
            ]
        case ConnectKind.STRING:
            return value.encode("utf-8", "replace").decode()
    return value


def member(schema: Schema, value: object, presence: str) -> object:
    """Return what is read of a field: None where the reader sees that it is not there."""
    made = as_protobuf(schema, value, presence)
    if schema.kind in {ConnectKind.ARRAY, ConnectKind.MAP}:
        return made or []
    if schema.kind is ConnectKind.STRUCT or schema.name == "org.apache.kafka.connect.data.Decimal":
        return made
    if not schema.optional or presence == "nothing":
        return ZERO[schema.kind] if made is None else made
    if made is None or presence != "wrappers":
        return made
    return {"value": made}


ZERO = {
    ConnectKind.STRING: "",
    ConnectKind.BYTES: b"",
    ConnectKind.BOOLEAN: False,
    ConnectKind.FLOAT32: 0.0,
    ConnectKind.FLOAT64: 0.0,
}
ZERO |= dict.fromkeys(
    (ConnectKind.INT8, ConnectKind.INT16, ConnectKind.INT32, ConnectKind.INT64), 0
)


@pytest.mark.parametrize("presence", PRESENCE)
def test_protobuf_is_read_back_by_googles_library(typed, presence):
    count, readers = 0, {}
    how = NullPresence(**PRESENCE[presence])
    for name, records in typed_records(typed):
        for record in records:
            schema = record.value_schema
            if record.value is None:
                continue
            text = message_file(schema, **PRESENCE[presence]).text()
            if text not in readers:
                readers[text] = protobuf_reader(text)
            try:
                data = message_writer(schema, how)(record.value)
            except SchemaMismatch as reason:
                assert "no null inside of an array" in str(reason), name
                continue
            found = readers[text](data)
            wanted = as_protobuf(schema, record.value, presence)
            assert same(found, wanted), (name, found["after"], wanted["after"])
            count += 1
    assert count > 600


def finite(value: object) -> bool:
    if isinstance(value, dict):
        return all(map(finite, value.values()))
    if isinstance(value, list):
        return all(map(finite, value))
    return not isinstance(value, float) or math.isfinite(value)


class UnregisteredJson(JsonSchemaConverter):
    """JSON Schema without a registry: keeps the text that it would register."""

    registered = ""

    def _registered(self, topic, name, text):
        self.registered = text
        return b""


@pytest.mark.parametrize("decimals", ["BASE64", "NUMERIC"])
def test_json_is_valid_by_the_schema_that_is_registered(typed, decimals):
    """Judged by another library; a value of another type is not valid. JSON has no NaN and no infinity:
    they are texts, as Java's library writes them."""
    given = {"schema.registry.url": "http://nobody", "decimal.format": decimals}
    properties = JsonSchemaProperties.model_validate(given)
    made = UnregisteredJson(properties, ConverterContext(record_part="value"))
    judges: dict[str, Any] = {}
    count = 0
    for name, records in typed_records(typed):
        if decimals == "NUMERIC" and not name.startswith(("numeric", "money")):
            continue
        for record in records:
            if record.value is None or not finite(record.value):
                continue
            data = made.encoder("t", record.value_schema)(record.value)
            text = made.registered
            if text not in judges:
                schema = json.loads(text)
                Draft7Validator.check_schema(schema)
                judges[text] = Draft7Validator(schema)
            value = json.loads(data)
            problems = [each.message for each in judges[text].iter_errors(value)]
            assert not problems, (name, problems)
            assert not judges[text].is_valid({**value, "op": 1})
            if value["after"] is not None:
                wrong = {**value["after"], "id": "text"}
                assert not judges[text].is_valid({**value, "after": wrong})
            count += 1
    assert count > (600 if decimals == "BASE64" else 40)
