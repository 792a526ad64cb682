"""What a column's type is called and how long it is, as PostgreSQL's JDBC driver tells it.

Debezium's truncation, hash masks and propagated source types go by these figures.
Source: event contract of Debezium 3.6, "Source type propagation"; recorded events.
"""

from dataclasses import dataclass

from waltap.decode.relation import Column, DataType, Relation, TypeKind

__all__ = ["SourceType", "is_text", "listed_name", "may_grow", "root_type", "source_type"]

UNLIMITED = 2147483647
_BY_NAME = {
    "int2": (5, 0),
    "int4": (10, 0),
    "oid": (10, 0),
    "int8": (19, 0),
    "float4": (8, 8),
    "float8": (17, 17),
    "bool": (1, 0),
    "char": (1, 0),
    "date": (13, 0),
}
_LENGTH_OF_TIME = {
    "time": (8, 15),
    "timetz": (14, 21),
    "timestamp": (22, 29),
    "timestamptz": (28, 35),
}
"""Length without fraction digits less one, length with six of them."""
_TEXT = frozenset({"text", "varchar", "bpchar", "name", "char"})


@dataclass(frozen=True, slots=True)
class SourceType:
    """``name`` as the catalogue has it; ``length`` and ``scale`` None where the driver has none."""

    name: str
    length: int | None
    scale: int | None


def root_type(data_type: DataType) -> DataType:
    """Return the type below all domains."""
    while data_type.kind is TypeKind.DOMAIN and data_type.base is not None:
        data_type = data_type.base
    return data_type


def may_grow(relation: Relation) -> bool:
    """Tell whether a type of a column may get more of what it has while the table stays the same: an enum,
    a composite type, or an array of one."""
    roots = [root_type(column.data_type) for column in relation.columns if column.data_type]
    return any(_grows(root) or (root.element and _grows(root_type(root.element))) for root in roots)


def _grows(data_type: DataType) -> bool:
    return data_type.kind in (TypeKind.ENUM, TypeKind.COMPOSITE)


def is_text(column: Column) -> bool:
    """Tell whether the driver reads ``column`` as CHAR or VARCHAR: masks apply to no others."""
    if column.data_type is None:
        return False
    root = root_type(column.data_type)
    return root.kind is TypeKind.ENUM or (root.schema == "pg_catalog" and root.name in _TEXT)


_SERIAL = {"int2": "smallserial", "int4": "serial", "int8": "bigserial"}
_VISIBLE = frozenset({"", "pg_catalog", "public"})
"""Schemas whose types the driver names without schema: those of the usual search_path."""


def listed_name(column: Column) -> str | None:
    """Return what the driver calls ``column``'s type where it lists columns, in a snapshot; None when it
    is the type's own name."""
    data_type = column.data_type
    if data_type is None:
        return None
    if data_type.schema not in _VISIBLE:
        return f'"{data_type.schema}"."{data_type.name}"'
    if column.default is not None and "nextval(" in column.default:
        return _SERIAL.get(data_type.name)
    return None


def source_type(column: Column, *, listed: bool = False) -> SourceType:
    """Return name, length and scale of ``column``'s type; a domain has its modifiers' figures.
    ``listed``: the name is that of `listed_name`."""
    data_type = column.data_type
    if data_type is None:
        return SourceType(column.type_text or "", None, None)
    name, typmod = data_type.name, column.typmod
    while data_type.kind is TypeKind.DOMAIN and data_type.base is not None:
        typmod = data_type.base_typmod if typmod < 0 else typmod
        data_type = data_type.base
    length, scale = _figures(data_type, typmod)
    return SourceType((listed and listed_name(column)) or name, length, scale)


def _figures(data_type: DataType, typmod: int) -> tuple[int, int]:
    name = data_type.name
    if data_type.kind is TypeKind.ARRAY and data_type.element is not None:
        name = data_type.element.name
    if name in _BY_NAME:
        return _BY_NAME[name]
    if name == "numeric":
        return ((typmod - 4) >> 16 & 0xFFFF, (typmod - 4) & 0x7FF) if typmod >= 4 else (0, 0)
    if name in ("varchar", "bpchar"):
        return (typmod - 4 if typmod >= 4 else UNLIMITED, 0)
    if name in ("bit", "varbit"):
        return (typmod if typmod >= 0 else UNLIMITED, 0)
    if name in _LENGTH_OF_TIME:
        short, full = _LENGTH_OF_TIME[name]
        if typmod < 0:
            return (full, 6)
        return (short + typmod + (typmod > 0), typmod)
    if name == "interval":
        return (49, 6)
    return (UNLIMITED, 0)
