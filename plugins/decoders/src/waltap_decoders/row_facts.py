"""Facts about a table that one row of wal2json or decoderbufs shows.

Neither plugin announces tables. The columns and the replica identity at the row's time are
inferred from the row, then from earlier rows, then from the catalogue. The catalogue comes last
because it shows the present, which may be newer than the row.
"""

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from waltap.changes.decode.builtin_types import builtin_type
from waltap.changes.decode.relation import Column, Relation, TypeKind


@dataclass(frozen=True, slots=True)
class ColumnFact:
    """Describe one column as a row shows it."""

    name: str
    # 0: the row does not give the type.
    type_oid: int = 0
    # None: the row does not give the modifier.
    typmod: int | None = None
    # None: the row does not say.
    nullable: bool | None = None


class OldRowColumns(enum.Enum):
    """Name the columns that a plugin lists in the old row."""

    IDENTITY = "columns of the replica identity: all of them under FULL"
    SET = "columns of the replica identity that are not NULL"
    ALL = "all; those outside a key without a value, as if they were NULL"


@dataclass(frozen=True)
class RowFacts:
    """Describe the make-up of one row."""

    # I, U or D.
    kind: str
    # Columns of the new row, in the table's order.
    new: tuple[ColumnFact, ...]
    # Columns of the old row, in the table's order.
    old: tuple[ColumnFact, ...]
    # Which columns the plugin lists in old rows.
    listing: OldRowColumns
    # Old columns that the replica identity certainly covers: the listed ones, or with
    # `OldRowColumns.ALL` those with a value.
    shown: frozenset[str]
    # The primary key as the row gives it; None if the row gives none.
    key: tuple[str, ...] | None = None
    # The old row lacks a value that the change left unchanged out of line. A full row always has
    # it, so this is a key.
    by_key: bool = False
    # The old row has no value, whether it names columns or leaves NULLs out. No key is like that,
    # so the row is full.
    only_nulls: bool = False

    @cached_property
    def by_name(self) -> dict[str, ColumnFact]:
        return {fact.name: fact for fact in self.old} | {fact.name: fact for fact in self.new}

    @property
    def has_old(self) -> bool:
        return bool(self.old) or self.only_nulls

    def lists_all(self, identity: str) -> bool:
        """Return whether the row names every column of the table.

        New and old row count together.
        """
        if self.kind == "I" or self.listing is OldRowColumns.ALL:
            return True
        if identity != "f" or not self.old:
            return False
        # Format 1 leaves NULL out of old rows, but a column missing in a new row is not NULL.
        return self.listing is OldRowColumns.IDENTITY or bool(self.new)


class IdentityColumns(NamedTuple):
    """Describe a replica identity."""

    # The letter of pg_class.relreplident.
    letter: str
    # The columns that it covers.
    columns: frozenset[str]
    # Columns that are not NULL in any row with this identity.
    required: frozenset[str] = frozenset()


def identity_then(
    row: RowFacts, present: Relation | None, shown: Relation | None, *, full_before: bool
) -> IdentityColumns:
    """Return the replica identity under which ``row`` was written.

    It is the catalogue's unless the old row contradicts it. FULL shows every column that cannot be
    NULL, and a key shows no other columns. ``shown`` is the table as earlier rows showed it.
    ``full_before`` means that the last old row was full.
    """
    now, present = present, present or shown
    letter, key = (present.identity, _key(present)) if present else ("d", frozenset())
    if row.only_nulls and not (key and row.listing is OldRowColumns.ALL):
        return IdentityColumns("f", frozenset(_names(present.columns) if present else row.by_name))
    if row.key is not None and letter in "df":
        key = frozenset(row.key)
    # Without an old row an update was not under FULL, since the plugin sends all that the server
    # logged. An insert proves nothing.
    if not row.old:
        if row.kind == "U":
            return IdentityColumns("d" if letter == "f" else letter, key)
        stated = row.key is not None and letter == "d"
        return IdentityColumns(letter, key if stated or present is None else _covered(present))
    known = shown or present
    if known is None and row.listing is OldRowColumns.ALL:
        return IdentityColumns("d", frozenset())
    required, beyond = _required(row, known), not row.shown <= key
    if row.listing is OldRowColumns.IDENTITY and row.new:
        full = row.shown.issuperset(_names(row.new)) and (beyond or letter == "f")
    elif row.listing is OldRowColumns.IDENTITY:
        listed = [_names(relation.columns) for relation in (shown, now) if relation is not None]
        full = any(row.shown.issuperset(names) for names in listed if beyond or letter == "f")
        full = full or (beyond and bool(key) and required <= row.shown)
    else:
        # These plugins do not distinguish NULL from missing. A row of NULLs outside the key is
        # full only if an earlier row was.
        full = required <= row.shown and (beyond or (letter == "f" and full_before))
    if full and not row.by_key:
        return IdentityColumns("f", frozenset(row.by_name), required)
    if beyond and row.key is not None and not row.shown.issuperset(row.key):
        letter = "i"  # under DEFAULT an old row shows the whole primary key
    return IdentityColumns(letter if letter in "di" else "d", row.shown if beyond else key)


