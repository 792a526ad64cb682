"""InsertField: add topic, partition, timestamp or a text as fields."""

from dataclasses import dataclass
from typing import Any, Self

from pydantic import field_validator, model_validator

from waltap.base.property import declare
from waltap.changes.mapping.connect_schema import ConnectKind, Field, Schema
from waltap.encoders.format.record_transform import ConnectRecord, SchemaMemory
from waltap_transforms.connect.sides import (
    Change,
    NullToDefault,
    copied,
    map_of,
    sides,
    struct_of,
)
from waltap_transforms.java.dates import TIMESTAMP
from waltap_transforms.structs import required_struct

__all__ = ["INSERT_FIELD"]

PURPOSE = "insert fields into"


class InsertFieldProperties(NullToDefault):
    """Fields to add; a name may end in ! (required) or ? (optional, the default)."""

    topic: str | None = declare("topic.field", default=None, summary="Field for the topic.")
    partition: str | None = declare(
        "partition.field", default=None, summary="Field for the partition."
    )
    offset: str | None = declare(
        "offset.field",
        default=None,
        summary="Field for the offset, which records have only behind Kafka: refused.",
        advanced=True,
    )
    timestamp: str | None = declare(
        "timestamp.field",
        default=None,
        summary="Field for the record's timestamp, null where the record has none.",
    )
    static: str | None = declare("static.field", default=None, summary="Field for static.value.")
    static_value: str | None = declare(
        "static.value", default=None, summary="Text that static.field gets."
    )

    @field_validator("offset")
    @classmethod
    def _none(cls, value: str | None) -> str | None:
        # Kafka gives a record its offset only after the transforms.
        if value is not None:
            raise ValueError("records have no offset before they are in Kafka")
        return value

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if all(each is None for each in (self.topic, self.partition, self.timestamp, self.static)):
            raise ValueError("no field to insert is named")
        if self.static is not None and self.static_value is None:
            raise ValueError("static.value is missing: static.field needs it")
        return self


@dataclass(frozen=True, slots=True)
class _InsertedField:
    """Describe one field to insert, and its source."""

    name: str
    optional: bool
    # topic, partition, timestamp or static.
    what: str

    def field(self) -> Field:
        kind, name, version = {
            "topic": (ConnectKind.STRING, None, None),
            "partition": (ConnectKind.INT32, None, None),
            "timestamp": (ConnectKind.INT64, TIMESTAMP, 1),
            "static": (ConnectKind.STRING, None, None),
        }[self.what]
        return Field(
            self.name, Schema(kind=kind, optional=self.optional, name=name, version=version)
        )


def _change(properties: InsertFieldProperties) -> Change:
    inserted = [
        _InsertedField(name[:-1] if name[-1:] in ("?", "!") else name, name[-1:] != "!", what)
        for what in ("topic", "partition", "timestamp", "static")
        if (name := getattr(properties, what)) is not None
    ]
    static = properties.static_value

    def made(schema: Schema) -> tuple[Schema, Any]:
        # `required_struct` refuses a new field that has the name of an existing one.
        added = required_struct(schema, (*schema.fields, *(each.field() for each in inserted)))
        return added, copied(schema, with_defaults=properties.null_to_default)

    # Encoders find a schema by its object, so one source schema must always give the same object.
    memory = SchemaMemory(made)

    def fill(row: dict[str, Any], record: ConnectRecord) -> None:
        values = {
            "topic": record.topic,
            "partition": record.partition,
            "timestamp": record.timestamp,
            "static": static,
        }
        for each in inserted:
            value = values[each.what]
            # A missing key is null, so a null source needs no entry.
            if value is not None:
                row[each.name] = value

    def change(record: ConnectRecord, schema: Schema | None, value: Any) -> tuple[Any, Any]:
        # A tombstone must stay one.
        if value is None:
            return schema, value
        if schema is None:
            row = dict(map_of(value, PURPOSE))
            fill(row, record)
            return None, row
        struct = struct_of(schema, value, PURPOSE)
        updated, copy = memory.of(schema)
        row = copy(struct)
        fill(row, record)
        return updated, row

    return change


INSERT_FIELD = sides(
    "InsertField",
    "Adds topic, partition, timestamp or a text to the {side} as fields.",
    InsertFieldProperties,
    _change,
)
