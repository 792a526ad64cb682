"""Relations: the definition of a table at one point of the WAL.

A decoder makes a `Relation` from its wire; the connector completes it from the catalogue. Both
are immutable; a schema change makes a new object.
"""

import enum

import msgspec

__all__ = ["Column", "DataType", "Relation", "TypeKind", "may_change_values", "type_name"]


class TypeKind(enum.Enum):
    """Name how a data type is built (``pg_type.typtype`` and ``typelem``)."""

    BASE = "base"
    ARRAY = "array"
    ENUM = "enum"
    DOMAIN = "domain"
    COMPOSITE = "composite"
    RANGE = "range"
    MULTIRANGE = "multirange"
    PSEUDO = "pseudo"


class DataType(msgspec.Struct, frozen=True, kw_only=True):
    """Carry one row of ``pg_type`` and the types that it refers to."""

    oid: int
    schema: str
    name: str
    kind: TypeKind = TypeKind.BASE
    # Of an array.
    element: "DataType | None" = None
    # Of a domain, one step: the base may be a domain itself.
    base: "DataType | None" = None
    base_typmod: int = -1
    # Of an enum, in sort order.
    labels: tuple[str, ...] = ()
    delimiter: str = ","
    # Of a composite type: (name, type, typmod).
    attributes: tuple[tuple[str, "DataType", int], ...] = ()
    # The composite type had further attributes.
    attributes_dropped: bool = False


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """Describe one column of a relation version.

    A decoder sets the fields that its wire carries. The other ones are None until the catalogue
    fills them in.
    """

    name: str
    type_oid: int
    typmod: int = -1
    # The wire's flag "part of the replica identity".
    in_identity: bool = False
    data_type: DataType | None = None
    nullable: bool | None = None
    # The expression as `pg_get_expr` prints it.
    default: str | None = None
    generated: bool = False
    comment: str | None = None
    type_text: str | None = None
    # `pg_attribute.attnum`: it survives a rename and is never used again.
    number: int | None = None
    # The text of `attmissingval`: the value of rows that are older than the column, which was
    # added with a constant default.
    missing: str | None = None


# eq=False: relations key dictionaries in hot paths, and hashing by identity costs a pointer.
class Relation(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Describe a table, or a partition root, at one point of the WAL."""

    oid: int
    schema: str
    table: str
    columns: tuple[Column, ...]
    # `pg_class.relreplident`: d default, n nothing, f full, i index. Other servers have further
    # letters.
    identity: str = "d"
    # Column names in key order, or the columns of the unique index that replaces the key. None
    # until the catalogue was asked, () without a key.
    primary_key: tuple[str, ...] | None = None
    # Set by a transform that routes the table's records to another topic.
    topic: str | None = None
    # The transaction in which the wire announced the relation, until the relation is described;
    # 0: not known. The catalogue shows that transaction's DDL once it is visible.
    xid: int = 0
    # The primary key where the wire sends it apart from the flags, in any order; () without a
    # key, None where the wire does not say. In a described relation it is the primary key, ()
    # without one, where `primary_key` comes from another index.
    wire_key: tuple[str, ...] | None = None
    # A unique index that could be the replica identity.
    usable_index: str | None = None

    @property
    def name(self) -> str:
        """Return ``schema.table``, unquoted, as filters and signals write it."""
        return f"{self.schema}.{self.table}"

    @property
    def place(self) -> tuple[str, str]:
        """Return schema and table."""
        return self.schema, self.table

    def same_shape(self, other: "Relation") -> bool:
        """Return whether ``other`` decodes and renders exactly like this relation."""
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
    """Return the type's name in the catalogue.

    The wire and snapshots agree on this name; the wire's own OID of a domain is its base type's.
    """
    kind = column.data_type
    if kind is None:
        return column.type_text or f"oid {column.type_oid}"
    return kind.name if kind.schema == "pg_catalog" else f"{kind.schema}.{kind.name}"


def may_change_values(before: tuple[str, int], now: tuple[str, int]) -> bool:
    """Return whether an ALTER TABLE may have rewritten values silently.

    No change event tells a reader of such a rewrite. ``before`` and ``now`` are the column's
    types, each `type_name` and modifier.
    """
    (name, old), (new_name, new) = before, now
    if name != new_name and not _other_names(name, new_name):
        return True
    if new in {old, -1}:
        return False
    # A modifier of numeric packs precision and scale, so its size says nothing.
    if new_name == "numeric" and old >= 4:
        (whole, scale), (now_whole, now_scale) = _digits(old), _digits(new)
        return now_scale < scale or now_whole < whole
    # Any limit after none, or a smaller one, may truncate.
    return old == -1 or new < old


def _other_names(one: str, other: str) -> bool:
    """Return whether both names may mean one user-defined type.

    Earlier versions recorded other names: snapshots left out the schema, and the wire named a
    domain by its base type.
    """
    if one.startswith("pg_catalog.") or other.startswith("pg_catalog."):
        return True
    return one.partition(".")[2] == other or other.partition(".")[2] == one


def _digits(typmod: int) -> tuple[int, int]:
    # The server's packing: VARHDRSZ (4) + precision << 16 | scale, an 11-bit field.
    precision, scale = ((typmod - 4) >> 16) & 0xFFFF, (typmod - 4) & 0x7FF
    return precision - scale, scale
