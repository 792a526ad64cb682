"""Hook implementations of waltap-kafka, and nothing else. None of it imports confluent_kafka."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from waltap.hookspecs import hookimpl
from waltap.specs import SinkSpec

if TYPE_CHECKING:
    from waltap.sink.sink import Sink, SinkContext


def _sink(properties: Any, context: "SinkContext") -> "Sink":
    from waltap_kafka.sink import KafkaSink

    return KafkaSink(properties, context)


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
