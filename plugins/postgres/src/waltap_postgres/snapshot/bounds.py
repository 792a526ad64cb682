"""Bounds of a range of keys as SQL; nulls come last, as in an index.

Values are literals of unknown type, which the server reads as the column's own type.
"""

from collections.abc import Sequence

from psycopg import sql

from waltap.decode.tuple_image import Tuple

__all__ = ["after_sql", "one_of_sql", "up_to_sql"]


def after_sql(columns: list[tuple[str, bool | None]], bound: Tuple) -> str:
    """Return the predicate "comes after ``bound``"; ``columns`` are (quoted name, nullable)."""
    if not any(nullable for _, nullable in columns):
        return f"{_row([name for name, _ in columns])} > {_row([_literal(v) for v in bound])}"
    alternatives = []
    for place, column in enumerate(columns):
        equal = [_equal(columns[before], bound[before]) for before in range(place)]
        alternatives.append("(" + " AND ".join([*equal, _above(column, bound[place])]) + ")")
    return "(" + " OR ".join(alternatives) + ")"


def up_to_sql(columns: list[tuple[str, bool | None]], bound: Tuple) -> str:
    """Return the predicate "comes no later than ``bound``"."""
    if not any(nullable for _, nullable in columns):
        return f"{_row([name for name, _ in columns])} <= {_row([_literal(v) for v in bound])}"
    return f"NOT {after_sql(columns, bound)}"


def one_of_sql(names: list[str], keys: Sequence[Tuple]) -> str:
    """Return the predicate "has one of these keys", of columns by their quoted names; none is null."""
    return f"{_row(names)} IN ({', '.join(_row([_literal(v) for v in key]) for key in keys)})"


def _literal(value: object) -> str:
    return sql.Literal(value).as_string(None)


def _above(column: tuple[str, bool | None], value: object) -> str:
    name, nullable = column
    if value is None:
        return "false"
    text = f"{name} > {_literal(value)}"
    return f"({text} OR {name} IS NULL)" if nullable else text


def _equal(column: tuple[str, bool | None], value: object) -> str:
    return f"{column[0]} IS NULL" if value is None else f"{column[0]} = {_literal(value)}"


def _row(items: list[str]) -> str:
    return items[0] if len(items) == 1 else f"ROW({', '.join(items)})"
