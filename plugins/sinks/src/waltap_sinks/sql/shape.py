"""The history of a table as the target is to have it: its columns, and those that tell of changes."""

import hashlib
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final, NamedTuple

import msgspec

from waltap.changes.decode.relation import Column, DataType, Relation, TypeKind
from waltap.changes.decode.tuple_image import UNCHANGED, Tuple, Value
from waltap.changes.events import EventContext, EventPlan, EventPlans
from waltap.changes.mapping.type_mapping import ColumnMapping, TypeMapper
from waltap_sinks.sql.errors import SqlHistoryColumnTaken
from waltap_sinks.sql.properties import SqlProperties

__all__ = [
    "HistoryShape",
    "TargetColumn",
    "TargetName",
    "TargetShape",
    "TargetShapes",
    "base_column",
    "with_suffix",
]

log = logging.getLogger(__name__)


# A table of the source as the target is to have it, compiled once per relation version.


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


# The shapes of the relations that a pipeline has met.


class TargetShapes(EventPlans[TargetShape]):
    """The shape of each relation version; None for one that is not captured. `of` is for relations of
    changes, `read` for those of rows that were read.

    What is read has columns that the source computes (GENERATED); the stream has them where the decoder
    gets them. Read alone they would be out of date with the next change: they are left out, until the
    stream shows them.
    """

    def __init__(self, context: EventContext, properties: SqlProperties, *, schemas: bool) -> None:
        super().__init__(context, lambda plan: TargetShape(plan, properties, schemas=schemas))
        self._streamed: dict[int, Relation] = {}
        """The relation of each OID that came with a change last: its columns are those of the wire."""
        self._narrow: dict[int, tuple[Relation, frozenset[int], TargetShape]] = {}
        """By OID the relation that was read last without some of its columns, which, and its shape."""
        self._told: set[str] = set()

    def of(self, relation: Relation) -> TargetShape | None:
        """Return the shape for changes of ``relation``: every column that they have is written."""
        if self._streamed.get(relation.oid) is not relation:
            self._streamed[relation.oid] = relation
        return super().of(relation)

    def read(self, relation: Relation) -> TargetShape | None:
        """Return the shape for rows of ``relation`` that were read, not changed."""
        shape = super().of(relation)
        if shape is None:
            return None
        unstreamed = self._unstreamed(relation)
        left_out = [c.name for c in shape.columns if c.index in unstreamed and not c.key]
        if not left_out:
            return shape
        seen, without, narrow = self._narrow.get(relation.oid, (None, None, None))
        if narrow is None or seen is not relation or without != unstreamed:
            described = self.described(relation) or relation
            narrow = self.build(relation, described)
            narrow.leave_out(unstreamed)
            self._narrow[relation.oid] = relation, unstreamed, narrow
            self._tell(f"{', '.join(left_out)} of {shape.source}")
        return narrow

    def build(self, relation: Relation, described: Relation) -> TargetShape:
        """Return the shape of ``relation``, with the key that the replica identity knows rows by."""
        return self._build(EventPlan(relation, described, self._context, by_row=True))

    def forget(self, oid: int) -> None:
        """Drop the versions of a relation that is gone."""
        super().forget(oid)
        self._streamed.pop(oid, None)
        self._narrow.pop(oid, None)

    def _unstreamed(self, relation: Relation) -> frozenset[int]:
        """Return the places of computed columns that changes do not have, as far as they showed."""
        computed = {n: column for n, column in enumerate(relation.columns) if column.generated}
        if not computed:
            return frozenset()
        streamed = self._streamed.get(relation.oid)
        shown = set() if streamed is None else set(map(_named, streamed.columns))
        return frozenset(n for n, column in computed.items() if _named(column) not in shown)

    def _tell(self, columns: str) -> None:
        if columns not in self._told:
            self._told.add(columns)
            log.warning(
                "%s: the source computes these columns, and no change has shown that it streams them: "
                "what a snapshot reads of them is left out (give the target's table such columns of its "
                "own; where the publication has them, have rows read again once one was streamed)",
                columns,
            )


def _named(column: Column) -> int | str:
    """Return what a column is known by: its number, which stays when it is renamed."""
    return column.name if column.number is None else column.number


TOLD: Final = (
    ("op", 25, "text"),
    ("commit_lsn", 20, "int8"),
    ("seq", 20, "int8"),
    ("sub", 21, "int2"),
    ("commit_ts", 1184, "timestamptz"),
    ("xid", 20, "int8"),
    ("valid_from", 1184, "timestamptz"),
    ("valid_to", 1184, "timestamptz"),
    ("is_current", 16, "bool"),
)
"""Columns behind the table's own: name (a prefix comes before it), OID and name of PostgreSQL's type."""

LONGEST: Final = 63
"""Bytes of a name that every target takes."""


class HistoryShape(TargetShape):
    """The shape of the history of ``base``.

    Tuples are those of the table with the values of `TOLD` behind them. ``key`` is that of the table, of
    which a history has many rows. ``valid_to`` and ``current`` are the columns by which versions are
    closed.
    """

    __slots__ = ("base", "current", "valid_to")

    unique = False

    def __init__(self, base: TargetShape, types: TypeMapper, properties: SqlProperties) -> None:
        """Raises: SqlHistoryColumnTaken."""
        self.base, self.plan = base, base.plan
        relation = base.relation
        prefix = properties.history_prefix
        told = tuple(
            Column(
                name=prefix + name,
                type_oid=oid,
                data_type=DataType(oid=oid, schema="pg_catalog", name=type_name),
                nullable=True,
                type_text=type_name,
            )
            for name, oid, type_name in TOLD
        )
        taken = {c.name for c in relation.columns} | {c.name for c in base.columns}
        for column in told:
            if column.name in taken:
                raise SqlHistoryColumnTaken(f"{base.source} has a column {column.name} of its own")
        # a number of its own for what is kept of it: the source's are above 0
        self.relation = msgspec.structs.replace(
            relation, oid=-relation.oid, columns=relation.columns + told
        )
        self.source = f"the history of {base.source}"
        self.name = TargetName(
            base.name.schema, with_suffix(base.name.name, properties.history_suffix)
        )
        first = len(relation.columns)
        self.columns = base.columns + tuple(
            TargetColumn(first + n, column.name, column, types.column(column), None, key=False)
            for n, column in enumerate(told)
        )
        self.key, self.key_of = base.key, base.key_of
        self.valid_to, self.current = prefix + "valid_to", prefix + "is_current"


def with_suffix(name: str, suffix: str) -> str:
    """Return ``name`` with ``suffix``; of a long name a part, and of its digest."""
    whole = name + suffix
    if len(whole.encode()) <= LONGEST:
        return whole
    digest = "_" + hashlib.sha256(name.encode()).hexdigest()[:8] + suffix
    kept = name.encode()[: max(1, LONGEST - len(digest.encode()))]
    return kept.decode(errors="ignore") + digest
