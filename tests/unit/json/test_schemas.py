"""Connect schemas in Avro and JSON Schema, and values in JSON: what Java's and Confluent's libraries make and take."""

import pytest
from tests.harness.schemas import INT32, MAYBE_TEXT, TEXT, mapped, of, struct

from waltap.changes.mapping.connect_schema import Schema
from waltap.encoders.format.converter import ConverterContext
from waltap.encoders.json.converter import DECIMAL, JsonConverter, JsonConverterProperties
from waltap.errors import ConfigurationError
from waltap_formats.avro.schema import avro_schema
from waltap_formats.json_schema import json_schema

POINT, OTHER_POINT = struct({"id": INT32}, "a.Point"), struct({"x": INT32}, "a.Point")


def test_names_of_avro():
    """A namespace may hold anything; another record of the same name gets a number."""
    made = avro_schema(struct({"id": INT32}, "shop-1.a b.Value"))
    assert (made["namespace"], made["name"]) == ("shop-1.a b", "Value")  # type: ignore[index, call-overload]
    made = avro_schema(struct({"one": POINT, "other": OTHER_POINT}, "a.All"))
    names = [field["type"]["name"] for field in made["fields"]]  # type: ignore[index, call-overload]
    assert names == ["Point", "Point2"]


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        (struct({"id": INT32}, "shop.my-table"), "schema.name.adjustment.mode"),
        (struct({"my-column": INT32}, "shop.Value"), "field.name.adjustment.mode"),
    ],
)
def test_other_names_are_refused_with_the_property_that_adjusts_them(schema, place):
    with pytest.raises(ConfigurationError, match=place):
        avro_schema(schema)


def test_a_record_that_stands_twice_is_referred_to_by_its_name():
    row = struct({"id": INT32}, "shop.t.Value")
    both = struct({"before": row, "after": row}, "shop.t.Envelope")
    first = {"type": "record", "name": "Value", "fields": [{"name": "id", "type": "int"}]}
    assert avro_schema(both, connect_metadata=False) == {
        "type": "record",
        "name": "Envelope",
        "namespace": "shop.t",
        "fields": [{"name": "before", "type": first}, {"name": "after", "type": "Value"}],
    }


def test_a_row_is_an_object_with_places_names_and_defaults():
    scale = (("scale", "2"),)
    price = of("bytes", DECIMAL, 1, optional=True, parameters=scale, doc="of a piece")
    row = {"id": of("int64", default=0), "price": price}
    found = json_schema(struct({"after": struct(row, "s.public.t.Value", optional=True)}))
    number = {"type": "integer", "connect.type": "int64", "default": 0, "connect.index": 0}
    text = {
        "type": "string",
        "connect.type": "bytes",
        "title": DECIMAL,
        "description": "of a piece",
        "connect.version": 1,
        "connect.parameters": {"scale": "2"},
    }
    members = {"id": number, "price": {"oneOf": [{"type": "null"}, text], "connect.index": 1}}
    value = {"type": "object", "title": "s.public.t.Value", "properties": members}
    after = {"oneOf": [{"type": "null"}, value], "connect.index": 0}
    assert found == {"type": "object", "properties": {"after": after}}


def test_maps_are_objects_or_arrays_of_entries():
    assert json_schema(mapped(TEXT, TEXT)) == {
        "type": "object",
        "additionalProperties": {"type": "string"},
        "connect.type": "map",
    }
    entry = json_schema(mapped(of("int16"), MAYBE_TEXT))
    assert (entry["type"], entry["connect.type"]) == ("array", "map")
    key = {"type": "integer", "connect.type": "int16", "connect.index": 0}
    assert entry["items"]["properties"]["key"] == key


def test_decimals_are_numbers_where_they_are_written_so():
    assert json_schema(of("bytes", DECIMAL), numeric=True)["type"] == "number"


def written(schema: Schema, value: object, **given: object) -> str:
    properties = JsonConverterProperties.model_validate({"schemas.enable": False, **given})
    data = JsonConverter(properties, ConverterContext(record_part="value")).encoder("t", schema)(
        value
    )
    return data.decode()


@pytest.mark.parametrize("kind", ["int32", "string", "boolean", "float64"])
def test_null_in_a_required_field_names_the_field(kind):
    schema = struct({"a": of(kind)})
    for row in ({}, {"a": None}):
        with pytest.raises(ValueError, match="the field a is required"):
            written(schema, row)
