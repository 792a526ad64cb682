"""Histories in PostgreSQL."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from waltap.changes.decode.tuple_image import MissingValue, Tuple
from waltap_sinks.sql.shape import HistoryShape, TargetColumn
from waltap_sinks.sql.targets.postgres_statements import (
    array_literal,
    cast_to,
    equal_tests,
    key_literals,
    keys_relation,
    percent,
    sql_name,
    texts,
)
from waltap_sinks.sql.targets.target import BoundTable, chunks
from waltap_sinks.sql.targets.versions import VersionStatements, shape_of

if TYPE_CHECKING:
    from waltap_sinks.sql.targets.postgresql import PostgresTarget

__all__ = ["PostgresVersions"]

AT_ONCE = 10_000
"""Rows of one statement."""

MOMENT = "timestamptz 'epoch' + {} * interval '1 microsecond'"


class PostgresVersions(VersionStatements):
    """Versions come and are closed by arrays of text, as rows of tables are."""

    def __init__(self, target: "PostgresTarget") -> None:
        self._target = target

    def index(self, shape: HistoryShape) -> None:
        if shape.key:
            quoted = self._target.quoted
            names = ", ".join(quoted(column.name) for column in shape.key)
            table, current = self._target.quoted_table(shape.name), quoted(shape.current)
            self._target.run(f"CREATE INDEX ON {table} ({names}) WHERE {current}")
            # of those that `insert_filled` adds and `open` looks for: empty, however long the history
            waits = f"NOT {current} AND {quoted(shape.valid_to)} IS NULL"
            self._target.run(f"CREATE INDEX ON {table} ({names}) WHERE {waits}")

    def insert_filled(
        self,
        table: BoundTable,
        rows: Sequence[Tuple],
        lacking: Sequence[TargetColumn],
        keys: Sequence[Any],
    ) -> int:
        absent = {column.index for column in lacking}
        columns = [column for column in table.columns if column.existing.written]
        sent = [column for column in columns if column.source.index not in absent]
        filled = [column for column in columns if column.source.index in absent]
        names = ", ".join(sql_name(column) for column in (*sent, *filled))
        count = len(sent) + len(table.key)
        casts = [f"s.c{n}::{cast_to(column)}" for n, column in enumerate(sent)]
        casts += [f"o.{sql_name(column)}" for column in filled]
        tests = " AND ".join(
            f"o.{sql_name(key)} = s.c{n}::{cast_to(key)}"
            for n, key in enumerate(table.key, len(sent))
        )
        arrays = ", ".join(["%s::text[]"] * count)
        place = percent(table.quoted)
        statement = (
            f"INSERT INTO {place} ({names}) OVERRIDING SYSTEM VALUE SELECT {', '.join(casts)}"
            f" FROM unnest({arrays}) AS s({', '.join(f'c{n}' for n in range(count))})"
            f" LEFT JOIN {place} AS o ON {tests} AND o.{self._current(table)}"
        )
        pairs, count = list(zip(rows, keys, strict=True)), 0
        for some in chunks(pairs, AT_ONCE):
            literals = [array_literal(v) for v in texts(table, sent, [row for row, _ in some])]
            literals += key_literals(table, [key for _, key in some])
            count += self._target.change(statement, literals)
        return count

    def close(self, table: BoundTable, keys: Sequence[Any], times: Sequence[int]) -> int:
        source, where = keys_relation(table, ("waltap_ts", "int8"))
        statement = (
            f"UPDATE {percent(table.quoted)} AS t SET {self._ended(table, 'k.waltap_ts')}"
            f" FROM {source} WHERE {where} AND t.{self._current(table)}"
        )
        count = 0
        for some in chunks(list(zip(keys, times, strict=True)), AT_ONCE):
            literals = key_literals(table, [key for key, _ in some])
            ends = array_literal([str(time) for _, time in some])
            count += self._target.change(statement, [*literals, ends])
        return count

    def close_row(self, table: BoundTable, row: Tuple, time: int) -> bool:
        own = len(shape_of(table).base.relation.columns)
        columns = [
            column
            for column in table.columns
            if column.source.index < own
            and column.existing.written
            and not isinstance(row[column.source.index], MissingValue)
        ]
        tests, values = equal_tests(columns, row)
        place = percent(table.quoted)
        alike = f"FROM {place} WHERE {' AND '.join([*tests, self._current(table)])} LIMIT 1"
        if self._target.change(
            f"UPDATE {place} SET {self._ended(table, '%s::int8')} WHERE (tableoid, ctid) ="
            f" (SELECT tableoid, ctid {alike})",
            [time, *values],
        ):
            return True
        return not self._target.run(f"SELECT 1 {alike}", values)

    def close_all(self, table: BoundTable, time: int) -> None:
        self._target.change(
            f"UPDATE {percent(table.quoted)} SET {self._ended(table, '%s::int8')}"
            f" WHERE {self._current(table)}",
            [time],
        )

    def open(self, table: BoundTable, keys: Sequence[Any]) -> int:
        current = self._current(table)
        source, where = keys_relation(table)
        statement = (
            f"UPDATE {percent(table.quoted)} AS t SET {current} = true FROM {source}"
            f" WHERE {where} AND NOT t.{current} AND t.{self._valid_to(table)} IS NULL"
        )
        return sum(
            self._target.change(statement, key_literals(table, some))
            for some in chunks(keys, AT_ONCE)
        )

    def open_all(self, table: BoundTable) -> None:
        self._target.run(
            f"UPDATE {table.quoted} SET {self._quoted(shape_of(table).current)} = true"
            f" WHERE {self._quoted(shape_of(table).valid_to)} IS NULL"
        )

    def drop_unopened(self, table: BoundTable) -> None:
        shape = shape_of(table)
        self._target.run(
            f"DELETE FROM {table.quoted} WHERE {self._quoted(shape.valid_to)} IS NULL"
            f" AND NOT {self._quoted(shape.current)}"
        )

    def _quoted(self, name: str) -> str:
        return self._target.quoted(name)

    def _current(self, table: BoundTable) -> str:
        return percent(self._quoted(shape_of(table).current))

    def _valid_to(self, table: BoundTable) -> str:
        return percent(self._quoted(shape_of(table).valid_to))

    def _ended(self, table: BoundTable, time: str) -> str:
        return f"{self._valid_to(table)} = {MOMENT.format(time)}, {self._current(table)} = false"
