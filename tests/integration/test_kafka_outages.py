"""Pipelines into a real broker that is away, refuses, or lacks a topic: nothing is confirmed, nothing lost."""

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import NewTopic
from tests.harness.kafka import create, read_all
from tests.harness.pipeline import PipelineRig
from tests.harness.servers.kafka import Kafka
from tests.harness.servers.postgres import Database

from waltap.errors import RetryVerdict, SinkError
from waltap_kafka.errors import KafkaRefused, KafkaTopicMissing, KafkaUnreachable

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"


def pipeline(database: Database, folder: Path, servers: str, **more: Any) -> PipelineRig:
    database.psql("CREATE TABLE items (id int PRIMARY KEY, name text)")
    settings = {
        "key.converter.schemas.enable": False,
        "value.converter.schemas.enable": False,
        "snapshot.mode": "no_data",
        "topic.prefix": database.name,
        "sink.type": "kafka",
        "sink.bootstrap.servers": servers,
    }
    return PipelineRig(database, folder, settings | more)


def rows(database: Database, first: int, last: int) -> None:
    database.psql(
        f"INSERT INTO items SELECT n, repeat('x', 500) FROM generate_series({first}, {last}) n"
    )


def wal_lsn(database: Database) -> int:
    """Return where WAL ends now."""
    return int(database.execute("SELECT pg_current_wal_lsn() - '0/0'::pg_lsn")[0][0])


def ids(servers: str, database: Database) -> list[int]:
    records = read_all(servers, f"{database.name}.public.items")
    return [json.loads(record.key() or b"{}")["id"] for record in records]


def test_a_broker_that_is_away_for_a_while_gets_everything_in_order(
    database: Database, private_kafka: Kafka, tmp_path: Path
) -> None:
    """More comes than the client's queue holds: it is left in the database, and the slot stays."""
    made = pipeline(
        database,
        tmp_path,
        private_kafka.bootstrap,
        **{
            "sink.producer.queue.buffering.max.messages": 500,
            "sink.topic.creation.default.partitions": 1,
        },
    )
    with made.running() as run:
        rows(database, 1, 10)
        first = wal_lsn(database)
        run.until(lambda: made.slot_lsns()[0] >= first, "ten rows confirmed")
        private_kafka.kill()
        rows(database, 11, 3_000)
        lost = wal_lsn(database)
        run.until(lambda: run.engine.status().partitions[0].received_lsn > first, "what came since")
        run.until(lambda: run.engine.status().events > 10, "what the sink took since")
        rows(database, 3_001, 3_010)
        assert made.slot_lsns()[0] < lost, "nothing was delivered, nothing may be confirmed"
        assert not run.ended
        private_kafka.start()
        run.until(lambda: made.slot_lsns()[0] >= lost, "everything confirmed", within=180)
        end = wal_lsn(database)
        run.until(lambda: made.slot_lsns()[0] >= end, "the end confirmed", within=180)
    assert ids(private_kafka.bootstrap, database) == list(range(1, 3_011))


def test_a_pipeline_begins_when_its_broker_does(
    database: Database, private_kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = pipeline(database, tmp_path, private_kafka.bootstrap)
    with made.running():
        pass
    slot = made.slot_lsns()
    private_kafka.kill()
    rows(database, 1, 100)
    with monkeypatch.context() as patch:
        patch.setattr("waltap_kafka.client.REACH_S", 0.5)
        with pytest.raises(KafkaUnreachable, match=private_kafka.bootstrap) as away:
            made.catch_up()
    assert away.value.code == "WT-5401"
    assert made.slot_lsns() == slot
    private_kafka.start()
    made.catch_up()
    assert sorted(ids(private_kafka.bootstrap, database)) == list(range(1, 101))


@pytest.mark.parametrize("reason", ["no topic", "no right"])
def test_a_broker_that_refuses_ends_the_run_and_moves_nothing(
    database: Database, kafka: Kafka, tmp_path: Path, reason: str
) -> None:
    topic = f"{database.name}.public.items"
    made = pipeline(database, tmp_path, kafka.bootstrap, **{"sink.topic.creation.enable": False})
    with made.running():
        pass
    before = made.offset()
    rows(database, 1, 3)
    wanted: type[SinkError] = KafkaTopicMissing
    more: dict[str, Any] = {}
    if reason == "no right":
        create(kafka.bootstrap, NewTopic(topic, 1))
        wanted = KafkaRefused
        more = {
            "sink.bootstrap.servers": kafka.sasl,
            "sink.producer.security.protocol": "SASL_PLAINTEXT",
            "sink.producer.sasl.mechanism": "PLAIN",
            "sink.producer.sasl.jaas.config": f'{PLAIN} username="reader" password="reader-secret";',
        }
    with pytest.raises(wanted) as refused:
        made.catch_up(**more)
    assert refused.value.retry is RetryVerdict.NEVER
    after = made.offset()
    assert before is not None
    assert after is not None
    assert after.partitions == before.partitions
    if reason == "no topic":
        create(kafka.bootstrap, NewTopic(topic, 1))  # the remedy
    made.catch_up()
    assert ids(kafka.bootstrap, database) == [1, 2, 3]
