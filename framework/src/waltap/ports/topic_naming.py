"""Debezium's topic naming strategies, by the names that profiles use."""

from collections.abc import Callable

from waltap.changes.capture.topic_naming import (
    TopicNaming,
    regex,
    sanitised_topic,
    sanitising,
    unicode_topic,
    with_schema,
    without_schema,
)
from waltap.ports.specs import TopicNamingSpec


def _spec(
    name: str, cls: str, summary: str, factory: Callable[..., TopicNaming]
) -> TopicNamingSpec:
    # Profiles of Debezium name the Java class.
    aliases = (f"io.debezium.schema.{cls}", cls)
    return TopicNamingSpec(name=name, summary=summary, aliases=aliases, factory=factory)


# The strategies of the framework; the first is the default.
TOPIC_NAMING = (
    _spec(
        "schema",
        "SchemaTopicNamingStrategy",
        "prefix.schema.table",
        sanitising(with_schema, sanitised_topic),
    ),
    _spec(
        "table",
        "DefaultTopicNamingStrategy",
        "prefix.table; tables of one name in several schemas share a topic",
        sanitising(without_schema, sanitised_topic),
    ),
    _spec(
        "schema_unicode",
        "SchemaUnicodeTopicNamingStrategy",
        "prefix.schema.table; characters that topics cannot have become _uXXXX",
        sanitising(with_schema, unicode_topic),
    ),
    _spec(
        "table_unicode",
        "DefaultUnicodeTopicNamingStrategy",
        "prefix.table; characters that topics cannot have become _uXXXX",
        sanitising(without_schema, unicode_topic),
    ),
    _spec(
        "schema_regex",
        "SchemaRegexTopicNamingStrategy",
        "prefix.schema.table, renamed by topic.regex and topic.replacement",
        regex(with_schema),
    ),
    _spec(
        "table_regex",
        "DefaultRegexTopicNamingStrategy",
        "prefix.table, renamed by topic.regex and topic.replacement",
        regex(without_schema),
    ),
)
