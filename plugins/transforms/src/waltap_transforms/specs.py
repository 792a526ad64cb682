"""Names and specs of the transforms of Kafka Connect and Debezium."""

import re
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Annotated, Any

from pydantic import BeforeValidator

from waltap.base.property import CommaList, Properties
from waltap.encoders.format.record_transform import (
    ConnectRecord,
    RecordTransform,
    RecordTransformContext,
)
from waltap.ports.specs import RecordTransformSpec
from waltap_transforms.structs import is_envelope

CONNECT_PACKAGE = "org.apache.kafka.connect.transforms"
# The places in a Java name where a word begins.
_WORD = re.compile(r"(?<=[a-z])(?=[A-Z])")
DEBEZIUM_PACKAGE = "io.debezium.transforms"
# Some warnings name a table, of which there may be ever more.
MAX_WARNINGS = 100_000


def _no_gaps(value: object) -> object:
    # Java's split leaves out what is empty at the end, and nothing else.
    if isinstance(value, str) and not all(map(str.strip, value.rstrip(",").split(","))):
        raise ValueError("an entry of the list is empty")
    return value


FilledList = Annotated[CommaList, BeforeValidator(_no_gaps)]
"""A comma list of which Debezium takes no empty entry."""


def each(change: Callable[[ConnectRecord], ConnectRecord]) -> RecordTransform:
    """Return the transform that applies ``change`` to each record."""
    return lambda records: [change(record) for record in records]


def each_event(change: Callable[[ConnectRecord], ConnectRecord]) -> RecordTransform:
    """Return the transform that applies ``change`` to each change event."""
    return lambda records: [
        record if record.value is None or not is_envelope(record) else change(record)
        for record in records
    ]


def warnings(
    context: RecordTransformContext, report: Callable[[str], None] | None = None
) -> Callable[[str], None]:
    """Return the function that reports each problem once, not for every record.

    A problem is reported again after `MAX_WARNINGS` others.
    """
    report = report or context.warn
    return lru_cache(MAX_WARNINGS)(lambda text: report(f"{context.label}: {text}"))


def debezium_spec(
    java: str,
    summary: str,
    properties: type[Properties] | None,
    factory: Callable[[Any, Any], RecordTransform],
    *,
    name: str = "",
    short: bool = True,
    package: str = DEBEZIUM_PACKAGE,
    older: tuple[str, ...] = (),
    replaces_events: bool = False,
) -> RecordTransformSpec:
    """Return the spec of the class ``java``, such as ``outbox.EventRouter``.

    A profile may use ``name``, by default the class's words (``event-router``), the name of the class
    with or, if it is ``short``, without its package, or the full name of an ``older`` class.
    """
    bare = java.rpartition(".")[2]
    words = _WORD.sub("-", bare.replace("$", "-")).lower().replace("--", "-")
    return RecordTransformSpec(
        name=name or words,
        aliases=(
            f"{package}.{java}",
            *((bare,) if short else ()),
            *(f"{package}.{each}" for each in older),
        ),
        summary=summary,
        properties=properties,
        factory=factory,
        replaces_events=replaces_events,
    )


connect_spec = partial(debezium_spec, package=CONNECT_PACKAGE)
