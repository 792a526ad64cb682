"""The channels of Kafka keep the kit's promises on a real broker."""

import json
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AclOperation,
    AdminClient,
    NewPartitions,
    NewTopic,
    ResourceType,
)
from tests.harness.http_receiver import notification_of
from tests.harness.kafka import IN_ORDER, WAIT_SECONDS, allow, create, partitions, read_all
from tests.harness.pipeline import until
from tests.harness.servers.kafka import Kafka

from waltap.errors import SinkError
from waltap.ports.notifications import Notification
from waltap.ports.signals.signal import Signal
from waltap_kafka.errors import (
    KafkaNotDelivered,
    KafkaRefused,
    KafkaSignalTopicMissing,
    KafkaUnreachable,
)
from waltap_kafka.plugin import register_notification_channels, register_signal_channels
from waltap_kafka.properties import KafkaNotificationProperties, KafkaSignalProperties
from waltap_testing import (
    NotificationChannelRig,
    NotificationChannelSuite,
    SignalChannelRig,
    SignalChannelSuite,
)

(SIGNALS,) = register_signal_channels()
(NOTIFICATIONS,) = register_notification_channels()


@pytest.fixture(autouse=True)
def _patience(monkeypatch) -> None:
    """A busy machine answers late."""
    for name, seconds in (("ASK_S", 20.0), ("READ_S", 90.0), ("CLOSE_S", 90.0)):
        monkeypatch.setattr(f"waltap_kafka.channels.{name}", seconds)


