"""JSON of one side: what the general way has beside the JSON format."""

import pytest
from tests.harness.schemas import of, struct

from waltap.changes.mapping.connect_schema import Schema
from waltap.encoders.format.converter import ConverterContext
from waltap.encoders.json.converter import DECIMAL, JsonConverter, JsonConverterProperties


def written(schema: Schema, value: object, **given: object) -> str:
    properties = JsonConverterProperties.model_validate({"schemas.enable": False, **given})
    data = JsonConverter(properties, ConverterContext(record_part="value")).encoder("t", schema)(
        value
    )
    return data.decode()


@pytest.mark.parametrize(
    ("unscaled", "scale", "text"),
    [
        (10**40 + 1, 2, "1" + "0" * 38 + ".01"),
        (-(10**40 + 1), 0, "-1" + "0" * 39 + "1"),
        (-5, 3, "-0.005"),
        (0, 2, "0.00"),
        (12, -3, "12000"),
    ],
)
def test_a_decimal_as_a_number_keeps_all_its_digits(unscaled, scale, text):
    schema = of("bytes", DECIMAL, parameters=(("scale", str(scale)),))
    value = unscaled.to_bytes(20, "big", signed=True)
    assert written(schema, value, **{"decimal.format": "NUMERIC"}) == text


@pytest.mark.parametrize(
    ("kind", "value"),
    [("int32", "7"), ("string", 7), ("int64", 1.5), ("string", b"x")],
)
def test_a_value_of_another_type_is_no_value(kind, value):
    schema = struct({"a": of(kind)})
    with pytest.raises((TypeError, ValueError)):
        written(schema, {"a": value})


@pytest.mark.parametrize("kind", ["int32", "string", "boolean", "float64"])
def test_null_in_a_required_field_names_the_field(kind):
    schema = struct({"a": of(kind)})
    for row in ({}, {"a": None}):
        with pytest.raises(ValueError, match="the field a is required"):
            written(schema, row)
