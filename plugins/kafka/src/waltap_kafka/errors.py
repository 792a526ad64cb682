"""Errors of Kafka."""

from waltap.errors import OffsetError, RetryVerdict, SinkError

KafkaUnreachable = SinkError.define("KafkaUnreachable", "WT-5401", retry=RetryVerdict.RECONNECT)
KafkaRefused = SinkError.define("KafkaRefused", "WT-5402")
KafkaTopicMissing = SinkError.define("KafkaTopicMissing", "WT-5403")
KafkaSignalTopicMissing = SinkError.define("KafkaSignalTopicMissing", "WT-5415")
KafkaTopicUnusable = SinkError.define("KafkaTopicUnusable", "WT-5404")
# The property oversize.records is ``fail``.
KafkaRecordTooLarge = SinkError.define("KafkaRecordTooLarge", "WT-5405")
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
# Of one record: its topic has its name from a row.
KafkaTopicIllegal = SinkError.define("KafkaTopicIllegal", "WT-5416")
