"""Hook implementations of waltap-streams."""

from collections.abc import Iterable

from waltap.plugins.hookspecs import hookimpl
from waltap.ports.specs import SinkSpec, lazy


@hookimpl
def register_sinks() -> Iterable[SinkSpec]:
    """Contribute the sinks of message streams."""
    yield SinkSpec(
        name="redis",
        summary="Streams of Redis; at least once, or exactly once with transactions.",
        properties=lazy("waltap_streams.properties:RedisProperties"),
        factory=lazy("waltap_streams.redis:RedisSink"),
        shorthand="address",
        exactly_once=("delivery.guarantee", "exactly_once"),
    )
    yield SinkSpec(
        name="nats-jetstream",
        summary="A stream of NATS JetStream; at least once, in order.",
        properties=lazy("waltap_streams.properties:NatsProperties"),
        factory=lazy("waltap_streams.nats:NatsSink"),
        shorthand="url",
    )
    yield SinkSpec(
        name="kinesis",
        summary="Streams of Amazon Kinesis, in the order of keys.",
        properties=lazy("waltap_streams.properties:KinesisProperties"),
        factory=lazy("waltap_streams.kinesis:KinesisSink"),
        shorthand="region",
    )
