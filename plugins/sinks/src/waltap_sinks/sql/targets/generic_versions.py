"""Histories in targets that take values one statement for many rows."""

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from waltap.changes.decode.tuple_image import Tuple
from waltap_sinks.sql.shape import HistoryShape, TargetColumn, with_suffix
from waltap_sinks.sql.targets.generic import GenericTarget, escaped
from waltap_sinks.sql.targets.target import BoundColumn, BoundTable, chunks
from waltap_sinks.sql.targets.versions import VersionStatements, shape_of

if TYPE_CHECKING:
    from waltap_sinks.sql.targets.duck import DuckTarget

__all__ = ["DuckVersions", "GenericVersions", "MysqlVersions"]

INDEXES: Final = """
    SELECT index_name, column_name FROM information_schema.statistics
    WHERE table_schema = database() AND table_name = %s ORDER BY index_name, seq_in_index
"""


class GenericVersions(VersionStatements):
    """Versions by the driver's ``executemany``."""

    def __init__(self, target: GenericTarget) -> None:
        self._target = target

    def index(self, shape: HistoryShape) -> None:
        if shape.key:
            # unlike a table's, the name of an index stays when its table is renamed
            self._index(shape, f"{shape.name.name}_{abs(shape.relation.oid)}")

    def _index(self, shape: HistoryShape, name: str) -> None:
        quoted = self._target.quoted
        columns = ", ".join(map(quoted, indexed(shape)))
        table = self._target.quoted_table(shape.name)
        self._target.run(
            f"CREATE INDEX {quoted(with_suffix(name, '_open'))} ON {table} ({columns})"
        )

    def insert_filled(
        self,
        table: BoundTable,
        rows: Sequence[Tuple],
        lacking: Sequence[TargetColumn],
        keys: Sequence[Any],
    ) -> int:
        target, place = self._target, escaped(table.quoted)
        absent = {column.index for column in lacking}
        sent = [c for c in table.columns if c.source.index not in absent and c.existing.written]
        filled = [c for c in table.columns if c.source.index in absent and c.existing.written]
        names = ", ".join(escaped(column.quoted) for column in (*sent, *filled))
        chosen = ["%s"] * len(sent) + [f"o.{escaped(column.quoted)}" for column in filled]
        tests = " AND ".join(f"o.{escaped(key.quoted)} = %s" for key in table.key)
        statement = (
            f"INSERT INTO {place} ({names}) SELECT {', '.join(chosen)} FROM (SELECT 1 AS one) AS s"
            f" LEFT JOIN {place} AS o ON {tests} AND o.{self._current(table)}"
        )
        values = target.rows.columns(table.shape, [column.source for column in sent], rows)
        return target.many(statement, [*values, *target.rows.keys(table.shape, keys)])

    def close(self, table: BoundTable, keys: Sequence[Any], times: Sequence[int]) -> int:
        tests = " AND ".join(f"{escaped(key.quoted)} = %s" for key in table.key)
        moments = [self._target.moment(time) for time in times]
        return self._target.many(
            f"UPDATE {escaped(table.quoted)} SET {self._ended(table)}"
            f" WHERE {tests} AND {self._current(table)}",
            [moments, *self._target.rows.keys(table.shape, keys)],
        )

    def close_row(self, table: BoundTable, row: Tuple, time: int) -> bool:
        target, shape = self._target, shape_of(table)
        own = len(shape.base.relation.columns)
        columns = [c for c in table.columns if c.source.index < own and c.existing.written]
        values = target.rows.columns(shape.base, [column.source for column in columns], [row])
        tests = [target.same(escaped(column.quoted)) for column in columns]
        place, where = escaped(table.quoted), " AND ".join([*tests, self._current(table)])
        if target.many(
            f"UPDATE {place} SET {self._ended(table)}{target.one_row(place, where)}",
            [[target.moment(time)], *values],
        ):
            return True
        return not target.run(
            f"SELECT 1 FROM {place} WHERE {where} LIMIT 1", [value[0] for value in values]
        )

    def close_all(self, table: BoundTable, time: int) -> None:
        self._target.change(
            f"UPDATE {escaped(table.quoted)} SET {self._ended(table)} WHERE {self._current(table)}",
            [self._target.moment(time)],
        )

    def open(self, table: BoundTable, keys: Sequence[Any]) -> int:
        tests = " AND ".join(f"{escaped(key.quoted)} = %s" for key in table.key)
        return self._target.many(
            f"UPDATE {escaped(table.quoted)} SET {self._current(table)} = TRUE"
            f" WHERE {tests} AND NOT {self._current(table)} AND {self._valid_to(table)} IS NULL",
            self._target.rows.keys(table.shape, keys),
        )

    def open_all(self, table: BoundTable) -> None:
        shape, quoted = shape_of(table), self._target.quoted
        self._target.run(
            f"UPDATE {table.quoted} SET {quoted(shape.current)} = TRUE"
            f" WHERE {quoted(shape.valid_to)} IS NULL"
        )

    def drop_unopened(self, table: BoundTable) -> None:
        shape, quoted = shape_of(table), self._target.quoted
        self._target.run(
            f"DELETE FROM {table.quoted} WHERE {quoted(shape.valid_to)} IS NULL"
            f" AND NOT {quoted(shape.current)}"
        )

    def _current(self, table: BoundTable) -> str:
        return escaped(self._target.quoted(shape_of(table).current))

    def _valid_to(self, table: BoundTable) -> str:
        return escaped(self._target.quoted(shape_of(table).valid_to))

    def _ended(self, table: BoundTable) -> str:
        return f"{self._valid_to(table)} = %s, {self._current(table)} = FALSE"


