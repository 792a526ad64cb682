"""Topic naming strategies: from (schema, table) to the topic of its records.

Debezium's six classes are known by a short name and by class name. A strategy's factory gets the
strategy's own properties, or the pipeline's `CaptureProperties` when its spec declares none. The
engine calls the returned function once per relation version. The function may also have
``key_field(schema, table)``, which returns (field name, value) to append to keys, or None.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from waltap.changes.capture.java_regex import java_pattern, java_replacement
from waltap.changes.capture.name_adjustment import sanitised_topic

if TYPE_CHECKING:
    from waltap.changes.capture.properties import CaptureProperties


TopicNaming = Callable[[str, str], str]


def joined(delimiter: str, *parts: str) -> str:
    """Join the parts that are not blank."""
    return delimiter.join(part for part in parts if part.strip())


def with_schema(properties: "CaptureProperties") -> TopicNaming:
    """Return a function for ``prefix.schema.table``."""
    prefix, delimiter = properties.topic_prefix, properties.topic_delimiter
    return lambda schema, table: joined(delimiter, prefix, schema, table)


def without_schema(properties: "CaptureProperties") -> TopicNaming:
    """Return a function for ``prefix.table``."""
    prefix, delimiter = properties.topic_prefix, properties.topic_delimiter
    return lambda _schema, table: joined(delimiter, prefix, table)


def sanitising(
    raw: "Callable[[CaptureProperties], TopicNaming]", sanitise: Callable[[str], str]
) -> "Callable[[CaptureProperties], TopicNaming]":
    """Return ``raw`` with topics that ``sanitise`` made valid for Kafka."""

    def factory(properties: "CaptureProperties") -> TopicNaming:
        name = raw(properties)
        return lambda schema, table: sanitise(name(schema, table))

    return factory


class RegexTopicNaming:
    """Rename topics that ``topic.regex`` fully matches.

    Several tables may then share a topic. Unless ``topic.key.enforce.uniqueness`` is off, keys
    get a further field that identifies the table.
    """

    def __init__(self, raw: TopicNaming, properties: "CaptureProperties") -> None:
        """Compile the patterns.

        Raises ValueError with the property that is wrong or missing.
        """
        if not properties.topic_regex or not properties.topic_replacement:
            raise ValueError("topic.regex and topic.replacement are required by this strategy")
        self._raw = raw
        # Debezium ignores case in lists, but not in these patterns.
        self._regex = java_pattern(properties.topic_regex, ignore_case=False)
        self._replacement = java_replacement(properties.topic_replacement, self._regex)
        self._field = (
            properties.topic_key_field_name if properties.topic_key_enforce_uniqueness else None
        )
        self._key_regex = (
            java_pattern(properties.topic_key_field_regex, ignore_case=False)
            if properties.topic_key_field_regex
            else None
        )
        self._key_replacement = (
            java_replacement(properties.topic_key_field_replacement or "", self._key_regex)
            if self._key_regex
            else ""
        )

    def __call__(self, schema: str, table: str) -> str:
        """Return the topic of a table's records."""
        topic = sanitised_topic(self._raw(schema, table))
        match = self._regex.fullmatch(topic)
        # An empty name is no topic, so the original one stays.
        return (match.expand(self._replacement) or topic) if match else topic

    def unrenamed(self, schema: str, table: str) -> tuple[str, ...]:
        """Return the names that the patterns match.

        They are the sanitised topic, for `topic.regex`, and the raw one, for the key field.
        """
        raw = self._raw(schema, table)
        return sanitised_topic(raw), raw

    def key_field(self, schema: str, table: str) -> tuple[str, str] | None:
        """Return the field and value that keys of the table get, or None."""
        if self._field is None:
            return None
        name = self._raw(schema, table)
        match = self._key_regex.fullmatch(name) if self._key_regex else None
        return self._field, match.expand(self._key_replacement) if match else name


def regex(
    raw: "Callable[[CaptureProperties], TopicNaming]",
) -> "Callable[[CaptureProperties], TopicNaming]":
    """Return ``raw`` with topics renamed by ``topic.regex``."""
    return lambda properties: RegexTopicNaming(raw(properties), properties)
