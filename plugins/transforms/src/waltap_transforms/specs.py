"""Names and specs of the transforms of Kafka Connect and Debezium."""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Annotated, Any

from pydantic import BeforeValidator

from waltap.base.property import CommaList, Properties
from waltap.encoders.format.record_transform import (
    ConnectRecord,
    RecordTransform,
    RecordTransformContext,
)
from waltap.ports.specs import RecordTransformSpec

CONNECT_PACKAGE = "org.apache.kafka.connect.transforms"
# The places in a Java name where a word begins.
_WORD = re.compile(r"(?<=[a-z])(?=[A-Z])")
DEBEZIUM_PACKAGE = "io.debezium.transforms"


def _no_gaps(value: object) -> object:
    # Java's split leaves out what is empty at the end, and nothing else.
    if isinstance(value, str) and not all(map(str.strip, value.rstrip(",").split(","))):
        raise ValueError("an entry of the list is empty")
    return value


FilledList = Annotated[CommaList, BeforeValidator(_no_gaps)]
"""A comma list of which Debezium takes no empty entry."""


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
    aliases = (f"{CONNECT_PACKAGE}.{java}",) if name else (f"{CONNECT_PACKAGE}.{java}", java)
    return RecordTransformSpec(
        name=name or ours, aliases=aliases, summary=summary, properties=properties, factory=factory
    )


def each(change: Callable[[ConnectRecord], ConnectRecord]) -> RecordTransform:
    """Return the transform that applies ``change`` to each record."""
    return lambda records: [change(record) for record in records]


def warnings(
    context: RecordTransformContext, report: Callable[[str], None] | None = None
) -> Callable[[str], None]:
    """Return the function that reports each problem once, not for every record."""
    report = report or context.warn
    return lru_cache(None)(lambda text: report(f"{context.label}: {text}"))


def debezium_spec(
    name: str,
    java: str,
    summary: str,
    properties: type[Properties] | None,
    factory: Callable[[Any, Any], RecordTransform],
    *,
    package: str = DEBEZIUM_PACKAGE,
    older: tuple[str, ...] = (),
    replaces_events: bool = False,
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
        replaces_events=replaces_events,
    )
