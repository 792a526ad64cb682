"""Structs and their schemas, as in Kafka Connect's API.

A struct is a dict; a missing field is null. ``Struct.get`` returns the default of a field for null, and
``getWithoutDefault`` returns null. Debezium's transforms use either, with different records as a result,
so this module has both.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from waltap.changes.mapping.connect_schema import ConnectKind, Field, Schema
from waltap.encoders.format.record_transform import ConnectRecord, RecordUnfit

ENVELOPE = ".Envelope"


def is_envelope(record: ConnectRecord) -> bool:
    """Return whether the value is a change event."""
    # Debezium decides by the name of the schema alone.
    schema = record.value_schema
    return schema is not None and schema.name is not None and schema.name.endswith(ENVELOPE)


def field_of(schema: Schema, name: str) -> Field | None:
    """Return the field ``name`` of a struct schema, None if missing."""
    return next((field for field in schema.fields if field.name == name), None)


def required_struct(schema: Schema, fields: Iterable[Field]) -> Schema:
    """Return a required struct schema with other fields.

    It keeps name, version, documentation and parameters of ``schema``. Raises: RecordUnfit for two fields
    with the same name.
    """
    chosen = tuple(fields)
    without_repeats(schema.name, chosen)
    # Connect's transforms copy schemas without `optional` and `default`.
    return Schema(
        kind=ConnectKind.STRUCT,
        name=schema.name,
        version=schema.version,
        doc=schema.doc,
        parameters=schema.parameters,
        fields=chosen,
    )


def without_repeats(name: str | None, fields: Sequence[Field]) -> None:
    """Check that no two fields of a struct have the same name.

    ``name`` is the name of the struct. Raises: RecordUnfit.
    """
    names = [field.name for field in fields]
    if len(set(names)) < len(names):
        twice = sorted({each for each in names if names.count(each) > 1})
        raise RecordUnfit(f"{name or 'the struct'} would have two fields {', '.join(twice)}")


# (field, default) of fields.
Defaults = tuple[tuple[str, object], ...]


def defaults_of(schema: Schema) -> Defaults:
    """Return (field, default) of the fields with a default."""
    return tuple(
        (field.name, field.schema.default)
        for field in schema.fields
        if field.schema.default is not None
    )


def filled(value: Mapping[str, Any], defaults: Iterable[tuple[str, object]]) -> dict[str, Any]:
    """Return a copy of ``value`` with defaults instead of nulls.

    ``defaults`` is a result of `defaults_of`.
    """
    copy = dict(value)
    for name, default in defaults:
        if copy.get(name) is None:
            copy[name] = default
    return copy


def projection(
    columns: Iterable[tuple[str, str, object]],
) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Return the function that makes rows of (new name, old name, default for null)."""
    columns = tuple(columns)

    def row_of(row: Mapping[str, Any]) -> dict[str, Any]:
        made = {}
        for new, old, default in columns:
            value = row.get(old)
            made[new] = default if value is None else value
        return made

    return row_of


def converted(
    row: Mapping[str, Any], parts: Iterable[tuple[str, object, Callable[[Any], Any] | None]]
) -> dict[str, Any]:
    """Return a copy of ``row`` with the fields of ``parts`` converted.

    A part is a name, the default for null, and the conversion; null without a default stays.
    """
    made = dict(row)
    for name, default, convert in parts:
        value = made.get(name)
        # Debezium reads fields by Struct.get, which gives the default for null.
        value = default if value is None else value
        if value is not None:
            made[name] = value if convert is None else convert(value)
    return made


def value_of(field: Field, struct: Mapping[str, Any]) -> Any:
    """Return a field's value or the default for null, as ``Struct.get``."""
    value = struct.get(field.name)
    return field.schema.default if value is None else value


def member(schema: Schema, name: str, what: str, kind: ConnectKind | None = None) -> Field:
    """Return the field ``name`` of ``schema``.

    ``what`` is the property or purpose in messages. Raises: RecordUnfit if the field is missing or is not
    of ``kind``.
    """
    field = field_of(schema, name)
    if field is None:
        raise RecordUnfit(f"{what}: {schema.name} has no field {name}")
    if kind is not None and field.schema.kind is not kind:
        raise RecordUnfit(
            f"{what}: {name} of {schema.name} is {field.schema.kind.value}, not {kind.value}"
        )
    return field
