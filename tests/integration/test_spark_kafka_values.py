"""Values of change events at their edges."""

import base64
import datetime as dt
import json
from decimal import Decimal as D
from hashlib import md5
from typing import Any
from uuid import UUID

import pytest
from tests.harness.topics import TopicReader, event

from waltap_sinks.changelog.errors import ColumnNameTaken

UNSENT = "__debezium_unavailable_value"
ID = {"field": "id", "type": "int32"}


def base64_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


def schema_of(fields: list[dict[str, Any]]) -> dict[str, Any]:
    sides = [{"field": side, "type": "struct", "fields": fields} for side in ("before", "after")]
    return {"type": "struct", "fields": sides}


def with_schema(fields: list[dict[str, Any]], *about: Any) -> bytes:
    payload = json.loads(event(*about))
    return json.dumps({"schema": schema_of(fields), "payload": payload}).encode()


def write(
    reader: TopicReader,
    rows: list[dict[str, Any]],
    fields: list[dict[str, Any]] | None = None,
    op: str = "c",
) -> TopicReader:
    """Write rows, each as an event, with the schema that `fields` make; return the reader."""
    about = [(op, 100 + 10 * n, None, row, 95) for n, row in enumerate(rows)]
    events = [event(*each) if fields is None else with_schema(fields, *each) for each in about]
    reader.write(*(({"id": row["id"]}, each) for row, each in zip(rows, events, strict=True)))
    return reader


def test_values_of_declared_columns_that_were_not_sent_keep_the_older(topic):
    """The placeholder is text, base64, bytes or a UUID, as the column's type in the database has it."""
    digest = md5(UNSENT.encode(), usedforsecurity=False).digest()
    sent = {
        "id": 1, "name": "bolt", "raw": base64_of(b"\1"), "words": ["a", "b"], "parts": [base64_of(b"\2")],
        "counts": [1, 2], "large": [3], "ids": ["x"], "price": "1.25",
    }  # fmt: skip
    unsent = {
        "id": 1, "name": UNSENT, "raw": base64_of(UNSENT.encode()), "words": [UNSENT],
        "parts": [base64_of(UNSENT.encode())], "counts": list(UNSENT.encode()),
        "large": list(UNSENT.encode()), "ids": [str(UUID(bytes=digest, version=3))], "price": UNSENT,
    }  # fmt: skip
    ddl = (
        "id INT, name STRING, raw BINARY, words ARRAY<STRING>, parts ARRAY<BINARY>, counts ARRAY<INT>,"
        " large ARRAY<BIGINT>, ids ARRAY<STRING>, price DECIMAL(10,2)"
    )
    reader = write(topic(columns={"inventory.items": ddl}), [sent, unsent], op="u")
    assert reader.pull() == 2
    assert reader.rows("items") == [
        (1, "bolt", b"\1", ["a", "b"], [b"\2"], [1, 2], [3], ["x"], D("1.25"))
    ]


def test_far_values_of_declared_columns_are_null_and_counted(topic, caplog):
    """As numbers, and as text."""
    infinite, moment = 2**31 - 1, 9_223_372_036_825_200_000
    rows = [
        {"id": 1, "made": 19782, "at": 0, "zoned": "2024-02-29T12:00:00Z"},
        {"id": 2, "made": infinite, "at": moment, "zoned": "+10000-01-01T00:00:00Z"},
        {"id": 3, "made": "+10000-01-01", "at": "+10000-01-01 00:00:00", "zoned": "0000-12-31T23:59:59Z"},
        {"id": 4, "made": "9999-12-31", "at": "9999-12-31 23:59:59", "zoned": "0001-01-01T00:00:00Z"},
        {"id": 5, "zoned": "9999-12-31T23:59:59-05:00"},
    ]  # fmt: skip
    ddl = "id INT, made DATE, at TIMESTAMP_NTZ, zoned TIMESTAMP"
    reader = write(topic(columns={"inventory.items": ddl}), rows)
    assert reader.pull() == 5
    found = (
        reader.frame("items").selectExpr("id", "made", "at", "unix_seconds(zoned)").orderBy("id")
    )
    assert [tuple(row) for row in found.collect()] == [
        (1, dt.date(2024, 2, 29), dt.datetime(1970, 1, 1), 1_709_208_000),
        (2, None, None, None),
        (3, None, None, None),
        (4, dt.date(9999, 12, 31), dt.datetime(9999, 12, 31, 23, 59, 59), -62_135_596_800),
        (5, None, None, None),
    ]
    assert "inventory.items: 7 values that no type of Spark's holds" in caplog.text


