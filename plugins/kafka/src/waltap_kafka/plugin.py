"""Hook implementations of waltap-kafka."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from waltap.plugins.hookspecs import hookimpl
from waltap.ports.specs import (
    NotificationChannelSpec,
    OffsetStoreSpec,
    SignalChannelSpec,
    SinkSpec,
)

if TYPE_CHECKING:
    from waltap.ports.notifications.channel import NotificationChannel
    from waltap.ports.signals.signal import SignalChannel
    from waltap.ports.sink.sink import Sink, SinkContext
    from waltap_kafka.connect_offsets import TopicOffsets
    from waltap_kafka.offset_store import KafkaOffsetStore


# Factories import their module, so that profiles without Kafka never load confluent_kafka.
def _sink(properties: Any, context: "SinkContext") -> "Sink":
    from waltap_kafka.sink import KafkaSink

    return KafkaSink(properties, context)


def _signals(properties: Any) -> "SignalChannel":
    from waltap_kafka.channels import KafkaSignals

    return KafkaSignals(properties)


def _notifications(properties: Any) -> "NotificationChannel":
    from waltap_kafka.channels import KafkaNotifications

    return KafkaNotifications(properties)


def _offsets(properties: Any, home: str) -> "KafkaOffsetStore":
    from waltap_kafka.offset_store import KafkaOffsetStore

    return KafkaOffsetStore(properties, home)


@hookimpl
def register_offset_stores() -> Iterable[OffsetStoreSpec]:
    """Contribute an offset store in a Kafka topic."""
    from waltap_kafka.properties import KafkaOffsetProperties

    yield OffsetStoreSpec(
        name="kafka",
        summary="A record of a compacted Kafka topic, which outlives the machine; the state folder has a "
        "copy.",
        properties=KafkaOffsetProperties,
        factory=_offsets,
    )


@hookimpl
def register_sinks() -> Iterable[SinkSpec]:
    """Contribute the Kafka sink."""
    from waltap_kafka.properties import KafkaSinkProperties

    yield SinkSpec(
        name="kafka",
        summary="Topics of Apache Kafka; at least once, or exactly once with transactions.",
        properties=KafkaSinkProperties,
        factory=_sink,
        shorthand="bootstrap.servers",
        exactly_once=("delivery.guarantee", "exactly_once"),
    )


@hookimpl
def choose_connect_offsets(place: str, sink: object) -> "TopicOffsets | None":
    """Open the offset topic of a Connect worker.

    The place is kafka://HOST:PORT/TOPIC, or a topic's name at the brokers of the profile's sink.
    """
    from waltap_kafka.connect_offsets import topic_offsets

    return topic_offsets(place, sink)


@hookimpl
def register_signal_channels() -> Iterable[SignalChannelSpec]:
    """Contribute the signal channel with Debezium's name."""
    from waltap_kafka.properties import KafkaSignalProperties

    yield SignalChannelSpec(
        name="kafka",
        summary="Records of a Kafka topic whose key is topic.prefix.",
        properties=KafkaSignalProperties,
        factory=_signals,
    )


@hookimpl
def register_notification_channels() -> Iterable[NotificationChannelSpec]:
    """Contribute a notification channel to a Kafka topic."""
    from waltap_kafka.properties import KafkaNotificationProperties

    yield NotificationChannelSpec(
        name="kafka",
        summary="Records of a Kafka topic, in Debezium's form.",
        properties=KafkaNotificationProperties,
        factory=_notifications,
    )
