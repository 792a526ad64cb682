"""ValueToKey: build the key from fields of the value."""

from typing import Any

from waltap.base.property import CommaList, declare
from waltap.changes.mapping.connect_schema import ConnectKind, Field, Schema
from waltap.encoders.format.record_transform import (
    ConnectRecord,
    RecordTransform,
    RecordTransformContext,
    RecordUnfit,
    SchemaMemory,
)
from waltap_transforms.connect.sides import NullToDefault, map_of, struct_of
from waltap_transforms.specs import connect_spec

__all__ = ["VALUE_TO_KEY"]

PURPOSE = "copy fields from"


class ValueToKeyProperties(NullToDefault):
    """Fields of the key."""

    fields: CommaList = declare(
        "fields", summary="Fields of the value that make the key, in order.", min_length=1
    )


def value_to_key(
    properties: ValueToKeyProperties, _context: RecordTransformContext
) -> RecordTransform:
    """Return the transform that builds keys from values."""
    names = properties.fields

    def made(schema: Schema) -> tuple[Schema, list[tuple[str, Any]]]:
        known = {field.name: field.schema for field in schema.fields}
        for name in names:
            if name not in known:
                raise RecordUnfit(f"the value has no field {name}")
        key = Schema(
            kind=ConnectKind.STRUCT, fields=tuple(Field(name, known[name]) for name in names)
        )
        # The default is beside each name, so that a record needs no look at the schema.
        given = properties.null_to_default
        return key, [(name, known[name].default if given else None) for name in names]

    # Encoders find a schema by its object, so one source schema must always give the same object.
    memory = SchemaMemory(made)

    def keyed(r: ConnectRecord) -> ConnectRecord:
        schema, key = None, dict[str, Any]()
        if r.value_schema is None:
            row = map_of(r.value, PURPOSE)
            key = {name: row.get(name) for name in names}
        else:
            row = struct_of(r.value_schema, r.value, PURPOSE)
            schema, places = memory.of(r.value_schema)
            for name, default in places:
                value = row.get(name)
                key[name] = default if value is None else value
        return ConnectRecord(
            r.topic, schema, key, r.value_schema, r.value, r.headers, r.partition, r.timestamp
        )

    return lambda records: [keyed(record) for record in records]


VALUE_TO_KEY = (
    connect_spec(
        "ValueToKey",
        "Makes the key of fields of the value.",
        ValueToKeyProperties,
        value_to_key,
    ),
)
