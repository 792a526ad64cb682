"""RegexRouter and TimestampRouter: change the topic of records."""

from typing import Self

from msgspec.structs import replace
from pydantic import model_validator

from waltap.base.property import Properties, declare
from waltap.changes.capture.java_regex import java_pattern, java_replacement
from waltap.encoders.format.record_transform import (
    ConnectRecord,
    RecordTransform,
    RecordTransformContext,
    RecordUnfit,
)
from waltap_transforms.java.dates import SimpleDateFormat
from waltap_transforms.specs import connect_spec, each

__all__ = ["TOPICS"]

# Number of topics whose new name is cached.
KEPT = 1000


class RegexRouterProperties(Properties):
    """Topics to rename, and their new names."""

    routes = True

    regex: str = declare(
        "regex",
        summary="Java regular expression that matches the whole name of a topic.",
        examples=(r"(.*)\.public\.(.*)",),
        patterns="topics",
    )
    replacement: str = declare(
        "replacement",
        summary="What takes its place; $1 is the expression's first group.",
        examples=("$1.$2",),
    )

    @model_validator(mode="after")
    def _compiles(self) -> Self:
        java_replacement(self.replacement, java_pattern(self.regex, ignore_case=False))
        return self


def regex_router(
    properties: RegexRouterProperties, _context: RecordTransformContext
) -> RecordTransform:
    """Return the transform that renames topics by an expression."""
    pattern = java_pattern(properties.regex, ignore_case=False)
    template = java_replacement(properties.replacement, pattern)
    known: dict[str, str] = {}

    def routed(record: ConnectRecord) -> ConnectRecord:
        topic = known.get(record.topic)
        if topic is None:
            # Names may be endless, such as one for each day, so the cache must not grow with them.
            if len(known) >= KEPT:
                known.clear()
            matches = pattern.fullmatch(record.topic) is not None
            # Java tests the whole name but then replaces the first match, which may be shorter.
            topic = pattern.sub(template, record.topic, count=1) if matches else record.topic
            known[record.topic] = topic
        return record if topic == record.topic else replace(record, topic=topic)

    return each(routed)


class TimestampRouterProperties(Properties):
    """Format of topics with a timestamp."""

    routes = True

    topic_format: str = declare(
        "topic.format",
        default="${topic}-${timestamp}",
        summary="The topic, with ${topic} and ${timestamp} where they are to stand.",
    )
    timestamp_format: str = declare(
        "timestamp.format",
        default="yyyyMMdd",
        summary="Pattern of Java's SimpleDateFormat for the record's timestamp, in UTC.",
    )

    @model_validator(mode="after")
    def _readable(self) -> Self:
        SimpleDateFormat(self.timestamp_format)
        return self


def timestamp_router(
    properties: TimestampRouterProperties, _context: RecordTransformContext
) -> RecordTransform:
    """Return the transform that puts the timestamp into topics."""
    pattern, dates = properties.topic_format, SimpleDateFormat(properties.timestamp_format)

    def routed(record: ConnectRecord) -> ConnectRecord:
        # Debezium's records have no timestamp unless another transform sets one.
        if record.timestamp is None:
            raise RecordUnfit(
                "the record has no timestamp: only transforms that give it one, as EventRouter does, come "
                "before this one"
            )
        topic = pattern.replace("${topic}", record.topic)
        topic = topic.replace("${timestamp}", dates.format(record.timestamp))
        return replace(record, topic=topic)

    return each(routed)


TOPICS = (
    connect_spec(
        "RegexRouter",
        "Gives records another topic where a pattern matches it.",
        RegexRouterProperties,
        regex_router,
    ),
    connect_spec(
        "TimestampRouter",
        "Gives records a topic with their timestamp in it.",
        TimestampRouterProperties,
        timestamp_router,
    ),
)
