"""Records that are too large for Kafka, on a real broker: kept, and replayed when they may be larger."""

import json
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)
from tests.harness.dead_letters import KEEP, dead_letters, letters_of
from tests.harness.kafka import create, read_all
from tests.harness.pipeline import PipelineRig
from tests.harness.servers.kafka import Kafka
from tests.harness.servers.postgres import Database


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])
def test_a_record_too_large_for_kafka_is_replayed_when_it_may_be_larger(
    database: Database, kafka: Kafka, tmp_path: Path, guarantee: str
) -> None:
    prefix = kafka.topic_name()
    topic = f"{prefix}.public.t"
    create(kafka.bootstrap, NewTopic(topic, 1, config={"max.message.bytes": "20000"}))
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    settings = {
        "snapshot.mode": "no_data",
        "topic.prefix": prefix,
        "sink.type": "kafka",
        "sink.bootstrap.servers": kafka.bootstrap,
        "sink.delivery.guarantee": guarantee,
        "sink.producer.message.max.bytes": 1_000_000,
    }
    pipeline = PipelineRig(database, tmp_path, settings | KEEP)
    pipeline.catch_up()
    database.execute(
        "INSERT INTO t SELECT i, CASE WHEN i = 3 THEN repeat('x', 50000) ELSE 'v' END "
        "FROM generate_series(1, 5) i"
    )
    pipeline.catch_up()
    assert _ids(kafka, topic) == [1, 2, 4, 5]
    (letter,) = letters_of(pipeline)
    assert (letter.code, letter.table, letter.place.index) == ("WT-5405", "public.t", 2)
    assert dead_letters(pipeline, "replay").returncode == 1
    _allow(kafka, topic, 200_000)
    answer = dead_letters(pipeline, "replay")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert dead_letters(pipeline, "replay").returncode == 0
    assert _ids(kafka, topic) == [1, 2, 4, 5, 3]
    last = read_all(kafka.bootstrap, topic)[-1]
    marks = dict(last.headers() or [])
    assert json.loads(marks["waltap-dead-letter"]) == letter.id
    database.execute("INSERT INTO t VALUES (6, 'v')")
    pipeline.catch_up()
    assert _ids(kafka, topic) == [1, 2, 4, 5, 3, 6]


def _ids(kafka: Kafka, topic: str) -> list[int]:
    return [json.loads(m.value() or b"")["after"]["id"] for m in read_all(kafka.bootstrap, topic)]


def _allow(kafka: Kafka, topic: str, size: int) -> None:
    entry = ConfigEntry("max.message.bytes", str(size), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(30)
