"""Values of Debezium's contract, PostgreSQL text in, JSON out, by type and mode. More are recorded:
tests/differential."""

import contextlib
import json
from base64 import b64encode
from types import FunctionType
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.types.columns import json_of, mapping

from waltap.changes.mapping.json_schema import value_json

MICROS = {"time_precision_mode": "microseconds"}
NANOS = {"time_precision_mode": "nanoseconds"}
ISO = {"time_precision_mode": "isostring"}
CONNECT = {"time_precision_mode": "connect"}
TIME_MICROS = {"time_precision_mode": "adaptive_time_microseconds"}
DOUBLE = {"decimal_handling_mode": "double"}
STRING = {"decimal_handling_mode": "string"}
HEX = {"binary_handling_mode": "hex"}
BASE64 = {"binary_handling_mode": "base64"}
URL_SAFE = {"binary_handling_mode": "base64-url-safe"}
LONG = b64encode((10**5001 - 5).to_bytes(2077, "big")).decode()
UNKNOWN = {"include_unknown_datatypes": True}


def case(kind: str, text: str, expected: Any, **options: Any) -> Any:
    """Make one row: ``kind`` is a type with its modifier as SQL writes it."""
    modes = ",".join(map(str, options.values()))
    return pytest.param(kind, text, expected, options, id=f"{kind}-{text[:40]}-{modes}")


