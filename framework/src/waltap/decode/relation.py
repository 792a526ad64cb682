"""Relations: what is known of a table at one point of the WAL.

A decoder makes a `Relation` from what its wire carries; the connector completes it from the
catalogue (`Relation.described`). Both are immutable; a schema change makes a new object. Relations
compare by identity, so that they can key dictionaries in hot paths at the cost of a pointer.
"""

import enum

import msgspec

__all__ = ["Column", "DataType", "Relation", "TypeKind", "may_change_values", "type_name"]


class TypeKind(enum.Enum):
    """How a data type is built (``pg_type.typtype`` and ``typelem``)."""

    BASE = "base"
    ARRAY = "array"
    ENUM = "enum"
    DOMAIN = "domain"
    COMPOSITE = "composite"
    RANGE = "range"
    MULTIRANGE = "multirange"
    PSEUDO = "pseudo"


class DataType(msgspec.Struct, frozen=True, kw_only=True):
    """One row of ``pg_type`` with what it refers to.

    ``element`` is set for arrays, ``base`` and ``base_typmod`` for domains (one step: the base may
    itself be a domain), ``labels`` for enums in sort order, ``attributes`` for composites as
    (name, type, typmod); ``attributes_dropped``: it had others, too.
    """

    oid: int
    schema: str
    name: str
    kind: TypeKind = TypeKind.BASE
    element: "DataType | None" = None
    base: "DataType | None" = None
    base_typmod: int = -1
    labels: tuple[str, ...] = ()
    delimiter: str = ","
    attributes: tuple[tuple[str, "DataType", int], ...] = ()
    attributes_dropped: bool = False


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """One column of a relation version.

    ``in_identity`` is the wire's flag "part of the replica identity". What the wire does not carry
    is None until the catalogue filled it in: ``data_type``, ``nullable``, ``default`` (the
    expression as ``pg_get_expr`` prints it), ``comment``.
    ``number`` is ``pg_attribute.attnum``: it stays when the column is renamed and is never used
    again. ``missing`` is the text of ``attmissingval``: the value of rows that were there before
    the column was added with a constant default.
    """

    name: str
    type_oid: int
    typmod: int = -1
    in_identity: bool = False
    data_type: DataType | None = None
    nullable: bool | None = None
    default: str | None = None
    generated: bool = False
    comment: str | None = None
    type_text: str | None = None
    number: int | None = None
    missing: str | None = None


class Relation(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A table (or partition root) at one point of the WAL.

    ``identity`` is ``pg_class.relreplident``: d default, n nothing, f full, i index, and what
    other servers have besides. ``primary_key`` has column names in key order, or the columns of the unique
    index that stands in for it; None until the catalogue was asked, () when there is no key.
    ``topic`` is set by a transform that routes the table's records elsewhere. ``xid`` is the
    transaction that the wire announced the relation in, until it is described: the catalogue shows
    what that transaction did once it is visible. 0: not known. ``wire_key`` is the primary key where
    the wire tells it beside the flags, its columns in any order, () when there is none; None where it
    does not tell. Of a described relation it is the primary key, () without one, where ``primary_key`` is
    another index's. ``usable_index`` names a unique index that the replica identity could be.
    """

    oid: int
    schema: str
    table: str
    columns: tuple[Column, ...]
    identity: str = "d"
    primary_key: tuple[str, ...] | None = None
    topic: str | None = None
    xid: int = 0
    wire_key: tuple[str, ...] | None = None
    usable_index: str | None = None

    @property
    def name(self) -> str:
        """Return ``schema.table``, unquoted, as filters and signals write it."""
        return f"{self.schema}.{self.table}"

    def same_shape(self, other: "Relation") -> bool:
        """Tell whether ``other`` decodes and renders exactly as this relation does."""
        return (
            self.oid == other.oid
            and self.schema == other.schema
            and self.table == other.table
            and self.identity == other.identity
            and self.columns == other.columns
            and self.primary_key == other.primary_key
            and self.topic == other.topic
            and self.wire_key == other.wire_key
        )


def type_name(column: Column) -> str:
    """Return the catalogue's name, which snapshots have, too: the wire calls a domain as its base."""
    kind = column.data_type
    if kind is None:
        return column.type_text or f"oid {column.type_oid}"
    return kind.name if kind.schema == "pg_catalog" else f"{kind.schema}.{kind.name}"


def may_change_values(before: tuple[str, int], now: tuple[str, int]) -> bool:
    """Tell whether an ALTER TABLE between two types, each `type_name` and modifier, may have rewritten
    values of rows that no change tells of."""
    (name, old), (new_name, new) = before, now
    if name != new_name and not _other_names(name, new_name):
        return True
    if new in {old, -1}:
        return False
    if new_name == "numeric" and old >= 4:
        (whole, scale), (now_whole, now_scale) = _digits(old), _digits(new)
        return now_scale < scale or now_whole < whole
    return old == -1 or new < old


def _other_names(one: str, other: str) -> bool:
    """Tell whether both may be one type that a user made, by its names of earlier versions: without its
    schema, of snapshots, and that of its base, of the wire, where it is a domain."""
    if one.startswith("pg_catalog.") or other.startswith("pg_catalog."):
        return True
    return one.partition(".")[2] == other or other.partition(".")[2] == one


def _digits(typmod: int) -> tuple[int, int]:
    precision, scale = ((typmod - 4) >> 16) & 0xFFFF, (typmod - 4) & 0x7FF
    return precision - scale, scale
