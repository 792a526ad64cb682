"""Errors of Kafka.

```
SinkError
├── KafkaUnreachable          WT-5401   no broker answers
├── KafkaRefused              WT-5402   the broker refuses the user or the action
├── KafkaTopicMissing         WT-5403   a topic is missing and may not be created
├── KafkaTopicUnusable        WT-5404   a topic cannot be created or written as configured
├── KafkaRecordTooLarge       WT-5405   a record is larger than client or topic allow
├── KafkaFenced               WT-5406   another instance took over
├── KafkaTransactionExpired   WT-5407   a transaction was open for too long
├── KafkaNotDelivered         WT-5408   records were not delivered
├── KafkaPositionUnusable     WT-5409   the topic of positions cannot be read
└── KafkaSignalTopicMissing   WT-5415   the topic of signals is missing
OffsetError
└── KafkaOffsetUnkept         WT-5411   the topic of offsets cannot be read or written
ConfigurationError            WT-1001   settings that the client does not know
```
"""

from waltap.errors import OffsetError, RetryVerdict, SinkError

KafkaUnreachable = SinkError.define(
    "KafkaUnreachable",
    "WT-5401",
    "No broker answers at the configured addresses.",
    "Check that a broker listens at {servers} (bootstrap.servers), that its advertised.listeners "
    "can be reached from here, and that producer.security.protocol fits that port.",
    retry=RetryVerdict.RECONNECT,
)
KafkaRefused = SinkError.define(
    "KafkaRefused",
    "WT-5402",
    "The broker does not know the user or refuses the action.",
    "Check producer.security.protocol, producer.sasl.mechanism, producer.sasl.username and "
    "producer.sasl.password. The user needs WRITE and DESCRIBE on the topics, CREATE to create "
    "topics, and for delivery.guarantee=exactly_once READ and WRITE on topic {positions}, WRITE "
    "and DESCRIBE on the transactional id {transactional_id}: kafka-acls.sh --add.",
)
KafkaTopicMissing = SinkError.define(
    "KafkaTopicMissing",
    "WT-5403",
    "A topic is missing, and topic.creation.enable is false.",
    "Create it (kafka-topics.sh --create --topic {topic}), or set topic.creation.enable=true; "
    "then start again: nothing was confirmed.",
)
KafkaSignalTopicMissing = SinkError.define(
    "KafkaSignalTopicMissing",
    "WT-5415",
    "The topic of signals is missing; the pipeline runs without signals.",
    "Create it (kafka-topics.sh --create --topic {topic} --partitions 1): signals are read as "
    "soon as it is there, without a new start.",
)
KafkaTopicUnusable = SinkError.define(
    "KafkaTopicUnusable",
    "WT-5404",
    "A topic cannot be created with its settings or refuses records.",
    "Correct the settings that topic.creation.groups and its groups give {topic}, or make the "
    "topic as it should be (kafka-topics.sh, kafka-configs.sh); then start again: nothing was "
    "confirmed.",
)


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


KafkaFenced = SinkError.define(
    "KafkaFenced",
    "WT-5406",
    "Another instance of this pipeline has started and fenced this one.",
    "Leave one instance running. If they are two pipelines, give each its own `name` or "
    "transactional.id; {transactional_id} is in use.",
)
KafkaTransactionExpired = SinkError.define(
    "KafkaTransactionExpired",
    "WT-5407",
    "A transaction was open for too long, and the broker aborted it.",
    "If it happens without an outage, raise "
    "producer.transaction.timeout.ms, up to the broker's transaction.max.timeout.ms.",
    retry=RetryVerdict.RECONNECT,
)
# The next attempt sends them again from the last position.
KafkaNotDelivered = SinkError.define(
    "KafkaNotDelivered",
    "WT-5408",
    "Records were not delivered, or a transaction was aborted.",
    "If this lasts, look into the broker's log for the reason.",
    retry=RetryVerdict.RECONNECT,
)
KafkaPositionUnusable = SinkError.define(
    "KafkaPositionUnusable",
    "WT-5409",
    "The position that is stored in Kafka cannot be read.",
    "Check topic {topic} (position.topic): it must contain only this pipeline's positions. "
    "Without it the pipeline continues from its stored offset, and later events come twice.",
)
# Delivery stops at the last stored offset.
KafkaOffsetUnkept = OffsetError.define(
    "KafkaOffsetUnkept",
    "WT-5411",
    "The topic of offsets cannot be used or is not compacted.",
    "Check that the brokers {servers} are up and let this user read and write topic {topic}, and "
    "that it is compacted: cleanup.policy=compact. Events after the last stored offset repeat.",
    retry=RetryVerdict.RECONNECT,
)
