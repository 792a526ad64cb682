"""Topic naming strategies: from (schema, table) to the topic of its records.

Debezium's six classes are known by a short name and by class name. A strategy's factory gets the
strategy's own properties, or the pipeline's `CaptureProperties` when its spec declares none. The
engine calls the returned function once per relation version. The function may also have
``key_field(schema, table)``, which returns (field name, value) to append to keys, or None.
"""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from waltap.changes.capture.java_regex import java_pattern, java_replacement

if TYPE_CHECKING:
    from waltap.changes.capture.properties import CaptureProperties


# Adjust names of schemas and fields, and sanitise names of topics.
#
# Source: Debezium's documentation of ``schema.name.adjustment.mode``,
# ``field.name.adjustment.mode`` and of the topic naming strategies. All of them work on UTF-16
# units, as Java does.


# Kafka's limit.
TOPIC_LENGTH = 249
_ASTRAL = re.compile("[\U00010000-\U0010ffff]")


def _units(name: str) -> str:
    """Return ``name`` with characters beyond the BMP as two surrogates."""

    def surrogates(match: re.Match[str]) -> str:
        code = ord(match[0]) - 0x10000
        return chr(0xD800 + (code >> 10)) + chr(0xDC00 + (code & 0x3FF))

    return _ASTRAL.sub(surrogates, name)


def _escape(match: re.Match[str]) -> str:
    """Return ``_u`` and the unit in hexadecimal."""
    digits = f"{ord(match[0]):x}"
    # Debezium pads only one or two digits, to four.
    return f"_u{digits.zfill(4) if len(digits) <= 2 else digits}"


def _unchanged(name: str) -> str:
    return name


def _replacing(later: str) -> Callable[[str], str]:
    """Return the mode ``avro``.

    Characters that Avro forbids become ``_``.
    """
    bad = re.compile(f"[^A-Za-z0-9_{later}]")

    def adjust(name: str) -> str:
        name = bad.sub("_", _units(name))
        if not name or name[0].isalpha() or name[0] == "_":
            return name
        # A leading digit stays, after the underscore; any other bad start is replaced.
        return "_" + (name if name[0].isdigit() else name[1:])

    return adjust


def _escaping(later: str) -> Callable[[str], str]:
    """Return the mode ``avro_unicode``.

    Characters that Avro forbids become ``_uXXXX``.
    """
    # An underscore is escaped, too: it starts an escape.
    bad = re.compile(f"[^A-Za-z0-9{later}]")
    bad_first = re.compile("[^A-Za-z]")

    def adjust(name: str) -> str:
        name = _units(name)
        return bad_first.sub(_escape, name[:1]) + bad.sub(_escape, name[1:])

    return adjust


def _namer(later: str) -> Callable[[str], Callable[[str], str]]:
    modes = {"none": _unchanged, "avro": _replacing(later), "avro_unicode": _escaping(later)}
    return modes.__getitem__


# `schema.name.adjustment.mode` → the adjustment of a schema's full name; dots stay.
schema_namer: Final = _namer(".")
# `field.name.adjustment.mode` → the adjustment of a field's name.
field_namer: Final = _namer("")

_BAD_IN_TOPIC = re.compile(r"[^A-Za-z0-9._\-]")
_BAD_IN_UNICODE_TOPIC = re.compile(r"[^A-Za-z0-9.\-]")


def _cut(name: str) -> str:
    name = name[:TOPIC_LENGTH]
    # Kafka refuses topics of these two names.
    return {".": "_", "..": "__"}.get(name, name)


def sanitised_topic(name: str) -> str:
    """Return ``name`` as a Kafka topic name of at most 249 characters.

    Other characters become ``_``.
    """
    return _cut(_BAD_IN_TOPIC.sub("_", _units(name)))


def unicode_topic(name: str) -> str:
    """Return ``name`` as a Kafka topic name.

    Other characters and ``_`` become ``_uXXXX``.
    """
    return _cut(_BAD_IN_UNICODE_TOPIC.sub(_escape, _units(name)))


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
