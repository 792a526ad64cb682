"""Handling of records that are too large."""

import logging
from typing import Final

import orjson

from waltap.changes.events.record import Record
from waltap.errors import SinkError
from waltap_kafka.errors import KafkaRecordTooLarge
from waltap_kafka.properties import KafkaSinkProperties
from waltap_kafka.topics import TopicCreator

__all__ = ["OversizePolicy"]

log = logging.getLogger(__name__)

# Overhead of a batch of one record.
BATCH_BYTES: Final = 61

# Upper estimate of a record's overhead around key, value and headers, and of each header's.
RECORD_BYTES: Final = 64


class OversizePolicy:
    """Apply the policy ``oversize.records``.

    Under ``fail`` the pipeline's own policy decides (``tolerant``).
    """

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
        # The engine receives each record that is too large.
        self.refuses = properties.oversize == "fail"
        # The sink must ask about each record before it is sent.
        self.watches = tolerant or not self.refuses

    def room(self, record: Record) -> int:
        """Return the limit of key and value of similar records.

        Similar means the same topic and headers. The limit is in bytes before compression.
        """
        limit = min(self._client_limit, self._topics.limits.get(record.topic, self._client_limit))
        return limit - _size(record) + len(record.value or b"") + len(record.key or b"")

    def error(self, record: Record) -> KafkaRecordTooLarge:
        """Return the error for a record that is not tried."""
        size = _size(record)
        problem = f"topic {record.topic}: a record of {size} bytes is too large"
        return KafkaRecordTooLarge(problem, topic=record.topic, bytes=size)

    def caused(self, error: SinkError) -> bool:
        """Return whether a record's size caused ``error``."""
        return isinstance(error, KafkaRecordTooLarge)

    def instead_of(self, record: Record) -> Record | None:
        """Log a skipped record and return its replacement.

        The replacement goes to the topic for such records.
        """
        size = _size(record)
        log.warning(
            "a record of %d bytes is too large for topic %s: left out (oversize.records=%s)",
            size, record.topic, self._policy,
        )  # fmt: skip
        if self._policy != "dead_letter":
            return None
        key = record.key
        # A key of that size could make the replacement too large as well.
        if key is not None and len(key) > self._client_limit // 2:
            key = None
        value = orjson.dumps({"topic": record.topic, "bytes": size})
        return Record(self._topic, key, value)


def _size(record: Record) -> int:
    size = BATCH_BYTES + RECORD_BYTES + len(record.value or b"") + len(record.key or b"")
    for name, value in record.headers:
        size += RECORD_BYTES + len(name) + len(value)
    return size
