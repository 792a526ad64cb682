"""Hook implementations of waltap-spark, and nothing else. None of it imports pyspark."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from waltap.hookspecs import hookimpl
from waltap.specs import CommandSpec, SinkSpec

if TYPE_CHECKING:
    from waltap.sink.readable import Readable
    from waltap.sink.sink import Sink, SinkContext


def _sink(properties: Any, context: "SinkContext") -> "Sink":
    from waltap_spark.sink import SparkSink

    return SparkSink(properties, context)


def _readable(properties: Any, pipeline: str) -> "Readable":
    from waltap_spark.verify import open_readable

    return open_readable(properties, pipeline)


def _spark_commands() -> Any:
    from waltap_spark.commands import application

    return application


@hookimpl
def register_sinks() -> Iterable[SinkSpec]:
    """Contribute the Spark sink."""
    from waltap_spark.properties import SparkProperties

    yield SinkSpec(
        name="spark",
        summary="Tables kept up to date by Spark: every change, and the rows as they are now.",
        properties=SparkProperties,
        factory=_sink,
        exactly_once=True,
        readable=_readable,
    )


@hookimpl
def register_commands() -> Iterable[CommandSpec]:
    """Contribute the command of Spark tables."""
    yield CommandSpec(
        name="spark",
        summary="Apply a change log, query and describe the tables that Spark keeps.",
        factory=_spark_commands,
    )
