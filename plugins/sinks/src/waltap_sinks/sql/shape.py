"""Describe the target's tables for each relation version."""

import hashlib
import logging
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import itemgetter
from typing import Any, Final, NamedTuple

import msgspec

from waltap.changes.decode.relation import (
    Column,
    DataType,
    Relation,
    TypeKind,
    below_domains,
    column_id,
)
from waltap.changes.decode.tuple_image import UNCHANGED, Tuple, Value
from waltap.changes.events import EventContext, EventPlan, EventPlans
from waltap.changes.mapping.type_mapping import ColumnMapping, TypeMapper
from waltap_sinks.sql.errors import SqlOwnColumnTaken
from waltap_sinks.sql.properties import SqlProperties

log = logging.getLogger(__name__)


class TargetName(NamedTuple):
    """Name a table of the target."""

    # None for the schema of the user's tables.
    schema: str | None
    name: str

    @classmethod
    def parsed(cls, text: str, *, schemas: bool) -> "TargetName":
        """Return the table for ``SCHEMA.TABLE`` or ``TABLE``."""
        schema, dot, name = text.rpartition(".")
        return cls(schema if dot and schemas else None, name)

    def __str__(self) -> str:
        return self.name if self.schema is None else f"{self.schema}.{self.name}"


@dataclass(frozen=True, slots=True)
class TargetColumn:
    """Describe one column of a shape."""

    # The index in tuples.
    index: int
    name: str
    column: Column
    mapping: ColumnMapping | None
    # Changes values, NULL too; unsent values stay unsent.
    mask: Callable[[Value], Value] | None
    # The column is one of ``key_columns`` of the key.
    key: bool
    key_columns: int = 1
    # The key's index has a history's flag, too.
    flagged: bool = False


class TargetShape:
    """Describe the target's table for one relation version.

    It has the captured columns with a mapped type, in the source's order.
    """

    unique = True

    def __init__(self, plan: EventPlan, properties: SqlProperties, *, schemas: bool) -> None:
        self.plan, self.relation = plan, plan.relation
        # The shape of the table's history, which lives as long as this one: False without a history,
        # None while unknown. `HistoryWriter` sets it.
        self.history: Any = None
        self.source = plan.relation.name
        self.name = target_name(plan.relation, plan.topic, properties.table_format, schemas=schemas)
        self.deferrable = plan.relation.identifies_shared_keys
        identifying = plan.identifying
        masks = plan.masks(unmasked=frozenset(identifying))
        mappings = {c.index: c.mapping for c in plan.columns if c.mapping is not None}
        self.columns = tuple(
            TargetColumn(
                index,
                plan.names[index],
                base_column(plan.relation.columns[index]),
                mappings.get(index),
                masks.get(index),
                index in identifying,
                len(identifying) or 1,
            )
            for index in sorted({*mappings, *identifying})
        )
        by_index = {column.index: column for column in self.columns}
        self.key = tuple(by_index[index] for index in identifying)
        if identifying:  # a shape without a key has no such function
            self.key_of: Callable[[Tuple], Any] = itemgetter(*identifying)

    @property
    def layout(self) -> object:
        """Return the form of tuples and keys, whatever their names."""
        types = [(c.number, c.type_oid, c.typmod) for c in self.relation.columns]
        captured = [(c.index, c.mask is None) for c in self.columns]
        return self.deferrable, [c.index for c in self.key], types, captured

    def leave_out(self, indexes: Collection[int]) -> None:
        """Leave out columns at these indexes, but the key's."""
        self.columns = tuple(c for c in self.columns if c.key or c.index not in indexes)

    def called(self, name: TargetName, source: str, names: Mapping[int, str]) -> "TargetShape":
        """Return a copy with other names of table and columns (by number)."""
        made = copy(self)
        made.name, made.source = name, source or self.source
        renamed = {
            c.index: replace(c, name=names.get(c.column.number or 0, c.name)) for c in self.columns
        }
        made.columns = tuple(renamed.values())
        made.key = tuple(renamed[column.index] for column in self.key)
        return made

    def sent(self, row: Tuple) -> tuple[TargetColumn, ...]:
        return tuple(column for column in self.columns if row[column.index] is not UNCHANGED)

    def keys(self, keys: Sequence[Any]) -> list[Sequence[Value]]:
        """Return a sequence for each column of the key.

        ``keys`` are results of ``key_of``.
        """
        if len(self.key) == 1:
            return [keys]
        return list(zip(*keys, strict=True))

    def values(self, column: TargetColumn, values: Sequence[Value]) -> Sequence[Value]:
        if column.mask is not None:
            values = [column.mask(value) for value in values]
        return values


def target_name(relation: Relation, topic: str, pattern: str, *, schemas: bool) -> TargetName:
    """Return the target's name for ``relation`` by ``table.name.format``."""
    if not pattern:
        public = relation.schema == "public"
        pattern = "{schema}.{table}" if schemas else "{table}" if public else "{schema}_{table}"
    named = {"schema": relation.schema, "table": relation.table, "topic": topic}
    parts = pattern.split(".", 1) if schemas else [pattern]
    # PostgreSQL would cut a long name, and two tables could be one.
    *schema, name = (with_suffix(part.format(**named), "") for part in parts)
    return TargetName(schema[0] if schema else None, name)


def base_column(column: Column) -> Column:
    """Return ``column`` with the base type of a domain."""
    if column.data_type is None or column.data_type.kind is not TypeKind.DOMAIN:
        return column
    data_type, typmod = below_domains(column.data_type, column.typmod)
    return msgspec.structs.replace(
        column, data_type=data_type, type_oid=data_type.oid, typmod=typmod, type_text=None
    )


