"""Translation of librdkafka's errors to waltap's."""

from dataclasses import dataclass
from typing import Final

from confluent_kafka import KafkaError

from waltap.config.redaction import redacted
from waltap.errors import SinkError
from waltap_kafka.client import REFUSALS, link_failure
from waltap_kafka.errors import (
    KafkaFenced,
    KafkaNotDelivered,
    KafkaRecordTooLarge,
    KafkaTopicMissing,
    KafkaTopicUnusable,
    KafkaTransactionExpired,
)

__all__ = ["TOO_LARGE", "KafkaFailures"]

TOO_LARGE: Final = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE})
# Another producer with the same transactional id has started, or the broker ended the transaction.
FENCED: Final = frozenset(
    {
        KafkaError._FENCED,
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
    }
)
MISSING: Final = frozenset({KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART})
AWAY: Final = frozenset(
    {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE, KafkaError._SSL}
)
# The topic refuses the records as they are, so sending them again does not help.
UNFIT: Final = frozenset(
    {
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.INVALID_RECORD,
        KafkaError.POLICY_VIOLATION,
        KafkaError.INVALID_MSG,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaFailures:
    """Translate errors for one sink or channel."""

    # The brokers, as the errors name them.
    servers: str
    transactional_id: str
    # Named by the remedy for missing rights.
    position_topic: str
    # The topic may be created, so an error for a missing one is retried.
    creates_topics: bool

    def refused(self, error: KafkaError) -> SinkError:
        """Return the error for a broker that is away or refuses."""
        return link_failure(
            error,
            self.servers,
            positions=self.position_topic,
            transactional_id=self.transactional_id,
        )

    def of(
        self, error: KafkaError, *, topic: str = "", size: int = 0, expired: bool = False
    ) -> SinkError:
        """Return the error for ``error``.

        ``topic`` and ``size`` (bytes) are the record's. ``expired`` means that the transaction was
        open for longer than the broker allows.
        """
        code, text = error.code(), redacted(error.str())
        where = f"topic {topic}: " if topic else ""
        if code in FENCED:
            # The broker fences a producer whose transaction timed out by the same codes as one
            # that was replaced.
            if expired:
                return KafkaTransactionExpired(f"the broker undid a transaction: {text}")
            return KafkaFenced(
                f"another instance has taken over: {text}", transactional_id=self.transactional_id
            )
        if code in TOO_LARGE:
            problem = f"{where}a record of {size} bytes, or its batch, is too large: {text}"
            return KafkaRecordTooLarge(problem, topic=topic or "TOPIC", bytes=size)
        if code in REFUSALS | AWAY:
            return self.refused(error)
        if code in MISSING and not self.creates_topics:
            return KafkaTopicMissing(f"{where}{text}", topic=topic)
        if code in UNFIT:
            return KafkaTopicUnusable(f"{where}{text}", topic=topic)
        return KafkaNotDelivered(f"{where}{text}")
