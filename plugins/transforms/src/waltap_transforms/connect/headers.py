"""Transforms of headers: HeaderFrom, DropHeaders and InsertHeader.

Filter, which drops records, is here too.
"""

from typing import Any, Literal, Self

from msgspec.structs import replace
from pydantic import field_validator, model_validator

from waltap.base.property import CommaList, Properties, declare
from waltap.changes.mapping.connect_schema import Schema
from waltap.encoders.format.record_transform import (
    ConnectHeader,
    ConnectRecord,
    RecordTransform,
    RecordTransformContext,
    RecordUnfit,
    SchemaMemory,
)
from waltap_transforms.connect.sides import NullToDefault, Row, map_of, struct_of
from waltap_transforms.java.literals import parse_literal
from waltap_transforms.specs import connect_spec, each
from waltap_transforms.structs import required_struct

__all__ = ["HEADERS"]


class HeaderFromProperties(NullToDefault):
    """Fields to move or copy, and their headers."""

    fields: CommaList = declare("fields", summary="Fields that become headers.", min_length=1)
    headers: CommaList = declare(
        "headers", summary="Names of the headers, in the order of the fields.", min_length=1
    )
    operation: Literal["move", "copy"] = declare(
        "operation", summary="Whether the fields are taken out (move) or stay (copy)."
    )

    @model_validator(mode="after")
    def _as_many(self) -> Self:
        if len(self.fields) != len(self.headers):
            raise ValueError("fields and headers must have the same number of entries")
        return self


class DropHeadersProperties(Properties):
    """Headers to drop."""

    headers: CommaList = declare("headers", summary="Names of the headers.", min_length=1)


class InsertHeaderProperties(Properties):
    """Header to add, and its value."""

    header: str = declare("header", summary="Name of the header.")
    literal: str = declare(
        "value.literal",
        summary="Its value: a number, true, false, null, a date or time of ISO 8601, [ ] or { } of those, "
        "else a text.",
    )

    @field_validator("literal")
    @classmethod
    def _has_schema(cls, value: str) -> str:
        # A bad literal fails when the profile is read, not at the first record.
        parse_literal(value)
        return value


class _HeaderFrom:
    """Read headers from schema and value of one side."""

    def __init__(self, properties: HeaderFromProperties) -> None:
        self._fields, self._headers = properties.fields, properties.headers
        self._moves, self._defaults = properties.operation == "move", properties.null_to_default
        self._purpose = f"{properties.operation} fields to headers from"
        # Encoders find a schema by its object, so one source schema must always give the same object.
        self._memory = SchemaMemory(self._made)

    def _made(self, schema: Schema) -> tuple[Schema, list[tuple[str, Any]], list[Schema]]:
        """Return the new schema, the fields that stay, and the header schemas.

        The new schema lacks the moved fields. Each field that stays has its default beside it.
        """
        known = {field.name: field.schema for field in schema.fields}
        for name in self._fields:
            if name not in known:
                raise RecordUnfit(f"there is no field {name}")
        schemas = [known[name] for name in self._fields]
        if not self._moves:
            return schema, [], schemas  # a copy shares the row, so no field is read again
        left = [field for field in schema.fields if field.name not in self._fields]
        stay = [(f.name, f.schema.default if self._defaults else None) for f in left]
        return required_struct(schema, left), stay, schemas

    def __call__(
        self, schema: Schema | None, value: Any
    ) -> tuple[Schema | None, Any, tuple[ConnectHeader, ...]]:
        """Return the new schema, the new value, and the headers to add."""
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
        updated, stay, schemas = self._memory.of(schema)
        row = struct
        if self._moves:
            row = {name: _or(struct, name, default) for name, default in stay}
        taken = tuple(
            (name, of, _or(struct, field, of.default if self._defaults else None))
            for field, name, of in zip(self._fields, self._headers, schemas, strict=True)
        )
        return updated, row, taken


def _or(row: Row, name: str, default: Any) -> Any:
    value = row.get(name)
    return default if value is None else value


def _header_from_key(
    properties: HeaderFromProperties, _context: RecordTransformContext
) -> RecordTransform:
    taken = _HeaderFrom(properties)

    def change(r: ConnectRecord) -> ConnectRecord:
        schema, key, headers = taken(r.key_schema, r.key)
        return replace(r, key_schema=schema, key=key, headers=r.headers + headers)

    return each(change)


def _header_from_value(
    properties: HeaderFromProperties, _context: RecordTransformContext
) -> RecordTransform:
    taken = _HeaderFrom(properties)

    def change(r: ConnectRecord) -> ConnectRecord:
        schema, value, headers = taken(r.value_schema, r.value)
        return replace(r, value_schema=schema, value=value, headers=r.headers + headers)

    return each(change)


def _drop_headers(
    properties: DropHeadersProperties, _context: RecordTransformContext
) -> RecordTransform:
    dropped = frozenset(properties.headers)

    def change(r: ConnectRecord) -> ConnectRecord:
        left = tuple(header for header in r.headers if header[0] not in dropped)
        return r if len(left) == len(r.headers) else replace(r, headers=left)

    return each(change)


# The literal is parsed once: all records share its schema and its value.
def _insert_header(
    properties: InsertHeaderProperties, _context: RecordTransformContext
) -> RecordTransform:
    added = ((properties.header, *parse_literal(properties.literal)),)
    return each(lambda r: replace(r, headers=r.headers + added))


def _drop(_properties: None, _context: RecordTransformContext) -> RecordTransform:
    return lambda _records: []


HEADERS = (
    connect_spec(
        "HeaderFrom$Key",
        "Moves or copies fields of the key to headers.",
        HeaderFromProperties,
        _header_from_key,
    ),
    connect_spec(
        "HeaderFrom$Value",
        "Moves or copies fields of the value to headers.",
        HeaderFromProperties,
        _header_from_value,
    ),
    connect_spec(
        "DropHeaders", "Takes headers from records.", DropHeadersProperties, _drop_headers
    ),
    connect_spec("InsertHeader", "Adds a header.", InsertHeaderProperties, _insert_header),
    connect_spec(
        "Filter",
        "Drops records: all, or those that its predicate names.",
        None,
        _drop,
        # Debezium's Filter has that name too and is a different transform.
        name="drop-records",
    ),
)
