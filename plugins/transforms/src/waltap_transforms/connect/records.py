"""Transforms of headers and topics, and Filter, which drops records."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, Self

from msgspec.structs import replace
from pydantic import field_validator, model_validator

from waltap.base.property import NonEmptyList, declare
from waltap.changes.mapping.connect_schema import Schema
from waltap.encoders.format.record_transform import (
    ConnectHeader,
    ConnectRecord,
    RecordTransform,
    RecordTransformContext,
    RecordUnfit,
    SchemaMemory,
)
from waltap_transforms.connect.record_parts import (
    ConnectProperties,
    NullToDefault,
    Row,
    map_of,
    struct_of,
)
from waltap_transforms.java.dates import SimpleDateFormat
from waltap_transforms.java.literals import parse_literal
from waltap_transforms.java.patterns import replaced_by
from waltap_transforms.specs import connect_spec, each
from waltap_transforms.structs import projection, required_struct


class RegexRouterProperties(ConnectProperties):
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
        summary="What replaces it; $1 is the expression's first group.",
        examples=("$1.$2",),
    )

    @model_validator(mode="after")
    def _compiles(self) -> Self:
        replaced_by(self.regex, self.replacement)
        return self


def regex_router(
    properties: RegexRouterProperties, _context: RecordTransformContext
) -> RecordTransform:
    """Return the transform that renames topics by an expression."""
    renamed = replaced_by(properties.regex, properties.replacement)

    def routed(record: ConnectRecord) -> ConnectRecord:
        topic = renamed(record.topic)
        unchanged = topic is None or topic == record.topic
        return record if unchanged else replace(record, topic=topic)

    return each(routed)


class TimestampRouterProperties(ConnectProperties):
    """Format of topics with a timestamp."""

    routes = True

    topic_format: str = declare(
        "topic.format",
        default="${topic}-${timestamp}",
        summary="The topic, with ${topic} and ${timestamp} as variables.",
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


class HeaderFromProperties(NullToDefault):
    """Fields to move or copy, and their headers."""

    fields: NonEmptyList = declare("fields", summary="Fields that become headers.")
    headers: NonEmptyList = declare(
        "headers",
        summary="Names of the headers, in the order of the fields.",
    )
    operation: Literal["move", "copy"] = declare(
        "operation", summary="Whether the fields are removed (move) or stay (copy)."
    )

    @model_validator(mode="after")
    def _as_many(self) -> Self:
        if len(self.fields) != len(self.headers):
            raise ValueError("fields and headers must have the same number of entries")
        return self


class DropHeadersProperties(ConnectProperties):
    """Headers to drop."""

    headers: NonEmptyList = declare("headers", summary="Names of the headers.")


class InsertHeaderProperties(ConnectProperties):
    """Header to add, and its value."""

    header: str = declare("header", summary="Name of the header.")
    literal: str = declare(
        "value.literal",
        summary="Its value: a number, true, false, null, an ISO 8601 date or time, [ ] or { } "
        "of those, else a text.",
    )

    @field_validator("literal")
    @classmethod
    def _has_schema(cls, value: str) -> str:
        # A bad literal fails when the profile is read, not at the first record.
        parse_literal(value)
        return value


Project = Callable[[Row], Row]


class _HeaderFrom:
    """Read headers from the schema and value of a key or value."""

    def __init__(self, properties: HeaderFromProperties) -> None:
        self._fields, self._headers = properties.fields, properties.headers
        self._moves, self._defaults = properties.operation == "move", properties.null_to_default
        self._purpose = f"{properties.operation} fields to headers from"
        self._memory = SchemaMemory(self._made)

    def _made(self, schema: Schema) -> tuple[Schema, Project | None, Project, list[Schema]]:
        """Return the new schema, both conversions of rows, and the header schemas.

        The first conversion makes the row without moved fields, the second the headers' values.
        """
        known = {field.name: field.schema for field in schema.fields}
        for name in self._fields:
            if name not in known:
                raise RecordUnfit(f"there is no field {name}")
        columns = {n: (n, n, s.default if self._defaults else None) for n, s in known.items()}
        values = projection(columns[name] for name in self._fields)
        schemas = [known[name] for name in self._fields]
        if not self._moves:
            return schema, None, values, schemas  # a copy shares the row
        remaining = [field for field in schema.fields if field.name not in self._fields]
        rest = projection(columns[field.name] for field in remaining)
        return required_struct(schema, remaining), rest, values, schemas

    def __call__(
        self, schema: Schema | None, value: Any
    ) -> tuple[Schema | None, Any, tuple[ConnectHeader, ...]]:
        if schema is None:
            row = map_of(value, self._purpose)
            headers = tuple(
                (name, None, row.get(field))
                for field, name in zip(self._fields, self._headers, strict=True)
            )
            if self._moves:
                # Records are shared, so a transform must not change the row that it got.
                row = {name: given for name, given in row.items() if name not in self._fields}
            return None, row, headers
        struct = struct_of(schema, value, self._purpose)
        updated, rest, values, schemas = self._memory.of(schema)
        found = values(struct)
        added = tuple(
            (name, of, found[field])
            for field, name, of in zip(self._fields, self._headers, schemas, strict=True)
        )
        return updated, struct if rest is None else rest(struct), added


def _header_from(
    record_part: str, properties: HeaderFromProperties, _context: RecordTransformContext
) -> RecordTransform:
    """Return HeaderFrom for ``record_part``, key or value."""
    header_from = _HeaderFrom(properties)

    def change(r: ConnectRecord) -> ConnectRecord:
        schema, value, headers = header_from(
            getattr(r, f"{record_part}_schema"), getattr(r, record_part)
        )
        new = {f"{record_part}_schema": schema, record_part: value}
        return replace(r, headers=r.headers + headers, **new)

    return each(change)


def _drop_headers(
    properties: DropHeadersProperties, _context: RecordTransformContext
) -> RecordTransform:
    dropped = frozenset(properties.headers)

    def change(r: ConnectRecord) -> ConnectRecord:
        remaining = tuple(header for header in r.headers if header[0] not in dropped)
        return r if len(remaining) == len(r.headers) else replace(r, headers=remaining)

    return each(change)


# The literal is parsed once: all records share its schema and its value.
def _insert_header(
    properties: InsertHeaderProperties, _context: RecordTransformContext
) -> RecordTransform:
    added = ((properties.header, *parse_literal(properties.literal)),)
    return each(lambda r: replace(r, headers=r.headers + added))


HEADERS = (
    connect_spec(
        "HeaderFrom$Key",
        "Moves or copies fields of the key to headers.",
        HeaderFromProperties,
        partial(_header_from, "key"),
    ),
    connect_spec(
        "HeaderFrom$Value",
        "Moves or copies fields of the value to headers.",
        HeaderFromProperties,
        partial(_header_from, "value"),
    ),
    connect_spec(
        "DropHeaders", "Takes headers from records.", DropHeadersProperties, _drop_headers
    ),
    connect_spec("InsertHeader", "Adds a header.", InsertHeaderProperties, _insert_header),
    connect_spec(
        "Filter",
        "Drops records: all, or those that its predicate names.",
        None,
        lambda _properties, _context: lambda _records: [],
        # Debezium's Filter has that name too and is a different transform.
        name="drop-records",
        short=False,
    ),
)
