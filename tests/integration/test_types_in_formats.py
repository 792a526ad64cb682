"""Values of every type through each binary format, read back by another library."""

import io
import json
import math

import fastavro
import pytest

from tests.rigs.typed_records import NOW, context, typed_parts, typed_records
from tests.rigs.typed_values import typed  # noqa: F401 - a fixture
from waltap.format.converted import ConvertedFormat, Converters
from waltap.format.converter import ConverterContext, ValueUnfit
from waltap.format.record import Record
from waltap.mapping.connect_schema import Kind, Schema
from waltap_formats.avro.binary import avro_writer
from waltap_formats.avro.converter import AvroConverter
from waltap_formats.avro.properties import AvroProperties
from waltap_formats.avro.schema import avro_schema, is_map


def plain(schema: Schema, value: object) -> object:
    """Return a Connect value as a reader sees it that knows no Connect: defaults in place of null."""
    if value is None:
        value = schema.default
    if value is None:
        return None
    match schema.kind:
        case Kind.STRUCT:
            return {f.name: plain(f.schema, value.get(f.name)) for f in schema.fields}
        case Kind.ARRAY:
            return [plain(schema.items, each) for each in value]
        case Kind.MAP if is_map(schema):
            return {key: plain(schema.values, each) for key, each in value.items()}
        case Kind.MAP:
            return [
                {"key": plain(schema.keys, key), "value": plain(schema.values, each)}
                for key, each in value.items()
            ]
        case Kind.STRING:
            return value.encode("utf-8", "replace").decode()
    return value


def same(one: object, other: object) -> bool:
    """Tell whether two values are equal; NaN equals itself, floats are those of 32 bits where one is."""
    if isinstance(one, float) and isinstance(other, float):
        return (math.isnan(one) and math.isnan(other)) or math.isclose(one, other, rel_tol=1e-6)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


def without_logical_types(schema: object) -> object:
    """Return an Avro schema whose decimals and dates are read as the bytes and numbers they are."""
    if isinstance(schema, dict):
        return {k: without_logical_types(v) for k, v in schema.items() if k != "logicalType"}
    return list(map(without_logical_types, schema)) if isinstance(schema, list) else schema


def test_avro_is_read_back_as_it_was(typed) -> None:
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


class Unregistered(AvroConverter):
    """Avro without a registry; ``straight``: rows are written from their images."""

    straight = True

    def __init__(self) -> None:
        url = {"schema.registry.url": "http://nobody"}
        super().__init__(AvroProperties.model_validate(url), ConverterContext(side="value"))

    def prefix(self, topic, schema):
        return b"\0\0\0\0\1"

    def keys(self, shape, *, read):
        return super().keys(shape, read=read) if self.straight else None

    def creates(self, shape, value, *, read):
        return super().creates(shape, value, read=read) if self.straight else None


class General(Unregistered):
    straight = False


@pytest.mark.parametrize("nullable", [True, False], ids=["nullable", "not null"])
def test_rows_written_straight_are_those_written_from_values(typed, nullable: bool) -> None:
    def rendered(converter, part) -> list[Record]:
        converters = Converters(key=converter, value=converter, header=converter)
        context_ = context(**{"extended.headers.enabled": False})
        return ConvertedFormat(converters, context_).render([part], NOW)

    straight = 0
    for name, parts in typed_parts(typed, nullable=nullable):
        for part in parts:
            try:
                wanted = rendered(General(), part)
            except ValueUnfit:  # null in a required field
                with pytest.raises(ValueUnfit):
                    rendered(Unregistered(), part)
                continue
            assert rendered(Unregistered(), part) == wanted, name
            straight += len(wanted)
    assert straight > 500