LEFT_OUT: Final = (
    "%s: the source computes these columns, and no change has shown that it streams them: what a "
    "snapshot reads of them is left out (give the target's table such columns of its own; where the "
    "publication has them, have rows read again once one was streamed)"
)
COLUMNLESS: Final = (
    "%s has no column that is captured and has a mapped type, so its rows are left out; take a new "
    "snapshot of it when it has one"
)


class TargetShapes(EventPlans[TargetShape]):
    """Compile the shape of each captured relation version.

    Rows that a snapshot read have the columns that the source computes (GENERATED). Changes have
    them only if the decoder gets them. Without changes they would soon be out of date, so they are
    left out until a change has them.
    """

    def __init__(self, context: EventContext, properties: SqlProperties, *, schemas: bool) -> None:
        super().__init__(context, lambda plan: TargetShape(plan, properties, schemas=schemas))
        # The relation of the last change of each OID, with the columns of the wire.
        self._streamed: dict[int, Relation] = {}
        # By OID: the relation that was read last, its columns that changes lack, and its shape.
        self._narrow: dict[int, tuple[Relation, frozenset[int], TargetShape]] = {}
        self._report = lru_cache(None)(log.warning)

    def of(self, relation: Relation) -> TargetShape | None:
        """Return the shape for changes of ``relation``."""
        self._streamed[relation.oid] = relation
        return self._with_columns(super().of(relation))

    def _with_columns(self, shape: TargetShape | None) -> TargetShape | None:
        """Return ``shape``, None if it has no column."""
        if shape is None or shape.columns:
            return shape
        self._report(COLUMNLESS, shape.source)
        return None

    def read(self, relation: Relation) -> TargetShape | None:
        """Return the shape for rows of ``relation`` that were read."""
        shape = super().of(relation)
        if shape is None:
            return None
        unstreamed = self._unstreamed(relation)
        left_out = [c.name for c in shape.columns if c.index in unstreamed and not c.key]
        if not left_out:
            return self._with_columns(shape)
        seen, without, narrow = self._narrow.get(relation.oid, (None, None, None))
        if narrow is None or seen is not relation or without != unstreamed:
            described = self.described(relation) or relation
            narrow = self.build(relation, described)
            narrow.leave_out(unstreamed)
            self._narrow[relation.oid] = relation, unstreamed, narrow
            self._report(LEFT_OUT, f"{', '.join(left_out)} of {shape.source}")
        return self._with_columns(narrow)

    def build(self, relation: Relation, described: Relation) -> TargetShape:
        return self._build(EventPlan(relation, described, self._context, by_row=True))

    def forget(self, oid: int) -> None:
        super().forget(oid)
        self._streamed.pop(oid, None)
        self._narrow.pop(oid, None)

    def _unstreamed(self, relation: Relation) -> frozenset[int]:
        """Return the indexes of computed columns that changes lack so far."""
        computed = {n: column for n, column in enumerate(relation.columns) if column.generated}
        if not computed:
            return frozenset()
        streamed = self._streamed.get(relation.oid)
        shown = set() if streamed is None else set(map(column_id, streamed.columns))
        return frozenset(n for n, column in computed.items() if column_id(column) not in shown)


# The history's own columns: name (a prefix precedes it), OID and name of PostgreSQL's type.
REPORTED: Final = (
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

# Bytes of a name that every target accepts.
LONGEST: Final = 63


class HistoryShape(TargetShape):
    """Describe the history of the table ``base``.

    Its tuples have the values of `REPORTED` behind the table's. It has the table's key, of which it
    has many rows.
    """

    unique = False

    def __init__(self, base: TargetShape, types: TypeMapper, properties: SqlProperties) -> None:
        """Compile the history of ``base``. Raises: SqlOwnColumnTaken."""
        self.base, self.plan = base, base.plan
        relation = base.relation
        prefix = properties.history_prefix
        computed = tuple(
            Column(
                name=prefix + name,
                type_oid=oid,
                data_type=DataType(oid=oid, schema="pg_catalog", name=type_name),
                nullable=True,
                type_text=type_name,
            )
            for name, oid, type_name in REPORTED
        )
        names = {c.name for c in relation.columns} | {c.name for c in base.columns}
        for column in computed:
            if column.name in names:
                raise SqlOwnColumnTaken(
                    f"{base.source} has a column {column.name} of its own",
                    property="history.column.prefix",
                    example="h_",
                    column=re.escape(f"{base.source}.{column.name}"),
                )
        # The source's OIDs are positive, so a history is stored under a negative one.
        self.relation = msgspec.structs.replace(
            relation, oid=-relation.oid, columns=relation.columns + computed
        )
        self.source = f"the history of {base.source}"
        self.name = TargetName(
            base.name.schema, with_suffix(base.name.name, properties.history_suffix)
        )
        first = len(relation.columns)
        own = tuple(replace(c, flagged=True) if c.key else c for c in base.columns)
        self.columns = own + tuple(
            TargetColumn(first + n, column.name, column, types.column(column), None, key=False)
            for n, column in enumerate(computed)
        )
        self.key, self.deferrable = base.key, base.deferrable
        if base.key:
            self.key_of = base.key_of
        self.valid_to, self.current = prefix + "valid_to", prefix + "is_current"


def with_suffix(name: str, suffix: str) -> str:
    """Return ``name`` with ``suffix``; a long name is cut and hashed."""
    full_name = name + suffix
    if len(full_name.encode()) <= LONGEST:
        return full_name
    digest = "_" + hashlib.sha256(name.encode()).hexdigest()[:8] + suffix
    start = name.encode()[: max(1, LONGEST - len(digest.encode()))]
    return start.decode(errors="ignore") + digest
