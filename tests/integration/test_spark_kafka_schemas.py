"""Schemas of events that change: within a portion, back again, and in what has nothing to do with values."""

import json
from decimal import Decimal as D
from pathlib import Path
from typing import Any

from confluent_kafka.admin import NewTopic
from tests.harness.kafka import create
from tests.harness.servers.kafka import Kafka
from tests.harness.topics import Reader, event, produce

from waltap_spark.kafka import KafkaTopics

ID = {"field": "id", "type": "int32"}
NAME = {"field": "name", "type": "string"}
MORE = {"field": "more", "type": "int32"}


def with_schema(fields: list[dict[str, Any]], *about: Any) -> bytes:
    """Return an event with the schema of its rows."""
    sides = [{"field": side, "type": "struct", "fields": fields} for side in ("before", "after")]
    schema = {"type": "struct", "fields": sides}
    return json.dumps({"schema": schema, "payload": json.loads(event(*about))}).encode()


def test_a_schema_that_comes_back_within_a_portion_is_applied_in_its_turn(
    kafka: Kafka, spark_of_topics: Any, delta: Any, tmp_path: Path
) -> None:
    """In each partition, and where partitions have them in another order."""
    topic = kafka.topic_name()
    create(kafka.bootstrap, NewTopic(topic, 2))
    narrow, wide = [ID, NAME], [ID, NAME, MORE]
    row = {"id": 1, "name": "a"}
    produce(
        kafka, topic,
        ({"id": 1}, with_schema(narrow, "c", 100, None, row, 90), 0),
        ({"id": 1}, with_schema(wide, "u", 120, None, row | {"name": "b", "more": 1}, 110), 0),
        ({"id": 1}, with_schema(narrow, "u", 140, None, row | {"name": "c"}, 130), 0),
        ({"id": 2}, with_schema(wide, "c", 80, None, {"id": 2, "name": "x", "more": 2}, 70), 1),
        ({"id": 2}, with_schema(narrow, "u", 103, None, {"id": 2, "name": "y"}, 90), 1),
        ({"id": 2}, with_schema(wide, "u", 122, None, {"id": 2, "name": "z", "more": 3}, 110), 1),
    )  # fmt: skip
    topics = KafkaTopics(bootstrap=kafka.bootstrap, topics=(topic,))
    reader = Reader(spark_of_topics, tmp_path, topics, "delta")
    assert reader.pull() == 6
    found = reader.frame("items").select("id", "name").orderBy("id").collect()
    assert [tuple(each) for each in found] == [(1, "c"), (2, "z")]


def decimal(name: str, scale: int, precision: int) -> dict[str, Any]:
    """Return the schema of a column of numbers."""
    told = {"scale": str(scale), "connect.decimal.precision": str(precision)}
    kind = "org.apache.kafka.connect.data.Decimal"
    return {"field": name, "type": "bytes", "name": kind, "parameters": told}


def test_decimals_are_numbers_or_base64_as_json_has_them(
    kafka: Kafka, spark_of_topics: Any, tmp_path: Path
) -> None:
    """Digits alone may be either. One that Spark would read with fewer digits is a bad record."""
    topic = kafka.topic_name()
    create(kafka.bootstrap, NewTopic(topic, 1))
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
    produce(kafka, topic, *(
        ({"id": n}, with_schema(fields, "c", 100 + 10 * n, None, {"id": n} | row, 95))
        for n, row in enumerate(rows)
    ))  # fmt: skip
    topics = KafkaTopics(bootstrap=kafka.bootstrap, topics=(topic,), bad="keep")
    reader = Reader(spark_of_topics, tmp_path, topics)
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
