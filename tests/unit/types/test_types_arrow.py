"""Arrow types and what happens to values that do not fit them."""

from datetime import datetime, time, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.types.columns import MOOD, column, mapping

from waltap.changes.arrow.out_of_range import ArrowMalformed, ArrowMisfit
from waltap.changes.arrow.tuples import RelationCodec
from waltap.changes.decode.relation import Column, Relation
from waltap.changes.mapping.type_mapping import TypeOptions
from waltap.changes.mapping.type_registry import TypeRegistry
from waltap_testing.installed import installed_types

UTC = timezone.utc
TYPES: list[tuple[Any, Any, str, Any]] = [
    (("int2",), pa.int16(), "-1", -1),
    (("int8",), pa.int64(), "9223372036854775807", 2**63 - 1),
    (("oid",), pa.int64(), "4294967295", 2**32 - 1),
    (("float4",), pa.float32(), "0.5", 0.5),
    (("numeric", 38, 2), pa.decimal128(38, 2), "1.50", Decimal("1.50")),
    (("numeric", 40, 2), pa.string(), "1.50", "1.50"),
    (("numeric", 3, -2), pa.decimal128(5, 0), "99900", Decimal(99900)),
    (("numeric", 2, 5), pa.decimal128(5, 5), "0.00012", Decimal("0.00012")),
    (("numeric",), pa.string(), "1.500", "1.500"),
    (("money",), pa.decimal128(19, 2), "-$1,234.50", Decimal("-1234.50")),
    (("jsonb",), pa.string(), '{"a": 1}', '{"a": 1}'),
    ((MOOD,), pa.string(), "sad", "sad"),
    (("bytea",), pa.binary(), "\\x00ff", b"\0\xff"),
    (("bit", 1), pa.bool_(), "1", True),
    (("bit", 3), pa.string(), "101", "101"),
    (("time",), pa.time64("us"), "12:34:56.5", time(12, 34, 56, 500000)),
    (("timetz",), pa.string(), "12:34:56+02", "12:34:56+02"),
    (
        ("timestamptz",),
        pa.timestamp("us", "UTC"),
        "2024-02-29 12:00:00+02",
        datetime(2024, 2, 29, 10, tzinfo=UTC),
    ),
    (("interval",), pa.string(), "1 day", "P0Y0M1DT0H0M0S"),
    (("hstore",), pa.string(), '"a"=>"1"', '{"a":"1"}'),
    (("int4[]",), pa.list_(pa.int32()), "[0:2]={1,NULL,3}", [1, None, 3]),
    (("text[]",), pa.list_(pa.string()), '{a,"b,c"}', ["a", "b,c"]),
    (("numeric[]",), pa.list_(pa.string()), "{1.50}", ["1.50"]),
]


def array(kind: Any, values: list[str | None], **options: Any) -> pa.Array:
    found = mapping(*kind, options=options)
    assert found.arrow is not None
    return found.arrow.column(values)


@pytest.mark.parametrize(("kind", "type_", "text", "value"), TYPES)
def test_column_has_its_analytic_type(kind, type_, text, value):
    found = array(kind, [text, None, text])
    found.validate(full=True)
    assert found.type == type_
    assert found.to_pylist() == [value, None, value]
    assert array(kind, []).type == type_


def test_numeric_without_precision_can_be_the_widest_decimal():
    widest: dict[str, Any] = {"arrow_unconstrained_numeric": "decimal256"}
    found = array(("numeric",), ["1.5", "-" + "9" * 38], **widest)
    assert found.type == pa.decimal256(76, 38)
    assert found.to_pylist() == [Decimal("1.5"), Decimal("-" + "9" * 38)]
    assert array(("numeric", 40, 2), ["1.50"], **widest).type == pa.decimal256(40, 2)
    for text in ("9" * 39, "1" * 70, "1" * 77, "1" * 90, "0." + "1" * 39, "NaN"):
        with pytest.raises(ArrowMisfit):
            array(("numeric",), [text], arrow_misfit="error", **widest)


