"""Properties of Kafka's channels and of its offset store."""

from pydantic import model_validator

from waltap.base.property import Properties, declare, declare_family
from waltap_kafka.client_settings import client_settings

__all__ = ["KafkaNotificationProperties", "KafkaOffsetProperties", "KafkaSignalProperties"]

OF_OFFSETS = "offset.storage.producer."


class KafkaOffsetProperties(Properties):
    """Location of the offset store `kafka`."""

    topic: str = declare(
        "offset.storage.topic",
        summary="Compacted topic of the offset; Kafka Connect's own topic is possible, since "
        "the record's key is the pipeline's name. A missing topic is created with one "
        "partition.",
        examples=("waltap-offsets",),
        min_length=1,
    )
    servers: str = declare(
        "offset.storage.bootstrap.servers",
        summary="Brokers that have it, HOST:PORT, by comma.",
        examples=("localhost:9092",),
        min_length=1,
    )
    replication_factor: int = declare(
        "offset.storage.replication.factor",
        default=-1,
        ge=-1,
        summary="Replicas of a topic that is created; -1: as the broker has it.",
        advanced=True,
    )
    client: dict[str, str] = declare_family(
        "offset.storage.producer.NAME",
        pattern=r"offset\.storage\.producer\..+",
        summary="Any property of librdkafka for the client of offsets, such as SASL and TLS, "
        "and equivalents of the Java producer's.",
    )

    @model_validator(mode="after")
    def _client_has_equivalents(self) -> "KafkaOffsetProperties":
        client_settings(self.client, OF_OFFSETS)
        return self


class KafkaSignalProperties(Properties):
    """Location of the signal channel `kafka`."""

    prefix: str = declare(
        "topic.prefix",
        pattern=r"^[a-zA-Z0-9_.\-]+$",
        summary="Name of this source: the first part of topics and schema names.",
        deprecated={"database.server.name": "topic.prefix"},
        examples=("inventory",),
    )
    servers: str = declare(
        "signal.kafka.bootstrap.servers",
        summary="Brokers that have the topic of signals, HOST:PORT, by comma.",
        examples=("localhost:9092",),
    )
    topic: str = declare(
        "signal.kafka.topic",
        default="",
        summary="Topic of signals, with one partition; empty: topic.prefix followed by -signal. "
        "The key is topic.prefix, the value JSON with id, type and data.",
    )
    group: str = declare(
        "signal.kafka.groupId",
        default="kafka-signal",
        summary="Consumer group under which the channel notes how far it has read, as GROUP-PREFIX.",
    )
    poll_timeout_ms: int = declare(
        "signal.kafka.poll.timeout.ms",
        default=0,
        ge=0,
        unit="ms",
        summary="How long to wait for more records at the end of the topic.",
        advanced=True,
    )
    consumer: dict[str, str] = declare_family(
        "signal.consumer.NAME",
        pattern=r"signal\.consumer\..+",
        summary="Any property of librdkafka for the consumer of signals, and those of the Java consumer "
        "that have an equivalent.",
    )

    @model_validator(mode="after")
    def _consumer_has_equivalents(self) -> "KafkaSignalProperties":
        client_settings(self.consumer, "signal.consumer.")
        return self


class KafkaNotificationProperties(Properties):
    """Location of the notification channel `kafka`."""

    servers: str = declare(
        "notification.kafka.bootstrap.servers",
        summary="Brokers that have the topic of notifications, HOST:PORT, by comma.",
        examples=("localhost:9092",),
    )
    topic: str = declare(
        "notification.kafka.topic",
        summary="Topic of notifications. The key of a record is JSON with id, the value JSON with id, "
        "type, aggregate_type, additional_data and timestamp.",
        examples=("shop-notifications",),
    )
    producer: dict[str, str] = declare_family(
        "notification.producer.NAME",
        pattern=r"notification\.producer\..+",
        summary="Any property of librdkafka for the producer of notifications, and those of the Java "
        "producer that have an equivalent.",
    )

    @model_validator(mode="after")
    def _producer_has_equivalents(self) -> "KafkaNotificationProperties":
        client_settings(self.producer, "notification.producer.")
        return self
