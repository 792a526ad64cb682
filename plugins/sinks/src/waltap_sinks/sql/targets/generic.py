"""Targets that take values one statement for many rows: what their dialects share."""

import abc
import contextlib
import itertools
import math
import os
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import sqlalchemy

from waltap.base.redaction import redacted
from waltap.changes.decode.tuple_image import UNCHANGED, Tuple
from waltap.errors import SinkError
from waltap.ports.sink.sink import SinkContext
from waltap_sinks.sql.errors import (
    SqlColumnMissing,
    SqlConflict,
    SqlConstraintViolated,
    SqlFailed,
    SqlRefused,
    SqlUnreachable,
    SqlValueUnfit,
)
from waltap_sinks.sql.properties import SqlProperties
from waltap_sinks.sql.shape import TargetColumn
from waltap_sinks.sql.targets.target import BoundColumn, BoundTable, SqlTarget, chunks
from waltap_sinks.sql.targets.typed import TypedRows

__all__ = ["GenericTarget", "escaped"]

AT_ONCE = 5_000
"""Rows of one call of the driver."""

READ_AT_ONCE = 2_000

LOOKED_UP = 200
"""Keys of one query."""


class GenericTarget(SqlTarget):
    """A connection by SQLAlchemy's driver of a dialect. Statements have %s for values, in all dialects."""

    schemas = False
    backend: str
    """What SQLAlchemy calls dialect and driver."""
    errors: type[Exception]
    """The driver's own exceptions."""
    qmark = True
    """The driver takes ? for values; otherwise %s."""

    def __init__(self, properties: SqlProperties, context: SinkContext) -> None:
        self._properties, self._context = properties, context
        self.url = redacted(properties.url)
        self._raw: Any = None
        self._file: Path | None = None
        self._opened: tuple[int, int] | None = None
        self._rows: TypedRows | None = None
        self._savepoints = itertools.count(1)

    # --- life ---

    def open(self) -> None:
        url = sqlalchemy.make_url(self._properties.url).set(drivername=self.backend)
        engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.pool.NullPool)
        arguments, options = engine.dialect.create_connect_args(url)
        self._raw = engine.dialect.connect(*arguments, **{**options, **self.options()})
        self.prepare()

    def options(self) -> dict[str, Any]:
        """Return what the driver's connect is given besides."""
        return {}

    def prepare(self) -> None:
        """Set the session up."""

    def close(self) -> None:
        raw, self._raw = self._raw, None
        if raw is not None:
            with contextlib.suppress(self.errors):
                raw.close()

    def begin(self) -> None:
        self.run("BEGIN")

    def commit(self, *, durable: bool = True) -> None:
        self._raw.commit()

    def rollback(self) -> None:
        if self._raw is not None:
            with contextlib.suppress(self.errors):
                self._raw.rollback()

    @contextlib.contextmanager
    def attempt(self) -> Iterator[None]:
        name = f"waltap_{next(self._savepoints)}"
        self.run(f"SAVEPOINT {name}")
        try:
            yield
        except BaseException:
            with contextlib.suppress(self.errors):
                self.run(f"ROLLBACK TO SAVEPOINT {name}")
            raise
        self.run(f"RELEASE SAVEPOINT {name}")

    # --- the file, of targets that are one ---

    def keep_file(self, place: str | None) -> None:
        """Take note of the file that was opened; None: there is none."""
        self._file = Path(place).absolute() if place and Path(place).is_file() else None
        self._opened = self._inode()

    def replaced(self) -> bool:
        return self._inode() != self._opened

    def _inode(self) -> tuple[int, int] | None:
        found = self._status()
        return None if found is None else (found.st_dev, found.st_ino)

    def _status(self) -> os.stat_result | None:
        try:
            return None if self._file is None else self._file.stat()
        except OSError:
            return None

    # --- statements ---

    @property
    def rows(self) -> TypedRows:
        """Return what makes values of tuples."""
        if self._rows is None:
            assert self._context.types is not None
            self._rows = TypedRows(self._context.types, self.adapter)
        return self._rows

    @abc.abstractmethod
    def adapter(self, kind: Any) -> Any:
        """Return what makes of a value of an Arrow type what the driver takes; None: it stays."""

    def run(self, statement: str, parameters: Sequence[object] = ()) -> list[Any]:
        cursor = self._executed(statement, parameters)
        found = list(cursor.fetchall()) if cursor.description else []
        cursor.close()
        return found

    def change(self, statement: str, parameters: Sequence[object]) -> int:
        return int(self._executed(statement, parameters).rowcount)

    def _executed(self, statement: str, parameters: Sequence[object]) -> Any:
        cursor = self._raw.cursor()
        if parameters:
            cursor.execute(self._placed(statement), list(parameters))
        else:
            cursor.execute(statement)
        return cursor

    def many(self, statement: str, columns: Sequence[Sequence[Any]]) -> int:
        """Run one statement for each row of ``columns``; return how many rows it changed."""
        cursor, count = self._raw.cursor(), 0
        text = self._placed(statement)
        for some in chunks(list(zip(*columns, strict=True)), AT_ONCE):
            cursor.executemany(text, some)
            count += cursor.rowcount
        cursor.close()
        return count

    def read(self, statement: str) -> Iterator[Sequence[Any]]:
        """Give the rows of a query as they come, for who writes nothing."""
        cursor = self.streaming_cursor()
        try:
            cursor.execute(statement)
            while rows := cursor.fetchmany(READ_AT_ONCE):
                yield from rows
        finally:
            cursor.close()
            self._raw.rollback()

    def streaming_cursor(self) -> Any:
        """Return a cursor that does not take all rows at once."""
        return self._raw.cursor()

    def literal(self, value: object) -> str:
        """Return a value that the driver gave as a literal that compares as equal to it."""
        if isinstance(value, bool):
            return str(value).upper()
        if isinstance(value, int):
            return str(value)
        if isinstance(value, float) and math.isfinite(value):
            return f"{value:.17e}"  # with an exponent it is no decimal
        if isinstance(value, Decimal) and value.is_finite():
            return f"{value:f}"
        if isinstance(value, bytes):
            return self.bytes_literal(value)
        return self.text_literal(str(value))

    def bytes_literal(self, value: bytes) -> str:
        """Return bytes as a literal of its SQL."""
        return f"x'{value.hex()}'"

    def read_as(self, quoted: str, type_: str) -> str:
        """Return SQL that reads a column of ``type_`` as exactly as it is kept."""
        return quoted

    def _placed(self, statement: str) -> str:
        return statement.replace("%s", "?").replace("%%", "%") if self.qmark else statement

    # --- rows ---

    def insert(self, table: BoundTable, rows: Sequence[Tuple]) -> int:
        columns = [c for c in table.columns if c.existing.written]
        return self._put("INSERT INTO", "", table, columns, rows)

    def upsert(self, table: BoundTable, rows: Sequence[Tuple], *, keep: bool = False) -> int:
        columns = [c for c in table.columns if c.existing.written]
        return self._put("INSERT INTO", self.on_conflict(table, keep=keep), table, columns, rows)

    def _put(
        self,
        verb: str,
        ending: str,
        table: BoundTable,
        columns: Sequence[BoundColumn],
        rows: Sequence[Tuple],
    ) -> int:
        names = ", ".join(escaped(column.quoted) for column in columns)
        places = ", ".join(["%s"] * len(columns))
        statement = f"{verb} {escaped(table.quoted)} ({names}) VALUES ({places}){ending}"
        values = self.rows.columns(table.shape, [column.source for column in columns], rows)
        return self.many(statement, values)

    def on_conflict(self, table: BoundTable, *, keep: bool) -> str:
        """Return what an INSERT ends with where rows of the same key may be there."""
        keys = {key.quoted for key in table.key}
        names = ", ".join(escaped(key.quoted) for key in table.key)
        sets = [
            f"{escaped(column.quoted)} = excluded.{escaped(column.quoted)}"
            for column in table.columns
            if column.quoted not in keys and column.existing.settable
        ]
        if table.soft is not None:
            sets.append(f"{escaped(table.soft)} = NULL")
        if keep or not sets:
            return f" ON CONFLICT ({names}) DO NOTHING"
        return f" ON CONFLICT ({names}) DO UPDATE SET {', '.join(sets)}"

    def update(
        self, table: BoundTable, columns: Sequence[TargetColumn], rows: Sequence[Tuple]
    ) -> int:
        sent = {column.index for column in columns}
        keys = {key.quoted for key in table.key}
        chosen = [c for c in table.columns if c.source.index in sent and c.existing.written]
        settable = [c for c in chosen if c.quoted not in keys and c.existing.settable] or [
            *table.key
        ]
        statement = (
            f"UPDATE {escaped(table.quoted)} SET {self._sets(table, settable)}{_keyed(table)}"
        )
        values = self.rows.columns(table.shape, [c.source for c in (*settable, *table.key)], rows)
        count = self.many(statement, values)
        if count < len(rows):
            count += self._put(
                "INSERT INTO", self.on_conflict(table, keep=True), table, chosen, rows
            )
        return count

    def _sets(self, table: BoundTable, columns: Sequence[BoundColumn]) -> str:
        sets = [f"{escaped(column.quoted)} = %s" for column in columns]
        if table.soft is not None:
            sets.append(f"{escaped(table.soft)} = NULL")
        return ", ".join(sets)

    def move(self, table: BoundTable, old: Sequence[Any], row: Tuple) -> int:
        sent = [
            c for c in table.columns if row[c.source.index] is not UNCHANGED and c.existing.settable
        ]
        values = self.rows.columns(table.shape, [c.source for c in sent], [row])
        keys = self.rows.keys(table.shape, [old[0] if len(old) == 1 else tuple(old)])
        statement = f"UPDATE {escaped(table.quoted)} SET {self._sets(table, sent)}{_keyed(table)}"
        return self.many(statement, [*values, *keys])

    def delete(self, table: BoundTable, keys: Sequence[Any]) -> int:
        statement = f"DELETE FROM {escaped(table.quoted)}{_keyed(table)}"
        return self.many(statement, self.rows.keys(table.shape, keys))

    def holding(self, table: BoundTable, keys: Sequence[Any], where: str = "") -> int:
        one = " AND ".join(f"{escaped(key.quoted)} = %s" for key in table.key)
        rows, count = list(zip(*self.rows.keys(table.shape, keys), strict=True)), 0
        for some in chunks(rows, LOOKED_UP):
            tests = f"({' OR '.join([f'({one})'] * len(some))})"
            if where:
                tests += f" AND {escaped(where)}"
            ((found,),) = self.run(
                f"SELECT count(*) FROM {escaped(table.quoted)} WHERE {tests}",
                [value for row in some for value in row],
            )
            count += int(found)
        return count

    def mark_deleted(self, table: BoundTable, keys: Sequence[Any], times: Sequence[int]) -> int:
        assert table.soft is not None
        statement = f"UPDATE {escaped(table.quoted)} SET {escaped(table.soft)} = %s{_keyed(table)}"
        moments = [self.moment(ts) for ts in times]
        return self.many(statement, [moments, *self.rows.keys(table.shape, keys)])

    @abc.abstractmethod
    def moment(self, ts: int) -> object:
        """Return an instant, µs since 1970 UTC, as the driver takes it."""

    def delete_row(self, table: BoundTable, row: Tuple) -> bool:
        columns = [c for c in table.columns if c.existing.written]
        values = self.rows.columns(table.shape, [c.source for c in columns], [row])
        tests = " AND ".join(self.same(escaped(column.quoted)) for column in columns) or "1 = 1"
        place = escaped(table.quoted)
        if self.many(f"DELETE FROM {place}{self.one_row(place, tests)}", values):
            return True
        return not self.run(f"SELECT 1 FROM {place} WHERE {tests} LIMIT 1", [v[0] for v in values])

    @abc.abstractmethod
    def same(self, name: str) -> str:
        """Return SQL that compares a column with %s, NULL with NULL too."""

    @abc.abstractmethod
    def one_row(self, table: str, tests: str) -> str:
        """Return what a DELETE or UPDATE ends with that is of one row of those that pass ``tests``."""

    def delete_all(self, table: BoundTable) -> None:
        self.run(f"DELETE FROM {table.quoted}")

    def truncate(self, tables: Sequence[BoundTable], *, cascade: bool, restart: bool) -> None:
        for table in reversed(self.ordered(tables)):
            self.delete_all(table)

    # --- failures ---

    def speaks(self, error: BaseException) -> bool:
        return isinstance(error, (self.errors, sqlalchemy.exc.SQLAlchemyError, OSError))

    @abc.abstractmethod
    def meaning(self, error: BaseException) -> type[SinkError] | None:
        """Return the class of what to tell of an exception, None for one that has none of its own."""

    def lost(self, error: BaseException) -> bool:
        return isinstance(error, OSError) or self.meaning(error) is SqlUnreachable

    def conflict(self, error: BaseException) -> bool:
        return self.meaning(error) is SqlConflict

    def failure(
        self, error: BaseException, *, table: BoundTable | None, position: str, positions: str
    ) -> SinkError:
        kind = self.meaning(error) or SqlFailed
        if isinstance(error, OSError):
            kind = SqlUnreachable
        name = "the table" if table is None else str(table.shape.name)
        where = "the target" if table is None else name
        text = f"{where}: {self.said(error)}"
        fields = {"url": self.url, "table": name, "position": position, "positions": positions}
        if kind is SqlColumnMissing:
            fields["statement"] = f"ALTER TABLE {name} ADD COLUMN …"
        return kind(text, **fields)

    def said(self, error: BaseException) -> str:
        """Return what the driver says, without values of rows."""
        if self.meaning(error) in {
            SqlConstraintViolated,
            SqlRefused,
            SqlColumnMissing,
            SqlUnreachable,
        }:
            return redacted(str(error).partition("\n")[0])
        if self.meaning(error) is SqlValueUnfit:
            return "a value does not fit its column"
        return redacted(str(error).partition("\n")[0])


def escaped(text: str) -> str:
    """Return SQL that stands in a statement with %s for values."""
    return text.replace("%", "%%")


def _keyed(table: BoundTable) -> str:
    tests = " AND ".join(f"{escaped(key.quoted)} = %s" for key in table.key)
    return f" WHERE {tests}"
