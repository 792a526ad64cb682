"""Text of values against models: what types make of it in JSON, in Connect values, and in Arrow."""

import json
from contextlib import nullcontext, suppress
from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.types.columns import column, json_of, mapping

from waltap.changes.arrow.column import FEW, LONG, string_array
from waltap.changes.arrow.tuples import RelationCodec
from waltap.changes.decode.relation import Relation
from waltap.changes.decode.tuple_image import ABSENT, UNCHANGED
from waltap.changes.mapping.json_schema import value_json
from waltap.changes.mapping.type_mapping import TypeOptions
from waltap.changes.mapping.type_registry import TypeRegistry
from waltap_postgres.types import TYPE_SPECS
from waltap_postgres.types.array import array_text, parse_array
from waltap_postgres.types.hstore import parse_hstore
from waltap_testing.installed import installed_types

# --- any text of a type, and any text at all, through the type table ------------------------------


NAMES = """
    bool int2 int4 int8 oid float4 float8 numeric money text char name uuid json jsonb xml bytea bit
    varbit date time timetz timestamp timestamptz interval inet macaddr int4range tsvector point
    geometry vector halfvec sparsevec hstore ltree citext tsquery circle int4[] text[] numeric[]
    timestamptz[] bytea[] bit[] uuid[]
""".split()
MODES = [
    TypeOptions(include_unknown_datatypes=True),
    TypeOptions(
        include_unknown_datatypes=True,
        time_precision_mode="isostring",
        decimal_handling_mode="string",
        hstore_handling_mode="map",
        interval_handling_mode="string",
        binary_handling_mode="hex",
    ),
    TypeOptions(
        include_unknown_datatypes=True,
        time_precision_mode="nanoseconds",
        decimal_handling_mode="double",
        binary_handling_mode="base64",
    ),
]
REGISTRIES = [TypeRegistry(installed_types(), options) for options in MODES]
TRUSTED = {"int2", "int4", "int8", "oid", "float4", "float8", "timestamptz"}
"""What the server prints of these is passed on, whole or in parts, without a look at each digit."""

LIKELY = st.text("0123456789-+:. T{}[](),\"'\\exBCNaUL=>/", max_size=30)


WHOLE = [
    *((name,) for name in NAMES if not name.endswith("[]")),
    *(("numeric", 12, scale) for scale in (0, 2, 5, 9)),
    *(("timestamptz", digits) for digits in (0, 1, 3, 6)),
]
NUMBERS = st.builds(
    lambda sign, whole, rest: sign + whole + rest,
    st.sampled_from(["", "-", "+", "0", "-0"]),
    st.integers(0, 2**64).map(str) | st.integers(0, 99).map(str),
    st.sampled_from(["", ".", ".5", ".25", ".00", ".12345", "e5", ".5e-07", ".1.2", "-", "x1"]),
)


@given(
    st.sampled_from(WHOLE),
    st.sampled_from(MODES),
    st.lists(st.none() | NUMBERS, min_size=1)
    | st.lists(st.none() | LIKELY | st.text(max_size=20), min_size=1),
    st.data(),
)
def test_a_column_is_written_as_its_values(kind, modes, texts, data):
    found = TypeRegistry(installed_types(), modes).column(column(*kind))
    assert found is not None
    if found.json_column is None:
        return
    if kind[0] == "timestamptz":  # as the server prints it
        stamps = st.none() | st.datetimes().map(lambda value: printed(value) + "+00")
        texts = data.draw(st.lists(stamps, min_size=1))
    first = data.draw(st.integers(0, len(texts) - 1))
    expected: list[str | None] | None = None
    with suppress(ValueError):
        expected = [None if text is None else json_of(found, text) for text in texts[first:]]
    written = None
    with nullcontext() if expected else suppress(ValueError):
        written = found.json_column.convert(pa.array(texts, pa.string()).slice(first))
    if written is not None:
        mark = '"' * found.json_column.quoted
        shown = [None if text is None else mark + text + mark for text in written.to_pylist()]
        assert shown == expected


@given(st.sampled_from(NAMES), st.sampled_from(REGISTRIES), LIKELY | st.text(max_size=20))
def test_any_text_is_json_or_refused(name, registry, text):
    found = registry.column(column(name))
    assert found is not None
    try:
        written = json_of(found, text)
    except ValueError:
        return
    if name.removesuffix("[]") in TRUSTED:
        return
    assert json.loads(value_json(found.schema, found.to_connect(text))) == json.loads(written)


def printed(value: datetime) -> str:
    """Print as the server: ISO, as few fraction digits as say it."""
    text = value.isoformat(" ")
    return text.rstrip("0") if "." in text else text