CASES = [
    case("float4", "1e-45", 1.4e-45),
    case("float4", "1.2345679e+08", 123456792.0),
    case("float4", "NaN", "NaN"),
    # bits: little-endian, without high zero bytes
    case("bit(1)", "1", True),
    case("bit(2)", "00", ""),
    case("varbit(1)", "1", True),
    case("bit(24)", "000000110000001000000001", "AQID"),
    # bytea by binary.handling.mode
    case("bytea", "\\xfbff", "+/8=", **BASE64),
    case("bytea", "\\xfbff", "-_8=", **URL_SAFE),
    case("bytea", "\\x010203", "010203", **HEX),
    case("bytea[]", '{"\\\\x000102","\\\\x030405"}', ["AAEC", "AwQF"]),
    case("bytea[]", '{"\\\\x000102","\\\\x030405"}', ["000102", "030405"], **HEX),
    # numeric by decimal.handling.mode
    case("numeric(6,4)", "22.22", "A2P4"),  # fewer decimals than the column are filled up
    case("numeric", "100.500", {"scale": 1, "value": "A+0="}),
    case("numeric", "9" * 5000 + ".5", {"scale": 1, "value": LONG}),
    case("numeric", "NaN", None),
    case("numeric(5,2)", "NaN", None),
    case("numeric(5)", "Infinity", None),
    case("numeric", "10.1111", 10.1111, **DOUBLE),
    case("numeric", "NaN", "NaN", **DOUBLE),
    case("numeric", "10.1111", "10.1111", **STRING),
    case("numeric(6,4)", "22.2200", "22.2200", **STRING),
    case("numeric", "Infinity", "POSITIVE_INFINITY", **STRING),
    case("numeric(5,2)", "-Infinity", "NEGATIVE_INFINITY", **STRING),
    case("money", "$1,234.11", "AeIT"),
    case("money", "-$92,233,720,368,547,758.08", "-92233720368547758.08", **STRING),
    case("money", "-$327.68", "gAA="),
    case("money", "$1.00", "A+g=", money_fraction_digits=3),
    case("money", "$1.55", "Ag==", money_fraction_digits=0),
    # dates and times by time.precision.mode
    case("date", "2016-11-04", "2016-11-04Z", **ISO),
    case("date", "infinity", 2147483647, infinite_date="extreme"),
    case("time(3)", "13:51:30.123", 49890123),
    case("time(3)", "04:05:11.789", 14711789000, **TIME_MICROS),
    case("time(3)", "04:05:11.789", 14711789000, **MICROS),
    case("time(3)", "04:05:11.789", 14711789000000, **NANOS),
    case("time", "04:05:11.789", "04:05:11.789Z", **ISO),
    case("time", "04:05:11.7899", 14711789, **CONNECT),
    case("timestamp", "294247-01-01 23:59:59.999999", 9223371331199999999),
    case("timestamp", "4713-12-31 23:59:59.999999 BC", -210831897600000001),
    case("timestamp", "infinity", 9223372036854775807, **NANOS),
    case("timestamp", "-infinity", -9223372036854775808, **NANOS),
    case("timestamp(2)", "2019-07-09 02:28:57.12", 1562639337120000, **MICROS),
    case("timestamp(2)", "2019-07-09 02:28:57.12", 1562639337120000000, **NANOS),
    case("timestamp(2)", "2019-07-09 02:28:57.12", "2019-07-09T02:28:57.12Z", **ISO),
    case("timestamp", "9999-12-31 23:59:59", None, **NANOS),
    case("timestamp", "1582-10-04 00:00:00", None, **NANOS),
    case("timestamp", "2262-04-11 23:47:16.854775", 9223372036854775000, **NANOS),
    case("timestamp", "294276-12-31 23:59:59.999999", None),
    case("timestamp", "1969-12-31 23:59:59.9999", -1, **CONNECT),
    case("timestamp", "0044-03-15 12:00:00.123 BC", -63517780799877000),
    case("timestamptz", "21016-11-04 06:51:30+00", "+21016-11-04T06:51:30.000000Z"),
    case("timestamptz", "294247-01-01 23:59:59.999999+00", "+294247-01-01T23:59:59.999999Z"),
    case("timestamptz", "4714-12-31 23:59:59.999999+00 BC", "-4713-12-31T23:59:59.999999Z"),
    case("timestamptz(3)", "1800-01-01 05:53:28+05:53:28", "1800-01-01T00:00:00.000Z"),
    case("timetz", "13:51:30.123789+02", "11:51:30.123789Z"),
    case("timetz(3)", "13:51:30.123+02", "11:51:30.123Z"),
    case("timetz", "00:30:00+05:30", "19:00:00Z"),
    case("timetz", "24:00:00+00", "24:00:00Z"),
    case("timetz", "24:00:00+15:59:59", "08:00:01Z"),
    case("timetz[]", "{24:00:00+00,NULL,24:00:00-00:30}", ["24:00:00Z", None, "00:30:00Z"]),
    # intervals
    case("interval", "1 year 2 mons 3 days 04:05:06.78", 37091106780000),
    case("interval", "1 year", 31557600000000),
    case("interval", "infinity", None),
    case(
        "interval",
        "1 year 2 mons 3 days 04:05:06.78",
        "P1Y2M3DT4H5M6.78S",
        interval_handling_mode="string",
    ),
    case(
        "interval",
        "-1 mons +2 days -00:00:00.000001",
        "P0Y-1M2DT0H0M-0.000001S",
        interval_handling_mode="string",
    ),
    # text kinds
    case("text", 'é "q" \\ \n\x01', 'é "q" \\ \n\x01'),
    case("jsonb", '{"bar": "baz"}', '{"bar": "baz"}'),
    case("tstzrange", '["2017-06-05 11:29:12.549426+00",)', '["2017-06-05 11:29:12.549426+00",)'),
    # hstore
    case("hstore", '"key"=>"val"', '{"key":"val"}'),
    case("hstore", '"key1"=>"val1", "key2"=>NULL', '{"key1":"val1","key2":null}'),
    case("hstore", '"q\\"k"=>"b\\\\s"', {'q"k': "b\\s"}, hstore_handling_mode="map"),
    # geometry
    case(
        "geometry",
        "0101000020730C00001C7C613255DE6540787AA52C435C42C0",
        {"wkb": "AQEAACBzDAAAHHxhMlXeZUB4eqUsQ1xCwA==", "srid": 3187},
    ),
    # vectors
    case("sparsevec", "{1:1.5}/32767", {"dimensions": 32767, "vector": [[1, 1.5]]}),
    case("sparsevec", "{1:1.5}/32768", None),
    # arrays
    case("int4[]", "{1,NULL,-3}", [1, None, -3]),
    case("text[]", '{a,"b,c","q\\"q","NULL",NULL,""}', ["a", "b,c", 'q"q', "NULL", None, ""]),
    case("text[]", "{{a,b},{c,d}}", ["[Ljava.lang.String;@0"] * 2),
    case("text[]", "{{a,b},{c,NULL}}", ["{a,b}", "{c,NULL}"], multidimensional_arrays="literal"),
    case("numeric(10,2)[]", "{1.20,NULL}", ["eA==", None]),
    case("numeric[]", "{1.1,NaN}", [{"scale": 1, "value": "Cw=="}, None]),
    case("date[]", "{2016-11-04,2016-11-05}", [17109, 17110]),
    case("timestamptz[]", '{"2020-04-01 13:51:02+02"}', ["2020-04-01T11:51:02.000000Z"]),
    case("timetz[]", "{13:51:02+02}", ["11:51:02Z"]),
    case("bit(3)[]", "{101,NULL,001}", ["BQ==", None, "AQ=="]),
    case("bit(1)[]", "{1,NULL,0}", [True, None, False]),
    case("tsvector[]", "{'a':1,NULL}", ["'a':1", None]),
    case("int2vector", "1 -2", [1, -2]),
    case("oidvector", "4000000000", [4000000000]),
    case("oidvector", "", []),
    case("int2vector[]", '{"1 2",3,NULL,""}', [[1, 2], [3], None, []]),
    # unknown types
    case("tsquery", "'fat' <-> 'cat'", "J2ZhdCcgPC0+ICdjYXQn", **UNKNOWN),
    case("tsquery", "'fat' <-> 'cat'", "J2ZhdCcgPC0-ICdjYXQn", **UNKNOWN, **URL_SAFE),
    case("tsquery", "'fat' <-> 'cat'", "2766617427203c2d3e202763617427", **UNKNOWN, **HEX),
    case("circle", "<(1,2.5),0.0001>", "PCgxLjAsMi41KSwxLjBFLTQ+", **UNKNOWN),
]


