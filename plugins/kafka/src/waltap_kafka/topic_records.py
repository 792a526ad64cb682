"""Records of topics for ``waltap tail kafka://…``."""

import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final

from confluent_kafka import (
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from waltap.config.redaction import redacted
from waltap.errors import COMMAND_LINE, ConfigurationError, PropertyProblem, SinkError
from waltap.reading.stored_record import CONSUMER, StoredRecord
from waltap_kafka import client
from waltap_kafka.client import REFUSALS, ClientWatch, kafka_error
from waltap_kafka.client_settings import client_settings
from waltap_kafka.errors import KafkaTopicUnread

__all__ = ["TopicRecords"]

SCHEME: Final = "kafka://"
FORM: Final = "kafka://HOST:PORT[,HOST:PORT]/TOPIC[,TOPIC]"
ASK_S: Final = 15.0
MANY: Final = 500
# The client recovers from these by itself.
PASSING: Final = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError._TIMED_OUT,
        KafkaError._MAX_POLL_EXCEEDED,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.FENCED_LEADER_EPOCH,
    }
)


class TopicRecords:
    """Read every partition that the topics have at the start.

    The reader joins no group and commits nothing.
    """

    def __init__(self, place: str, start: str, settings: Mapping[str, str]) -> None:
        servers, _, names = place[len(SCHEME) :].partition("/")
        self._servers, self._start = servers, start
        self.topics: Sequence[str] = tuple(dict.fromkeys(n for n in names.split(",") if n))
        self._given = {n: v for n, v in settings.items() if n.startswith(CONSUMER)}
        self._watch = ClientWatch(f"Kafka at {servers}")
        self._consumer: Consumer | None = None
        self._unread: set[tuple[str | None, int | None]] = set()
        self._closed = False

    @property
    def at_end(self) -> bool:
        """Return whether every partition was read to its end once."""
        return self._consumer is not None and not self._unread

    def read(self, seconds: float) -> Sequence[StoredRecord]:
        """Return the records that arrive within ``seconds``.

        Raises: KafkaTopicUnread, ConfigurationError.
        """
        if self._closed:
            return ()
        try:
            if self._consumer is None:
                self._consumer = self._opened()
            return self._came(self._consumer, seconds)
        except ConfigurationError as error:
            raise ConfigurationError(error.problems, origin=COMMAND_LINE) from error
        except KafkaException as raised:
            raise self._failure(redacted(kafka_error(raised).str())) from raised

    def close(self) -> None:
        """Close the consumer."""
        self._closed = True
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()

    def _opened(self) -> Consumer:
        if not (self._servers and self.topics) or "@" in self._servers:
            problem = PropertyProblem("kafka://", "does not name brokers and topics", allowed=FORM)
            raise ConfigurationError([problem], origin=COMMAND_LINE)
        consumer = client.consumer(
            {
                "group.id": f"waltap-tail-{uuid.uuid4()}",  # librdkafka requires one; it is never joined
                "isolation.level": "read_committed",
                **client_settings(self._given, CONSUMER),
                "bootstrap.servers": self._servers,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                # A misspelt name must not create a topic.
                "allow.auto.create.topics": False,
                **self._watch.settings(),
            },
            CONSUMER,
        )
        try:
            self._assign(consumer)
        except BaseException:
            consumer.close()
            raise
        return consumer

    def _assign(self, consumer: Consumer) -> None:
        try:
            found = client.reach(consumer, self._watch, self._servers).topics
        except SinkError as cause:
            raise self._failure(cause.problem) from cause
        places: list[TopicPartition] = []
        for name in self.topics:
            # A topic that the user may not describe has an error here, or is missing.
            error = found[name].error if name in found else None
            if error is not None:
                raise self._failure(f"topic {name}: {redacted(error.str())}")
            if name not in found or not found[name].partitions:
                raise self._failure(f"topic {name} does not exist")
            places += [
                self._begin(consumer, TopicPartition(name, partition))
                for partition in found[name].partitions
            ]
        self._unread = {(place.topic, place.partition) for place in places}
        consumer.assign(places)

    def _begin(self, consumer: Consumer, place: TopicPartition) -> TopicPartition:
        """Return the place with its first offset.

        An offset outside the partition becomes its nearest end.
        """
        first, end = consumer.get_watermark_offsets(place, ASK_S)
        asked = {"beginning": first, "end": end}.get(self._start)
        offset = int(self._start) if asked is None else asked
        return TopicPartition(place.topic, place.partition, min(max(offset, first), end))

    def _came(self, consumer: Consumer, seconds: float) -> Sequence[StoredRecord]:
        records: list[StoredRecord] = []
        deadline = time.monotonic() + seconds
        while not records:
            left = deadline - time.monotonic()
            for message in consumer.consume(MANY, max(0.0, left)):
                error = message.error()
                if error is None:
                    records.append(_record(message))
                elif error.code() == KafkaError._PARTITION_EOF:
                    self._unread.discard((message.topic(), message.partition()))
                elif error.code() in REFUSALS or not (error.retriable() or error.code() in PASSING):
                    raise KafkaException(error)
            if self.at_end or left <= 0:
                break
        trouble = self._watch.trouble
        if records:
            self._watch.passed()
        elif trouble is not None and trouble.code() in REFUSALS:
            raise self._failure(redacted(trouble.str()))
        return records

    def _failure(self, text: str) -> KafkaTopicUnread:
        said = text.rstrip(".")
        where = "" if self._servers in said else f" of {self._servers}"
        return KafkaTopicUnread(f"{said}{where}", servers=self._servers)


def _record(message: Message) -> StoredRecord:
    kind, timestamp = message.timestamp()
    headers: Any = message.headers() or []
    return StoredRecord(
        topic=message.topic() or "",
        partition=message.partition() or 0,
        offset=message.offset() or 0,
        timestamp=None if kind == TIMESTAMP_NOT_AVAILABLE else timestamp,
        key=_bytes(message.key()),
        value=_bytes(message.value()),
        headers=tuple((name, _bytes(value)) for name, value in headers),
    )


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
