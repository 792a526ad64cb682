"""Hook implementations of waltap-streams."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from waltap.plugins.hookspecs import hookimpl
from waltap.ports.specs import SinkSpec

if TYPE_CHECKING:
    from waltap.ports.sink.sink import Sink, SinkContext


# Factories import their module, so that a profile loads only its own client library.
def _redis(properties: Any, context: "SinkContext") -> "Sink":
    from waltap_streams.redis import RedisSink

    return RedisSink(properties, context)


def _nats(properties: Any, context: "SinkContext") -> "Sink":
    from waltap_streams.nats import NatsSink

    return NatsSink(properties, context)


def _kinesis(properties: Any, context: "SinkContext") -> "Sink":
    from waltap_streams.kinesis import KinesisSink

    return KinesisSink(properties, context)


@hookimpl
def register_sinks() -> Iterable[SinkSpec]:
    """Contribute the sinks of message streams."""
    from waltap_streams.properties import KinesisProperties, NatsProperties, RedisProperties

    yield SinkSpec(
        name="redis",
        summary="Streams of Redis; at least once, or exactly once with transactions.",
        properties=RedisProperties,
        factory=_redis,
        shorthand="address",
        exactly_once=("delivery.guarantee", "exactly_once"),
    )
    yield SinkSpec(
        name="nats-jetstream",
        summary="A stream of NATS JetStream, in order, with ids against lost acknowledgements.",
        properties=NatsProperties,
        factory=_nats,
        shorthand="url",
    )
    yield SinkSpec(
        name="kinesis",
        summary="Streams of Amazon Kinesis, in the order of keys.",
        properties=KinesisProperties,
        factory=_kinesis,
        shorthand="region",
    )
