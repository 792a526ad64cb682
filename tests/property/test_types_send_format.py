"""Send formats written here from the manual, read by the type table; text and binary in Arrow."""

import ipaddress
import struct
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.types.columns import column, mapping

from waltap.arrow.tuples import RelationCodec
from waltap.decode.relation import Relation
from waltap.decode.tuple_image import ABSENT, UNCHANGED
from waltap.mapping.type_mapping import TypeOptions
from waltap.mapping.type_registry import TypeRegistry
from waltap_postgres.types import TYPE_SPECS
from waltap_postgres.types.hstore import parse_hstore

START = datetime(2000, 1, 1)
MICROSECOND = timedelta(microseconds=1)


def from_binary(name: str, data: bytes) -> str:
    reader = mapping(name).from_binary
    assert reader is not None
    return reader(data)


def numeric(value: Decimal) -> bytes:
    """Write a numeric as base-10000 digits, without zeros at either end."""
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits))
    scale = max(0, -exponent)
    text = (text + "0" * max(0, exponent)).rjust(scale, "0")
    whole, fraction = text[: len(text) - scale], text[len(text) - scale :]
    whole = whole.rjust(-(-len(whole) // 4) * 4, "0")
    fraction = fraction.ljust(-(-len(fraction) // 4) * 4, "0")
    groups = [int(part[n : n + 4]) for part in (whole, fraction) for n in range(0, len(part), 4)]
    weight = len(whole) // 4 - 1
    while groups and not groups[0]:
        groups, weight = groups[1:], weight - 1
    while groups and not groups[-1]:
        groups = groups[:-1]
    if not groups:
        weight, sign = 0, 0
    head = struct.pack(">hhHH", len(groups), weight, 0x4000 if sign else 0, scale)
    return head + struct.pack(f">{len(groups)}h", *groups)


def printed_numeric(value: Decimal) -> str:
    """Print as the server: no exponent, no negative zero."""
    return f"{abs(value) if not value else value:f}"


@given(st.decimals(allow_nan=False, allow_infinity=False).filter(lambda d: abs(d.adjusted()) < 300))
def test_numeric(value: Decimal) -> None:
    assert from_binary("numeric", numeric(value)) == printed_numeric(value)


@given(st.dates())
def test_date(value: date) -> None:
    assert from_binary("date", struct.pack(">i", (value - START.date()).days)) == value.isoformat()


@given(st.datetimes())
def test_timestamp(value: datetime) -> None:
    text = from_binary("timestamp", struct.pack(">q", (value - START) // MICROSECOND))
    assert datetime.fromisoformat(text) == value
    zoned = from_binary("timestamptz", struct.pack(">q", (value - START) // MICROSECOND))
    assert zoned == text + "+00"


@given(st.ip_addresses(v=4), st.integers(0, 32), st.booleans())
def test_inet(value: ipaddress.IPv4Address, bits: int, cidr: bool) -> None:
    text = from_binary("cidr" if cidr else "inet", bytes([2, bits, cidr, 4]) + value.packed)
    assert text == (str(value) if bits == 32 and not cidr else f"{value}/{bits}")


@given(st.ip_addresses(v=6))
def test_inet6_names_the_same_address(value: ipaddress.IPv6Address) -> None:
    text = from_binary("inet", bytes([3, 128, 0, 16]) + value.packed)
    assert ipaddress.IPv6Address(text) == value


@given(st.lists(st.none() | st.integers(-(2**31), 2**31 - 1), min_size=1), st.integers(-5, 5))
def test_integer_array(items: list[int | None], lower: int) -> None:
    data = struct.pack(">iiiii", 1, None in items, 23, len(items), lower)
    for item in items:
        data += struct.pack(">i", -1) if item is None else struct.pack(">ii", 4, item)
    text = from_binary("int4[]", data)
    body = ",".join("NULL" if item is None else str(item) for item in items)
    bounds = "" if lower == 1 else f"[{lower}:{lower + len(items) - 1}]="
    assert text == f"{bounds}{{{body}}}"


@given(st.dictionaries(st.text(max_size=5), st.none() | st.text(max_size=5), max_size=6))
def test_hstore(pairs: dict[str, str | None]) -> None:
    data = struct.pack(">i", len(pairs))
    for key, value in pairs.items():
        for part in (key, value):
            if part is None:
                data += struct.pack(">i", -1)
            else:
                data += struct.pack(">i", len(part.encode())) + part.encode()
    assert parse_hstore(from_binary("hstore", data)) == pairs


# --- Arrow ---------------------------------------------------------------------------------------

KINDS: dict[str, tuple[tuple[str, tuple[int, ...]], st.SearchStrategy[Any], Any, Any]] = {
    "int4": (("int4", ()), st.integers(-(2**31), 2**31 - 1), str, lambda v: struct.pack(">i", v)),
    "bool": (("bool", ()), st.booleans(), lambda v: "ft"[v], lambda v: bytes([v])),
    "float8": (("float8", ()), st.floats(allow_nan=False), None, lambda v: struct.pack(">d", v)),
    "text": (
        ("text", ()),
        st.text(st.characters(exclude_characters="\0", codec="utf-8")),
        str,
        str.encode,
    ),
    "date": (
        ("date", ()),
        st.dates(),
        date.isoformat,
        lambda v: struct.pack(">i", (v - START.date()).days),
    ),
    "timestamp": (
        ("timestamp", ()),
        st.datetimes(),
        lambda v: str(v),
        lambda v: struct.pack(">q", (v - START) // MICROSECOND),
    ),
    "uuid": (("uuid", ()), st.uuids().map(str), str, lambda v: UUID(v).bytes),
    "numeric": (
        ("numeric", (12, 3)),
        st.integers(-(10**12) + 1, 10**12 - 1).map(lambda n: Decimal(n).scaleb(-3)),
        printed_numeric,
        numeric,
    ),
    "wide": (
        ("numeric", (30, 3)),
        st.integers(-(10**25), 10**25).map(lambda n: Decimal(n).scaleb(-3)),
        printed_numeric,
        numeric,
    ),
}


def float_text(value: float) -> str:
    reader = mapping("float8").from_binary
    assert reader is not None
    return reader(struct.pack(">d", value))


@given(st.sampled_from(list(KINDS)), st.data())
def test_arrow_column_holds_the_values_whatever_the_format(kind: str, draw: st.DataObject) -> None:
    (name, modifiers), strategy, as_text, as_binary = KINDS[kind]
    values = draw.draw(st.lists(st.none() | strategy, max_size=12))
    relation = Relation(oid=1, schema="s", table="t", columns=(column(name, *modifiers),))
    codec = RelationCodec(relation, TypeRegistry(TYPE_SPECS))
    to_text = as_text or float_text
    texts = codec.batch([(None if v is None else to_text(v),) for v in values])
    sent = codec.batch([(None if v is None else as_binary(v),) for v in values])
    assert texts.column(0).to_pylist() == values
    assert sent.column(0).to_pylist() == values
    sent.validate(full=True)


@given(st.lists(st.sampled_from(["1", None, UNCHANGED, ABSENT, b"\0\0\0\1"]), max_size=20))
def test_what_is_not_there_is_null_and_what_did_not_change_is_named(marks: list[Any]) -> None:
    columns = (column("int4"), column("text"))
    relation = Relation(oid=1, schema="s", table="t", columns=columns)
    codec = RelationCodec(relation, TypeRegistry(TYPE_SPECS, TypeOptions()))
    rows = [(mark, "x") for mark in marks]
    there = [1 if isinstance(mark, str | bytes) else None for mark in marks]
    assert codec.batch(rows).column(0).to_pylist() == there
    expected = [["x"] if mark is UNCHANGED else [] for mark in marks]
    assert codec.unchanged(rows).to_pylist() == expected
