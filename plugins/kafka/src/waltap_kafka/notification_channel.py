"""The notification channel ``kafka``.

It writes records to a topic in Debezium's form.
"""

from typing import Final

import orjson
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from waltap.changes.transactions.notification import Notification
from waltap.errors import SinkError
from waltap_kafka.channel_properties import KafkaNotificationProperties
from waltap_kafka.client import KafkaClients, kafka_error

__all__ = ["KafkaNotifications"]

PREFIX: Final = "notification.producer."
# A stop must not hang on a broker that is away.
CLOSE_S: Final = 5.0


class KafkaNotifications:
    """Send notifications by a producer.

    The producer delivers in its own time.
    """

    def __init__(self, properties: KafkaNotificationProperties) -> None:
        self._topic = properties.topic
        # An asynchronous failure; the next call raises it.
        self._failed: SinkError | None = None
        clients = KafkaClients(
            "notifications to Kafka",
            properties.servers,
            properties.producer,
            PREFIX,
            topic=properties.topic,
            creates_topics=True,
        )
        self._failures = clients.failures
        self._producer: Producer | None = clients.producer(
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
            raise self._failures.of(kafka_error(raised), topic=self._topic) from raised
        except BufferError as raised:
            text = f"topic {self._topic}: too many notifications wait for a broker"
            raise SinkError(text) from raised
        self._tell()

    def close(self) -> None:
        """Wait for undelivered notifications and close.

        It may be called twice. Raises: SinkError.
        """
        producer, self._producer = self._producer, None
        if producer is None:
            return
        left = producer.flush(CLOSE_S)
        self._tell()
        if left:
            raise SinkError(f"topic {self._topic}: no broker has taken {left} notifications")

    def _reported(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failed = self._failures.of(error, topic=self._topic)

    def _tell(self) -> None:
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed
