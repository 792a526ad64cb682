"""Decimals that Spark does not read become text, wherever they stand."""

import decimal

import pyarrow as pa

from waltap_spark.wide_decimals import text_of

WIDE = decimal.Decimal(10) ** 60


def test_they_are_text_wherever_they_stand() -> None:
    wide = pa.decimal256(76, 2)
    size = pa.struct([("w", wide), ("n", pa.int32())])
    for kind, value, text in (
        (wide, WIDE, f"{WIDE:f}.00"),
        (pa.list_(wide), [WIDE, None], [f"{WIDE:f}.00", None]),
        (size, {"w": WIDE, "n": 1}, {"w": f"{WIDE:f}.00", "n": 1}),
        (pa.list_(size), [{"w": None, "n": 1}, None], [{"w": None, "n": 1}, None]),
        (pa.map_(pa.string(), wide), [("k", WIDE)], [("k", f"{WIDE:f}.00")]),
    ):
        found = pa.chunked_array([pa.array([value, None], kind)]).cast(text_of(kind))
        assert found.to_pylist() == [text, None]
        assert "decimal256" not in str(found.type)
