"""Values of any kind become Arrow columns that hold them."""

import math
from datetime import date
from decimal import Decimal
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.types.columns import column

from waltap.changes.arrow.tuples import RelationCodec
from waltap.changes.decode.relation import Relation
from waltap.changes.decode.tuple_image import ABSENT, UNCHANGED
from waltap.changes.mapping.type_mapping import TypeOptions
from waltap.changes.mapping.type_registry import TypeRegistry
from waltap_postgres.types import TYPE_SPECS


def printed_numeric(value: Decimal) -> str:
    """Print as the server: no exponent, no negative zero."""
    return f"{abs(value) if not value else value:f}"


def printed_float(value: float) -> str:
    """Print as the server, whose infinities have another name than Python's."""
    return repr(value).replace("inf", "Infinity") if math.isinf(value) else repr(value)


KINDS: dict[str, tuple[tuple[str, tuple[int, ...]], st.SearchStrategy[Any], Any]] = {
    "int4": (("int4", ()), st.integers(-(2**31), 2**31 - 1), str),
    "bool": (("bool", ()), st.booleans(), lambda v: "ft"[v]),
    "float8": (("float8", ()), st.floats(allow_nan=False), printed_float),
    "text": (("text", ()), st.text(st.characters(exclude_characters="\0", codec="utf-8")), str),
    "date": (("date", ()), st.dates(), date.isoformat),
    "timestamp": (("timestamp", ()), st.datetimes(), str),
    "uuid": (("uuid", ()), st.uuids().map(str), str),
    "numeric": (
        ("numeric", (12, 3)),
        st.integers(-(10**12) + 1, 10**12 - 1).map(lambda n: Decimal(n).scaleb(-3)),
        printed_numeric,
    ),
    "wide": (
        ("numeric", (30, 3)),
        st.integers(-(10**25), 10**25).map(lambda n: Decimal(n).scaleb(-3)),
        printed_numeric,
    ),
}


@given(st.sampled_from(list(KINDS)), st.data())
def test_arrow_column_holds_the_values(kind: str, draw: st.DataObject) -> None:
    (name, modifiers), strategy, as_text = KINDS[kind]
    values = draw.draw(st.lists(st.none() | strategy, max_size=12))
    relation = Relation(oid=1, schema="s", table="t", columns=(column(name, *modifiers),))
    batch = RelationCodec(relation, TypeRegistry(TYPE_SPECS)).batch(
        [(None if v is None else as_text(v),) for v in values]
    )
    assert batch.column(0).to_pylist() == values
    batch.validate(full=True)


@given(st.lists(st.sampled_from(["1", None, UNCHANGED, ABSENT]), max_size=20))
def test_what_is_not_there_is_null_and_what_did_not_change_is_named(marks: list[Any]) -> None:
    columns = (column("int4"), column("text"))
    relation = Relation(oid=1, schema="s", table="t", columns=columns)
    codec = RelationCodec(relation, TypeRegistry(TYPE_SPECS, TypeOptions()))
    rows = [(mark, "x") for mark in marks]
    there = [1 if mark == "1" else None for mark in marks]
    assert codec.batch(rows).column(0).to_pylist() == there
    expected = [["x"] if mark is UNCHANGED else [] for mark in marks]
    assert codec.unchanged(rows).to_pylist() == expected
