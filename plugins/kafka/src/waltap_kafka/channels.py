"""The channels ``kafka`` for signals and notifications.

Their records have Debezium's form.
"""

import logging
import time
from typing import Final

import orjson
from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)

from waltap.changes.transactions.transaction import Notification
from waltap.errors import SinkError
from waltap.ports.signals.inbox import parsed_signal
from waltap.ports.signals.signal import Signal
from waltap_kafka.client import MISSING, PASSING, REFUSALS, KafkaClients, kafka_error
from waltap_kafka.errors import KafkaSignalTopicMissing
from waltap_kafka.properties import KafkaNotificationProperties, KafkaSignalProperties

log = logging.getLogger(__name__)

SIGNALS: Final = "signal.consumer."
PARTITION: Final = 0
# The client has these codes for brokers that are away, too.
PERHAPS_MISSING: Final = MISSING | {KafkaError._UNKNOWN_PARTITION}
ASK_S: Final = 2.0
# How long a poll waits for records that exist.
READ_S: Final = 10.0
STEP_S: Final = 0.1
# Limit of one poll; the next poll reads the rest.
MOST: Final = 500


class KafkaSignals:
    """Read signals from partition 0 of a topic.

    Each poll reads to the current end. That offset is committed for the consumer group, with the ids of
    cluster and topic, when the signals are confirmed. The very first start also reads older records.
    """

    def __init__(self, properties: KafkaSignalProperties) -> None:
        self._properties = properties
        self._topic = properties.topic or f"{properties.prefix}-signal"
        self._clients = KafkaClients(
            "signals of Kafka", properties.servers, properties.consumer, SIGNALS, topic=self._topic
        )
        self._consumer: Consumer | None = self._clients.consumer(
            {
                "group.id": f"{properties.group}-{properties.prefix}",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
            }
        )
        self._admin = self._clients.admin(self._clients.connection)
        # Ids of the topic and its cluster.
        self._topic_id = self._cluster = ""
        self._at: int | None = None

    def poll(self) -> list[Signal] | None:
        """Return the new signals, None after a passing failure. Raises: SinkError."""
        consumer = self._consumer
        if consumer is None:
            return []
        try:
            messages, moved = self._read(consumer)
            signals = [found for each in messages if (found := self._signal(each)) is not None]
            if moved and not signals:
                self._commit(consumer)
        except KafkaException as raised:
            error = self._failure(consumer, raised)
            if kafka_error(raised).code() in PASSING | PERHAPS_MISSING:
                return None
            raise error from raised
        self._clients.watch.passed()
        return signals

    def confirm(self) -> None:
        """Commit the offset of the last poll. Raises: SinkError."""
        consumer = self._consumer
        if consumer is not None:
            try:
                self._commit(consumer)
            except KafkaException as raised:
                raise self._failure(consumer, raised) from raised

    def _commit(self, consumer: Consumer) -> None:
        # Ids may have a slash, and no space.
        origin = f"{self._cluster} {self._topic_id}" if self._topic_id else ""
        done = TopicPartition(self._topic, PARTITION, self._at or 0, origin)
        consumer.commit(offsets=[done], asynchronous=False)

    def _failure(self, consumer: Consumer, raised: KafkaException) -> SinkError:
        code = kafka_error(raised).code()
        if code in PERHAPS_MISSING:
            self._require_topic(consumer)
        elif code not in PASSING and self._at is None:
            # Before the first record a poll only gives the reason why no coordinator answers.
            first = consumer.poll(0)
            if first is not None and (refused := first.error()) is not None:
                raised = KafkaException(refused)
        return self._clients.failure(raised, self._topic)

    def close(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()

    def _require_topic(self, consumer: Consumer) -> None:
        """Ask a broker whether the topic exists.

        Raises: KafkaSignalTopicMissing, or the SinkError of the link.
        """
        try:
            error = consumer.list_topics(self._topic, ASK_S).topics[self._topic].error
        except KafkaException as raised:
            raise self._clients.refused(kafka_error(raised)) from raised
        if error is not None and error.code() in REFUSALS:
            raise self._clients.refused(error)
        if error is not None:
            raise KafkaSignalTopicMissing(
                f"topic {self._topic}, for signals, does not exist", topic=self._topic
            )

    def _read(self, consumer: Consumer) -> tuple[list[Message], bool]:
        """Return the records that arrive in time, up to the end of the topic.

        Also return whether there is something to commit. Raises: KafkaException.
        """
        partition = TopicPartition(self._topic, PARTITION)
        first, end = consumer.get_watermark_offsets(partition, ASK_S)
        # The brokers answer both questions at the same time.
        described = self._admin.describe_topics(
            TopicCollection([self._topic]), request_timeout=ASK_S
        )
        (noted,) = consumer.committed([partition], ASK_S)
        if noted.error is not None:
            raise KafkaException(noted.error)
        found_topic = described[self._topic].result()
        number = found_topic.topic_id
        # Old brokers know no ids, and their client has zeros.
        topic_id = str(number) if number.get_most_significant_bits() else ""
        if topic_id != self._topic_id:
            self._cluster = consumer.list_topics(self._topic, ASK_S).cluster_id or ""
            self._topic_id = topic_id
            if (count := len(found_topic.partitions)) > 1:
                log.warning(
                    "topic %s has %d partitions: only signals in partition %d are read; "
                    "create it with one partition, or send them there",
                    self._topic, count, PARTITION,
                )  # fmt: skip
        # The broker may still have the commit of a former topic of that name. One that a mirror
        # copied from another cluster counts.
        cluster, _, noted_id = (noted.metadata or "").rpartition(" ")
        other = noted_id not in {"", topic_id}
        former = topic_id and other and cluster in {"", self._cluster}
        # Without a commit the offset is negative. Retention may have deleted a committed one.
        at = noted.offset if first <= noted.offset <= end and not former else first
        # After a failure, records behind the last commit are read again.
        if at != self._at:
            consumer.assign([TopicPartition(self._topic, PARTITION, at)])
        self._at, found = at, list[Message]()
        deadline = time.monotonic() + READ_S
        while self._at < end and len(found) < MOST and time.monotonic() < deadline:
            self._take(consumer.poll(STEP_S), found)
        # A record may have come since the question about the end.
        more_s = self._properties.poll_timeout_ms / 1000 if found else 0
        self._take(consumer.poll(min(ASK_S, more_s)), found)
        return found, self._at != at

    def _take(self, message: Message | None, found: list[Message]) -> None:
        """Add a record to ``found`` and advance. Raises: KafkaException."""
        if message is None:
            return
        error, offset = message.error(), message.offset() or 0
        if error is None:
            found.append(message)
            self._at = offset + 1
        # The end is behind markers of transactions, which are no records.
        elif error.code() == KafkaError._PARTITION_EOF:
            self._at = max(self._at or 0, offset)
        elif not error.retriable():
            raise KafkaException(error)

    def _signal(self, message: Message) -> Signal | None:
        # Another pipeline's signal: Debezium shares one topic by key.
        if message.key() != self._properties.prefix.encode():
            return None
        where = f"record {message.offset()} of topic {self._topic}"
        return parsed_signal(message.value() or b"", where)


NOTIFICATIONS: Final = "notification.producer."
# A stop must not hang on a broker that is away.
CLOSE_S: Final = 5.0


class KafkaNotifications:
    """Send notifications by a producer. The producer delivers in its own time."""

    def __init__(self, properties: KafkaNotificationProperties) -> None:
        self._topic = properties.topic
        # An asynchronous failure; the next call raises it.
        self._failed: SinkError | None = None
        self._clients = KafkaClients(
            "notifications to Kafka",
            properties.servers,
            properties.producer,
            NOTIFICATIONS,
            topic=properties.topic,
            creates_topics=True,
        )
        self._producer: Producer | None = self._clients.producer(
            {"on_delivery": self._reported},
            {"enable.idempotence": True, "partitioner": "murmur2_random"},
        )

    def send(self, notification: Notification) -> None:
        """Send one notification.

        Raises: SinkError of this notification or of an earlier one.
        """
        producer = self._producer
        assert producer is not None
        key = orjson.dumps({"id": notification.identifier})
        try:
            producer.produce(self._topic, orjson.dumps(notification.document()), key)
            producer.poll(0)
        except KafkaException as raised:
            raise self._clients.error(kafka_error(raised), topic=self._topic) from raised
        except BufferError as raised:
            raise SinkError(
                f"topic {self._topic}: too many notifications wait for a broker"
            ) from raised
        self._log_failures()

    def close(self) -> None:
        """Wait for undelivered notifications and close.

        It may be called twice. Raises: SinkError.
        """
        producer, self._producer = self._producer, None
        if producer is None:
            return
        try:
            unsent = producer.flush(CLOSE_S)
        except KafkaException as raised:
            raise self._clients.error(kafka_error(raised), topic=self._topic) from raised
        self._log_failures()
        if unsent:
            raise SinkError(
                f"topic {self._topic}: no broker has acknowledged {unsent} notifications"
            )

    def _reported(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failed = self._clients.error(error, topic=self._topic)

    def _log_failures(self) -> None:
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed
