"""Names and specs of Debezium's transforms."""

from collections.abc import Callable
from typing import Any

from waltap.base.property import Properties
from waltap.encoders.format.record_transform import RecordTransform
from waltap.ports.specs import RecordTransformSpec

__all__ = ["debezium_spec"]

PACKAGE = "io.debezium.transforms"


def debezium_spec(
    name: str,
    java: str,
    summary: str,
    properties: type[Properties] | None,
    factory: Callable[[Any, Any], RecordTransform],
    *,
    package: str = PACKAGE,
    older: tuple[str, ...] = (),
    ends_events: bool = False,
) -> RecordTransformSpec:
    """Return the spec of the class ``java``, such as ``outbox.EventRouter``.

    A profile may use ``name``, the name of the class with or without its package, or the full name of an
    ``older`` class.
    """
    return RecordTransformSpec(
        name=name,
        aliases=(
            f"{package}.{java}",
            java.rpartition(".")[2],
            *(f"{package}.{each}" for each in older),
        ),
        summary=summary,
        properties=properties,
        factory=factory,
        ends_events=ends_events,
    )
