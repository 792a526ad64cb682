"""Composite types as structs: what their text says, and what a type that grew makes of older text."""

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.types.columns import data_type, json_of, mapping

from waltap.changes.arrow.out_of_range import ArrowMisfit
from waltap.changes.decode.relation import DataType, TypeKind
from waltap.changes.mapping.connect_schema import ConnectKind
from waltap_postgres.types.user_defined import parse_record

STRUCT = {"composite_types": "struct"}
INNER = DataType(
    oid=70_001, schema="s", name="in", kind=TypeKind.COMPOSITE,
    attributes=(("odd na.me", data_type("text"), -1), ("n", data_type("int4[]"), -1)),
)  # fmt: skip
OUTER = DataType(
    oid=70_002, schema="s", name="out", kind=TypeKind.COMPOSITE,
    attributes=(("i", INNER, -1), ("d", data_type("date"), -1), ("q", data_type("tsquery"), -1)),
)  # fmt: skip
OUTERS = DataType(oid=70_003, schema="s", name="_out", kind=TypeKind.ARRAY, element=OUTER)
VALUE = '("(""a,\\\\""b"""""",""{1,NULL}"")",2024-02-29,\'fat\')'


def printed_attribute(text: str) -> str:
    if not text or any(c in '(),"\\ \t\n\r\v\f' for c in text):
        escaped = text.replace("\\", "\\\\").replace('"', '""')
        return f'"{escaped}"'
    return text


@given(st.lists(st.none() | st.text(), min_size=1))
def test_every_text_of_attributes_is_read_as_it_was_written(parts):
    text = ",".join("" if part is None else printed_attribute(part) for part in parts)
    assert parse_record(f"({text})") == parts


@pytest.mark.parametrize("text", ["", "(", "1,2", '("1,2)', '("1"', "(1\\)"])
def test_other_text_is_refused(text):
    with pytest.raises(ValueError, match="malformed composite"):
        parse_record(text)


def test_composites_are_structs_also_in_each_other_and_in_arrays():
    found = mapping(OUTER, options=STRUCT)
    assert found.schema.kind is ConnectKind.STRUCT
    reported = {"i": {"odd na.me": 'a,\\"b"', "n": [1, None]}, "d": 19782, "q": "'fat'"}
    reported["i"] = found.to_connect(VALUE)["i"]  # type: ignore[index]
    assert found.to_connect(VALUE) == reported
    assert msgspec.json.decode(json_of(found, VALUE)) == reported
    assert found.arrow is not None
    (value, nothing) = found.arrow.column([VALUE, None]).to_pylist()
    assert nothing is None
    assert value["i"]["n"] == [1, None]
    assert value["d"].isoformat() == "2024-02-29"
    arrays = mapping(OUTERS, options=STRUCT)
    assert arrays.arrow is not None
    listed = arrays.arrow.column(['{"(,2024-02-29,)",NULL}'])
    assert pa.types.is_struct(listed.type.value_type)
    assert listed.to_pylist()[0][0]["i"] is None
    assert listed.to_pylist()[0][1] is None


def test_a_value_from_before_its_type_grew_lacks_the_last_attributes():
    found = mapping(INNER, options=STRUCT)
    assert found.to_connect("(x)") == {"odd na.me": "x", "n": None}
    with pytest.raises(ValueError, match="other attributes"):
        found.to_connect("(x,{},1)")
    other = mapping(msgspec.structs.replace(INNER, attributes_dropped=True), options=STRUCT)
    assert other.arrow is not None
    assert other.arrow.column(["(x)", "(x,{})"]).to_pylist()[0] is None
    strict = mapping(INNER, options={**STRUCT, "arrow_misfit": "error"})
    assert strict.arrow is not None
    with pytest.raises(ArrowMisfit):
        strict.arrow.column(["(x,{},1)"])
