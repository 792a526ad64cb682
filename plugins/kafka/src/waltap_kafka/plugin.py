"""Hook implementations of waltap-kafka."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from waltap.plugins.hookspecs import hookimpl
from waltap.ports.specs import (
    NotificationChannelSpec,
    OffsetStoreSpec,
    SignalChannelSpec,
    SinkSpec,
    lazy,
)

if TYPE_CHECKING:
    from waltap_kafka.connect_offsets import TopicOffsets


@hookimpl
def register_offset_stores() -> Iterable[OffsetStoreSpec]:
    """Contribute an offset store in a Kafka topic."""
    yield OffsetStoreSpec(
        name="kafka",
        summary="A record of a compacted Kafka topic, which outlives the machine; the state folder has a "
        "copy.",
        properties=lazy("waltap_kafka.properties:KafkaOffsetProperties"),
        factory=lazy("waltap_kafka.offset_store:KafkaOffsetStore"),
    )


@hookimpl
def register_sinks() -> Iterable[SinkSpec]:
    """Contribute the Kafka sink."""
    yield SinkSpec(
        name="kafka",
        summary="Topics of Apache Kafka; at least once, or exactly once with transactions.",
        properties=lazy("waltap_kafka.properties:KafkaSinkProperties"),
        factory=lazy("waltap_kafka.sink:KafkaSink"),
        shorthand="bootstrap.servers",
        exactly_once=("delivery.guarantee", "exactly_once"),
    )


@hookimpl
def choose_connect_offsets(location: str, sink: object) -> "TopicOffsets | None":
    """Open the offset topic of a Connect worker.

    The place is kafka://HOST:PORT/TOPIC, or a topic's name at the brokers of the profile's sink.
    """
    from waltap_kafka.connect_offsets import topic_offsets

    return topic_offsets(location, sink)


@hookimpl
def register_signal_channels() -> Iterable[SignalChannelSpec]:
    """Contribute the signal channel with Debezium's name."""
    yield SignalChannelSpec(
        name="kafka",
        summary="Records of a Kafka topic whose key is topic.prefix.",
        properties=lazy("waltap_kafka.properties:KafkaSignalProperties"),
        factory=lazy("waltap_kafka.channels:KafkaSignals"),
    )


@hookimpl
def register_notification_channels() -> Iterable[NotificationChannelSpec]:
    """Contribute a notification channel to a Kafka topic."""
    yield NotificationChannelSpec(
        name="kafka",
        summary="Records of a Kafka topic, in Debezium's form.",
        properties=lazy("waltap_kafka.properties:KafkaNotificationProperties"),
        factory=lazy("waltap_kafka.channels:KafkaNotifications"),
    )
