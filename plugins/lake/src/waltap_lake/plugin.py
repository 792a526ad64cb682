"""Implement the hooks of waltap-lake."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from waltap.plugins.hookspecs import hookimpl
from waltap.ports.specs import SinkSpec, lazy

if TYPE_CHECKING:
    from waltap.ports.sink.sink import Sink, SinkContext


def _delta(properties: Any, context: "SinkContext") -> "Sink":
    from waltap_lake.delta import DeltaLake
    from waltap_lake.sink import LakeSink

    return LakeSink(DeltaLake(properties, context.pipeline), properties, context)


def _iceberg(properties: Any, context: "SinkContext") -> "Sink":
    from waltap_lake.iceberg import IcebergLake
    from waltap_lake.sink import LakeSink

    return LakeSink(IcebergLake(properties, context.pipeline), properties, context)


@hookimpl
def register_sinks() -> Iterable[SinkSpec]:
    """Register the sinks ``delta`` and ``iceberg``."""
    yield SinkSpec(
        name="delta",
        summary="Delta Lake tables of changes, written without Spark or Java; exactly once.",
        properties=lazy("waltap_lake.properties:DeltaLakeProperties"),
        factory=_delta,
        shorthand="path",
        exactly_once=True,
    )
    yield SinkSpec(
        name="iceberg",
        summary="Apache Iceberg tables of changes, written without Spark or Java; exactly once.",
        properties=lazy("waltap_lake.properties:IcebergLakeProperties"),
        factory=_iceberg,
        exactly_once=True,
    )
