"""Names in Avro schemas: what Avro's Java library takes, and what it refuses."""

import pytest

from waltap.errors import ConfigurationError
from waltap.mapping.connect_schema import ConnectKind, Field, Schema
from waltap_formats.avro.schema import avro_schema

NUMBER = Schema(kind=ConnectKind.INT32)


def struct(name: str | None, *fields: Field) -> Schema:
    return Schema(kind=ConnectKind.STRUCT, name=name, fields=fields or (Field("id", NUMBER),))


def test_a_namespace_may_hold_anything() -> None:
    made = avro_schema(struct("shop-1.a b.Value"))
    assert isinstance(made, dict)
    assert (made["namespace"], made["name"]) == ("shop-1.a b", "Value")


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        (struct("shop.my-table"), "schema.name.adjustment.mode"),
        (struct("shop.Value", Field("my-column", NUMBER)), "field.name.adjustment.mode"),
    ],
)
def test_other_names_are_refused_with_the_property_that_adjusts_them(
    schema: Schema, place: str
) -> None:
    with pytest.raises(ConfigurationError, match=place):
        avro_schema(schema)


def test_a_record_that_stands_twice_is_referred_to_by_its_name() -> None:
    row = struct("shop.t.Value")
    both = struct("shop.t.Envelope", Field("before", row), Field("after", row))
    assert avro_schema(both, connect_metadata=False) == {
        "type": "record",
        "name": "Envelope",
        "namespace": "shop.t",
        "fields": [
            {
                "name": "before",
                "type": {
                    "type": "record",
                    "name": "Value",
                    "fields": [{"name": "id", "type": "int"}],
                },
            },
            {"name": "after", "type": "Value"},
        ],
    }


def test_another_record_of_the_same_name_gets_a_number() -> None:
    one, other = struct("a.Point"), struct("a.Point", Field("x", NUMBER))
    made = avro_schema(struct("a.All", Field("one", one), Field("other", other)))
    assert isinstance(made, dict)
    assert [field["type"]["name"] for field in made["fields"]] == ["Point", "Point2"]
