"""Offsets in a topic of a real broker: what is stored comes back, whatever becomes of the state folder."""

import re
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AclOperation, AdminClient, NewTopic, ResourceType
from tests.harness.kafka import allow, create, read_all
from tests.harness.pipeline import until
from tests.harness.servers.kafka import Kafka
from tests.harness.shop import Shop

from waltap.changes.transactions.position import Position
from waltap.config.layers import read_tables
from waltap.config.resolve import resolve
from waltap.errors import ConfigurationError
from waltap.plugins.host import Host
from waltap.ports.offsets.file_store import OffsetUnreadable
from waltap_kafka.errors import KafkaOffsetTopicUnusable
from waltap_kafka.offset_store import KafkaOffsetStore
from waltap_kafka.plugin import register_offset_stores
from waltap_kafka.properties import KafkaOffsetProperties
from waltap_testing.suites.offset_store import FULL, NEW, OLD, OffsetStoreRig, OffsetStoreSuite


def store(kafka: Kafka, topic: str, home: Path, **more: Any) -> KafkaOffsetStore:
    given = {
        "offset.storage.topic": topic,
        "offset.storage.bootstrap.servers": kafka.bootstrap,
    } | more
    return KafkaOffsetStore(KafkaOffsetProperties.model_validate(given), str(home))


@pytest.fixture
def topic() -> str:
    return f"offsets-{uuid.uuid4().hex[:8]}"


def test_a_process_that_was_replaced_writes_no_older_offset(kafka, topic, tmp_path):
    paused, successor = (
        store(kafka, topic, tmp_path / "p", **{"waltap.standby": True}) for _ in range(2)
    )
    paused.store(OLD)
    assert successor.load() == OLD
    successor.store(NEW)
    with pytest.raises(KafkaOffsetTopicUnusable, match="instance"):
        paused.store(FULL)
    assert successor.load() == NEW
    successor.store(FULL)


class TestKafka(OffsetStoreSuite):
    """The promises of every store."""

    @pytest.fixture
    def new_rig(self, kafka, topic) -> Callable[[Path], OffsetStoreRig]:
        (spec,) = register_offset_stores()
        given = {"offset.storage.topic": topic, "offset.storage.bootstrap.servers": kafka.bootstrap}
        properties = KafkaOffsetProperties.model_validate(given)
        return lambda folder: OffsetStoreRig(spec, properties, folder, forks=False)


def test_a_topic_that_appears_after_its_creation_is_waited_for(kafka, topic, tmp_path, monkeypatch):
    """The controller answers before the brokers know the topic."""
    create_topics = AdminClient.create_topics
    made: list[threading.Timer] = []

    def answer(admin: AdminClient, topics: list[NewTopic], **_: Any) -> dict[str, Future[None]]:
        made.append(threading.Timer(0.5, create_topics, (admin, topics)))
        made[-1].start()
        answered = Future[None]()
        answered.set_result(None)
        return {topic: answered}

    monkeypatch.setattr(AdminClient, "create_topics", answer)
    one = store(kafka, topic, tmp_path / "p")
    one.store(OLD)
    made[0].join()
    assert one.load() == OLD


def test_an_offset_of_the_state_folder_goes_into_the_topic(kafka, topic, tmp_path):
    from waltap.ports.offsets.file_store import FileOffsetStore

    kept = FileOffsetStore(tmp_path / "p/offset.json")
    kept.store(OLD)
    made = store(kafka, topic, tmp_path / "p")
    assert made.load() == OLD
    made.store(NEW)
    assert kept.load() == NEW
    assert store(kafka, topic, tmp_path / "elsewhere/p").load() == NEW
    later = NEW.with_sole(position=Position(0x3000))
    for other, counts in ((later, later), (OLD, NEW), (later.with_sole(slot_created_lsn=8), NEW)):
        kept.store(other)  # as a run without the topic does
        assert made.load() == counts
    made.store(later)
    store(kafka, topic, tmp_path / "elsewhere/p").store(OLD)  # as `waltap offsets set` there does
    assert made.load() == OLD
    assert read_all(kafka.bootstrap, topic)[-1].key() == b'["p",{"waltap":"offset"}]'


def test_an_offset_that_may_not_be_read_is_no_missing_one(kafka, topic, tmp_path):
    store(kafka, topic, tmp_path / "p").store(OLD)
    login = {
        "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN",
        "sasl.username": "reader", "sasl.password": "reader-secret",
    }  # fmt: skip
    named = {f"offset.storage.producer.{name}": value for name, value in login.items()}
    given = {"offset.storage.bootstrap.servers": kafka.sasl, "offset.storage.producer.NAME": named}
    elsewhere = store(kafka, topic, tmp_path / "elsewhere" / "p", **given)
    with pytest.raises(KafkaOffsetTopicUnusable, match="authorization"):
        elsewhere.load()
    allow(kafka.bootstrap, "reader", ResourceType.TOPIC, topic, AclOperation.READ)

    def read() -> bool:  # the broker takes note of rights in its own time
        with suppress(KafkaOffsetTopicUnusable):
            return elsewhere.load() == OLD
        return False

    until(read, "the right to read")


def test_a_topic_that_forgets_and_a_record_that_is_none_are_refused(kafka, topic, tmp_path):
    with pytest.raises(KafkaOffsetTopicUnusable, match="Unable to replicate"):
        store(kafka, topic, tmp_path / "p", **{"offset.storage.replication.factor": 3}).store(OLD)
    create(kafka.bootstrap, NewTopic(topic, 1, 1, config={"cleanup.policy": "delete"}))
    with pytest.raises(KafkaOffsetTopicUnusable, match=r"cleanup\.policy=delete"):
        store(kafka, topic, tmp_path / "p").store(OLD)
    other = f"{topic}-2"
    create(kafka.bootstrap, NewTopic(other, 1, 1, config={"cleanup.policy": "compact"}))
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    producer.produce(other, b"{}x", '["p",{"waltap":"offset"}]', partition=0)
    producer.flush()
    with pytest.raises(OffsetUnreadable, match=f"of topic {other} is no offset"):
        store(kafka, other, tmp_path / "p").load()


def test_the_remedy_for_a_record_that_is_no_offset_starts_over(database, kafka, topic, tmp_path):
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    place = {"offset.storage.topic": topic, "offset.storage.bootstrap.servers": kafka.bootstrap}
    shop = Shop(tmp_path, database, **{"waltap.offset.store": "kafka", **place})
    shop.run()
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    producer.produce(topic, b"{}", '["shop",{"waltap":"offset"}]', partition=0)
    producer.flush()
    said = shop.run(code=1)
    for command in re.findall(r"`waltap (\w+ \w+) FILE`", said):
        shop.says(f"{command} FILE --yes")
    shop.run()
    assert shop.operations() == [("r", 1)] * 2


def test_two_stores_are_a_contradiction():
    source = {"type": "postgres", "database.dbname": "shop", "waltap.offset.store": "memory"}
    tables = {"name": "p", "source": source, "offsets": {"type": "file"}, "sink": {"type": "null"}}
    with pytest.raises(ConfigurationError, match=r"waltap\.offset\.store: contradicts type = file"):
        resolve(read_tables(tables), Host())
