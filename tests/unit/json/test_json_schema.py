"""JSON Schemas of Connect schemas: what Confluent's converter makes of the same."""

from waltap.mapping.connect_schema import ConnectKind, Field, Schema
from waltap_formats.json_schema.schema import json_schema


def test_a_row_is_an_object_with_places_names_and_defaults() -> None:
    row = Schema(
        kind=ConnectKind.STRUCT,
        optional=True,
        name="s.public.t.Value",
        fields=(
            Field("id", Schema(kind=ConnectKind.INT64, default=0)),
            Field("price", Schema(
                kind=ConnectKind.BYTES, optional=True, name="org.apache.kafka.connect.data.Decimal",
                version=1, parameters=(("scale", "2"),), doc="of a piece",
            )),
        ),
    )  # fmt: skip
    assert json_schema(Schema(kind=ConnectKind.STRUCT, fields=(Field("after", row),))) == {
        "type": "object",
        "properties": {
            "after": {
                "oneOf": [
                    {"type": "null"},
                    {
                        "type": "object",
                        "title": "s.public.t.Value",
                        "properties": {
                            "id": {
                                "type": "integer",
                                "connect.type": "int64",
                                "default": 0,
                                "connect.index": 0,
                            },
                            "price": {
                                "oneOf": [
                                    {"type": "null"},
                                    {
                                        "type": "string",
                                        "connect.type": "bytes",
                                        "title": "org.apache.kafka.connect.data.Decimal",
                                        "description": "of a piece",
                                        "connect.version": 1,
                                        "connect.parameters": {"scale": "2"},
                                    },
                                ],
                                "connect.index": 1,
                            },
                        },
                    },
                ],
                "connect.index": 0,
            }
        },
    }


def test_maps_are_objects_or_arrays_of_entries() -> None:
    text = Schema(kind=ConnectKind.STRING)
    by_name = Schema(kind=ConnectKind.MAP, keys=text, values=text)
    by_number = Schema(kind=ConnectKind.MAP, keys=Schema(kind=ConnectKind.INT16), values=text)
    assert json_schema(by_name) == {
        "type": "object",
        "additionalProperties": {"type": "string"},
        "connect.type": "map",
    }
    entry = json_schema(by_number)
    assert (entry["type"], entry["connect.type"]) == ("array", "map")
    assert entry["items"]["properties"]["key"] == {
        "type": "integer",
        "connect.type": "int16",
        "connect.index": 0,
    }


def test_decimals_are_numbers_where_they_are_written_so() -> None:
    decimal = Schema(kind=ConnectKind.BYTES, name="org.apache.kafka.connect.data.Decimal")
    assert json_schema(decimal, numeric=True)["type"] == "number"
