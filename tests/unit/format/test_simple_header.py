"""Header values as Connect's SimpleHeaderConverter wrote them: each text is from Kafka 4.3's own class."""

from decimal import Decimal
from typing import Any

import pytest
from tests.harness.schemas import INT32, MAYBE_TEXT, TEXT, array, mapped, of, struct

from waltap.changes.mapping.connect_schema import Schema
from waltap.encoders.format.simple_header import from_json, simple_text
from waltap.encoders.json.converter import json_writer

DATA = "org.apache.kafka.connect.data."
STRING, INT = MAYBE_TEXT, INT32
DOUBLE, FLOAT, DATUM = of("float64"), of("float32"), of("bytes", optional=True)
TIMESTAMP = of("int64", f"{DATA}Timestamp", optional=True)


def decimal(scale: int) -> Schema:
    return of("bytes", f"{DATA}Decimal", parameters=(("scale", str(scale)),), optional=True)


def unscaled(text: str) -> tuple[bytes, Schema]:
    sign, digits, exponent = Decimal(text).as_tuple()
    number = int("".join(map(str, digits))) * (-1 if sign else 1)
    assert isinstance(exponent, int)
    return number.to_bytes(12, "big", signed=True), decimal(-exponent)


STRUCT = struct(
    {
        "id": INT,
        "s": STRING,
        "d": of("string", optional=True, default="def"),
        "b": DATUM,
        "ts": TIMESTAMP,
        "dec": decimal(2),
    }
)
OUTER = struct({"in": STRUCT, "l": array(STRING)})
FULL = {
    "id": 1, "s": 'a"b\\c\ndé\'', "b": b"\1\2\3", "ts": 1700000000123, "dec": b"\x00\x96",
}  # fmt: skip
STRINGS = mapped(TEXT, STRING)

CASES: list[tuple[Any, Schema | None, str]] = [
    ({"id": 1030}, STRUCT, '{"id":1030,"s":null,"d":"def","b":null,"ts":null,"dec":null}'),
    (
        FULL,
        STRUCT,
        '{"id":1,"s":"a\\"b\\\\c\ndé\'","d":"def","b":"AQID","ts":2023-11-14T22:13:20.123Z,"dec":1.50}',
    ),
    (
        {"in": {"id": 1}, "l": ["x", None, 'y"']},
        OUTER,
        '{"in":{"id":1,"s":null,"d":"def","b":null,"ts":null,"dec":null},"l":["x",null,"y\\""]}',
    ),
    (1e7, DOUBLE, "1.0E7"),
    (1.5e-5, FLOAT, "1.5E-5"),
    (float("nan"), DOUBLE, "NaN"),
    (float("inf"), FLOAT, "Infinity"),
    (b"\xff\1", DATUM, "/wE="),
    (*unscaled("1E+3"), "1E+3"),
    (*unscaled("0.0000000001"), "1E-10"),
    (*unscaled("-12345678901234567890.12"), "-12345678901234567890.12"),
    ([1, None, 3], array(INT), "[1,null,3]"),
    ([], array(INT), "[]"),
    ({"a": "1", "b": None}, STRINGS, '{"a":"1","b":null}'),
    ({1: 2}, mapped(INT, INT), "{1:2}"),
    (0, TIMESTAMP, "00:00:00.000Z"),
    (86400000, TIMESTAMP, "1970-01-02"),
    (86400001, TIMESTAMP, "1970-01-02T00:00:00.001Z"),
    (-20000000000001, TIMESTAMP, "12:26:39.999Z"),
    (["x", 1], None, '["x",1]'),
]


@pytest.mark.parametrize(("value", "schema", "text"), CASES)
def test_a_header_value_is_as_connect_writes_it(value, schema, text):
    assert simple_text(value, schema) == text


@pytest.mark.parametrize(
    ("value", "schema", "text"), [case for case in CASES if case[1] in (STRUCT, OUTER, STRINGS)]
)
def test_the_json_of_a_key_gives_the_same_text(value, schema, text):
    written = json_writer(schema, defaults=True)(value)
    assert simple_text(from_json(written, schema), schema) == text
