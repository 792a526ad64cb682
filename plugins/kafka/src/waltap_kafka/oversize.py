"""Records that are too large, and what becomes of them."""

import logging
from typing import Final

import orjson

from waltap.errors import SinkError
from waltap.format.record import Record
from waltap_kafka.errors import KafkaRecordTooLarge
from waltap_kafka.properties import KafkaSinkProperties
from waltap_kafka.topics import TopicCreator

__all__ = ["OversizePolicy"]

log = logging.getLogger(__name__)

BATCH_BYTES: Final = 61
"""What a batch of one record has around it."""

RECORD_BYTES: Final = 64
"""What a record has around key, value and headers, generously; as much per header."""


class OversizePolicy:
    """The policy ``oversize.records``; where that is ``fail``, the pipeline's own (``tolerant``).
    ``watches``: records are to be asked about before they go."""

    def __init__(
        self,
        properties: KafkaSinkProperties,
        topics: TopicCreator,
        client_limit: int,
        *,
        tolerant: bool = False,
    ) -> None:
        self._topics, self._client_limit = topics, client_limit
        self._policy, self._topic = properties.oversize, properties.oversize_topic
        self.refuses = properties.oversize == "fail"
        """What is too large is named to the engine."""
        self.watches = tolerant or not self.refuses

    def room(self, record: Record) -> int:
        """Return how many bytes key and value of records like this one, of its topic and with its headers,
        may have, uncompressed, at most."""
        limit = min(self._client_limit, self._topics.limits.get(record.topic, self._client_limit))
        return limit - _size(record) + len(record.value or b"") + len(record.key or b"")

    def error(self, record: Record) -> KafkaRecordTooLarge:
        """Return what is to be told of a record that is not tried."""
        size = _size(record)
        problem = f"topic {record.topic}: a record of {size} bytes is too large"
        return KafkaRecordTooLarge(problem, topic=record.topic, bytes=size)

    def caused(self, error: SinkError) -> bool:
        """Tell whether ``error`` says that a record is too large."""
        return isinstance(error, KafkaRecordTooLarge)

    def instead_of(self, record: Record) -> Record | None:
        """Tell of ``record``, which is left out; return what goes to the topic of such records."""
        size = _size(record)
        log.warning(
            "a record of %d bytes is too large for topic %s: left out (oversize.records=%s)",
            size, record.topic, self._policy,
        )  # fmt: skip
        if self._policy != "dead_letter":
            return None
        key = record.key
        if key is not None and len(key) > self._client_limit // 2:
            key = None
        value = orjson.dumps({"topic": record.topic, "bytes": size})
        return Record(self._topic, key, value)


def _size(record: Record) -> int:
    size = BATCH_BYTES + RECORD_BYTES + len(record.value or b"") + len(record.key or b"")
    for name, value in record.headers:
        size += RECORD_BYTES + len(name) + len(value)
    return size
