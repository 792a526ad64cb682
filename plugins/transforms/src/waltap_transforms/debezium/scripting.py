"""Filter and ContentBasedRouter: drop or route records by an expression."""

from typing import Any, Literal, Self

import msgspec
from pydantic import field_validator, model_validator

from waltap.base.property import Properties, declare
from waltap.changes.capture.java_regex import java_pattern
from waltap.encoders.format.record_transform import ConnectRecord, RecordUnfit
from waltap_transforms.debezium.expression import Expression, cel_expression, python_function
from waltap_transforms.specs import debezium_spec

__all__ = [
    "SCRIPTING",
    "ContentBasedRouter",
    "ContentBasedRouterProperties",
    "RecordFilter",
    "RecordFilterProperties",
]


class ExpressionProperties(Properties):
    """Language of an expression, and the records for it."""

    topics: str | None = declare(
        "topic.regex",
        default=None,
        summary="Pattern (Java's) of the topics whose records are concerned; it matches as a whole. "
        "Others pass as they are.",
        patterns="topics",
    )
    language: str = declare(
        "language",
        default="cel",
        summary="cel (the Common Expression Language), or python: the expression is a function of a "
        "record, module:name or an entry point of the group `waltap.expressions`.",
        examples=("cel", "python"),
    )
    nulls: Literal["keep", "drop", "evaluate"] = declare(
        "null.handling.mode",
        default="keep",
        summary="What happens to records whose value is null, as that of tombstones: they stay, are left "
        "out, or are asked about.",
    )

    @field_validator("topics")
    @classmethod
    def _pattern(cls, value: str | None) -> str | None:
        if value:
            java_pattern(value, ignore_case=False)
        return value

    @field_validator("language")
    @classmethod
    def _known(cls, value: str) -> str:
        language = value.strip().lower()
        # Profiles of Debezium have jsr223.groovy here, so the message shows the way to CEL.
        if language in ("cel", "python"):
            return language
        raise ValueError(
            f"{value} runs scripts inside of Java, and there is no Java here. Write the expression in "
            "CEL, with language=cel: value.op == 'u' && value.after.id > 2 is the same in both; or as a "
            "Python function, with language=python"
        )

    def expression(self, text: str) -> Expression:
        """Compile ``text`` in this language.

        Raises: ValueError.
        """
        return python_function(text) if self.language == "python" else cel_expression(text)


class RecordFilterProperties(ExpressionProperties):
    """Condition for the records that stay."""

    condition: str = declare(
        "condition",
        summary="Expression that is true for the records that stay.",
        examples=("value.op == 'u' && value.before.id == 2",),
    )

    @model_validator(mode="after")
    def _readable(self) -> Self:
        # A bad expression fails when the profile is read, not at the first record.
        self.expression(self.condition)
        return self


class ContentBasedRouterProperties(ExpressionProperties):
    """Expression for the topic of records."""

    routes = True

    topic_expression: str = declare(
        "topic.expression",
        summary="Expression that gives the record's topic; null: it stays where it is.",
        examples=("value.op == 'u' ? 'updates' : null",),
    )

    @model_validator(mode="after")
    def _readable(self) -> Self:
        # A bad expression fails when the profile is read, not at the first record.
        self.expression(self.topic_expression)
        return self


class _ScriptScope:
    """Decide whether to evaluate, keep or drop a record."""

    def __init__(self, properties: ExpressionProperties) -> None:
        self._nulls = properties.nulls
        self._topics = None
        if properties.topics:
            self._topics = java_pattern(properties.topics, ignore_case=False)

    def __call__(self, record: ConnectRecord) -> str:
        if self._topics is not None and not self._topics.fullmatch(record.topic):
            return "keep"
        return self._nulls if record.value is None else "evaluate"


class RecordFilter:
    """Drop the records for which a condition is false."""

    def __init__(self, properties: RecordFilterProperties) -> None:
        self._concerned = _ScriptScope(properties)
        self._condition = properties.expression(properties.condition)

    def __call__(self, records: list[ConnectRecord]) -> list[ConnectRecord]:
        """Return the records that stay, in order.

        Raises: RecordUnfit.
        """
        return [record for record in records if self._stays(record)]

    def _stays(self, record: ConnectRecord) -> bool:
        action = self._concerned(record)
        if action != "evaluate":
            return action == "keep"
        found = self._condition(record)
        # A text or number that counts as true would hide a mistake in the condition.
        if not isinstance(found, bool):
            raise RecordUnfit(f"the condition is {_kind(found)}, not true or false")
        return found


class ContentBasedRouter:
    """Set the topics of records by an expression."""

    def __init__(self, properties: ContentBasedRouterProperties) -> None:
        self._concerned = _ScriptScope(properties)
        self._topic = properties.expression(properties.topic_expression)

    def __call__(self, records: list[ConnectRecord]) -> list[ConnectRecord]:
        """Return a batch's records with their topics, in order.

        Raises: RecordUnfit.
        """
        out = []
        for record in records:
            action = self._concerned(record)
            if action == "keep":
                out.append(record)
            elif action == "evaluate":
                out.append(self._routed(record))
        return out

    def _routed(self, record: ConnectRecord) -> ConnectRecord:
        topic = self._topic(record)
        if topic is None:
            return record
        if not isinstance(topic, str):
            raise RecordUnfit(f"the topic is {_kind(topic)}, not text")
        return msgspec.structs.replace(record, topic=topic)


def _kind(found: Any) -> str:
    return "null" if found is None else f"of the type {type(found).__name__}"


SCRIPTING = (
    debezium_spec(
        "record-filter",
        "Filter",
        "Keeps the records for which an expression is true.",
        RecordFilterProperties,
        lambda properties, _context: RecordFilter(properties),
    ),
    debezium_spec(
        "content-based-router",
        "ContentBasedRouter",
        "Gives records the topic that an expression says.",
        ContentBasedRouterProperties,
        lambda properties, _context: ContentBasedRouter(properties),
    ),
)