def knows_the_group(bootstrap: str, group: str, place: TopicPartition) -> None:
    """Wait until the broker has somebody who keeps offsets of ``group``: it makes that at first use."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})

    def answers() -> bool:
        with suppress(KafkaException):
            return bool(consumer.committed([place], 10))
        return False

    until(answers, f"the coordinator of {group}")
    consumer.close()


def signal_topic(kafka: Kafka) -> tuple[str, str]:
    """Make the topic of a pipeline's signals; return the pipeline's prefix, and the topic."""
    prefix = kafka.topic_name("shop")
    topic = f"{prefix}-signal"
    create(kafka.bootstrap, NewTopic(topic, 1))
    knows_the_group(kafka.bootstrap, f"kafka-signal-{prefix}", TopicPartition(topic, 0))
    return prefix, topic


def signal_properties(servers: str, prefix: str, **consumer: str) -> KafkaSignalProperties:
    given: dict[str, Any] = {"topic.prefix": prefix, "signal.kafka.bootstrap.servers": servers}
    given["signal.consumer.NAME"] = {f"signal.consumer.{n}": v for n, v in consumer.items()}
    return KafkaSignalProperties.model_validate(given)


class TestKafkaSignals(SignalChannelSuite):
    test_no_signal_is_an_empty_list_at_once = (
        None  # how long a broker takes to say so is its matter
    )

    def test_no_signal_is_an_empty_list(self, rig):
        channel = rig.build()
        assert channel.poll() == channel.poll() == []
        channel.close()

    @pytest.fixture
    def rig(self, kafka) -> SignalChannelRig:
        prefix, topic = signal_topic(kafka)
        producer = Producer({"bootstrap.servers": kafka.bootstrap})
        properties = signal_properties(kafka.bootstrap, prefix)

        def put(key: str, value: bytes) -> None:
            producer.produce(topic, value, key)
            assert producer.flush(WAIT_SECONDS) == 0

        def send(signal: Signal) -> None:
            item = {"id": signal.identifier, "type": signal.kind, "data": json.loads(signal.data)}
            put("other", json.dumps({**item, "id": "another pipeline's"}).encode())
            put(prefix, json.dumps(item).encode())

        return SignalChannelRig(SIGNALS, properties, send, spoil=lambda: put(prefix, b'[{"id": '))


def signal_value(identifier: str) -> bytes:
    return json.dumps({"id": identifier, "type": "log"}).encode()


def received(channel: Any, count: int = 1) -> list[str]:
    """Return the ids of the signals that come until there are ``count``."""
    found: list[str] = []

    def came() -> bool:
        with suppress(KafkaSignalTopicMissing):  # while the brokers hear of a new topic
            found.extend(signal.identifier for signal in channel.poll() or ())
            channel.confirm()
        return len(found) >= count

    until(came, f"{count} signals")
    return found


def test_signals_of_a_transactional_producer_are_waited_for_no_longer_than_others(
    kafka, monkeypatch
):
    """The markers of its transactions are no records, and are never delivered."""
    monkeypatch.setattr("waltap_kafka.channels.READ_S", WAIT_SECONDS)
    prefix, topic = signal_topic(kafka)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": prefix})
    producer.init_transactions(WAIT_SECONDS)
    channel = SIGNALS.factory(signal_properties(kafka.bootstrap, prefix))
    deadline = time.monotonic() + WAIT_SECONDS
    for end in (producer.abort_transaction, producer.commit_transaction):
        producer.begin_transaction()
        producer.produce(topic, signal_value(end.__name__), prefix)
        assert producer.flush(WAIT_SECONDS) == 0
        assert channel.poll() == []
        end(WAIT_SECONDS)
    # the broker writes the marker in its own time
    assert received(channel) == ["commit_transaction"]
    assert channel.poll() == []
    channel.close()
    assert time.monotonic() < deadline


class LostAnswer:
    """A consumer whose first commit is carried out, and reported as lost."""

    def __init__(self, consumer: Consumer, code: int) -> None:
        self._consumer, self._code, self._lost = consumer, code, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)

    def commit(self, **given: Any) -> None:
        self._consumer.commit(**given)
        if not self._lost:
            self._lost = True
            raise KafkaException(KafkaError(self._code, "the link is gone"))


@pytest.mark.parametrize(
    ("code", "error"),
    [(KafkaError._TRANSPORT, KafkaUnreachable), (KafkaError.NOT_COORDINATOR, KafkaNotDelivered)],
)
def test_a_signal_whose_commit_has_no_answer_is_not_lost(kafka, code, error):
    prefix, topic = signal_topic(kafka)
    channel = SIGNALS.factory(signal_properties(kafka.bootstrap, prefix))
    channel._consumer = LostAnswer(channel._consumer, code)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    producer.produce(topic, signal_value("1"), prefix)
    assert producer.flush(WAIT_SECONDS) == 0
    assert [signal.identifier for signal in channel.poll()] == ["1"]
    with pytest.raises(error, match="the link is gone"):
        channel.confirm()
    assert channel.poll() == []
    channel.close()


class LateRecord:
    """A consumer that has got a record by the end of its second question about the committed offset."""

    def __init__(self, consumer: Consumer, topic: str, produce: Callable[[], None]) -> None:
        self._consumer, self._topic, self._produce = consumer, TopicPartition(topic, 0), produce
        self._questions = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)

    def committed(self, *given: Any) -> Any:
        found = self._consumer.committed(*given)
        self._questions += 1
        if self._questions == 2:
            self._produce()
            until(
                lambda: self._consumer.get_watermark_offsets(self._topic, cached=True)[1] == 1, "it"
            )
        return found


def test_a_signal_that_comes_beside_the_question_about_the_end_is_not_lost(kafka):
    prefix, topic = signal_topic(kafka)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})

    def produce() -> None:
        producer.produce(topic, signal_value("1"), prefix)
        assert producer.flush(WAIT_SECONDS) == 0

    channel = SIGNALS.factory(signal_properties(kafka.bootstrap, prefix))
    channel._consumer = LateRecord(channel._consumer, topic, produce)
    assert received(channel) == ["1"]
    channel.close()


def test_brokers_that_are_away_are_no_missing_topic(private_kafka, monkeypatch):
    prefix, _topic = signal_topic(private_kafka)
    channel = SIGNALS.factory(signal_properties(private_kafka.bootstrap, prefix))
    assert channel.poll() == []
    private_kafka.kill()
    monkeypatch.setattr("waltap_kafka.channels.ASK_S", 2.0)
    for _ in range(3):
        with pytest.raises(KafkaUnreachable):
            channel.poll()
    channel.close()


def test_a_topic_of_signals_that_is_not_there_or_may_not_be_read_is_named(kafka, monkeypatch):
    monkeypatch.setattr("waltap_kafka.channels.ASK_S", 6.0)  # the client waits all of it
    prefix = kafka.topic_name("shop")
    channel = SIGNALS.factory(signal_properties(kafka.bootstrap, prefix))
    with pytest.raises(KafkaSignalTopicMissing, match="-signal"):
        channel.poll()
    channel.close()
    login = {
        "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN",
        "sasl.username": "reader", "sasl.password": "reader-secret",
    }  # fmt: skip
    channel = SIGNALS.factory(signal_properties(kafka.sasl, prefix, **login))
    create(kafka.bootstrap, NewTopic(f"{prefix}-signal", 1))
    with pytest.raises(KafkaRefused, match="Topic authorization"):
        channel.poll()
    allow(kafka.bootstrap, "reader", ResourceType.TOPIC, f"{prefix}-signal", AclOperation.READ)

    def group_refused() -> bool:
        try:
            return channel.poll() != []
        except KafkaRefused as refused:
            return "Group authorization" in str(refused)

    until(group_refused, "the right to the topic")
    channel.close()


def test_signals_of_a_topic_that_was_made_anew_are_read(kafka):
    prefix = kafka.topic_name("shop")
    topic = f"{prefix}-signal"
    channel = SIGNALS.factory(signal_properties(kafka.bootstrap, prefix))
    name = f"kafka-signal-{prefix}"
    knows_the_group(kafka.bootstrap, name, TopicPartition(topic, 0))
    group = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": name})
    noted = TopicPartition(topic, 0)
    for count in (5, 2, 4, 6, 8):
        create(kafka.bootstrap, NewTopic(topic, 1))
        producer = Producer({"bootstrap.servers": kafka.bootstrap, **IN_ORDER})
        for number in range(count):
            producer.produce(topic, signal_value(f"{count}-{number}"), prefix)
        assert producer.flush(WAIT_SECONDS) == 0
        place = TopicPartition(topic, 0)
        # the coordinator deletes what was committed for the topic before, in its own time
        until(lambda p=place: group.committed([p], WAIT_SECONDS)[0].offset < 0, "its end")
        if noted.offset > 0:
            group.commit(offsets=[noted], asynchronous=False)  # it has not deleted it yet
        assert received(channel, count) == [f"{count}-{number}" for number in range(count)]
        (noted,) = group.committed([place], WAIT_SECONDS)
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        admin.delete_topics([topic])[topic].result(WAIT_SECONDS)
    group.close()
    channel.close()


def test_signals_that_were_read_before_a_mirror_took_over_are_not_read_again(kafka, private_kafka):
    """A mirror copies offsets with what was noted beside them; its topic has an id of its own."""
    prefix, topic = signal_topic(kafka)
    create(private_kafka.bootstrap, NewTopic(topic, 1))
    group, place = f"kafka-signal-{prefix}", TopicPartition(topic, 0)
    knows_the_group(private_kafka.bootstrap, group, place)
    producers = [
        Producer({"bootstrap.servers": k.bootstrap, **IN_ORDER}) for k in (kafka, private_kafka)
    ]

    def produce(*identifiers: str) -> None:
        for producer in producers:
            for identifier in identifiers:
                producer.produce(topic, signal_value(identifier), prefix)
            assert producer.flush(WAIT_SECONDS) == 0

    produce("1", "2")
    channel = SIGNALS.factory(signal_properties(kafka.bootstrap, prefix))
    assert received(channel, 2) == ["1", "2"]
    channel.close()
    original, mirror = (
        Consumer({"bootstrap.servers": k.bootstrap, "group.id": group})
        for k in (kafka, private_kafka)
    )
    mirror.commit(offsets=original.committed([place], WAIT_SECONDS), asynchronous=False)
    channel = SIGNALS.factory(signal_properties(private_kafka.bootstrap, prefix))
    produce("3")
    assert received(channel) == ["3"]
    for each in (original, mirror, channel):
        each.close()


def test_a_topic_of_signals_with_more_partitions_is_reported_once(kafka, caplog):
    """A producer that chooses by the key may write signals to a partition that nobody reads."""
    prefix, topic = signal_topic(kafka)
    channel = SIGNALS.factory(signal_properties(kafka.bootstrap, prefix))
    assert channel.poll() == []
    assert not caplog.records
    channel.close()
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(WAIT_SECONDS)
    until(lambda: partitions(kafka.bootstrap, topic) == 3, "the broker to hear of them")
    channel = SIGNALS.factory(signal_properties(kafka.bootstrap, prefix))
    for _ in range(2):
        assert channel.poll() == []
    (record,) = caplog.records
    assert f"{topic} has 3 partitions" in record.getMessage()
    channel.close()


class EndedProducer:
    """A producer with a fatal error, which its calls raise as the client does."""

    def flush(self, _seconds: float) -> int:
        raise KafkaException(KafkaError(KafkaError._FATAL, "the client has ended"))


def test_a_client_that_has_ended_is_reported_at_the_close():
    names = ("bootstrap.servers", "topic")
    given = {f"notification.kafka.{name}": "127.0.0.1:1" for name in names}
    channel = NOTIFICATIONS.factory(KafkaNotificationProperties.model_validate(given))
    channel._producer = EndedProducer()
    with pytest.raises(SinkError, match="the client has ended"):
        channel.close()


class TestKafkaNotifications(NotificationChannelSuite):
    @pytest.fixture
    def rig(self, kafka) -> NotificationChannelRig:
        topic = kafka.topic_name("notifications")
        create(kafka.bootstrap, NewTopic(topic, 1))

        def read_back() -> list[Notification]:
            found = read_all(kafka.bootstrap, topic)
            return [notification_of(json.loads(m.value() or b"")) for m in found]

        properties = KafkaNotificationProperties(
            **{
                "notification.kafka.bootstrap.servers": kafka.bootstrap,
                "notification.kafka.topic": topic,
            }
        )
        return NotificationChannelRig(NOTIFICATIONS, properties, read_back)