@pytest.mark.parametrize(("kind", "text", "expected", "options"), CASES)
def test_value(kind, text, expected, options):
    name, arguments = split(kind)
    found = mapping(name, *arguments, options=options)
    written = json_of(found, text)
    value = json.loads(written)
    assert value == expected
    assert type(value) is type(expected)
    connect = found.to_connect(text)
    assert json.loads(value_json(found.schema, connect)) == value
    if found.json_expression is not None:
        source = f"f'''{{{found.json_expression.source('text')}}}'''"
        assert eval(source, {**found.json_expression.names, "text": text}) == written


def split(kind: str) -> tuple[str, list[int]]:
    """Return name and modifiers of ``numeric(10,2)[]`` and the like."""
    array = "[]" if kind.endswith("[]") else ""
    name, _, rest = kind.removesuffix("[]").partition("(")
    return name + array, [int(n) for n in rest.rstrip(")").split(",") if n]


NO_WHOLE_NUMBERS = [
    *("", "x", "1x", "-", "--1", "+1", " 1", "1.5", "1e5", "1_0", "1,2", '1,"a":2', "0x1", "null"),
    *("true", "\u0663", "1\u0663", "\u00b2", "007", "00", "-007", "1\n"),
]
NO_NUMBERS = ["", "x.5", "1.x", "1.2.3", "-", ".", "1.5,2", '1.5,"a":2', "1e", "e5", "1.\u0663"]
NO_NUMBERS += [
    "1_0.5",
    "+1.5",
    " 1.5",
    "1.5\n",
    ".5",
    "1.",
    "0.",
    "01.5",
    "00.5",
    "-01.5",
    "-.5",
    "1.5_0",
]
RANGES = [
    ("int2", -(1 << 15), (1 << 15) - 1),
    ("int4", -(1 << 31), (1 << 31) - 1),
    ("int8", -(1 << 63), (1 << 63) - 1),
    ("oid", 0, (1 << 32) - 1),
]
MALFORMED = [
    ("bool", "true"),
    *((kind, text) for kind in ("int4", "oid") for text in NO_WHOLE_NUMBERS),
    *(("float8", text) for text in NO_NUMBERS),
    *((kind, str(number)) for kind, low, high in RANGES for number in (low - 1, high + 1, 10**40)),
    *((kind, text) for kind in ("float4", "float8") for text in ("1e400", "-1e400", "9" * 400)),
    ("float4", "1e39"),
    ("float4", "1.5e39"),
    ("int2[]", "{1,32768}"),
    ("int4[]", "{-2147483649}"),
    ("int8[]", "{NULL,9223372036854775808}"),
    ("int4[]", "{1,x}"),
    ("int8[]", "{1,,2}"),
    ("int4[]", "{NULL,1 2}"),
    ("int2vector", "1 x"),
    ("bytea", "\\000"),
    ("bytea", "\\x0"),
    ("date", "29/02/2024"),
    ("date", "2024-13-01"),
    ("timestamp", "Thu Feb 29 12:34:56 2024"),
    ("timestamp", "2024-02-29 12:34:56+00x"),
    ("timestamptz", "2024-02-29"),
    ("time", "12:34"),
    ("time", "25:00:00"),
    ("interval", "P1Y"),
    ("numeric", "--1"),
    ("numeric(5,2)", "1.2.3"),
    ("bit(8)", "102"),
    ("hstore", "a=>1"),
    ("hstore", '"a"=>'),
    ("text[]", "a,b"),
    ("text[]", '{"a}'),
    ("int4[]", "{{1}"),
    ("money", "abc"),
]


