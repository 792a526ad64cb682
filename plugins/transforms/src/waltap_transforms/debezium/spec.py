"""How transforms of Debezium's are named here, and told of."""

from collections.abc import Callable
from typing import Any

from waltap.config.property import Properties
from waltap.format.record_transform import RecordTransform
from waltap.specs import RecordTransformSpec

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
    """Return the spec of the class ``java`` (``outbox.EventRouter``): it goes by ``name``, by the name of
    the class, and by its full name; ``older`` are classes that it was before."""
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
