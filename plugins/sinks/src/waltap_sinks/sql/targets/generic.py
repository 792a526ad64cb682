"""Write to databases by statements for one row each, run for many."""

import abc
import contextlib
import itertools
import math
import os
import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import sqlalchemy

from waltap.base.redaction import redacted
from waltap.changes.decode.tuple_image import UNCHANGED, Tuple
from waltap.errors import ConfigurationError
from waltap.ports.sink.sink import SinkContext
from waltap_sinks.sql.errors import (
    SqlConflict,
    SqlUnreachable,
    SqlValueUnfit,
)
from waltap_sinks.sql.properties import SqlProperties
from waltap_sinks.sql.shape import HistoryShape, TargetColumn, TargetShape, with_suffix
from waltap_sinks.sql.targets.target import (
    NO_SETS,
    Assignments,
    BoundColumn,
    BoundTable,
    SqlTarget,
    assignments,
    changing,
    chunks,
    escaped,
    on_conflict,
    shape_of,
)
from waltap_sinks.sql.targets.typed import TypedRows

# Rows of one call of the driver.
AT_ONCE: Final = 5_000
READ_AT_ONCE: Final = 2_000
PLACEHOLDER: Final = re.compile("%[%s]")
# Keys of one query.
KEYS_AT_ONCE: Final = 200


