"""Bounds of a key range as SQL, nulls last.

Values are literals of unknown type, which the server reads as the column's. Composite types are named.
"""

from collections.abc import Sequence

import msgspec
from psycopg import sql

from waltap.base.text import sql_name
from waltap.changes.capture.source_type import root_type
from waltap.changes.decode.relation import Column, TypeKind
from waltap.changes.decode.tuple_image import Tuple


class RangeColumn(msgspec.Struct, frozen=True):
    """Name a column in a bound."""

    # The quoted name.
    quoted: str
    nullable: bool | None = False
    # Schema of the type's operators, "" for built-in ones. Our sessions do not search the schemas
    # of extensions, so the SQL must name them.
    operators: str = ""
    # The composite type of its values, else "".
    composite: str = ""

    def operator(self, symbol: str) -> str:
        return symbol if not self.operators else f"OPERATOR({self.operators}.{symbol})"

    def literal(self, value: object) -> str:
        text = sql.Literal(value).as_string(None)
        return f"{text}::{self.composite}" if self.composite else text


def bounded(column: Column) -> RangeColumn:
    """Return the name of ``column`` for a bound."""
    declared = column.data_type
    operators = composite = ""
    if declared is not None:
        found = root_type(declared)
        if found.kind is TypeKind.COMPOSITE:
            composite = sql_name(declared.schema, declared.name)
        elif found.kind is TypeKind.BASE and found.schema != "pg_catalog":
            operators = sql_name(found.schema)
    return RangeColumn(sql_name(column.name), column.nullable, operators, composite)


def after_sql(columns: Sequence[RangeColumn], bound: Tuple) -> str:
    """Return the predicate "comes after ``bound``"."""
    if _as_rows(columns):
        return f"{_row(columns)} > {_row_of(columns, bound)}"
    alternatives = []
    for index, column in enumerate(columns):
        equal = [_equal(columns[before], bound[before]) for before in range(index)]
        alternatives.append("(" + " AND ".join([*equal, _above(column, bound[index])]) + ")")
    return "(" + " OR ".join(alternatives) + ")"


def up_to_sql(columns: Sequence[RangeColumn], bound: Tuple) -> str:
    """Return the predicate "comes no later than ``bound``"."""
    if _as_rows(columns):
        return f"{_row(columns)} <= {_row_of(columns, bound)}"
    return f"NOT {after_sql(columns, bound)}"


def one_of_sql(columns: Sequence[RangeColumn], keys: Sequence[Tuple]) -> str:
    """Return the predicate "has one of these keys", all non-null."""
    if not any(column.operators for column in columns):
        return f"{_row(columns)} IN ({', '.join(_row_of(columns, key) for key in keys)})"
    equal = (
        " AND ".join(_equal(column, value) for column, value in zip(columns, key, strict=True))
        for key in keys
    )
    return f"({' OR '.join(equal)})"


def _as_rows(columns: Sequence[RangeColumn]) -> bool:
    """Return whether a comparison of rows expresses the bound."""
    # An index serves such a comparison as one range. It ignores rows with a null, and has no place
    # for an operator's schema.
    return not any(column.nullable or column.operators for column in columns)


def _above(column: RangeColumn, value: object) -> str:
    if value is None:
        return "false"
    text = f"{column.quoted} {column.operator('>')} {column.literal(value)}"
    return f"({text} OR {column.quoted} IS NULL)" if column.nullable else text


def _equal(column: RangeColumn, value: object) -> str:
    if value is None:
        return f"{column.quoted} IS NULL"
    return f"{column.quoted} {column.operator('=')} {column.literal(value)}"


def _row(columns: Sequence[RangeColumn]) -> str:
    return _listed([column.quoted for column in columns])


def _row_of(columns: Sequence[RangeColumn], values: Sequence[object]) -> str:
    return _listed([c.literal(value) for c, value in zip(columns, values, strict=True)])


def _listed(items: list[str]) -> str:
    return items[0] if len(items) == 1 else f"ROW({', '.join(items)})"
