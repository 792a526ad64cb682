"""Transforms that work on the key or the value of a record.

Kafka Connect has two classes for each, ``NAME$Key`` and ``NAME$Value``. A `Change` is their common
part: a function from schema and value of a key or value to the new schema and value.
"""

from collections.abc import Callable
from typing import Any

from pydantic import ConfigDict

from waltap.base.property import Properties, declare
from waltap.changes.mapping.connect_schema import ConnectKind, Schema
from waltap.encoders.format.record_transform import (
    ConnectRecord,
    RecordTransform,
    RecordUnfit,
    SchemaMemory,
)
from waltap.ports.specs import RecordTransformSpec
from waltap_transforms.specs import connect_spec, each
from waltap_transforms.structs import defaults_of, filled

Row = dict[str, Any]
Change = Callable[[ConnectRecord, Schema | None, Any], tuple[Schema | None, Any]]


class ConnectProperties(Properties):
    """Properties of a class of Kafka Connect, which strips the blanks around values."""

    model_config = ConfigDict(str_strip_whitespace=True)


class NullToDefault(ConnectProperties):
    """Property of every class that copies fields."""

    null_to_default: bool = declare(
        "replace.null.with.default",
        default=True,
        summary="Give a field that is null the default of its schema, where it has one.",
    )


def key_and_value(
    java: str, summary: str, properties: type[Properties], make: Callable[[Any], Change]
) -> tuple[RecordTransformSpec, RecordTransformSpec]:
    """Return the specs of ``java$Key`` and ``java$Value``.

    ``summary`` contains {record_part}, which becomes key or value.
    """
    key, value = (summary.format(record_part=record_part) for record_part in ("key", "value"))
    return (
        connect_spec(f"{java}$Key", key, properties, lambda given, _: _on_keys(make(given))),
        connect_spec(f"{java}$Value", value, properties, lambda given, _: _on_values(make(given))),
    )


# Both functions call the constructor instead of `replace`: they run for every record.
def _on_keys(change: Change) -> RecordTransform:
    def changed(r: ConnectRecord) -> ConnectRecord:
        schema, key = change(r, r.key_schema, r.key)
        # An unchanged record is passed on as it is, without a copy.
        if key is r.key and schema is r.key_schema:
            return r
        return ConnectRecord(
            r.topic, schema, key, r.value_schema, r.value, r.headers, r.partition, r.timestamp
        )

    return each(changed)


def _on_values(change: Change) -> RecordTransform:
    def changed(r: ConnectRecord) -> ConnectRecord:
        schema, value = change(r, r.value_schema, r.value)
        if value is r.value and schema is r.value_schema:
            return r
        return ConnectRecord(
            r.topic, r.key_schema, r.key, schema, value, r.headers, r.partition, r.timestamp
        )

    return each(changed)


def by_schema(
    purpose: str,
    made: Callable[[Schema], tuple[Schema, Callable[[Row, ConnectRecord], Row]]],
    plain: Callable[[Row, ConnectRecord], Row],
) -> Change:
    """Return the change of structs and maps; null stays null.

    ``made`` returns the new schema and the conversion of rows, once for each schema. ``plain`` converts
    maps without schema. ``purpose`` completes messages.
    """
    memory = SchemaMemory(made)

    def change(record: ConnectRecord, schema: Schema | None, value: Any) -> tuple[Any, Any]:
        # A tombstone must stay one.
        if value is None:
            return schema, value
        if schema is None:
            return None, plain(map_of(value, purpose), record)
        struct = struct_of(schema, value, purpose)
        updated, convert = memory.of(schema)
        return updated, convert(struct, record)

    return change


def struct_of(schema: Schema, value: Any, purpose: str) -> Row:
    """Return ``value`` after checking that it is a struct.

    ``purpose`` completes the message. Raises: RecordUnfit.
    """
    if value.__class__ is dict and schema.kind is ConnectKind.STRUCT:
        return value
    raise RecordUnfit(f"it needs a struct to {purpose}, and found {_found(schema, value)}")


def map_of(value: Any, purpose: str) -> Row:
    """Return a value without schema after checking that it is a map.

    ``purpose`` completes the message. Raises: RecordUnfit.
    """
    if value.__class__ is dict:
        return value
    raise RecordUnfit(f"it needs a map to {purpose}, and found {_found(None, value)}")


def _found(schema: Schema | None, value: Any) -> str:
    # The usual cause is a tombstone, so the message names the remedy.
    if value is None:
        return "null: a predicate RecordIsTombstone with negate=true keeps tombstones from it"
    return type(value).__name__ if schema is None else schema.kind.value


def copied(schema: Schema, *, with_defaults: bool) -> Callable[[Row], Row]:
    """Return the function that copies rows of ``schema``.

    ``with_defaults`` replaces null by the default of its field.
    """
    defaults = defaults_of(schema) if with_defaults else ()
    # Without defaults a plain copy is faster.
    return (lambda row: filled(row, defaults)) if defaults else dict
