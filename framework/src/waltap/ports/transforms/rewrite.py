"""Building blocks for transforms of columns.

An author chooses the columns and the function for their values:

    def stars(properties):
        def of_column(relation, column):
            if f"{relation.name}.{column.name}" in properties.columns:
                return lambda values: ["***"] * len(values)
        return rewrite_columns(of_column)

This module walks the batch once. Parts keep their index, order and position.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any, Self, TypeVar

import msgspec
from pydantic import model_validator

from waltap.base.property import Properties, declare
from waltap.changes.capture.java_regex import java_pattern, java_replacement
from waltap.changes.capture.topic_naming import sanitised_topic
from waltap.changes.decode.message import Change, Delete, Insert, LogicalMessage, Truncate, Update
from waltap.changes.decode.relation import Column, PerRelation, Relation
from waltap.changes.decode.tuple_image import ABSENT, MissingValue, Tuple, Value
from waltap.changes.transactions.transaction import (
    Batch,
    Heartbeat,
    Part,
    SnapshotRows,
    TransactionPart,
)

C = TypeVar("C")

# Takes values of one column as the server sent them, and returns as many new values.
Rewrite = Callable[[Sequence[str]], Sequence[Value]]


def rewrite_columns(
    of_column: Callable[[Relation, Column], Rewrite | None],
) -> Callable[[Batch], Batch]:
    """Return a transform that replaces values of some columns.

    ``of_column`` is called once for each column of a relation version. It returns the function for the
    column's values, or None to leave the column alone.

    That function gets all values of the column in a part of a batch, old and new ones, in order. A part
    is a transaction's rows of one table, or rows of a snapshot. A value is PostgreSQL's text. NULL and
    unsent values are left out and stay unchanged. The function returns one value (text or None) for each.
    """
    return _ColumnValues(of_column)


class _ColumnValues:
    """Collect the values of a column, and replace them."""

    def __init__(self, of_column: Callable[[Relation, Column], Rewrite | None]) -> None:
        self._of_column = of_column
        self._chosen = PerRelation(self._choose)

    def __call__(self, batch: Batch) -> Batch:
        return msgspec.structs.replace(batch, parts=[self._part(part) for part in batch.parts])

    def _part(self, part: Part) -> Part:
        if isinstance(part, SnapshotRows):
            chosen = self._chosen.of(part.relation)
            if not chosen:
                return part
            return msgspec.structs.replace(part, rows=_rewritten(part.rows, chosen))
        if isinstance(part, Heartbeat):
            return part
        changes = rewritten_changes(
            part.changes, self._chosen, lambda chosen, images, _own: _rewritten(images, chosen)
        )
        return part if changes is part.changes else msgspec.structs.replace(part, changes=changes)

    def forget(self, oid: int) -> None:
        self._chosen.forget(oid)

    def _choose(self, relation: Relation) -> tuple[tuple[int, Rewrite], ...]:
        asked = [(at, self._of_column(relation, c)) for at, c in enumerate(relation.columns)]
        return tuple((at, rewrite) for at, rewrite in asked if rewrite is not None)


# Type of a change → the fields with its row images.
IMAGES: Mapping[type[Change], tuple[str, ...]] = {
    Insert: ("new",), Update: ("new", "old"), Delete: ("old",),
}  # fmt: skip


def rewritten_changes(
    changes: Sequence[Change],
    chosen: PerRelation[C],
    rewrite: Callable[[C, Sequence[Tuple], Sequence[Any]], list[Tuple]],
) -> Sequence[Change]:
    """Return ``changes`` with other row images.

    ``rewrite`` gets all images of a table and their changes, in the order of `IMAGES`, if ``chosen`` has
    something for its relation. Without such a table the result is the same object.
    """
    # One call of a function for many rows costs less than one for each.
    tables: dict[Relation, list[int]] = {}
    for index, change in enumerate(changes):
        if not isinstance(change, Truncate | LogicalMessage) and chosen.of(change.relation):
            tables.setdefault(change.relation, []).append(index)
    if not tables:
        return changes
    found = list(changes)
    for relation, indexes in tables.items():
        own = [found[index] for index in indexes]
        images = [getattr(change, name) for change in own for name in IMAGES[type(change)]]
        after = iter(rewrite(chosen.of(relation), images, own))
        for index, change in zip(indexes, own, strict=True):
            new_images = {name: next(after) for name in IMAGES[type(change)]}
            found[index] = msgspec.structs.replace(change, **new_images)
    return found


def _rewritten(images: Sequence[Tuple], chosen: Iterable[tuple[int, Rewrite]]) -> list[Tuple]:
    """Replace the values of chosen columns in images of one relation.

    Empty images stay empty.
    """
    rows = [list(image) for image in images]
    for at, rewrite in chosen:
        # None and `MissingValue` are not text: the function never sees them.
        held = [row for row in rows if row and isinstance(row[at], str)]
        values = [row[at] for row in held]
        if values:
            for row, value in zip(held, rewrite(values), strict=True):  # type: ignore[arg-type]
                row[at] = value
    return [tuple(row) for row in rows]


def with_relations(replaced: Callable[[Relation], Relation]) -> Callable[[Batch], Batch]:
    """Return a transform that replaces the relations of changes.

    The new relation may have another topic, for example. ``replaced`` is called once for each relation
    version. It returns a relation with as many columns, or the same relation.
    """
    return _RelationReplacer(replaced)


class _RelationReplacer:
    """Replace the relations of changes and snapshot rows."""

    def __init__(self, replaced: Callable[[Relation], Relation]) -> None:
        self._known = PerRelation(replaced)

    def __call__(self, batch: Batch) -> Batch:
        of = self._known.of
        parts = [
            msgspec.structs.replace(part, changes=list(map(self._change, part.changes)))
            if isinstance(part, TransactionPart)
            else msgspec.structs.replace(part, relation=of(part.relation))
            if isinstance(part, SnapshotRows)
            else part
            for part in batch.parts
        ]
        return msgspec.structs.replace(batch, parts=parts)

    def forget(self, oid: int) -> None:
        self._known.forget(oid)

    def _change(self, given: Change) -> Change:
        if isinstance(given, LogicalMessage):
            return given
        of = self._known.of
        if isinstance(given, Truncate):
            return msgspec.structs.replace(given, relations=tuple(map(of, given.relations)))
        relation = of(given.relation)
        if relation is given.relation:
            return given
        # The constructors are faster than `replace`, and this runs for every change.
        if isinstance(given, Insert):
            return Insert(relation, given.lsn, given.new, given.xid)
        if isinstance(given, Update):
            return Update(relation, given.lsn, given.new, given.old, given.old_kind, given.xid)
        return Delete(relation, given.lsn, given.old, given.old_kind, given.xid)


class RouteProperties(Properties):
    """Tables to route, and the topic of their records."""

    routes = True

    regex: str = declare(
        "regex",
        summary="Tables to route: a pattern that matches all of schema.table.",
        examples=(r"sales\.orders_(\d+)",),
        patterns="table",
    )
    replacement: str = declare(
        "replacement",
        summary="Topic of their records; $1 is the pattern's first group.",
        examples=("sales.orders",),
    )

    @model_validator(mode="after")
    def _compiles(self) -> Self:
        java_replacement(self.replacement, java_pattern(self.regex))
        return self


def table_router(properties: RouteProperties) -> Callable[[Batch], Batch]:
    """Return the transform that sets `Relation.topic`.

    Only topics change: rows, keys and the source block still name the table.
    """
    pattern = java_pattern(properties.regex)
    template = java_replacement(properties.replacement, pattern)

    def routed(relation: Relation) -> Relation:
        match = pattern.fullmatch(relation.name)
        # A group of the pattern may have characters that a topic must not have.
        topic = sanitised_topic(match.expand(template)) if match else ""
        return msgspec.structs.replace(relation, topic=topic) if topic else relation

    return with_relations(routed)


# Type OID → conversion of its text. Values of other types stay unchanged.
_FROM_TEXT: dict[int, Callable[[str], object]] = {
    16: lambda text: text == "t",  # bool
    20: int,  # int8
    21: int,  # int2
    23: int,  # int4
    26: int,  # oid
    700: float,  # float4
    701: float,  # float8
    1700: Decimal,  # numeric
}


# A function of a filter reads rows one by one, so names must not be resolved for each.
@lru_cache(maxsize=1024)
def _columns(relation: Relation) -> Mapping[str, tuple[int, int]]:
    """Return column name → (index, type OID)."""
    return {c.name: (index, c.type_oid) for index, c in enumerate(relation.columns)}


class RowView(Mapping[str, object]):
    """Show one row image as a mapping.

    Columns that the image lacks are not in the mapping. Values are bool, int, float or Decimal. Other
    types have PostgreSQL's text. NULL is None, and a value that the server did not send is UNCHANGED.
    """

    __slots__ = ("_columns", "_values")

    def __init__(self, relation: Relation, values: Tuple) -> None:
        self._columns, self._values = _columns(relation), values

    def __getitem__(self, name: str) -> object:
        index, oid = self._columns[name]
        value = self._values[index]
        if isinstance(value, str):
            load = _FROM_TEXT.get(oid)
            return value if load is None else load(value)
        if value is ABSENT:
            raise KeyError(name)
        return value

    def __iter__(self) -> Iterator[str]:
        values = self._values
        return (name for name, (index, _) in self._columns.items() if values[index] is not ABSENT)

    def __len__(self) -> int:
        return sum(value is not ABSENT for value in self._values)

    def raw(self, name: str) -> str | MissingValue | None:
        """Return a value as the decoder read it, ABSENT included.

        Raises: KeyError.
        """
        return self._values[self._columns[name][0]]


@dataclass(frozen=True, slots=True)
class RowChange:
    """Describe a change of a row."""

    # c, u, d, or r for a row of a snapshot.
    op: str
    relation: Relation
    # None if the server did not send the image.
    before: RowView | None
    after: RowView | None

    @property
    def schema(self) -> str:
        return self.relation.schema

    @property
    def table(self) -> str:
        return self.relation.table
