"""Header values as Connect's SimpleHeaderConverter wrote them: each text is from Kafka 4.3's own class."""

from decimal import Decimal
from typing import Any

import pytest

from waltap.format.simple_header import from_json, simple_text
from waltap.json.converter import json_writer
from waltap.mapping.connect_schema import ConnectKind, Field, Schema

DATA = "org.apache.kafka.connect.data."
STRING, INT = Schema(kind=ConnectKind.STRING, optional=True), Schema(kind=ConnectKind.INT32)
DOUBLE, FLOAT = Schema(kind=ConnectKind.FLOAT64), Schema(kind=ConnectKind.FLOAT32)
BYTES = Schema(kind=ConnectKind.BYTES, optional=True)
TIMESTAMP = Schema(kind=ConnectKind.INT64, name=f"{DATA}Timestamp", optional=True)


def decimal(scale: int) -> Schema:
    parameters = (("scale", str(scale)),)
    return Schema(
        kind=ConnectKind.BYTES, name=f"{DATA}Decimal", parameters=parameters, optional=True
    )


def unscaled(text: str) -> tuple[bytes, Schema]:
    sign, digits, exponent = Decimal(text).as_tuple()
    number = int("".join(map(str, digits))) * (-1 if sign else 1)
    assert isinstance(exponent, int)
    return number.to_bytes(12, "big", signed=True), decimal(-exponent)


STRUCT = Schema(
    kind=ConnectKind.STRUCT,
    fields=(
        Field("id", INT),
        Field("s", STRING),
        Field("d", Schema(kind=ConnectKind.STRING, optional=True, default="def")),
        Field("b", BYTES),
        Field("ts", TIMESTAMP),
        Field("dec", decimal(2)),
    ),
)
OUTER = Schema(
    kind=ConnectKind.STRUCT,
    fields=(Field("in", STRUCT), Field("l", Schema(kind=ConnectKind.ARRAY, items=STRING))),
)
FULL = {
    "id": 1, "s": 'a"b\\c\ndé\'', "b": b"\1\2\3", "ts": 1700000000123, "dec": b"\x00\x96",
}  # fmt: skip
STRINGS = Schema(kind=ConnectKind.MAP, keys=Schema(kind=ConnectKind.STRING), values=STRING)

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
    ('a"b\\c', STRING, 'a"b\\c'),
    ("", STRING, ""),
    (-3, Schema(kind=ConnectKind.INT8), "-3"),
    (True, Schema(kind=ConnectKind.BOOLEAN), "true"),
    (1e7, DOUBLE, "1.0E7"),
    (1.5e-5, FLOAT, "1.5E-5"),
    (float("nan"), DOUBLE, "NaN"),
    (float("inf"), FLOAT, "Infinity"),
    (b"\xff\1", BYTES, "/wE="),
    (*unscaled("1E+3"), "1E+3"),
    (*unscaled("0.0000000001"), "1E-10"),
    (*unscaled("-12345678901234567890.12"), "-12345678901234567890.12"),
    ([1, None, 3], Schema(kind=ConnectKind.ARRAY, items=INT), "[1,null,3]"),
    ([], Schema(kind=ConnectKind.ARRAY, items=INT), "[]"),
    ({"a": "1", "b": None}, STRINGS, '{"a":"1","b":null}'),
    ({1: 2}, Schema(kind=ConnectKind.MAP, keys=INT, values=INT), "{1:2}"),
    (0, TIMESTAMP, "00:00:00.000Z"),
    (86399999, TIMESTAMP, "23:59:59.999Z"),
    (86400000, TIMESTAMP, "1970-01-02"),
    (86400001, TIMESTAMP, "1970-01-02T00:00:00.001Z"),
    (-20000000000001, TIMESTAMP, "12:26:39.999Z"),
    (253402300800000, TIMESTAMP, "10000-01-01"),
    (19675, Schema(kind=ConnectKind.INT32, name=f"{DATA}Date"), "2023-11-14"),
    (3600001, Schema(kind=ConnectKind.INT32, name=f"{DATA}Time"), "01:00:00.001Z"),
    (["x", 1], None, '["x",1]'),
]


@pytest.mark.parametrize(("value", "schema", "text"), CASES)
def test_a_header_value_is_as_connect_writes_it(
    value: Any, schema: Schema | None, text: str
) -> None:
    assert simple_text(value, schema) == text


@pytest.mark.parametrize(
    ("value", "schema", "text"), [case for case in CASES if case[1] in (STRUCT, OUTER, STRINGS)]
)
def test_the_json_of_a_key_gives_the_same_text(value: Any, schema: Schema, text: str) -> None:
    written = json_writer(schema, defaults=True)(value)
    assert simple_text(from_json(written, schema), schema) == text
