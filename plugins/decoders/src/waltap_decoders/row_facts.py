"""What one row of wal2json or decoderbufs tells of its table, and what follows from it.

Neither plugin announces tables. Which columns a table had when the row was written, and under which
replica identity, is concluded from the row, from the rows before it, and from the catalogue, in this
order: the catalogue shows the present, which may be newer than the row.
"""

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from waltap.decode.relation import Column, Relation, TypeKind

__all__ = [
    "ColumnFact",
    "IdentityColumns",
    "OldRowColumns",
    "RowFacts",
    "columns_then",
    "identity_then",
    "numbers_then",
]

_NEVER_TOASTED = frozenset(
    (16, 18, 19, 20, 21, 23, 24, 26, 27, 28, 29, 600, 601, 603, 628, 700, 701, 718, 774, 790, 829)
) | frozenset((1082, 1083, 1114, 1184, 1186, 1266, 2205, 2950, 3220, 5069))
"""OIDs of types of fixed size: a value of theirs is never left out as unchanged."""


@dataclass(frozen=True, slots=True)
class ColumnFact:
    """What a row says of one column; ``type_oid`` 0, ``typmod`` and ``nullable`` None where it does
    not say."""

    name: str
    type_oid: int = 0
    typmod: int | None = None
    nullable: bool | None = None


class OldRowColumns(enum.Enum):
    """Which columns a plugin lists in the old row."""

    IDENTITY = "those of the replica identity: all of them under FULL"
    SET = "those of the replica identity that are not NULL"
    ALL = "all; those outside a key without a value, as if they were NULL"


@dataclass(frozen=True)
class RowFacts:
    """The make-up of one row, columns in the order of the table; ``kind`` is I, U or D.

    ``shown`` are the names of the old columns that the replica identity certainly covers: the listed
    ones, or with `OldRowColumns.ALL` those with a value. ``key`` is the primary key as the row tells it,
    None where it does not. ``by_key``: the old row has no value for a column that the change left
    untouched out of line, which a full row always has. ``only_nulls``: there is an old row, and no
    value in it, whether it names columns or leaves NULLs out: no key is like that, so it is a full one.
    """

    kind: str
    new: tuple[ColumnFact, ...]
    old: tuple[ColumnFact, ...]
    listing: OldRowColumns
    shown: frozenset[str]
    key: tuple[str, ...] | None = None
    by_key: bool = False
    only_nulls: bool = False

    @cached_property
    def by_name(self) -> dict[str, ColumnFact]:
        """Every column that the row names."""
        return {fact.name: fact for fact in self.old} | {fact.name: fact for fact in self.new}

    @property
    def has_old(self) -> bool:
        """Whether there is an old row."""
        return bool(self.old) or self.only_nulls

    def lists_all(self, identity: str) -> bool:
        """Tell whether new and old row together name every column of the table."""
        if self.kind == "I" or self.listing is OldRowColumns.ALL:
            return True
        if identity != "f" or not self.old:
            return False
        # format 1 leaves NULL out of old rows, but what a new row leaves out is not NULL
        return self.listing is OldRowColumns.IDENTITY or bool(self.new)


class IdentityColumns(NamedTuple):
    """A replica identity: its letter, the columns that it covers, and those that every row with it
    shows not NULL."""

    letter: str
    columns: frozenset[str]
    required: frozenset[str] = frozenset()


def identity_then(
    row: RowFacts, present: Relation | None, shown: Relation | None, *, full_before: bool
) -> IdentityColumns:
    """Return the replica identity under which ``row`` was written.

    It is the catalogue's as far as the old row does not speak against it: FULL shows every column
    that cannot be NULL, a key shows nothing else. Where there is no old row although the plugin
    sends what the server logged, it was not FULL. An insert tells nothing against the catalogue.
    ``shown`` is the table as rows before showed it. Where NULL is not told from what is not there, a
    row of NULLs but for the key is a full one only if a row before it was (``full_before``).
    """
    now, present = present, present or shown
    letter, key = (present.identity, _key(present)) if present else ("d", frozenset())
    if row.only_nulls and not (key and row.listing is OldRowColumns.ALL):
        return IdentityColumns("f", frozenset(_names(present.columns) if present else row.by_name))
    if row.key is not None and letter in "df":
        key = frozenset(row.key)
    if not row.old:
        if row.kind == "U":
            return IdentityColumns("d" if letter == "f" else letter, key)
        told = row.key is not None and letter == "d"
        return IdentityColumns(letter, key if told or present is None else _covered(present))
    known = shown or present
    if known is None and row.listing is OldRowColumns.ALL:
        return IdentityColumns("d", frozenset())
    required, beyond = _required(row, known), not row.shown <= key
    if row.listing is OldRowColumns.IDENTITY and row.new:
        full = row.shown.issuperset(_names(row.new)) and (beyond or letter == "f")
    elif row.listing is OldRowColumns.IDENTITY:
        whole = [_names(relation.columns) for relation in (shown, now) if relation is not None]
        full = any(row.shown.issuperset(names) for names in whole if beyond or letter == "f")
        full = full or (beyond and bool(key) and required <= row.shown)
    else:
        full = required <= row.shown and (beyond or (letter == "f" and full_before))
    if full and not row.by_key:
        return IdentityColumns("f", frozenset(row.by_name), required)
    return IdentityColumns(letter if letter in "di" else "d", row.shown if beyond else key)


