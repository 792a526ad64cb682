"""Kafka Connect's dates and times as milliseconds.

Java's classes work on java.util.Date, which contains milliseconds.
"""

from typing import Any

from waltap.changes.mapping.connect_schema import Schema
from waltap_transforms.connect.simple_date_format import SimpleDateFormat

__all__ = ["DATE", "DAY_MS", "TEMPORAL", "TIME", "TIMESTAMP", "milliseconds", "plain_text"]

DATE = "org.apache.kafka.connect.data.Date"
TIME = "org.apache.kafka.connect.data.Time"
TIMESTAMP = "org.apache.kafka.connect.data.Timestamp"
TEMPORAL = frozenset({DATE, TIME, TIMESTAMP})
DAY_MS = 86_400_000
_TIMES = SimpleDateFormat("HH:mm:ss.SSS'Z'")
_DATES = SimpleDateFormat("yyyy-MM-dd")
_STAMPS = SimpleDateFormat("yyyy-MM-dd'T'HH:mm:ss.SSS'Z'")


def milliseconds(schema: Schema, value: Any) -> int:
    """Convert a value of a temporal schema to ms since 1970 UTC."""
    # A Date is in days; Time and Timestamp are in ms already.
    return value * DAY_MS if schema.name == DATE else value  # type: ignore[no-any-return]


def plain_text(instant: int) -> str:
    """Print an instant as Kafka Connect does."""
    # Connect does not look at the schema: an instant before the end of the first day is a time, and a
    # later one at midnight is a date.
    if instant < DAY_MS:
        return _TIMES.format(instant)
    return (_STAMPS if instant % DAY_MS else _DATES).format(instant)
