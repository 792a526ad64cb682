"""The topic in which a Kafka Connect worker stores offsets.

waltap reads it to its end and can append to it.
"""

import time
import uuid
from collections.abc import Mapping
from typing import Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from waltap.errors import SinkError
from waltap_kafka.client import GROUP_REFUSED, KafkaClients, delivery_reports
from waltap_kafka.errors import KafkaNotDelivered, KafkaTopicMissing
from waltap_kafka.properties import KafkaSinkProperties

SCHEME: Final = "kafka://"
PREFIX: Final = "producer."
STEP_S: Final = 0.25
# Limit of one complete read and of one write.
WAIT_S: Final = 120.0
MANY: Final = 1000


class TopicOffsets:
    """Read and write offsets of a Kafka Connect worker.

    The last value of each key counts, and a record without a value deletes its key.
    """

    def __init__(self, servers: str, topic: str, settings: Mapping[str, str]) -> None:
        self._topic = topic
        self._clients = KafkaClients(
            "offsets of Kafka Connect", servers, settings, PREFIX, topic=topic
        )

    def read(self) -> Mapping[bytes, bytes]:
        """Return every offset. Raises: SinkError, ConfigurationError."""
        # A random group: this reader must not take partitions from a worker or commit.
        own = {"group.id": f"waltap-{uuid.uuid4()}", "enable.auto.commit": False}
        own |= {"enable.partition.eof": True, "isolation.level": "read_committed"}
        reader = self._clients.consumer(own, self._clients.connection)
        try:
            return self._last_values(reader)
        except KafkaException as raised:
            raise self._clients.failure(raised, self._topic) from raised
        finally:
            reader.close()

    def write(self, key: bytes, value: bytes) -> None:
        """Write one record and wait until the broker has it.

        Raises: SinkError, ConfigurationError.
        """
        # As a worker writes: a key stays in its partition, and all replicas have the record.
        made = self._clients.producer(
            {"acks": "all", "enable.idempotence": True}, {"partitioner": "murmur2_random"}
        )
        if self._topic not in self._clients.reach(made).topics:
            raise self._missing()
        reported = delivery_reports(made, self._topic, value, key, WAIT_S)
        # librdkafka itself has not given up on the record yet.
        if not reported:
            raise KafkaNotDelivered(
                f"topic {self._topic} took no record in {WAIT_S:.0f} s", topic=self._topic
            )
        if reported[0] is not None:
            raise self._clients.error(self._clients.watch.trouble or reported[0], topic=self._topic)

    def _missing(self) -> SinkError:
        return KafkaTopicMissing(
            f"topic {self._topic}, for the offsets of Kafka Connect, does not exist",
            topic=self._topic,
        )

    def _last_values(self, reader: Consumer) -> dict[bytes, bytes]:
        found = self._clients.reach(reader).topics
        if self._topic not in found:
            raise self._missing()
        values: dict[bytes, bytes] = {}
        # The end-of-partition events decide: a compacted topic has gaps, and its end may have no
        # record.
        unfinished = set(found[self._topic].partitions)
        reader.assign([TopicPartition(self._topic, n, OFFSET_BEGINNING) for n in unfinished])
        deadline = time.monotonic() + WAIT_S
        while unfinished:
            if time.monotonic() > deadline:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "the end was not reached"))
            for message in reader.consume(MANY, STEP_S):
                error = message.error()
                if error is None:
                    key, value = message.key(), message.value()
                    if key is not None and value is not None:
                        values[key] = value
                    elif key is not None:
                        values.pop(key, None)
                elif error.code() == KafkaError._PARTITION_EOF:
                    unfinished.discard(message.partition())
                elif not error.retriable() and error.code() != GROUP_REFUSED:
                    raise KafkaException(error)
        return values


def topic_offsets(location: str, own: object) -> TopicOffsets | None:
    """Return the topic that ``partition`` names.

    ``own`` are the properties of the profile's sink. None means that the location is not Kafka's.
    """
    sink = own if isinstance(own, KafkaSinkProperties) else None
    settings = {} if sink is None else dict(sink.producer)
    if location.startswith(SCHEME):
        servers, _, topic = location.removeprefix(SCHEME).partition("/")
        servers = servers or ("" if sink is None else sink.servers)
        return TopicOffsets(servers, topic, settings) if servers and topic else None
    # A bare name is a topic only if the profile's sink supplies the brokers.
    if "://" in location or sink is None:
        return None
    return TopicOffsets(sink.servers, location, settings)