class GenericTarget(SqlTarget):
    """Connect by the driver of a SQLAlchemy dialect."""

    schemas = False
    # SQLAlchemy's name of dialect and driver.
    backend: str
    # The driver's exceptions.
    errors: type[Exception]
    # The driver takes ? for values; otherwise %s.
    qmark = True

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
        try:
            self._raw = engine.dialect.connect(*arguments, **{**options, **self.options()})
        except TypeError as error:
            raise ConfigurationError.of(
                "sink.url", f"has a parameter that the driver does not take: {error}"
            ) from error
        self.prepare()

    def options(self) -> dict[str, Any]:
        """Return further arguments of the driver's connect."""
        return {}

    def prepare(self) -> None:
        """Configure the session."""

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

    # --- the file of a target that is one ---

    def keep_file(self, path: str | None) -> None:
        """Record the opened file, if there is one."""
        self._file = Path(path).absolute() if path and Path(path).is_file() else None
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
        """Return the conversion of tuples to values."""
        if self._rows is None:
            assert self._context.types is not None
            self._rows = TypedRows(self._context.types, self.adapter)
        return self._rows

    @abc.abstractmethod
    def adapter(self, kind: Any) -> Any:
        """Return the driver's conversion for an Arrow type.

        None leaves the values as they are.
        """

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
            cursor.execute(self._with_placeholders(statement), list(parameters))
        else:
            cursor.execute(statement)
        return cursor

    def many(self, statement: str, columns: Sequence[Sequence[Any]]) -> int:
        """Run one statement for each row of ``columns``.

        Return the number of changed rows.
        """
        cursor, count = self._raw.cursor(), 0
        text = self._with_placeholders(statement)
        for some in chunks(list(zip(*columns, strict=True)), AT_ONCE):
            cursor.executemany(text, some)
            count += cursor.rowcount
        cursor.close()
        return count

    def read(self, statement: str) -> Iterator[Sequence[Any]]:
        """Yield the rows of a query for a caller that writes nothing."""
        cursor = self.streaming_cursor()
        try:
            cursor.execute(statement)
            while rows := cursor.fetchmany(READ_AT_ONCE):
                yield from rows
        finally:
            cursor.close()
            self._raw.rollback()

    def streaming_cursor(self) -> Any:
        """Return a cursor that does not fetch all rows at once."""
        return self._raw.cursor()

    def literal(self, value: object) -> str:
        """Return a value of the driver as a literal that equals it."""
        if isinstance(value, bool):
            return str(value).upper()
        if isinstance(value, int):
            return str(value)
        if isinstance(value, float) and math.isfinite(value):
            return f"{value:.17e}"  # without an exponent it would be a decimal
        if isinstance(value, Decimal) and value.is_finite():
            return f"{value:f}"
        if isinstance(value, bytes):
            return self.bytes_literal(value)
        return self.text_literal(str(value))

    def bytes_literal(self, value: bytes) -> str:
        """Return bytes as a literal of SQL."""
        return f"x'{value.hex()}'"

    def read_as(self, quoted: str, type_: str) -> str:
        """Return SQL that reads a column of ``type_`` without loss."""
        return quoted

    def _with_placeholders(self, statement: str) -> str:
        if not self.qmark:
            return statement
        return PLACEHOLDER.sub(lambda found: "?" if found[0] == "%s" else "%", statement)

    # --- rows ---

    def insert(self, table: BoundTable, rows: Sequence[Tuple]) -> int:
        return self._put("", table, table.written, rows)

    def upsert(self, table: BoundTable, rows: Sequence[Tuple], *, keep: bool = False) -> int:
        return self._put(self.on_conflict(table, keep=keep), table, table.written, rows)

    def _put(
        self, ending: str, table: BoundTable, columns: Sequence[BoundColumn], rows: Sequence[Tuple]
    ) -> int:
        names = ", ".join(escaped(column.quoted) for column in columns)
        placeholders = ", ".join(["%s"] * len(columns))
        statement = f"INSERT INTO {escaped(table.quoted)} ({names}) VALUES ({placeholders}){ending}"
        values = self.rows.columns(table.shape, [column.source for column in columns], rows)
        return self.many(statement, values)

    def on_conflict(self, table: BoundTable, *, keep: bool) -> str:
        """Return the end of an INSERT whose keys may exist."""
        return on_conflict(table, keep=keep)

    def update(
        self, table: BoundTable, columns: Sequence[TargetColumn], rows: Sequence[Tuple]
    ) -> int:
        sent = {column.index for column in columns}
        chosen = [column for column in table.written if column.source.index in sent]
        settable = [
            c for c in table.set_by_upsert() if c.existing.written and c.source.index in sent
        ] or [*table.key]
        statement = f"UPDATE {escaped(table.quoted)} SET {_sets(table, settable)}{_of_key(table)}"
        values = self.rows.columns(table.shape, [c.source for c in (*settable, *table.key)], rows)
        count = self.many(statement, values)
        if count < len(rows):
            count += self._put(self.on_conflict(table, keep=True), table, chosen, rows)
        return count

    def move(self, table: BoundTable, old: Sequence[Any], row: Tuple) -> int:
        sent = [
            c for c in table.columns if row[c.source.index] is not UNCHANGED and c.existing.settable
        ]
        values = self.rows.columns(table.shape, [c.source for c in sent], [row])
        keys = self.rows.keys(table.shape, [old[0] if len(old) == 1 else tuple(old)])
        statement = f"UPDATE {escaped(table.quoted)} SET {_sets(table, sent)}{_of_key(table)}"
        return self.many(statement, [*values, *keys])

    def change_keys(
        self,
        table: BoundTable,
        keys: Sequence[Any],
        sets: Assignments = NO_SETS,
        where: str = "",
        times: Sequence[int] = (),
    ) -> int:
        tests = _of_key(table) + (f" AND {escaped(where)}" if where else "")
        moments = [list(map(self.moment, times))] if times else []
        statement = changing(table, sets, self.moment_sql) + tests
        return self.many(statement, [*moments, *self.rows.keys(table.shape, keys)])

    def holding(self, table: BoundTable, keys: Sequence[Any], where: str = "") -> int:
        one = " AND ".join(f"{escaped(key.quoted)} = %s" for key in table.key)
        rows, count = list(zip(*self.rows.keys(table.shape, keys), strict=True)), 0
        for some in chunks(rows, KEYS_AT_ONCE):
            tests = f"({' OR '.join([f'({one})'] * len(some))})"
            if where:
                tests += f" AND {escaped(where)}"
            ((found,),) = self.run(
                f"SELECT count(*) FROM {escaped(table.quoted)} WHERE {tests}",
                [value for row in some for value in row],
            )
            count += int(found)
        return count

    def index_history(self, shape: HistoryShape) -> None:
        if shape.key:
            # An index keeps its name when its table is renamed, so the name has the relation's OID.
            self._index(shape, f"{shape.name.name}_{abs(shape.relation.oid)}")

    def _index(self, shape: HistoryShape, name: str) -> None:
        columns = ", ".join(map(self.quoted, indexed(shape)))
        index, table = self.quoted(with_suffix(name, "_open")), self.quoted_table(shape.name)
        self.run(f"CREATE INDEX {index} ON {table} ({columns})")

    def insert_filled(
        self,
        table: BoundTable,
        rows: Sequence[Tuple],
        missing: Sequence[TargetColumn],
        keys: Sequence[Any],
    ) -> int:
        quoted, current = escaped(table.quoted), escaped(self.quoted(shape_of(table).current))
        sent, absent = table.with_and_without(missing)
        names = ", ".join(escaped(column.quoted) for column in (*sent, *absent))
        chosen = ["%s"] * len(sent) + [f"o.{escaped(column.quoted)}" for column in absent]
        tests = " AND ".join(f"o.{escaped(key.quoted)} = %s" for key in table.key)
        statement = (
            f"INSERT INTO {quoted} ({names}) SELECT {', '.join(chosen)} FROM (SELECT 1 AS one) AS s"
            f" LEFT JOIN {quoted} AS o ON {tests} AND o.{current}"
        )
        values = self.rows.columns(table.shape, [column.source for column in sent], rows)
        return self.many(statement, [*values, *self.rows.keys(table.shape, keys)])

    def equal_tests(
        self, shape: TargetShape, columns: Sequence[BoundColumn], row: Tuple
    ) -> tuple[list[str], list[Any]]:
        values = self.rows.columns(shape, [column.source for column in columns], [row])
        tests = [self.same(escaped(column.quoted)) for column in columns]
        return tests, [value for (value,) in values]

    @abc.abstractmethod
    def same(self, name: str) -> str:
        """Return SQL that compares a column with %s; NULL equals NULL."""

    def one_row(self, table: str, tests: str) -> str:
        return f" WHERE rowid = (SELECT rowid FROM {table} WHERE {tests} LIMIT 1)"

    def truncate(self, tables: Sequence[BoundTable], *, cascade: bool, restart: bool) -> None:
        for table in reversed(self.ordered(tables)):
            self.delete_all(table)

    # --- failures ---

    def speaks(self, error: BaseException) -> bool:
        return isinstance(error, (self.errors, sqlalchemy.exc.SQLAlchemyError, OSError))

    def lost(self, error: BaseException) -> bool:
        return isinstance(error, OSError) or self.meaning(error) is SqlUnreachable

    def conflict(self, error: BaseException) -> bool:
        return self.meaning(error) is SqlConflict

    def error_text(self, error: BaseException) -> str:
        if self.meaning(error) is SqlValueUnfit:
            return "a value does not fit its column"
        return redacted(str(error).partition("\n")[0])


def _of_key(table: BoundTable) -> str:
    """Return the condition for one key."""
    return " WHERE " + " AND ".join(f"{escaped(key.quoted)} = %s" for key in table.key)


def _sets(table: BoundTable, columns: Sequence[BoundColumn]) -> str:
    return assignments(table, columns, lambda _column: "%s")


def indexed(shape: HistoryShape) -> list[str]:
    """Return the columns that find the open version of a key."""
    return [*(column.name for column in shape.key), shape.current]