MISFITS: list[tuple[Any, str]] = [
    (("numeric", 9, 2), "NaN"),
    (("numeric", 9, 2), "12345678.00"),
    (("numeric", 38, 0), "1" * 40),
    (("numeric", 9, 2), "1.234"),
    (("date",), "infinity"),
    (("date",), "0044-03-15 BC"),
    (("date",), "20000-01-01"),
    (("timestamp",), "-infinity"),
    (("timestamp",), "20000-01-01 00:00:00"),
    (("timestamp",), "0044-03-15 00:00:00 BC"),
    (("timestamptz",), "infinity"),
    (("timestamptz",), "0044-03-15 00:00:00+00 BC"),
    (("time",), "24:00:00"),
    (("int4[]",), "{{1,2},{3,4}}"),
    (("numeric[]", 9, 2), "{NaN}"),
]
FITS = {
    "numeric": "1.50",
    "date": "2024-01-01",
    "timestamp": "2024-01-01 00:00:00",
    "timestamptz": "2024-01-01 00:00:00+00",
    "time": "01:00:00",
    "int4[]": "{1}",
    "numeric[]": "{1.50}",
}


@pytest.mark.parametrize(("kind", "text"), MISFITS)
def test_misfit_is_an_error_null_or_text_and_never_another_value(kind, text):
    fits = FITS[kind[0]]
    if kind[1:] == (38, 0):
        fits = "1"
    with pytest.raises(ArrowMisfit) as caught:
        array(kind, [fits, text], arrow_misfit="error")
    assert text == "NaN" or text not in caught.value.problem
    found = array(kind, [fits, text, None], arrow_misfit="null")
    assert found[0].is_valid
    if kind[0] == "numeric[]":
        assert found.to_pylist()[1] == [None]
    else:
        assert found.to_pylist()[1:] == [None, None]
    as_text = array(kind, [fits, text, None], arrow_misfit="string")
    assert as_text.to_pylist() == [fits, text, None]
    assert as_text.type == pa.string()


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (("int4",), "x"),
        (("int4",), "99999999999"),
        (("bool",), "true"),
        (("float8",), "1,5"),
        (("bytea",), "\\000"),
        (("date",), "29/02/2024"),
        (("timestamp",), "Thu Feb 29 2024"),
        (("timestamptz",), "2024-02-29 12:00:00"),
        (("time",), "noon"),
        (("numeric", 9, 2), "x"),
        (("interval",), "P1Y"),
        (("text[]",), '{"a}'),
        (("int4[]",), "{x}"),
        (("point",), "1"),
    ],
)
def test_text_of_another_form_is_refused(kind, text):
    with pytest.raises(ArrowMalformed) as caught:
        array(kind, [text], arrow_misfit="null")
    assert caught.value.code == "WT-5302"


def codec(*columns: Column, **options: Any) -> RelationCodec:
    relation = Relation(oid=1, schema="public", table="t", columns=columns)
    return RelationCodec(relation, TypeRegistry(installed_types(), TypeOptions(**options)))


def test_tables_of_one_shape_share_a_schema_with_its_metadata():
    one, same, other = codec(column("jsonb")), codec(column("jsonb")), codec(column("json"))
    assert one.schema is same.schema
    assert one.schema == other.schema  # without the metadata
    assert one.schema is not other.schema
    assert other.schema.field(0).metadata == {b"waltap.form": b"json", b"postgres.type": b"json"}


def test_batch_keeps_relation_order_and_leaves_unknown_types_out():
    found = codec(column("int4"), column("tsquery"), column("jsonb"), column("text[]"))
    assert found.schema.types == [pa.int32(), pa.string(), pa.list_(pa.string())]
    assert found.schema.field(1).metadata == {b"waltap.form": b"json", b"postgres.type": b"jsonb"}
    batch = found.batch([("1", "'a'", "{}", "{}"), (None, None, None, None)])
    assert batch.num_rows == 2
    assert batch.column(1).to_pylist() == ["{}", None]
    empty = found.batch([])
    assert (empty.num_rows, empty.schema) == (0, found.schema)
    unknown = codec(column("tsquery")).batch([("'a'",), ("'b'",)])
    assert (unknown.num_rows, unknown.num_columns) == (2, 0)
