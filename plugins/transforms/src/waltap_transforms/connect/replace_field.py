"""ReplaceField: drop or rename fields."""

from typing import Any, Self

from pydantic import model_validator

from waltap.base.property import CommaList, declare
from waltap.changes.mapping.connect_schema import Field, Schema
from waltap.encoders.format.record_transform import ConnectRecord, RecordUnfit, SchemaMemory
from waltap_transforms.connect.sides import (
    Change,
    NullToDefault,
    map_of,
    sides,
    struct_of,
)
from waltap_transforms.structs import required_struct

__all__ = ["REPLACE_FIELD"]

PURPOSE = "leave fields out of or rename them in"
IGNORED = "(Kafka Connect 4 ignores the old name)"


class ReplaceFieldProperties(NullToDefault):
    """Fields to keep, and their new names."""

    exclude: CommaList = declare(
        "exclude",
        default=(),
        deprecated={"blacklist": f"exclude {IGNORED}"},
        summary="Fields that are left out; this goes before include.",
    )
    include: CommaList = declare(
        "include",
        default=(),
        deprecated={"whitelist": f"include {IGNORED}"},
        summary="Fields that stay; without any, all.",
    )
    renames: CommaList = declare(
        "renames",
        default=(),
        summary="Fields that get another name, as old:new.",
        examples=("id:customer_id",),
    )

    @model_validator(mode="after")
    def _readable(self) -> Self:
        self.pairs()
        return self

    def pairs(self) -> dict[str, str]:
        """Return the new name of each renamed field.

        Raises: ValueError for an entry that is not ``old:new``.
        """
        found = {}
        for entry in self.renames:
            old, colon, new = entry.partition(":")
            if not (old and colon and new) or ":" in new:
                raise ValueError(f"renames: {entry!r} is not old:new")
            found[old] = new
        return found


def _change(properties: ReplaceFieldProperties) -> Change:
    exclude, include = frozenset(properties.exclude), frozenset(properties.include)
    renames = properties.pairs()
    olds = {new: old for old, new in renames.items()}

    def stays(name: str) -> bool:
        return name not in exclude and (not include or name in include)

    def made(schema: Schema) -> tuple[Schema, list[tuple[str, str, Any]]]:
        kept = [
            Field(renames.get(field.name, field.name), field.schema)
            for field in schema.fields
            if stays(field.name)
        ]
        updated = required_struct(schema, kept)
        known = {field.name: field.schema for field in schema.fields}
        places = []
        for field in kept:
            old = olds.get(field.name, field.name)
            # Connect reads a new field by the reverse of `renames`. If a field already has a new name of
            # another one, it would read the wrong value or type.
            if known.get(old) != field.schema:
                raise RecordUnfit(f"the field {field.name} would stay, and be {old} as well")
            default = known[old].default if properties.null_to_default else None
            places.append((field.name, old, default))
        return updated, places

    # Encoders find a schema by its object, so one source schema must always give the same object.
    memory = SchemaMemory(made)

    def change(_record: ConnectRecord, schema: Schema | None, value: Any) -> tuple[Any, Any]:
        # A tombstone must stay one.
        if value is None:
            return schema, value
        if schema is None:
            found = map_of(value, PURPOSE)
            return None, {renames.get(k, k): v for k, v in found.items() if stays(k)}
        struct = struct_of(schema, value, PURPOSE)
        updated, places = memory.of(schema)
        row = {}
        for new, old, default in places:
            field = struct.get(old)
            row[new] = default if field is None else field
        return updated, row

    return change


REPLACE_FIELD = sides(
    "ReplaceField",
    "Leaves fields of the {side} out, or calls them otherwise.",
    ReplaceFieldProperties,
    _change,
)
