"""SetSchemaMetadata: set name and version of a schema."""

from typing import Any, Self

from msgspec.structs import replace
from pydantic import model_validator

from waltap.base.property import declare
from waltap.changes.mapping.connect_schema import ConnectKind, Schema
from waltap.encoders.format.record_transform import ConnectRecord, RecordUnfit, SchemaMemory
from waltap_transforms.connect.sides import Change, NullToDefault, copied, sides

__all__ = ["SCHEMA_METADATA"]


class SetSchemaMetadataProperties(NullToDefault):
    """Name and version of the schema."""

    name: str | None = declare("schema.name", default=None, summary="Name of the schema.")
    version: int | None = declare("schema.version", default=None, summary="Version of the schema.")

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.name is None and self.version is None:
            raise ValueError("neither schema.name nor schema.version is given")
        return self


def _change(properties: SetSchemaMetadataProperties) -> Change:
    def made(schema: Schema) -> tuple[Schema, Any]:
        name = schema.name if properties.name is None else properties.name
        version = schema.version if properties.version is None else properties.version
        renamed = replace(schema, name=name, version=version)
        if schema.kind is not ConnectKind.STRUCT:
            raise RecordUnfit(f"it names schemas of structs, and found {schema.kind.value}")
        return renamed, copied(schema, with_defaults=properties.null_to_default)

    # Encoders find a schema by its object, so one source schema must always give the same object.
    memory = SchemaMemory(made)

    def change(_record: ConnectRecord, schema: Schema | None, value: Any) -> tuple[Any, Any]:
        if schema is None:
            # A tombstone has no schema and needs none.
            if value is None:
                return schema, value
            raise RecordUnfit("it needs a schema to name, and there is none")
        renamed, copy = memory.of(schema)
        return renamed, value if value is None else copy(value)

    return change


SCHEMA_METADATA = sides(
    "SetSchemaMetadata",
    "Gives the schema of the {side} a name or version.",
    SetSchemaMetadataProperties,
    _change,
)