@pytest.mark.parametrize(("kind", "low", "high"), RANGES)
def test_integers_reach_from_the_smallest_to_the_largest(kind, low, high):
    found = mapping(kind)
    assert found.json_column is not None
    for number in (low, high, high // 10, high - 1, 0):
        text = str(number)
        assert (checked_inline(kind, text), json_of(found, text)) == (text, text)
        assert found.to_connect(text) == number
    column = pa.array([str(high), None, "7", str(high - 1)])
    assert found.json_column.convert(column) is column
    assert found.json_column.convert(pa.array(["7", str(high + 1)])) is None


@pytest.mark.parametrize("text", ["1.5", "0.25", "-0.25", "-12.5", "1234567.25", "1.5e-07"])
def test_floats_of_either_sign_are_checked_without_a_call_into_python(text):
    assert checked_inline("float8", text) == text


def checked_inline(kind: str, text: str) -> str:
    """Return the JSON of ``text`` by the expression that codecs have, whose way into Python is barred."""
    inline = mapping(kind).json_expression
    barred = {name: None for name, value in inline.names.items() if isinstance(value, FunctionType)}
    assert barred
    found = eval(inline.source("v"), {**inline.names, **barred, "v": text})
    assert isinstance(found, str)
    return found


@pytest.mark.parametrize(("kind", "text"), MALFORMED)
def test_text_of_another_form_is_refused(kind, text):
    name, arguments = split(kind)
    found = mapping(name, *arguments)
    with pytest.raises(ValueError):
        json_of(found, text)
    if found.json_column is not None:
        with contextlib.suppress(ValueError):
            assert found.json_column.convert(pa.array([text])) is None
    inline = found.json_expression
    if inline is not None:
        with pytest.raises(ValueError):
            eval(inline.source("v"), {**inline.names, "v": text})
