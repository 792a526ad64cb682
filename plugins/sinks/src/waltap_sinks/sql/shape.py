"""A table of the source as the target is to have it, compiled once per relation version."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec

from waltap.decode.relation import Column, DataType, Relation, TypeKind
from waltap.decode.tuple_image import UNCHANGED, Tuple, Value
from waltap.events import EventPlan
from waltap.mapping.type_mapping import ColumnMapping
from waltap_sinks.sql.properties import SqlProperties

__all__ = ["TargetColumn", "TargetName", "TargetShape", "base_column"]


class TargetName(NamedTuple):
    """A table of the target; ``schema`` None: wherever the user's tables are."""

    schema: str | None
    name: str

    @classmethod
    def parsed(cls, text: str, *, schemas: bool) -> "TargetName":
        """Return what ``SCHEMA.TABLE``, or ``TABLE``, names."""
        schema, dot, name = text.rpartition(".")
        return cls(schema if dot and schemas else None, name)

    def __str__(self) -> str:
        return self.name if self.schema is None else f"{self.schema}.{self.name}"


@dataclass(frozen=True, slots=True)
class TargetColumn:
    """One column. ``index`` is its place in tuples, ``name`` what the target calls it; ``column`` has the
    base type of a domain. ``mask`` changes values, NULL too; what was not sent stays not sent. A column of
    the ``key`` is one of ``key_columns``."""

    index: int
    name: str
    column: Column
    mapping: ColumnMapping | None
    mask: Callable[[Value], Value] | None
    key: bool
    key_columns: int = 1


class TargetShape:
    """What the target needs to know of one relation version.

    ``columns`` are those that are written, in the source's order: captured, and of types that somebody
    maps. ``key`` are those of them that identify a row, () when only a whole row does; ``key_of`` gives
    the key of a tuple: a value, or a tuple of them. ``unique``: a row is alone with its key.
    ``history`` is where `waltap_sinks.sql.history` keeps the shape of the table's history, which so lives
    as long: False where there is none, None until asked for.
    """

    __slots__ = (
        "__weakref__",
        "columns",
        "history",
        "key",
        "key_of",
        "name",
        "plan",
        "relation",
        "source",
    )

    unique = True

    def __init__(self, plan: EventPlan, properties: SqlProperties, *, schemas: bool) -> None:
        self.plan, self.relation = plan, plan.relation
        self.history: Any = None
        self.source = plan.relation.name
        self.name = target_name(plan.relation, plan.topic, properties.table_format, schemas=schemas)
        identifying = plan.identifying
        masks = plan.masks(whole=frozenset(identifying))
        captured = {c.index for c in plan.columns if c.mapping is not None}
        mappings = {column.index: column.mapping for column in plan.columns}
        relation = plan.relation
        indexes = sorted(captured.union(identifying))
        self.columns = tuple(
            TargetColumn(
                index,
                plan.names[index],
                base_column(relation.columns[index]),
                mappings.get(index),
                masks.get(index),
                index in identifying,
                len(identifying) or 1,
            )
            for index in indexes
        )
        by_index = {column.index: column for column in self.columns}
        self.key = tuple(by_index[index] for index in identifying)
        self.key_of: Callable[[Tuple], Any] | None = (
            itemgetter(*identifying) if identifying else None
        )

    def leave_out(self, indexes: Collection[int]) -> None:
        """Write no columns at these places, unless a row is known by them."""
        self.columns = tuple(c for c in self.columns if c.key or c.index not in indexes)

    def sent(self, row: Tuple) -> tuple[TargetColumn, ...]:
        """Return the columns that ``row`` has a value of."""
        return tuple(column for column in self.columns if row[column.index] is not UNCHANGED)

    def keys(self, keys: Sequence[Any]) -> list[Sequence[Value]]:
        """Return values of the key's columns, one sequence for each, of what `key_of` gave."""
        if len(self.key) == 1:
            return [keys]
        return list(zip(*keys, strict=True))

    def values(self, column: TargetColumn, values: Sequence[Value]) -> Sequence[Value]:
        """Return what of ``values`` goes to the target: masked."""
        if column.mask is not None:
            values = [column.mask(value) for value in values]
        return values


def target_name(relation: Relation, topic: str, pattern: str, *, schemas: bool) -> TargetName:
    """Return what the target calls ``relation``; the properties say by what rule."""
    if not pattern:
        if schemas:
            return TargetName(relation.schema, relation.table)
        prefix = "" if relation.schema == "public" else f"{relation.schema}_"
        return TargetName(None, prefix + relation.table)
    named = {"schema": relation.schema, "table": relation.table, "topic": topic}
    head, dot, tail = pattern.partition(".")
    if dot and schemas:
        return TargetName(head.format(**named), tail.format(**named))
    return TargetName(None, pattern.format(**named))


def base_column(column: Column) -> Column:
    """Return ``column`` with the base type of a domain."""
    data_type: DataType | None = column.data_type
    typmod = column.typmod
    if data_type is None or data_type.kind is not TypeKind.DOMAIN:
        return column
    while data_type.kind is TypeKind.DOMAIN and data_type.base is not None:
        if typmod == -1:
            typmod = data_type.base_typmod
        data_type = data_type.base
    return msgspec.structs.replace(
        column, data_type=data_type, type_oid=data_type.oid, typmod=typmod, type_text=None
    )
