"""Schemas of events that change: within a portion, back again, and in what has nothing to do with values."""

import json
from pathlib import Path
from typing import Any

from confluent_kafka.admin import NewTopic

from waltap_spark.kafka import KafkaTopics

from tests.rigs.kafka import create
from tests.rigs.topics import Reader, event, produce
from tests.servers.kafka import Kafka

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