def columns_then(
    row: RowFacts,
    present: Relation | None,
    current: Relation | None,
    identity: str,
    *,
    changed: bool,
) -> tuple[str, ...]:
    """Return the names of the table's columns when ``row`` was written, in their order.

    What the row does not name can be there none the less: outside the key in a delete, and what an
    update did not touch if it may be stored out of line. Such columns are those of ``current``, the
    last version that rows showed. Columns that only the catalogue has are newer than the row, since
    a value can be stored out of line only after a row showed it. ``changed``: the table may have
    been altered since ``current`` was seen; then what the catalogue has no more is left out.
    Without ``current`` the columns are the catalogue's, but for those that came after one that is
    missing for certain.
    """
    named = row.by_name
    order = _names(current.columns if current else present.columns if present else ())
    missing: list[Column] = []
    if row.lists_all(identity):
        pass
    elif current is None:
        missing = _older(row, present) if present else []
    else:
        changed = changed or not _agrees(current, row)
        if changed and present is not None and row.kind == "D" and _agrees(present, row):
            order, missing = _names(present.columns), _unnamed(row, present)
        else:
            missing = _unnamed(row, current)
            if changed and present is not None:
                missing = _remaining(missing, present, row)
    wanted = {column.name for column in missing}.union(named)
    whole = next((r for r in (row.new, row.old) if len(r) == len(wanted)), None)
    if whole is not None:
        return tuple(_names(whole))
    numbers = {c.name: c.number or 0 for r in (current, present) if r for c in r.columns}
    if present is not None:
        numbers |= numbers_then(row.new, present) | numbers_then(row.old, present)
    if all(numbers.get(name) for name in wanted):
        return tuple(sorted(wanted, key=lambda name: numbers[name]))
    merged = [name for name in order if name in wanted]
    for names in (_names(row.new), _names(row.old), _names(missing)):
        merged = _merged(merged, names)
    return tuple(merged)


def _key(present: Relation | None) -> frozenset[str]:
    """Return the columns of the replica identity, or of the key under FULL."""
    if present is None:
        return frozenset()
    return frozenset(present.primary_key or ()) if present.identity == "f" else _covered(present)


def _covered(relation: Relation) -> frozenset[str]:
    return frozenset(column.name for column in relation.columns if column.in_identity)


def _required(row: RowFacts, known: Relation | None) -> frozenset[str]:
    """Return the columns, of those that the row should name, that cannot be NULL."""
    nullable = {c.name: c.nullable for c in known.columns} if known else {}
    nullable |= {fact.name: fact.nullable for fact in row.new if fact.nullable is not None}
    listed = row.old if row.listing is OldRowColumns.ALL else row.new
    named = _names(listed) or list(nullable)
    return frozenset(name for name in named if nullable.get(name) is False)


def _unnamed(row: RowFacts, known: Relation) -> list[Column]:
    """Return the columns of ``known`` that ``row`` does not name and that it need not name."""
    missing = [c for c in known.columns if c.name not in row.by_name]
    return [c for c in missing if row.kind == "D" or _can_be_toasted(c)]


def _agrees(known: Relation, row: RowFacts) -> bool:
    """Tell whether all that the row names is in ``known``."""
    types = {column.name: column.type_oid for column in known.columns}
    return all(
        name in types and fact.type_oid in (0, types[name]) for name, fact in row.by_name.items()
    )


def _remaining(missing: list[Column], present: Relation, row: RowFacts) -> list[Column]:
    """Return those of ``missing`` that are still there, under the name that they have now."""
    names = {column.name: column for column in present.columns}
    numbers: dict[int | None, Column] = {
        column.number: column for column in present.columns if column.number is not None
    }
    named = numbers_then(row.new or row.old, present).values()
    found = [names.get(c.name) or numbers.get(c.number) for c in missing]
    return [c for c in found if c and c.name not in row.by_name and c.number not in named]


def numbers_then(columns: Iterable[ColumnFact], present: Relation) -> dict[str, int]:
    """Return the numbers of columns as a row lists them, as far as the catalogue tells.

    Numbers grow and rows are in their order: so a name that the catalogue does not know may be the
    former one of a column of the same type that stands between the neighbours and is not named.
    """
    listed = list(columns)
    now = {c.name: c.number for c in present.columns if c.number is not None}
    places = [now.get(fact.name, 0) for fact in listed]
    free = [c for c in present.columns if c.name not in {fact.name for fact in listed}]
    for at, fact in enumerate(listed):
        if places[at]:
            continue
        low = max(places[:at], default=0)
        high = min((place for place in places[at:] if place), default=1 << 16)
        for column in free:
            same_type = fact.type_oid in (0, column.type_oid)
            if same_type and column.number is not None and low < column.number < high:
                places[at] = column.number
                free.remove(column)
                break
    return {fact.name: place for fact, place in zip(listed, places, strict=True) if place}


def _older(row: RowFacts, present: Relation) -> list[Column]:
    """Return the columns of ``present`` that ``row`` leaves out and that were there at its time:
    not those that it names by a former name, nor what came after a column that it would name."""
    named = numbers_then(row.new or row.old, present).values()
    missing = [c for c in present.columns if c.name not in row.by_name and c.number not in named]
    if row.kind == "D":
        return missing
    certain = [c.number for c in missing if not _can_be_toasted(c) and c.number]
    end = min(certain, default=1 << 16)
    return [c for c in missing if _can_be_toasted(c) and (c.number or 0) < end]


def _can_be_toasted(column: Column) -> bool:
    if column.type_oid in _NEVER_TOASTED:
        return False
    return column.data_type is None or column.data_type.kind is not TypeKind.ENUM


def _names(columns: Iterable[Column | ColumnFact]) -> list[str]:
    return [column.name for column in columns]


def _merged(first: list[str], second: list[str]) -> list[str]:
    """Merge two lists that are in the same order, each with names that the other lacks."""
    merged = list(first)
    at = 0
    for name in second:
        if name in merged:
            at = merged.index(name) + 1
        else:
            merged.insert(at, name)
            at += 1
    return merged
