"""Sequences of a PostgreSQL target, moved to where its rows are: before applications write there."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from waltap_sinks.sql.metadata import KnownTable

if TYPE_CHECKING:
    from psycopg import Connection

__all__ = ["move_sequences"]

OWNED = """
    SELECT format('%%I.%%I', n.nspname, s.relname), quote_ident(a.attname)
    FROM pg_depend d JOIN pg_class s ON s.oid = d.objid AND s.relkind = 'S'
      JOIN pg_namespace n ON n.oid = s.relnamespace
      JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
    WHERE d.refobjid = to_regclass(%s) AND d.classid = 'pg_class'::regclass
      AND d.refclassid = 'pg_class'::regclass AND d.deptype IN ('a', 'i')
"""


def move_sequences(
    target: "Connection[Any]", tables: Iterable[KnownTable]
) -> list[tuple[str, int]]:
    """Move each sequence that belongs to a column of ``tables`` to the largest value there, never back;
    return those that were moved, with their new last value."""
    moved = []
    for table in tables:
        place = ".".join('"' + part.replace('"', '""') + '"' for part in table.name if part)
        for sequence, column in target.execute(OWNED, [place]).fetchall():
            query = (
                f"SELECT setval('{sequence.replace(chr(39), chr(39) * 2)}', top) FROM"
                f" (SELECT max({column})::bigint AS top FROM {place}) rows, {sequence} held"
                " WHERE top > held.last_value OR (top = held.last_value AND NOT held.is_called)"
            )
            moved += [(sequence, int(last)) for (last,) in target.execute(query.encode())]
    return moved
