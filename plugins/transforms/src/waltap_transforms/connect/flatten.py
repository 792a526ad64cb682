"""Flatten: put the fields of nested structs into one struct."""

from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from waltap.base.property import Properties, declare
from waltap.changes.mapping.connect_schema import ConnectKind, Field, Schema
from waltap.encoders.format.record_transform import ConnectRecord, RecordUnfit, SchemaMemory
from waltap_transforms.connect.sides import Change, Row, map_of, sides, struct_of
from waltap_transforms.structs import required_struct

__all__ = ["FLATTEN"]

PURPOSE = "flatten"

# (name, steps to the value, default that replaces null).
Leaf = tuple[str, tuple[str, ...], Any]


class FlattenProperties(Properties):
    """Delimiter between the joined names of fields."""

    delimiter: str = declare(
        "delimiter",
        default=".",
        summary="What stands between the names of a field and of its struct.",
    )


def _change(properties: FlattenProperties) -> Change:
    delimiter = properties.delimiter

    def made(schema: Schema) -> tuple[Schema, list[Leaf]]:
        if schema.kind is not ConnectKind.STRUCT:
            raise RecordUnfit(f"it needs a struct to {PURPOSE}, and found {schema.kind.value}")
        leaves: list[Leaf] = []
        default = schema.default if isinstance(schema.default, dict) else None
        fields = _fields(schema, (), delimiter, leaves, optional=schema.optional, given=default)
        return required_struct(schema, fields), leaves

    memory = SchemaMemory(made)

    def change(_record: ConnectRecord, schema: Schema | None, value: Any) -> tuple[Any, Any]:
        if value is None:
            return schema, value
        if schema is None:
            row: Row = {}
            _flatten_map(map_of(value, PURPOSE), "", delimiter, row)
            return None, row
        struct = struct_of(schema, value, PURPOSE)
        updated, leaves = memory.of(schema)
        return updated, {name: _at(struct, steps, default) for name, steps, default in leaves}

    return change


def _at(row: Any, steps: tuple[str, ...], default: Any) -> Any:
    """Return the value at ``steps``, or null below a null struct."""
    *parents, last = steps
    for step in parents:
        row = row.get(step)
        if row is None:
            return None
    # The default of a leaf applies only within a struct that is present.
    value = row.get(last)
    return default if value is None else value


def _fields(
    schema: Schema,
    above: tuple[str, ...],
    delimiter: str,
    leaves: list[Leaf],
    *,
    optional: bool,
    given: dict[str, Any] | None,
) -> Iterator[Field]:
    """Yield the flat fields of ``schema`` and fill ``leaves``.

    ``given`` is the default of ``schema``; fields without a default take theirs from it.
    """
    for field in schema.fields:
        steps = (*above, field.name)
        name, own = delimiter.join(steps), field.schema
        # A required field of an optional struct has no value when the struct is null.
        may_lack = optional or own.optional
        default = own.default
        if default is None and given is not None:
            default = given.get(field.name)
        if own.kind is ConnectKind.MAP:
            # The keys of a map differ from record to record, so they cannot become fields of a schema.
            raise RecordUnfit(f"the field {name} is a map, which cannot be flattened")
        if own.kind is ConnectKind.STRUCT:
            inner = default if isinstance(default, dict) else None
            yield from _fields(own, steps, delimiter, leaves, optional=may_lack, given=inner)
            continue
        leaves.append((name, steps, own.default))
        yield Field(name, replace(own, optional=may_lack, default=default))


def _flatten_map(found: Row, prefix: str, delimiter: str, out: Row) -> None:
    for key, value in found.items():
        name = f"{prefix}{delimiter}{key}" if prefix else key
        if value.__class__ is dict:
            _flatten_map(value, name, delimiter, out)
        else:
            out[name] = value


FLATTEN = sides(
    "Flatten",
    "Puts the fields of structs within the {side} side by side.",
    FlattenProperties,
    _change,
)
