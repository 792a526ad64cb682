"""ExtractField and HoistField: unwrap a field, or wrap a value in one."""

from typing import Any, Literal, Self

from pydantic import model_validator

from waltap.config.property import Properties, declare
from waltap.format.connect_record import ConnectRecord
from waltap.format.record_transform import RecordUnfit
from waltap.format.schema_memory import SchemaMemory
from waltap.mapping.connect_schema import ConnectKind, Field, Schema
from waltap_transforms.connect.field_path import (
    field_steps,
    found_field,
    found_in_map,
    found_in_struct,
)
from waltap_transforms.connect.sides import Change, NullToDefault, map_of, sides, struct_of

__all__ = ["NESTED_FIELD"]

PURPOSE = "take a field out of"


class ExtractFieldProperties(NullToDefault):
    """Field that replaces the whole."""

    field: str = declare("field", summary="Name of the field; with V2, the path to it.")
    version: Literal["V1", "V2"] = declare(
        "field.syntax.version",
        default="V1",
        summary="V1: field is a name. V2: steps into structs with dots between them, in backticks where a "
        "name has dots.",
    )

    @model_validator(mode="after")
    def _readable(self) -> Self:
        # A bad path fails when the profile is read, not at the first record.
        field_steps(self.field, self.version)
        return self


class HoistFieldProperties(Properties):
    """Field that contains the whole."""

    field: str = declare("field", summary="Name of the only field of the struct that is made.")


def _extracted(properties: ExtractFieldProperties) -> Change:
    steps = field_steps(properties.field, properties.version)

    def made(schema: Schema) -> Field:
        found = found_field(schema, steps)
        if found is None:
            raise RecordUnfit(f"there is no field {properties.field}")
        return found

    # The lookup of a path depends only on the schema, so it is done once for each schema.
    memory = SchemaMemory(made)

    def change(_record: ConnectRecord, schema: Schema | None, value: Any) -> tuple[Any, Any]:
        if schema is None:
            return None, None if value is None else found_in_map(map_of(value, PURPOSE), steps)
        # Null has no fields to check, but the schema of the field is still needed.
        if value is not None:
            struct_of(schema, value, PURPOSE)
        field = memory.of(schema)
        with_default = properties.null_to_default
        return field.schema, found_in_struct(schema, value, steps, with_default=with_default)

    return change


def _hoisted(properties: HoistFieldProperties) -> Change:
    name = properties.field
    # Encoders find a schema by its object, so one source schema must always give the same object.
    memory = SchemaMemory(
        lambda schema: Schema(kind=ConnectKind.STRUCT, fields=(Field(name, schema),))
    )

    def change(_record: ConnectRecord, schema: Schema | None, value: Any) -> tuple[Any, Any]:
        return None if schema is None else memory.of(schema), {name: value}

    return change


NESTED_FIELD = (
    *sides(
        "ExtractField",
        "Puts a field of the {side} in the place of the {side}.",
        ExtractFieldProperties,
        _extracted,
    ),
    *sides(
        "HoistField",
        "Makes the {side} the only field of a struct.",
        HoistFieldProperties,
        _hoisted,
    ),
)
