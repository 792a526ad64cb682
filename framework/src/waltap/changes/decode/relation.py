"""Relations: the definition of a table at one point of the WAL.

A decoder makes a `Relation` from its wire; the connector completes it from the catalogue. Both
are immutable; a schema change makes a new object.
"""

import enum
import re
from collections.abc import Callable
from operator import attrgetter
from typing import Generic, TypeVar

import msgspec

# Names of relations as users write them.
#
# A name is ``schema.table``; parts are quoted as in SQL where they need it.

PART = re.compile(r'"((?:[^"]|"")+)"|([^".]+)')


def name_parts(text: str) -> list[str]:
    """Return the unquoted parts between the dots outside quotes.

    The list is empty where ``text`` is not a well-formed name.
    """
    parts, at = [], 0
    while match := PART.match(text, at):
        parts.append((match[1] or match[2]).replace('""', '"'))
        at = match.end()
        if at == len(text):
            return parts
        if text[at] != ".":
            break
        at += 1
    return []


def schema_and_table(text: str) -> tuple[str, str] | None:
    """Return (schema, table), or None when ``text`` lacks one of them."""
    parts = name_parts(text) if '"' in text else []
    if len(parts) == 2:
        return parts[0], parts[1]
    # Without quotes the first dot separates: a table may have dots in its name.
    schema, _, table = text.partition(".")
    return (schema, table) if schema and table else None


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
    # How values are stored, which a dropped column's catalogue row keeps; "": not known.
    layout: str = ""


def below_domains(data_type: DataType, typmod: int = -1) -> tuple[DataType, int]:
    """Return the type below all domains, and its modifier."""
    while data_type.kind is TypeKind.DOMAIN and data_type.base is not None:
        # A domain's own modifier applies, unless the domain over it has one.
        typmod = data_type.base_typmod if typmod == -1 else typmod
        data_type = data_type.base
    return data_type, typmod


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


class FormerOwner(msgspec.Struct, frozen=True, kw_only=True):
    """Name a table that lost its name to another."""

    oid: int
    # Its name when the other table was described, which may be later than its next change.
    schema: str
    table: str

    @property
    def name(self) -> str:
        return f"{self.schema}.{self.table}"


