"""How transforms of Kafka Connect's are named here, and told of."""

import re
from collections.abc import Callable
from typing import Any

from waltap.config.property import Properties
from waltap.format.connect_record import ConnectRecord
from waltap.format.record_transform import RecordTransform
from waltap.specs import RecordTransformSpec

__all__ = ["connect_spec", "each"]

PACKAGE = "org.apache.kafka.connect.transforms"
_WORD = re.compile(r"(?<=[a-z])(?=[A-Z])")


def connect_spec(
    java: str,
    summary: str,
    properties: type[Properties] | None,
    factory: Callable[[Any, Any], RecordTransform],
    *,
    name: str = "",
) -> RecordTransformSpec:
    """Return the spec of the class ``java`` (``RegexRouter``, ``Cast$Value``): it goes by its own name, by
    that of the class, and by ours: regex-router, cast-value."""
    ours = _WORD.sub("-", java.replace("$", "-")).lower().replace("--", "-")
    aliases = (f"{PACKAGE}.{java}",) if name else (f"{PACKAGE}.{java}", java)
    return RecordTransformSpec(
        name=name or ours,
        aliases=aliases,
        summary=summary,
        properties=properties,
        factory=factory,
    )


def each(change: Callable[[ConnectRecord], ConnectRecord]) -> RecordTransform:
    """Return the transform that makes one record of each."""
    return lambda records: [change(record) for record in records]
