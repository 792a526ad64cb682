"""Columns for the tests of the type table."""

from typing import Any

from waltap.changes.decode.builtin_types import ARRAY_ELEMENTS, BUILTIN_TYPES
from waltap.changes.decode.relation import Column, DataType, TypeKind
from waltap.changes.mapping.type_mapping import ColumnMapping, TypeOptions
from waltap.changes.mapping.type_registry import TypeRegistry
from waltap_testing.installed import installed_types

ARRAY_OIDS = {name: oid for oid, name in ARRAY_ELEMENTS.items()}


def data_type(name: str) -> DataType:
    """Return a built-in type, or with ``[]`` its array; other names are base types of an extension."""
    if name.endswith("[]"):
        element = data_type(name[:-2])
        return DataType(
            oid=ARRAY_OIDS.get(name[:-2], 90_000),
            schema="pg_catalog",
            name=f"_{name[:-2]}",
            kind=TypeKind.ARRAY,
            element=element,
        )
    if name in BUILTIN_TYPES:
        return DataType(oid=BUILTIN_TYPES[name].oid, schema="pg_catalog", name=name)
    return DataType(oid=80_000, schema="extensions", name=name)


MOOD = DataType(
    oid=70_000, schema="public", name="mood", kind=TypeKind.ENUM, labels=("sad", "it's ok")
)


def typmod(name: str, *arguments: int) -> int:
    """Return the modifier that ``name(arguments)`` is stored with."""
    if not arguments:
        return -1
    if name == "numeric":
        precision, scale = (*arguments, 0)[:2]
        return ((precision << 16) | (scale & 0x7FF)) + 4
    return arguments[0] + 4 if name in {"varchar", "bpchar"} else arguments[0]


def column(name: str | DataType, *arguments: int, **more: Any) -> Column:
    """Return a nullable column of a type; ``more`` are fields of Column."""
    type_ = data_type(name) if isinstance(name, str) else name
    modifier = typmod(type_.name.lstrip("_"), *arguments)
    fields = {"nullable": True, "typmod": modifier, **more}
    return Column(name="x", type_oid=type_.oid, data_type=type_, **fields)


def mapping(
    name: str | DataType, *arguments: int, options: Any = None, **more: Any
) -> ColumnMapping:
    registry = TypeRegistry(installed_types(), TypeOptions(**(options or {})))
    found = registry.column(column(name, *arguments, **more))
    assert found is not None
    return found


def json_of(found: ColumnMapping, text: str) -> str:
    return found.json(text)