# eq=False: relations key dictionaries in hot paths, and hashing by identity costs a pointer.
class Relation(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Describe a table or partition root at a WAL position."""

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
    # The transaction in which the wire announced the relation, until the relation is described and
    # in memory; 0: not known. The catalogue shows that transaction's DDL once it is visible.
    xid: int = 0
    # The primary key where the wire sends it apart from the flags, in any order; () without a
    # key, None where the wire does not say. In a described relation it is the primary key, ()
    # without one, where `primary_key` comes from another index.
    wire_key: tuple[str, ...] | None = None
    # Whether the key is checked at the commit: until then several rows may have one key.
    deferrable: bool = False
    # A unique index that could be the replica identity.
    usable_index: str | None = None
    # The table that had this name before, where the source still has it. None: it was dropped, or
    # is unknown.
    former_owner: FormerOwner | None = None

    @property
    def name(self) -> str:
        """Return ``schema.table``, unquoted, as filters and signals write it."""
        return f"{self.schema}.{self.table}"

    @property
    def table_id(self) -> tuple[str, str]:
        return self.schema, self.table

    @property
    def identifies_shared_keys(self) -> bool:
        """Return whether whole old tuples identify rows that share a key."""
        return self.deferrable and all(column.in_identity for column in self.columns)

    def is_same_table(self, other: "Relation") -> bool:
        """Return whether both describe one table, perhaps under two names."""
        if self.oid and other.oid:
            return self.oid == other.oid
        return self.name == other.name  # not every wire has the OID

    def same_shape(self, other: "Relation") -> bool:
        """Return whether ``other`` decodes and renders exactly like this relation."""
        return _shape(self) == _shape(other)


_shape = attrgetter(
    "oid",
    "table_id",
    "identity",
    "columns",
    "primary_key",
    "topic",
    "wire_key",
    "deferrable",
    "former_owner",
)


def as_text(column: Column) -> Column:
    """Return ``column`` as text (25), for a part of a key that nothing maps.

    Without it several rows would be one.
    """
    return msgspec.structs.replace(column, type_oid=25, data_type=None, type_text=type_name(column))


def type_name(column: Column) -> str:
    """Return the type's name in the catalogue.

    The wire and snapshots agree on this name; the wire's own OID of a domain is its base type's.
    """
    kind = column.data_type
    if kind is None:
        return column.type_text or f"oid {column.type_oid}"
    return kind.name if kind.schema == "pg_catalog" else f"{kind.schema}.{kind.name}"


# Types whose values PostgreSQL converts to another type without a rewrite (pg_cast, binary
# coercible).
_COERCIBLE = frozenset({("varchar", "text"), ("text", "varchar"), ("cidr", "inet")})


def may_change_values(before: tuple[str, int], now: tuple[str, int]) -> bool:
    """Return whether an ALTER TABLE may have rewritten values silently.

    No change event reports such a rewrite. A type that holds the old values as they are
    is no reason to expect one. ``before`` and ``now`` are the column's
    types, each `type_name` and modifier.
    """
    (name, old), (new_name, new) = before, now
    if (name, new_name) in _COERCIBLE and new == -1:
        return False
    if name != new_name and not _other_names(name, new_name):
        return True
    if new in {old, -1}:
        return False
    # A modifier of numeric packs precision and scale, so its size says nothing.
    if new_name == "numeric" and old >= 4:
        (integer_digits, scale), (now_integer_digits, now_scale) = _digits(old), _digits(new)
        return now_scale < scale or now_integer_digits < integer_digits
    # Any limit after none, or a smaller one, may truncate.
    return old == -1 or new < old


# Numbers and dates that the wider type holds as they are.
_WIDER = frozenset(
    {
        ("int2", "int4"),
        ("int2", "int8"),
        ("int4", "int8"),
        ("int2", "numeric"),
        ("int4", "numeric"),
        ("int8", "numeric"),
        ("float4", "float8"),
    }
)


# An 11-bit field of two's complement.
_NEGATIVE_SCALE = 1024


def is_wider(before: tuple[str, int], now: tuple[str, int]) -> bool:
    """Return whether ``now`` holds each value of ``before`` unchanged.

    Only ALTER TABLE … USING gives other values with such a change, which is rare. ``before`` and
    ``now`` are as in `may_change_values`.
    """
    if (before[0], now[0]) not in _WIDER:
        return False
    # numeric(10,2) holds an integer as it is or refuses it; a negative scale rounds it
    return now[1] == -1 or _digits(now[1])[1] < _NEGATIVE_SCALE


def _other_names(one: str, other: str) -> bool:
    """Return whether both names may mean one user-defined type.

    Earlier versions recorded other names: snapshots left out the schema, and the wire named a
    domain by its base type.
    """
    if one.startswith("pg_catalog.") or other.startswith("pg_catalog."):
        return True
    return one.partition(".")[2] == other or other.partition(".")[2] == one


def precision_and_scale(typmod: int) -> tuple[int, int]:
    """Return precision and scale of a numeric's modifier."""
    # The server's packing: VARHDRSZ (4) + precision << 16 | scale, an 11-bit field.
    precision, scale = ((typmod - 4) >> 16) & 0xFFFF, (typmod - 4) & 0xFFFF
    # The scale is the raw 11 bits, as Debezium reads them: a negative scale -s is 2048 - s. A
    # decoder whose wire has the scale as text uses all 16 bits, and it is negative.
    return precision, scale - 0x10000 if scale >= 0x8000 else scale & 0x7FF


def _digits(typmod: int) -> tuple[int, int]:
    precision, scale = precision_and_scale(typmod)
    return precision - scale, scale


# Per relation: endless schema changes of one table must not grow the cache.
MAX_VERSIONS = 8

T = TypeVar("T")


class PerRelation(Generic[T]):
    """Cache the result of ``make`` for each relation version.

    ``make`` runs again for a version that was dropped as one of too many.
    """

    __slots__ = ("_known", "_make", "_versions")

    def __init__(self, make: Callable[[Relation], T]) -> None:
        self._make = make
        self._known: dict[Relation, T] = {}
        self._versions: dict[int, list[Relation]] = {}

    def of(self, relation: Relation) -> T:
        try:
            return self._known[relation]
        except KeyError:
            made = self._make(relation)
            self.put(relation, made)
            return made

    def get(self, relation: Relation) -> T | None:
        return self._known.get(relation)

    def put(self, relation: Relation, made: T) -> None:
        if relation not in self._known:
            versions = self._versions.setdefault(relation.oid, [])
            versions.append(relation)
            if len(versions) > MAX_VERSIONS:
                # The oldest version is the least likely to have further rows.
                del self._known[versions.pop(0)]
        self._known[relation] = made

    def forget(self, oid: int) -> None:
        """Drop all versions of a relation that no longer exists."""
        for relation in self._versions.pop(oid, ()):
            del self._known[relation]

    def clear(self) -> None:
        self._known.clear()
        self._versions.clear()


def difference(old: Relation, new: Relation) -> list[str]:
    """Return one line for each difference that a user notices.

    The list has at least one line.
    """
    found = []
    if old.oid != new.oid:
        found.append("is another table")
    if old.name != new.name:
        found.append(f"was {old.name}")
    # A column's number survives a rename; its name identifies it only where the catalogue gave no
    # number.
    before = {column_id(column): column for column in old.columns}
    after = {column_id(column): column for column in new.columns}
    found += [f"{c.name}: added ({shown_type(c)})" for p, c in after.items() if p not in before]
    found += [f"{c.name}: dropped" for p, c in before.items() if p not in after]
    for number, column in after.items():
        if number in before:
            found += _of_column(before[number], column)
    before_key, key = old.primary_key, new.primary_key
    # None means that the catalogue was not asked: that is no change of the key.
    if before_key is not None and key is not None and before_key != key:
        found.append(f"key: {_names(before_key)} → {_names(key)}")
    if old.identity != new.identity:
        found.append(f"replica identity: {old.identity} → {new.identity}")
    # The server also announces a relation again after a change that no user notices.
    return found or ["described again"]


def _of_column(old: Column, new: Column) -> list[str]:
    found = []
    if old.name != new.name:
        found.append(f"{old.name}: renamed to {new.name}")
    if (old.type_oid, old.typmod) != (new.type_oid, new.typmod):
        before, after = shown_type(old), shown_type(new)
        text = (
            # Two modifiers can print alike, so the text names the difference itself.
            f"{before} → {after}" if before != after else f"{after} of another length or precision"
        )
        found.append(f"{new.name}: {text}")
    # None is not known, so it cannot differ.
    if old.nullable != new.nullable and None not in (old.nullable, new.nullable):
        found.append(f"{new.name}: {'NULL allowed' if new.nullable else 'NOT NULL'}")
    if old.default != new.default:
        found.append(f"{new.name}: default {old.default or 'none'} → {new.default or 'none'}")
    return found


def column_id(column: Column) -> int | str:
    """Return a column's number, which survives a rename, or its name."""
    return column.name if column.number is None else column.number


def shown_type(column: Column) -> str:
    """Return the type as people know it."""
    if column.type_text:
        return column.type_text
    return column.data_type.name if column.data_type else f"type {column.type_oid}"


def _names(key: tuple[str, ...]) -> str:
    return ", ".join(key) or "none"
