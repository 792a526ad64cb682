"""Values of every type in Avro and in JSON Schema, judged by another library; Protobuf: tests/differential/test_converters.py."""

import io
import json
import math
from typing import Any

import fastavro
import pytest
from jsonschema import Draft7Validator
from tests.harness.typed_records import (
    typed_records,
)
from tests.harness.typed_values import typed  # noqa: F401 - a fixture

from waltap.changes.mapping.connect_schema import ConnectKind, Schema
from waltap.encoders.format.converter import ConverterContext
from waltap_formats.avro.binary import avro_writer
from waltap_formats.avro.schema import avro_schema, is_map
from waltap_formats.json_schema import JsonSchemaConverter
from waltap_formats.properties import JsonSchemaProperties


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
    count, parsed = 0, dict[int, Any]()
    for name, records in typed_records(typed):
        for record in records:
            if record.value is None:
                continue
            number = id(record.value_schema)
            if number not in parsed:
                schema = without_logical_types(avro_schema(record.value_schema))
                assert json.dumps(schema)
                # the schema itself is kept, so that no other has its number
                parsed[number] = fastavro.parse_schema(schema), record.value_schema
            data = io.BytesIO(avro_writer(record.value_schema)(record.value))
            found = fastavro.schemaless_reader(data, parsed[number][0])
            assert not data.read(), name
            wanted = plain(record.value_schema, record.value)
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
            value = json.loads(data)
            if text not in judges:
                schema = json.loads(text)
                Draft7Validator.check_schema(schema)
                judges[text] = Draft7Validator(schema)
                assert not judges[text].is_valid({**value, "op": 1})
                wrong = {**(value["after"] or {}), "id": "text"}
                assert not judges[text].is_valid({**value, "after": wrong})
            problems = [each.message for each in judges[text].iter_errors(value)]
            assert not problems, (name, problems)
            count += 1
    assert count > (600 if decimals == "BASE64" else 40)