def columns_then(
    row: RowFacts,
    present: Relation | None,
    current: Relation | None,
    identity: str,
    *,
    changed: bool,
) -> tuple[str, ...]:
    """Return the table's columns when ``row`` was written.

    They are in the table's order. A row may leave columns out: those outside the key in a delete,
    and unchanged ones in an update if they may be stored out of line. ``current``, the last
    version that rows showed, supplies them. ``changed`` means that the table may have been altered
    since ``current`` was seen; columns that the catalogue no longer has are then omitted.
    """
    named = row.by_name
    order = _names(current.columns if current else present.columns if present else ())
    missing: list[Column] = []
    if row.lists_all(identity):
        pass
    elif current is None:
        # Without an earlier row the catalogue supplies the columns, except those added after one
        # that is certainly missing.
        missing = _older(row, present) if present else []
    else:
        changed = changed or not _agrees(current, row)
        if changed and present is not None and row.kind == "D" and _agrees(present, row):
            order, missing = _names(present.columns), _unnamed(row, present)
        else:
            # Columns that only the catalogue has are newer than the row: a value is stored out of
            # line only after a row showed it.
            missing = _unnamed(row, current)
            if changed and present is not None:
                missing = _remaining(missing, present, row)
    wanted = {column.name for column in missing}.union(named)
    complete = next((r for r in (row.new, row.old) if len(r) == len(wanted)), None)
    if complete is not None:
        return tuple(_names(complete))
    numbers = {c.name: c.number or 0 for r in (current, present) if r for c in r.columns}
    if present is not None:
        numbers |= numbers_then(row.new, present) | numbers_then(row.old, present)
    # Attribute numbers give the order; without all of them the orders of the sources are merged.
    if all(numbers.get(name) for name in wanted):
        return tuple(sorted(wanted, key=lambda name: numbers[name]))
    merged = [name for name in order if name in wanted]
    for names in (_names(row.new), _names(row.old), _names(missing)):
        merged = _merged(merged, names)
    return tuple(merged)


def _key(present: Relation | None) -> frozenset[str]:
    """Return the replica identity's columns, or the key under FULL."""
    if present is None:
        return frozenset()
    return frozenset(present.primary_key or ()) if present.identity == "f" else _covered(present)


def _covered(relation: Relation) -> frozenset[str]:
    return frozenset(column.name for column in relation.columns if column.in_identity)


def _required(row: RowFacts, known: Relation | None) -> frozenset[str]:
    """Return the columns that a row must show as not NULL."""
    nullable = {c.name: c.nullable for c in known.columns} if known else {}
    nullable |= {fact.name: fact.nullable for fact in row.new if fact.nullable is not None}
    listed = row.old if row.listing is OldRowColumns.ALL else row.new
    named = _names(listed) or list(nullable)
    return frozenset(name for name in named if nullable.get(name) is False)


def _unnamed(row: RowFacts, known: Relation) -> list[Column]:
    """Return columns of ``known`` that ``row`` may leave out."""
    missing = [c for c in known.columns if c.name not in row.by_name]
    return [c for c in missing if row.kind == "D" or _can_be_toasted(c)]


def _agrees(known: Relation, row: RowFacts) -> bool:
    types = {column.name: column.type_oid for column in known.columns}
    return all(
        name in types and fact.type_oid in (0, types[name]) for name, fact in row.by_name.items()
    )


def _remaining(missing: list[Column], present: Relation, row: RowFacts) -> list[Column]:
    """Return columns of ``missing`` that still exist. They have their current names."""
    names = {column.name: column for column in present.columns}
    numbers: dict[int | None, Column] = {
        column.number: column for column in present.columns if column.number is not None
    }
    named = numbers_then(row.new or row.old, present).values()
    found = [names.get(c.name) or numbers.get(c.number) for c in missing]
    return [c for c in found if c and c.name not in row.by_name and c.number not in named]


def numbers_then(columns: Iterable[ColumnFact], present: Relation) -> dict[str, int]:
    """Return attribute numbers of a row's columns, where known."""
    listed = list(columns)
    now = {c.name: c.number for c in present.columns if c.number is not None}
    numbers = [now.get(fact.name, 0) for fact in listed]
    free = [c for c in present.columns if c.name not in {fact.name for fact in listed}]
    # Numbers grow, and rows are in their order. A name that the catalogue does not know may be the
    # old name of an unnamed column of that type between its neighbours.
    for at, fact in enumerate(listed):
        if numbers[at]:
            continue
        low = max(numbers[:at], default=0)
        high = min((number for number in numbers[at:] if number), default=1 << 16)
        for column in free:
            same_type = fact.type_oid in (0, column.type_oid)
            if same_type and column.number is not None and low < column.number < high:
                numbers[at] = column.number
                free.remove(column)
                break
    return {fact.name: number for fact, number in zip(listed, numbers, strict=True) if number}


def _older(row: RowFacts, present: Relation) -> list[Column]:
    """Return columns of ``present`` that existed but are left out.

    Columns that the row names by an old name are not among them.
    """
    named = numbers_then(row.new or row.old, present).values()
    missing = [c for c in present.columns if c.name not in row.by_name and c.number not in named]
    if row.kind == "D":
        return missing
    certain = [c.number for c in missing if not _can_be_toasted(c) and c.number]
    # A row would name this column if it existed, so all columns after it are newer.
    end = min(certain, default=1 << 16)
    return [c for c in missing if _can_be_toasted(c) and (c.number or 0) < end]


def _can_be_toasted(column: Column) -> bool:
    found = builtin_type(column.type_oid)
    if found is not None and found.width is not None:
        return False
    # An enum's value is an OID on disk, so it is never stored out of line.
    return column.data_type is None or column.data_type.kind is not TypeKind.ENUM


def _names(columns: Iterable[Column | ColumnFact]) -> list[str]:
    return [column.name for column in columns]


def _merged(first: list[str], second: list[str]) -> list[str]:
    """Merge two lists that are in the same order.

    Each may have names that the other lacks.
    """
    merged = list(first)
    at = 0
    for name in second:
        if name in merged:
            at = merged.index(name) + 1
        else:
            merged.insert(at, name)
            at += 1
    return merged
