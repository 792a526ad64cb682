"""ExtractField and HoistField: unwrap a field, or wrap a value in one."""

from typing import Any, Literal, Self

from pydantic import model_validator

from waltap.base.property import Properties, declare
from waltap.changes.mapping.connect_schema import ConnectKind, Field, Schema
from waltap.encoders.format.record_transform import ConnectRecord, RecordUnfit, SchemaMemory
from waltap_transforms.connect.sides import Change, NullToDefault, map_of, sides, struct_of

__all__ = [
    "NESTED_FIELD",
    "field_steps",
    "found_field",
    "found_in_map",
    "found_in_struct",
]


# Paths to fields in the syntax of ``field.syntax.version``.
#
# V1 is the name of a field. V2 has steps with dots between them.


def field_steps(path: str, version: str) -> tuple[str, ...]:
    """Split ``path`` into its steps.

    In V2, ``a.b`` has two steps, and ```a.b`.c`` has two as well. Raises: ValueError for a backtick
    that is not closed.
    """
    if version == "V1":
        return (path,)
    steps: list[str] = []
    at = 0
    while at < len(path):
        if path[at] == "`":
            step, at = _quoted(path, at)
        else:
            dot = path.find(".", at)
            end = len(path) if dot < 0 else dot
            step, at = path[at:end], end + 1
        steps.append(step)
    # The loop ends at the last dot; Connect reads an empty name after it.
    if path.endswith("."):
        steps.append("")
    if not steps:
        raise ValueError("the path of the field is empty")
    return tuple(steps)


def _quoted(path: str, at: int) -> tuple[str, int]:
    """Return the step in backticks at ``at``, and the start of the next step."""
    step, start, look = "", at + 1, at + 1
    # A backtick closes the step only before a dot or at the end of the path, so that names may have
    # backticks. A backslash before it escapes one that would close the step.
    while True:
        look = path.find("`", look)
        if look < 0 or (look == len(path) - 1 and path[look - 1] == "\\"):
            raise ValueError(
                f"the backtick at {at} of {path!r} has no other one; a backslash before it escapes it"
            )
        if look == len(path) - 1:
            return step + path[start:look], look + 1
        if path[look + 1] != ".":
            look += 1
        elif path[look - 1] == "\\":
            step += path[start : look - 1] + "`"
            look += 1
            start = look
        else:
            return step + path[start:look], look + 2


def found_field(schema: Schema, steps: tuple[str, ...]) -> Field | None:
    """Return the field at ``steps``, None if it is missing.

    Raises: RecordUnfit for a step into a field that is not a struct.
    """
    found = None
    for step in steps:
        if schema.kind is not ConnectKind.STRUCT:
            raise RecordUnfit(f"fields are looked for in a struct, and found {schema.kind.value}")
        found = next((field for field in schema.fields if field.name == step), None)
        if found is None:
            return None
        schema = found.schema
    return found


def found_in_struct(schema: Schema, row: Any, steps: tuple[str, ...], *, with_default: bool) -> Any:
    """Return the value at ``steps``.

    It is null if a struct on the path is null and has no default.
    """
    for number, step in enumerate(steps, 1):
        if row is None:
            return None
        field = next(field for field in schema.fields if field.name == step)
        row, schema = row.get(step), field.schema
        # A null struct on the path takes its default even if ``with_default`` is false: Connect's
        # property concerns only the last field.
        if row is None and (with_default or number < len(steps)):
            row = schema.default
    return row


def found_in_map(value: dict[str, Any], steps: tuple[str, ...]) -> Any:
    """Return the value at ``steps`` of a map without schema."""
    found: Any = value
    for step in steps:
        if found is None:
            return None
        if found.__class__ is not dict:
            raise RecordUnfit(f"fields are looked for in a map, and found {type(found).__name__}")
        found = found.get(step)
    return found


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
