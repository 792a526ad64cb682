"""Structs and their schemas, as Kafka Connect's API treats them.

A struct is a dict, and what it lacks is null. ``Struct.get`` gives a field's default for null, and
``getWithoutDefault`` does not: which of them a transform uses shows in its records, so both are here.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from waltap.format.connect_record import ConnectRecord
from waltap.format.record_transform import RecordUnfit
from waltap.mapping.connect_schema import ConnectKind, Field, Schema

__all__ = [
    "StructMember",
    "defaults_of",
    "field_of",
    "filled",
    "is_envelope",
    "member",
    "required_struct",
    "without_repeats",
]

ENVELOPE = ".Envelope"


def is_envelope(record: ConnectRecord) -> bool:
    """Tell whether the value is a change event, by the name of its schema, as Debezium tells."""
    schema = record.value_schema
    return schema is not None and schema.name is not None and schema.name.endswith(ENVELOPE)


def field_of(schema: Schema, name: str) -> Field | None:
    """Return the field ``name`` of a struct's schema."""
    return next((field for field in schema.fields if field.name == name), None)


def required_struct(schema: Schema, fields: Iterable[Field]) -> Schema:
    """Return a struct schema with ``fields`` and the name, version, documentation and parameters of
    ``schema``: required and without a default, as Connect's transforms copy schemas.

    Raises: RecordUnfit for two fields of one name.
    """
    chosen = tuple(fields)
    without_repeats(schema.name, chosen)
    return Schema(
        kind=ConnectKind.STRUCT,
        name=schema.name,
        version=schema.version,
        doc=schema.doc,
        parameters=schema.parameters,
        fields=chosen,
    )


def without_repeats(name: str | None, fields: Sequence[Field]) -> None:
    """Raises: RecordUnfit where a struct ``name`` would have two fields of one name."""
    names = [field.name for field in fields]
    if len(set(names)) < len(names):
        twice = next(each for each in names if names.count(each) > 1)
        raise RecordUnfit(f"{name} would have two fields {twice}")


def defaults_of(schema: Schema) -> tuple[tuple[str, object], ...]:
    """Return (field, default) of the fields that have one."""
    return tuple(
        (field.name, field.schema.default)
        for field in schema.fields
        if field.schema.default is not None
    )


def filled(value: Mapping[str, Any], defaults: Iterable[tuple[str, object]]) -> dict[str, Any]:
    """Return a copy of ``value`` with ``defaults`` (as `defaults_of` gives them) in the place of nulls."""
    copy = dict(value)
    for name, default in defaults:
        if copy.get(name) is None:
            copy[name] = default
    return copy


class StructMember(msgspec.Struct, frozen=True):
    """A field of a struct: ``of`` reads it with its default for null, ``raw`` without."""

    name: str
    schema: Schema

    def of(self, struct: Mapping[str, Any]) -> Any:
        """Return its value in ``struct``, the default for null, as ``Struct.get`` does."""
        value = struct.get(self.name)
        return self.schema.default if value is None else value

    def raw(self, struct: Mapping[str, Any]) -> Any:
        """Return its value in ``struct``, as ``Struct.getString`` and its like do."""
        return struct.get(self.name)


def member(schema: Schema, name: str, what: str, kind: ConnectKind | None = None) -> StructMember:
    """Return the field ``name`` of ``schema``; ``what`` is what it is looked for.

    Raises: RecordUnfit where there is no such field, or one that is not ``kind``.
    """
    field = field_of(schema, name)
    if field is None:
        raise RecordUnfit(f"{what}: {schema.name} has no field {name}")
    if kind is not None and field.schema.kind is not kind:
        raise RecordUnfit(
            f"{what}: {name} of {schema.name} is {field.schema.kind.value}, not {kind.value}"
        )
    return StructMember(name, field.schema)
