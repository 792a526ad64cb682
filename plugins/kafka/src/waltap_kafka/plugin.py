"""Hook implementations of waltap-kafka, and nothing else. None of it imports confluent_kafka."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from waltap.hookspecs import hookimpl
from waltap.specs import NotificationChannelSpec, SignalChannelSpec, SinkSpec

if TYPE_CHECKING:
    from waltap.notifications.channel import NotificationChannel
    from waltap.signals.channel import SignalChannel
    from waltap.sink.sink import Sink, SinkContext


def _sink(properties: Any, context: "SinkContext") -> "Sink":
    from waltap_kafka.sink import KafkaSink

    return KafkaSink(properties, context)


def _signals(properties: Any) -> "SignalChannel":
    from waltap_kafka.signal_channel import KafkaSignals

    return KafkaSignals(properties)


def _notifications(properties: Any) -> "NotificationChannel":
    from waltap_kafka.notification_channel import KafkaNotifications

    return KafkaNotifications(properties)


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
    )


@hookimpl
def register_signal_channels() -> Iterable[SignalChannelSpec]:
    """Contribute the signal channel of Debezium's name."""
    from waltap_kafka.channel_properties import KafkaSignalProperties

    yield SignalChannelSpec(
        name="kafka",
        summary="Records of a Kafka topic whose key is topic.prefix.",
        properties=KafkaSignalProperties,
        factory=_signals,
    )


@hookimpl
def register_notification_channels() -> Iterable[NotificationChannelSpec]:
    """Contribute a channel to a Kafka topic."""
    from waltap_kafka.channel_properties import KafkaNotificationProperties

    yield NotificationChannelSpec(
        name="kafka",
        summary="Records of a Kafka topic, in Debezium's form.",
        properties=KafkaNotificationProperties,
        factory=_notifications,
    )
