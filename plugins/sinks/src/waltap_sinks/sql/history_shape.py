"""The history of a table as the target is to have it: its columns, and those that tell of changes."""

import hashlib
from typing import Final

import msgspec

from waltap.decode.relation import Column, DataType
from waltap.mapping.type_mapping import TypeMapper
from waltap_sinks.sql.errors import SqlHistoryColumnTaken
from waltap_sinks.sql.properties import SqlProperties
from waltap_sinks.sql.shape import TargetColumn, TargetName, TargetShape

__all__ = ["HistoryShape", "with_suffix"]

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
