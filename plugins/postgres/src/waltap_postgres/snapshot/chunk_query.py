"""Chunks of a table in key order, for incremental snapshots; nulls come last, as in an index.

Bounds are literals of unknown type, which the server reads as the column's own type. A filter from a
signal is first prepared on its own, by the protocol that takes one statement only, so that it cannot
end the query it is put into; and it is run read-only.
"""

from collections.abc import Callable
from typing import Any

import psycopg
from psycopg import sql

from waltap.decode.relation import Relation
from waltap.decode.tuple_image import Tuple
from waltap.errors import SourceError
from waltap.pipeline.visibility import Visibility
from waltap.signals.signal import SnapshotRequest
from waltap.snapshot.incremental import Chunk
from waltap_postgres.catalog.catalogue import PostgresCatalogue, Table
from waltap_postgres.connection import Session, driver_error
from waltap_postgres.properties import PostgresProperties
from waltap_postgres.replication.publication import identifier
from waltap_postgres.replication.transport import copy_out
from waltap_postgres.snapshot.copy_text import copy_rows

__all__ = ["PostgresChunks", "after_sql", "up_to_sql"]


class PostgresChunks:
    """Reads chunks over a connection of its own, and writes watermarks."""

    def __init__(
        self,
        catalogue: PostgresCatalogue,
        properties: PostgresProperties,
        connection: "psycopg.Connection[tuple[Any, ...]]",
        captured: list[Table],
        signal_table: str,
        chunk_size: int,
        *,
        captures: Callable[[str, str], bool],
        version_num: int,
    ) -> None:
        self._catalogue, self._properties, self._connection = catalogue, properties, connection
        self._captured, self._chunk_size = captured, chunk_size
        self._captures, self._version_num = captures, version_num
        self._checked: set[SnapshotRequest] = set()
        schema, _, table = signal_table.partition(".")
        self._signal = identifier(schema, table)
        found = catalogue.relation(schema, table)
        self._signal_columns = (
            [identifier(c.name) for c in found.columns[:3]] if found else ["id", "type", "data"]
        )
        self._session: Session | None = None

    def known_tables(self) -> list[tuple[str, str]]:
        return [(t.relation.schema, t.relation.table) for t in self._captured]

    def table(self, request: SnapshotRequest) -> Relation | None:
        if not self._captures(request.schema, request.table):
            return None
        relation = self._catalogue.relation(request.schema, request.table)
        if relation is not None and request.condition and request not in self._checked:
            table = identifier(relation.schema, relation.table)
            check = f"SELECT 1 FROM {table}{_where([], request)} LIMIT 0"
            try:
                self._connection.execute(check.encode(), prepare=True)
            except psycopg.Error as error:
                raise driver_error(error, self._properties) from error
            self._checked.add(request)
        return relation

    def chunk_key(self, request: SnapshotRequest, relation: Relation) -> tuple[int, ...]:
        places = {column.name: index for index, column in enumerate(relation.columns)}
        if request.surrogate_key:
            return (places[request.surrogate_key],) if request.surrogate_key in places else ()
        return tuple(places[name] for name in relation.primary_key or ())

    def maximum(self, request: SnapshotRequest, relation: Relation) -> Tuple | None:
        key = self.chunk_key(request, relation)
        order = ", ".join(f"{identifier(relation.columns[i].name)} DESC" for i in key)
        rows = self._read(relation, f"{_where([], request)} ORDER BY {order} LIMIT 1").rows
        return tuple(rows[0][index] for index in key) if rows else None

    def chunk(
        self, request: SnapshotRequest, relation: Relation, after: Tuple | None, maximum: Tuple
    ) -> Chunk:
        key = self.chunk_key(request, relation)
        columns = [
            (identifier(relation.columns[i].name), relation.columns[i].nullable) for i in key
        ]
        terms = [up_to_sql(columns, maximum)]
        if after is not None:
            terms.insert(0, after_sql(columns, after))
        order = ", ".join(name for name, _ in columns)
        limit = f"LIMIT {self._chunk_size}"
        if request.surrogate_key and self._version_num >= 130000:
            limit = f"FETCH FIRST {self._chunk_size} ROWS WITH TIES"
        return self._read(relation, f"{_where(terms, request)} ORDER BY {order} {limit}")

    def watermark(self, identifier: str, kind: str, data: str) -> None:
        columns = self._signal_columns
        try:
            if kind:
                self._connection.execute(
                    f"INSERT INTO {self._signal} ({', '.join(columns)}) VALUES (%s, %s, %s)".encode(),
                    (identifier, kind, data),
                )
            else:
                self._connection.execute(
                    f"DELETE FROM {self._signal} WHERE {columns[0]} = %s".encode(), (identifier,)
                )
        except psycopg.Error as error:
            raise driver_error(error, self._properties) from error

    def _read(self, relation: Relation, tail: str) -> Chunk:
        names = ", ".join(identifier(c.name) for c in relation.columns)
        table = identifier(relation.schema, relation.table)
        query = f"COPY (SELECT {names} FROM {table}{tail}) TO STDOUT"
        snapshot = (
            "pg_current_snapshot()" if self._version_num >= 130000 else "txid_current_snapshot()"
        )
        try:
            if self._session is None:
                self._session = Session(self._properties, role="incremental snapshot")
                self._session.execute("SET row_security = off")
            ((text,),) = self._session.execute(
                f"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SELECT {snapshot}::text"
            )
            pieces = copy_rows(copy_out(self._session, query), len(relation.columns))
            rows = [row for rows in pieces for row in rows]
            self._session.execute("COMMIT")
        except SourceError:
            self.close()
            raise
        seen = Visibility.parse(f"{text}@0/0")
        assert seen is not None
        return Chunk(rows, seen.saw)

    def close(self) -> None:
        """Close the reading connection; may be called twice."""
        if self._session is not None:
            self._session.close()
            self._session = None


def _where(terms: list[str], request: SnapshotRequest) -> str:
    # The line break ends a comment that the condition may end in.
    parts = [*terms, f"({request.condition}\n)"] if request.condition else terms
    return f" WHERE {' AND '.join(parts)}" if parts else ""


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


def _row(items: list[str]) -> str:
    return items[0] if len(items) == 1 else f"ROW({', '.join(items)})"