def test_far_moments_and_parts_of_arrays_are_null_and_counted_as_schemas_show_them(topic, caplog):
    """What cannot be read in an array is a bad record as ever."""
    date = {"type": "int32", "name": "io.debezium.time.Date"}
    zoned = {"type": "string", "name": "io.debezium.time.ZonedTimestamp"}
    time = {"type": "int64", "name": "io.debezium.time.MicroTime"}
    fields = [
        ID, {"field": "at"} | zoned, {"field": "days", "type": "array", "items": date},
        {"field": "times", "type": "array", "items": time},
        {"field": "moments", "type": "array", "items": zoned},
    ]  # fmt: skip
    near, day = "2024-02-29T12:00:00Z", dt.date(2024, 2, 29)
    rows: list[dict[str, Any]] = [
        {"id": 1, "at": "+294247-01-10T04:00:54.775Z", "days": [19782, 2**31 - 1, None]},
        {"id": 2, "at": "0000-12-31T23:59:59Z", "times": [0, 86_400_000_000]},
        {"id": 3, "at": near, "days": [19782], "moments": ["infinity", "-4712-01-01T00:00:00Z"]},
        {"id": 4, "at": near, "moments": [near, "soon"]},
    ]
    reader = write(topic(bad="keep"), rows, fields)
    assert reader.pull() == 3
    found = reader.frame("items").selectExpr("id", "at is null", "days", "times", "moments")
    assert [tuple(row) for row in found.orderBy("id").collect()] == [
        (1, True, [day, None, None], None, None),
        (2, True, None, [dt.time(0), None], None),
        (3, False, [day], None, [None, None]),
    ]
    assert "inventory.items: 5 values that no type of Spark's holds" in caplog.text
    (bad,) = reader.feed().bad_records()
    assert (bad["offset"], bad["reason"]) == (3, "its value of column moments cannot be read")


def test_numbers_of_declared_decimals_have_all_their_digits_or_are_bad(topic):
    """Text and whole numbers have all. Spark reads others as doubles: of those, what is sure is taken."""
    columns = {"inventory.items": "id INT, price DECIMAL(24,6), count DECIMAL(38,0)"}
    reader = topic(bad="keep", columns=columns)
    whole = "12345678901234567890123456789012345678"
    rows = [
        ('"123456789012345678.123456"', f'"{whole}"'), ("123456789012345678", whole), ("1.5", "-7"),
        ("-12345678.5", "12.0"), ("null", "null"),
        ("123456789012345678.123456", "0"), ("1234567890.5", "0"), ('"many"', "0"),
    ]  # fmt: skip
    for n, (price, count) in enumerate(rows):
        text = event("c", 100 + 10 * n, None, {"id": n, "price": "PRICE", "count": "COUNT"}, 95)
        text = text.replace(b'"PRICE"', price.encode()).replace(b'"COUNT"', count.encode())
        reader.write(({"id": n}, text))
    assert reader.pull() == 5
    assert reader.rows("items") == [
        (0, D("123456789012345678.123456"), D(whole)),
        (1, D("123456789012345678"), D(whole)),
        (2, D("1.5"), D(-7)),
        (3, D("-12345678.5"), D(12)),
        (4, None, None),
    ]
    assert [each["offset"] for each in reader.feed().bad_records()] == [5, 6, 7]


