"""Kafka Connect's predicates of records: by topic, tombstone and header."""

from pydantic import ConfigDict

from waltap.base.cache import BoundedDict
from waltap.base.property import Properties, declare
from waltap.changes.capture.java_regex import Pattern, java_pattern
from waltap.encoders.format.record_transform import ConnectRecord, RecordPredicate
from waltap.ports.specs import PredicateSpec

# A transform before the predicate may make topics without end, so the cache must not grow with them.
MAX_TOPICS = 1000

# Kafka Connect strips the blanks around values.
_STRIPPED = ConfigDict(str_strip_whitespace=True)


class TopicNameMatches(Properties):
    """Records for topics whose name matches a pattern."""

    model_config = _STRIPPED

    pattern: Pattern = declare(
        "pattern",
        summary="Java regular expression that matches the whole name of the topic.",
        examples=(r"shop\.public\..*",),
        patterns="topics",
        min_length=1,
    )


class HasHeaderKey(Properties):
    """Records with a header of a given name."""

    model_config = _STRIPPED

    name: str = declare("name", summary="Name of the header; case counts.", min_length=1)


def _topic_name_matches(properties: TopicNameMatches) -> RecordPredicate:
    pattern = java_pattern(properties.pattern, ignore_case=False)
    known = BoundedDict[str, bool](MAX_TOPICS)

    def matches(record: ConnectRecord) -> bool:
        found = known.get(record.topic)
        if found is None:
            found = known[record.topic] = pattern.fullmatch(record.topic) is not None
        return found

    return matches


def _has_header_key(properties: HasHeaderKey) -> RecordPredicate:
    wanted = properties.name
    return lambda record: any(name == wanted for name, _, _ in record.headers)


def _spec(name: str, **more: object) -> PredicateSpec:
    full = f"org.apache.kafka.connect.transforms.predicates.{name}"
    return PredicateSpec(name=name, aliases=(full,), **more)  # type: ignore[arg-type]


# They have Kafka Connect's names, which existing files and manuals use.
PREDICATES = (
    _spec(
        "TopicNameMatches",
        summary="Records for topics whose name matches a pattern.",
        properties=TopicNameMatches,
        factory=_topic_name_matches,
    ),
    _spec(
        "RecordIsTombstone",
        summary="Tombstones: records whose value is null.",
        factory=lambda _properties: lambda record: record.value is None,
    ),
    _spec(
        "HasHeaderKey",
        summary="Records that have a header of some name.",
        properties=HasHeaderKey,
        factory=_has_header_key,
    ),
)
