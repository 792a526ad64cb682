"""Names and specs of Kafka Connect's transforms."""

import re
from collections.abc import Callable
from typing import Any

from waltap.base.property import Properties
from waltap.encoders.format.record_transform import ConnectRecord, RecordTransform
from waltap.ports.specs import RecordTransformSpec

__all__ = ["connect_spec", "each"]

PACKAGE = "org.apache.kafka.connect.transforms"
# The places in a Java name where a word begins.
_WORD = re.compile(r"(?<=[a-z])(?=[A-Z])")


def connect_spec(
    java: str,
    summary: str,
    properties: type[Properties] | None,
    factory: Callable[[Any, Any], RecordTransform],
    *,
    name: str = "",
) -> RecordTransformSpec:
    """Return the spec of the Java class ``java``.

    A profile may use the full class name, the short one (``Cast$Value``), or our name (``cast-value``).
    """
    ours = _WORD.sub("-", java.replace("$", "-")).lower().replace("--", "-")
    # A transform with a ``name`` of its own has it because another class owns the short name.
    aliases = (f"{PACKAGE}.{java}",) if name else (f"{PACKAGE}.{java}", java)
    return RecordTransformSpec(
        name=name or ours,
        aliases=aliases,
        summary=summary,
        properties=properties,
        factory=factory,
    )


def each(change: Callable[[ConnectRecord], ConnectRecord]) -> RecordTransform:
    """Return the transform that applies ``change`` to each record."""
    return lambda records: [change(record) for record in records]