def test_a_map_whose_keys_are_numbers_is_an_array_of_pairs_in_json(topic):
    """So are sparse vectors."""
    vector = {
        "field": "vector", "type": "map", "keys": {"type": "int16"}, "values": {"type": "double"},
    }  # fmt: skip
    sparse = {
        "field": "sparse", "type": "struct", "name": "io.debezium.data.SparseDoubleVector",
        "fields": [{"field": "dimensions", "type": "int16"}, vector],
    }  # fmt: skip
    rows: list[dict[str, Any]] = [
        {"id": 1, "sparse": {"dimensions": 5, "vector": [[1, 1.5], [3, 2.0]]}},
        {"id": 2, "sparse": {"dimensions": 5, "vector": []}},
        {"id": 3, "sparse": None},
    ]
    reader = write(topic(), rows, [ID, sparse])
    assert reader.pull() == 3
    found = reader.frame("items").select("id", "sparse.dimensions", "sparse.vector").orderBy("id")
    assert [tuple(row) for row in found.collect()] == [
        (1, 5, {1: 1.5, 3: 2.0}),
        (2, 5, {}),
        (3, None, None),
    ]


def test_a_column_that_is_called_like_one_of_the_log_is_refused_by_name(topic):
    """In other letters it is another name."""
    text = {"type": "string"}
    reader = write(topic(), [{"id": 1, "_OP": "x"}], [ID, {"field": "_OP"} | text])
    assert reader.pull() == 1
    assert reader.rows("items") == [(1, "x")]
    taken = write(topic(), [{"id": 1, "_op": "x"}], [ID, {"field": "_op"} | text])
    with pytest.raises(ColumnNameTaken, match=r"WT-5104.*inventory\.items has a column _op"):
        taken.pull()


def test_a_topic_that_is_not_there_is_reported_once(topic, kafka, caplog):
    """The others are read."""
    absent = kafka.topic_name()
    reader = write(topic(), [{"id": 1}], [ID])
    reader.read_with(topics=(reader.name, absent))
    with reader.feed() as feed:
        assert feed.pull() is not None
        assert feed.pull() is None
        assert caplog.text.count(f"has no topic {absent} (yet)") == 1


def decimal(name: str, scale: int, precision: int) -> dict[str, Any]:
    reported = {"scale": str(scale), "connect.decimal.precision": str(precision)}
    kind = "org.apache.kafka.connect.data.Decimal"
    return {"field": name, "type": "bytes", "name": kind, "parameters": reported}


def test_decimals_are_numbers_or_base64_as_json_has_them(topic):
    """Digits alone may be either. One that Spark would read with fewer digits is a bad record."""
    items = {"field": "list", "type": "array", "items": decimal("", 0, 12)}
    fields = [
        ID, decimal("price", 2, 10), decimal("whole", 0, 12), decimal("wide", 4, 38),
        decimal("long", 0, 50), decimal("far", 4, 50), items,
    ]  # fmt: skip
    digits = 12345678901234567890123456789012345678
    rows = [
        {"price": 12.5, "whole": 1234, "wide": -0.0001, "long": 5678, "far": 1.25, "list": [1234, None]},
        {"price": "BOI=", "whole": "1234", "wide": "/w==", "long": "1234", "far": "MNQ=", "list": ["1234", 7]},
        {"price": None, "whole": None, "wide": None, "long": None, "far": None, "list": None},
        {"price": -0.01, "whole": -1, "wide": 12345678901.25, "long": digits, "far": 0.0, "list": []},
        {"wide": 1234567890123456.25},
        {"far": 1234567890123456.25},
    ]  # fmt: skip
    reader = write(topic(bad="keep"), [{"id": n} | row for n, row in enumerate(rows)], fields)
    assert reader.pull() == 4
    of_base64 = -2658824
    assert reader.rows("items") == [
        (0, D("12.50"), D(1234), D("-0.0001"), "5678", "1.2500", [D(1234), None]),
        (1, D("12.50"), D(of_base64), D("-0.0001"), str(of_base64), "1.2500", [D(of_base64), D(7)]),
        (2, None, None, None, None, None, None),
        (3, D("-0.01"), D(-1), D("12345678901.2500"), str(digits), "0.0000", []),
    ]
    assert [each["reason"] for each in reader.feed().bad_records()] == [
        "its value of column wide cannot be read",
        "its value of column far cannot be read",
    ]