class MysqlVersions(GenericVersions):
    """Versions in MariaDB and MySQL, whose driver sends one statement for each row of an UPDATE."""

    def index(self, shape: HistoryShape) -> None:
        """Table and index are two transactions there: a crash may have come between them."""
        if not shape.key:
            return
        found: dict[str, list[str]] = {}
        for name, column in self._target.run(INDEXES, [shape.name.name]):
            found.setdefault(name, []).append(column.casefold())
        wanted = [name.casefold() for name in indexed(shape)]
        if wanted not in (columns[: len(wanted)] for columns in found.values()):
            # one that was made for another key has its name already
            self._index(shape, f"{shape.name.name}_{abs(shape.relation.oid)}_{len(found)}")

    def close(self, table: BoundTable, keys: Sequence[Any], times: Sequence[int]) -> int:
        names = ", ".join(escaped(key.quoted) for key in table.key)
        one = f"({', '.join(['%s'] * len(table.key))})"
        rows = list(zip(*self._target.rows.keys(table.shape, keys), strict=True))
        count = 0
        for time, some in itertools.groupby(
            zip(times, rows, strict=True), key=lambda each: each[0]
        ):
            for piece in chunks([row for _, row in some], 1000):
                count += self._target.change(
                    f"UPDATE {escaped(table.quoted)} SET {self._ended(table)}"
                    f" WHERE ({names}) IN ({', '.join([one] * len(piece))})"
                    f" AND {self._current(table)}",
                    [self._target.moment(time), *(value for row in piece for value in row)],
                )
        return count


class DuckVersions(GenericVersions):
    """Versions in DuckDB, which reads the table for each statement: keys come as a table."""

    _target: "DuckTarget"

    def index(self, shape: HistoryShape) -> None:
        """An index there makes a delete and an insert of each UPDATE."""

    def close(self, table: BoundTable, keys: Sequence[Any], times: Sequence[int]) -> int:
        moments = [self._target.moment(time) for time in times]
        with self._target.given("waltap_keys", self._keyed(table, keys) | {"ended": moments}):
            return self._target.change(
                f"UPDATE {table.quoted} AS t SET {self._set(table)}"
                f" FROM waltap_keys AS k WHERE {self._matching(table.key)}"
                f" AND t.{self._target.quoted(shape_of(table).current)}",
                (),
            )

    def open(self, table: BoundTable, keys: Sequence[Any]) -> int:
        quoted, shape = self._target.quoted, shape_of(table)
        with self._target.given("waltap_keys", self._keyed(table, keys)):
            return self._target.change(
                f"UPDATE {table.quoted} AS t SET {quoted(shape.current)} = TRUE"
                f" FROM waltap_keys AS k WHERE {self._matching(table.key)}"
                f" AND NOT t.{quoted(shape.current)} AND t.{quoted(shape.valid_to)} IS NULL",
                (),
            )

    def _set(self, table: BoundTable) -> str:
        quoted, shape = self._target.quoted, shape_of(table)
        return f"{quoted(shape.valid_to)} = k.ended, {quoted(shape.current)} = FALSE"

    def _keyed(self, table: BoundTable, keys: Sequence[Any]) -> dict[str, Sequence[Any]]:
        values = self._target.rows.keys(table.shape, keys)
        return {f"c{n}": column for n, column in enumerate(values)}

    def _matching(self, key: Sequence[BoundColumn]) -> str:
        return " AND ".join(f"t.{column.quoted} = k.c{n}" for n, column in enumerate(key))


def indexed(shape: HistoryShape) -> list[str]:
    """Return the columns by which the open version of a key is found."""
    return [*(column.name for column in shape.key), shape.current]
