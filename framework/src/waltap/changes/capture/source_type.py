"""Types' names and lengths, as PostgreSQL's JDBC driver has them.

Debezium's truncation, hash masks and propagated source types use these figures. Source: event
contract of Debezium 3.6, "Source type propagation"; recorded events.
"""

from dataclasses import dataclass

from waltap.changes.decode.relation import (
    Column,
    DataType,
    Relation,
    TypeKind,
    below_domains,
    precision_and_scale,
)

# Java's largest int: the driver's length of a type without one.
UNLIMITED = 2147483647
# The driver's length of a numeric without modifier, which lists of columns show as 0.
_MOST_DIGITS = 131089
# Type → (length, scale): digits of numbers, printed width of others.
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
# Length without fraction digits less one, length with six of them.
_LENGTH_OF_TIME = {
    "time": (8, 15),
    "timetz": (14, 21),
    "timestamp": (22, 29),
    "timestamptz": (28, 35),
}
_TEXT = frozenset({"text", "varchar", "bpchar", "name", "char"})


@dataclass(frozen=True, slots=True)
class SourceType:
    """Hold a type's catalogue name, driver's length and scale.

    None means that the driver has none.
    """

    name: str
    length: int | None
    scale: int | None


def root_type(data_type: DataType) -> DataType:
    """Return the type below all domains."""
    return below_domains(data_type)[0]


def may_grow(relation: Relation) -> bool:
    """Return whether a column's type may grow in place.

    Enums get labels, composite types get attributes, and arrays may be of either.
    """
    roots = [root_type(column.data_type) for column in relation.columns if column.data_type]
    return any(_grows(root) or (root.element and _grows(root_type(root.element))) for root in roots)


def _grows(data_type: DataType) -> bool:
    return data_type.kind in (TypeKind.ENUM, TypeKind.COMPOSITE)


def is_text(column: Column) -> bool:
    """Return whether the driver reads ``column`` as CHAR or VARCHAR.

    Masks apply to no other types.
    """
    if column.data_type is None:
        return False
    root = root_type(column.data_type)
    return root.kind is TypeKind.ENUM or (root.schema == "pg_catalog" and root.name in _TEXT)


_SERIAL = {"int2": "smallserial", "int4": "serial", "int8": "bigserial"}
# The driver names the types of these schemas without schema: the usual search_path.
_VISIBLE = frozenset({"", "pg_catalog", "public"})


def listed_name(column: Column) -> str | None:
    """Return the driver's name of ``column``'s type in lists of columns.

    A snapshot uses this name. None means that it is the type's own name.
    """
    data_type = column.data_type
    if data_type is None:
        return None
    if data_type.schema not in _VISIBLE:
        return f'"{data_type.schema}"."{data_type.name}"'
    if column.default is not None and "nextval(" in column.default:
        # The driver calls an integer with a sequence as default by its serial type.
        return _SERIAL.get(data_type.name)
    return None


def source_type(column: Column, *, listed: bool = False) -> SourceType:
    """Return name, length and scale of ``column``'s type.

    ``listed`` means as the driver lists it, with the name of `listed_name`.
    """
    data_type = column.data_type
    if data_type is None:
        return SourceType(column.type_text or "", None, None)
    if listed and data_type.name == "numeric" and column.typmod < 0:
        return SourceType(data_type.name, 0, None)
    # A domain has the figures of its modifiers.
    length, scale = _figures(*below_domains(data_type, column.typmod))
    return SourceType((listed and listed_name(column)) or data_type.name, length, scale)


def has_other_figures(column: Column) -> bool:
    """Return whether ``column``'s type has another length or scale in a list."""
    figures, listed = source_type(column), source_type(column, listed=True)
    return (figures.length, figures.scale) != (listed.length, listed.scale)


def _figures(data_type: DataType, typmod: int) -> tuple[int, int]:
    name = data_type.name
    # Not of `int2vector` and `oidvector`, whose length the driver does not know.
    if data_type.kind is TypeKind.ARRAY and data_type.element and name.startswith("_"):
        name = data_type.element.name
    if name in _BY_NAME:
        return _BY_NAME[name]
    if name == "numeric":
        return precision_and_scale(typmod) if typmod >= 4 else (_MOST_DIGITS, 0)
    # A length has VARHDRSZ (4) added to it.
    if name in ("varchar", "bpchar"):
        return (typmod - 4 if typmod >= 4 else UNLIMITED, 0)
    if name in ("bit", "varbit"):
        return (typmod if typmod >= 0 else UNLIMITED, 0)
    if name in _LENGTH_OF_TIME:
        short, full = _LENGTH_OF_TIME[name]
        if typmod < 0:
            return (full, 6)
        # The point takes a character, too, and the driver counts two digits for one.
        return (short + (3 if typmod == 1 else typmod and typmod + 1), typmod)
    if name == "interval":
        # Below the fields is the precision; 65535 is none.
        return (49, typmod & 0xFFFF if typmod >= 0 else 6)
    return (UNLIMITED, 0)
