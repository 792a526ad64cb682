"""What of a change event's schema is a column's type, and what is not."""

import json
from typing import Any

from waltap_spark.kafka.connect_schema import fields_of_avro, fields_of_json

DECIMAL = "org.apache.kafka.connect.data.Decimal"
ENUM = "io.debezium.data.Enum"


def in_json(kind: str, meaning: str, **parameters: str) -> str:
    column = {"field": "f", "type": kind, "name": meaning, "parameters": parameters}
    envelope = {"fields": [{"field": "after", "type": "struct", "fields": [column]}]}
    (found,) = fields_of_json(json.dumps(envelope))
    return found.described()


def in_avro(kind: dict[str, Any]) -> str:
    row = {"type": "record", "name": "Value", "fields": [{"name": "f", "type": kind}]}
    envelope = {"type": "record", "name": "Envelope", "fields": [{"name": "after", "type": row}]}
    (found,) = fields_of_avro(json.dumps(envelope))
    return found.described()


def test_a_label_more_is_no_other_type():
    assert (
        in_json("string", ENUM, allowed="a,b") == in_json("string", ENUM, allowed="a,b,c") == ENUM
    )
    labels = ({"type": "string", "connect.name": ENUM, "connect.parameters": {"allowed": allowed}}
              for allowed in ("a,b", "a,b,c"))  # fmt: skip
    assert {in_avro(each) for each in labels} == {ENUM}
    column = "__debezium.source.column.length"
    assert in_json("string", "", **{column: "10"}) == in_json("string", "", **{column: "20"})


def test_another_scale_precision_or_length_is_another_type():
    precision = "connect.decimal.precision"
    kinds = {
        in_json("bytes", DECIMAL, scale="2", **{precision: "10"}),
        in_json("bytes", DECIMAL, scale="3", **{precision: "10"}),
        in_json("bytes", DECIMAL, scale="2", **{precision: "12"}),
        in_json("bytes", "io.debezium.data.Bits", length="3"),
        in_json("bytes", "io.debezium.data.Bits", length="4"),
    }
    assert len(kinds) == 5
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 10}
    assert in_avro(decimal | {"scale": 2}) != in_avro(decimal | {"scale": 3})