@given(st.datetimes(), st.integers(0, 3))
def test_dates_and_timestamps_are_numbers_since_1970(value, digits):
    since = value - datetime(1970, 1, 1)
    assert json_of(mapping("date"), value.date().isoformat()) == str(since.days)
    micros, millis = since // timedelta(microseconds=1), since // timedelta(milliseconds=1)
    assert json_of(mapping("timestamp"), printed(value)) == str(micros)
    assert json_of(mapping("timestamp", digits), printed(value)) == str(millis)


@given(st.datetimes(), st.integers(-14 * 60, 14 * 60), st.sampled_from([-1, 0, 2, 3, 6]))
def test_timestamptz_is_utc_with_the_declared_digits(local, minutes, digits):
    zone = timezone(timedelta(minutes=minutes))
    try:
        utc = local.replace(tzinfo=zone).astimezone(timezone.utc)
    except OverflowError:
        return
    sign, size = ("-", -minutes) if minutes < 0 else ("+", minutes)
    offset = f"{sign}{size // 60:02d}" + (f":{size % 60:02d}" if size % 60 else "")
    text = json.loads(
        json_of(mapping("timestamptz", *([digits] * (digits >= 0))), printed(local) + offset)
    )
    shown = 6 if digits < 0 else digits
    whole = utc.replace(tzinfo=None).strftime("%Y").zfill(4)
    expected = f"{whole}-{utc:%m-%dT%H:%M:%S}"
    expected += f".{utc.microsecond:06d}"[: shown + 1] if shown else ""
    assert text == expected + "Z"


@given(st.integers(-(10**30) + 1, 10**30 - 1), st.integers(0, 20))
def test_decimal_is_its_unscaled_number(number, scale):
    digits = str(abs(number)).rjust(scale + 1, "0")
    whole, fraction = digits[: len(digits) - scale], digits[len(digits) - scale :]
    text = ("-" if number < 0 else "") + (f"{whole}.{fraction}" if scale else whole)
    found = mapping("numeric", 30, scale)
    value = found.to_connect(text)
    assert isinstance(value, bytes)
    assert int.from_bytes(value, "big", signed=True) == number
    assert len(value) == 1 or value[:1] not in {b"\0", b"\xff"} or (value[0] ^ value[1]) & 0x80
    assert json_of(found, text) == value_json(found.schema, value)


ITEM = st.none() | st.text(max_size=8)


def nested(depth: int) -> st.SearchStrategy[list[Any]]:
    if depth == 1:
        return st.lists(ITEM, max_size=4)
    return st.lists(nested(depth - 1), min_size=1, max_size=3)


@given(st.integers(1, 3).flatmap(nested), st.sampled_from(",;"))
def test_array_reads_back_what_was_printed(items, delimiter):
    assert parse_array(array_text(items, delimiter), delimiter) == items


@given(st.dictionaries(st.text(max_size=6), st.none() | st.text(max_size=6), max_size=20))
def test_hstore_reads_back_what_was_printed(pairs):
    def quoted(text: str) -> str:
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    text = ", ".join(f"{quoted(k)}=>{'NULL' if v is None else quoted(v)}" for k, v in pairs.items())
    assert parse_hstore(text) == pairs
    found = json.loads(json_of(mapping("hstore", options={"hstore_handling_mode": "map"}), text))
    assert found == pairs


# --- values of any kind become Arrow columns that hold them ---------------------------------------


@given(st.lists(st.sampled_from(["1", None, UNCHANGED, ABSENT]), max_size=20))
def test_what_is_not_there_is_null_and_what_did_not_change_is_named(marks):
    columns = (column("int4"), column("text"))
    relation = Relation(oid=1, schema="s", table="t", columns=columns)
    codec = RelationCodec(relation, TypeRegistry(TYPE_SPECS, TypeOptions()))
    rows = [(mark, "x") for mark in marks]
    there = [1 if mark == "1" else None for mark in marks]
    assert codec.batch(rows).column(0).to_pylist() == there
    expected = [["x"] if mark is UNCHANGED else [] for mark in marks]
    assert codec.unchanged(rows).to_pylist() == expected


# --- strings joined here are those that pyarrow makes of the same list ----------------------------


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


@given(st.lists(st.none() | TEXT, max_size=FEW + 1))
def test_strings(values):
    made = string_array(values)
    made.validate(full=True)
    assert made.equals(pa.array(values, pa.string()))


@pytest.mark.parametrize("letter", ["a", "é", "雪"])
def test_a_long_text_outlives_who_made_it(letter):
    made = string_array([letter * LONG])
    made.validate(full=True)
    assert made.equals(pa.array([letter * LONG], pa.string()))
    assert made[0].as_py() == letter * LONG
