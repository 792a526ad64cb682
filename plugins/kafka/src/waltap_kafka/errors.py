"""Errors of Kafka."""

from waltap.errors import OffsetError, RetryVerdict, SinkError

KafkaUnreachable = SinkError.define("KafkaUnreachable", "WT-5401", retry=RetryVerdict.RECONNECT)
KafkaRefused = SinkError.define("KafkaRefused", "WT-5402")
KafkaTopicMissing = SinkError.define("KafkaTopicMissing", "WT-5403")
KafkaSignalTopicMissing = SinkError.define("KafkaSignalTopicMissing", "WT-5415")
KafkaTopicUnusable = SinkError.define("KafkaTopicUnusable", "WT-5404")


class KafkaRecordTooLarge(SinkError):
    """A record is larger than the client or its topic allows.

    The property oversize.records is ``fail``.
    """

    code = "WT-5405"
    remedy = (
        "Raise max.message.bytes of topic {topic} (kafka-configs.sh --alter) and "
        "producer.message.max.bytes here to at least {bytes}; or set errors.tolerance to dead_letter, "
        "which keeps it whole, or oversize.records to skip or dead_letter. Where the topic takes less "
        "than a whole batch of the client, lower producer.batch.size. Nothing was confirmed."
    )


KafkaFenced = SinkError.define("KafkaFenced", "WT-5406")
KafkaTransactionExpired = SinkError.define(
    "KafkaTransactionExpired", "WT-5407", retry=RetryVerdict.RECONNECT
)
# The next attempt sends them again from the last position.
KafkaNotDelivered = SinkError.define("KafkaNotDelivered", "WT-5408", retry=RetryVerdict.RECONNECT)
KafkaPositionUnusable = SinkError.define("KafkaPositionUnusable", "WT-5409")
# Delivery stops at the last stored offset.
KafkaOffsetTopicUnusable = OffsetError.define(
    "KafkaOffsetTopicUnusable", "WT-5411", retry=RetryVerdict.RECONNECT
)
