"""Write to a database, mostly by one-row statements."""

import abc
import contextlib
import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final

from waltap.base.redaction import redacted
from waltap.base.text import escaped
from waltap.changes.decode.tuple_image import UNCHANGED, Tuple
from waltap.errors import ConfigurationError, SinkError
from waltap.ports.sink.sink import SinkContext
from waltap_sinks.sql.errors import (
    SqlColumnMissing,
    SqlConflict,
    SqlFailed,
    SqlTableUnfit,
    SqlUnreachable,
    SqlValueUnfit,
)
from waltap_sinks.sql.properties import SqlProperties
from waltap_sinks.sql.shape import HistoryShape, TargetColumn, TargetName, TargetShape, with_suffix
from waltap_sinks.sql.targets.typed import MOST_DIGITS, TypedRows, common_decimal, is_lossless


@dataclass(frozen=True, slots=True)
class ExistingColumn:
    """Describe a column of an existing table."""

    name: str
    # The type as the target prints it.
    type: str
    # Values are cast to the type without length or precision. A cast to the whole type would cut
    # values that do not fit; an assignment refuses them.
    bare: str
    # False for a generated column.
    written: bool = True
    # An UPDATE may set it.
    settable: bool = True
    # The collation by which different texts may be equal; empty if texts are compared bytewise.
    collation: str = ""
    # The quoted schema of the type's operators; empty for built-in ones.
    operators: str = ""


@dataclass(frozen=True, slots=True)
class TargetDescription:
    """Describe an existing table."""

    columns: dict[str, ExistingColumn]
    # The column sets of unique indexes that an upsert can use.
    unique: tuple[frozenset[str], ...]
    # False for a view, which takes no rows.
    is_table: bool = True


@dataclass(frozen=True, slots=True)
class WriteObstacle:
    """Describe a reason why a table ignores written rows."""

    problem: str
    # The SQL that removes the obstacle.
    statement: str
    # False if the table may ignore rows, as with a trigger.
    certain: bool = True
    verbs: frozenset[str] = frozenset({"INSERT", "UPDATE", "DELETE"})


@dataclass(frozen=True, slots=True)
class BoundColumn:
    """Pair a source's column with its target's."""

    source: TargetColumn
    # The name in SQL.
    quoted: str
    existing: ExistingColumn


@dataclass(eq=False, slots=True)
class BoundTable:
    """Pair a shape with the table that gets its rows."""

    shape: TargetShape
    # The name in SQL.
    quoted: str
    columns: tuple[BoundColumn, ...]
    key: tuple[BoundColumn, ...]
    # The quoted column for soft deletes.
    soft: str | None
    # No other columns must be unique.
    only_key: bool = True
    # It has columns that the sink does not write.
    shared: bool = False
    # A DELETE of its rows changes rows that refer to them.
    cascades: bool = False
    # Statements that a target has built, by their kind and columns.
    statements: dict[tuple[str, ...], str] = field(default_factory=dict)

    @property
    def written(self) -> list[BoundColumn]:
        return [column for column in self.columns if column.existing.written]

    @property
    def settable(self) -> bool:
        """Return whether an upsert sets anything besides the key."""
        return self.soft is not None or bool(self.set_by_upsert())

    def with_and_without(
        self, missing: Sequence[TargetColumn]
    ) -> tuple[list[BoundColumn], list[BoundColumn]]:
        """Return the written columns that rows have, and those they lack."""
        absent = {column.index for column in missing}
        sent = [c for c in self.written if c.source.index not in absent]
        return sent, [c for c in self.written if c.source.index in absent]

    def set_by_upsert(self) -> list[BoundColumn]:
        keys = {key.quoted for key in self.key}
        return [c for c in self.columns if c.existing.settable and c.quoted not in keys]


# Rows of one call of the driver.
AT_ONCE: Final = 5_000
READ_AT_ONCE: Final = 2_000
PLACEHOLDER: Final = re.compile("%[%s]")
# Keys of one query.
KEYS_AT_ONCE: Final = 200

# SQL values by quoted column; None is a time that comes as a parameter.
Assignments = Mapping[str, str | None]
NO_SETS: Final[Assignments] = {}


# How statements begin that commit the open transaction where `transactional_ddl` is false.
DDL: Final = ("ALTER ", "CREATE ", "DROP ")


class DdlNeeded(Exception):
    """Report DDL within `SqlTarget.without_ddl`."""


class SqlTarget(abc.ABC):
    """Hold one connection of a SQLAlchemy dialect's driver.

    A statement writes one row and runs for many. Rows are tuples of the source with PostgreSQL's
    text. Exceptions of the driver come out unchanged; `failure` translates them. Single-threaded:
    `begin`, then `commit` or `rollback`.
    """

    # Tables have schemas.
    schemas: bool = True
    # `attempt` undoes its block. Without savepoints a failure ends the transaction.
    savepoints: bool = True
    # Tables are created and altered in the transaction of the data.
    transactional_ddl: bool = True
    # ALTER TABLE gives a table a primary key.
    adds_keys: bool = True
    # `move_table` gives a table another schema.
    moves_tables: bool = False
    # A commit that need not be durable is faster.
    lazy_commits: bool = False
    # Names of tables that differ in case only are the same name.
    ignores_table_case: bool = False
    ignores_column_case: bool = False
    # The address without the password.
    url: str
    # The end of a SELECT that waits for the row's lock and takes it.
    for_update: str = " FOR UPDATE"
    # Types of the sink's own columns.
    number_type: str = "bigint"
    word_type: str = "varchar(255)"
    text_type: str = "text"
    time_type: str = "timestamp with time zone"
    # The operator for which NULL equals NULL.
    same: str = "IS NOT DISTINCT FROM"
    # The placeholder of `moment`.
    moment_sql: str = "%s"
    # SQLAlchemy's name of dialect and driver.
    backend: str
    # The driver's exceptions.
    errors: type[Exception]
    # The driver takes ? for values; otherwise %s.
    qmark: bool = True
    # A column prints a value as the source does.
    prints_as_source: bool = False

    def __init__(self, properties: SqlProperties, context: SinkContext) -> None:
        self._properties, self._context = properties, context
        self.url = redacted(properties.url)
        self._raw: Any = None
        self._rows: TypedRows | None = None
        self._takes_ddl = True
        self._savepoints = itertools.count(1)
        # The server's number of a session behind a silent link, which may still have locks.
        self._abandoned: int | None = None

    # --- life ---

    def open(self) -> None:
        self._raw = self._connected()
        self.prepare()

    def _is_busy(self, session: int, end: bool) -> bool:
        """Return whether the server works for a session; else ``end`` it."""
        self._abandoned = session if end else None
        found = self._ask_about(session, end)
        if found is not None:
            self._abandoned = None
        return bool(found)

    def _ask_about(self, session: int, end: bool) -> bool | None:
        """Answer `_is_busy` over another connection; None without an answer."""
        return True

    def _connected(self, **more: Any) -> Any:
        """Return a connection; ``more`` are arguments of the driver besides `options`."""
        import sqlalchemy

        url = sqlalchemy.make_url(self._properties.url).set(drivername=self.backend)
        engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.pool.NullPool)
        arguments, options = engine.dialect.create_connect_args(url)
        try:
            return engine.dialect.connect(*arguments, **{**options, **self.options(), **more})
        except TypeError as error:
            raise ConfigurationError.of(
                "sink.url", f"has a parameter that the driver does not take: {error}"
            ) from error

    def options(self) -> dict[str, Any]:
        """Return further arguments of the driver's connect."""
        return {}

    def prepare(self) -> None:
        """Configure the session."""

    def close(self) -> None:
        """Disconnect, which undoes an open transaction. May be called twice."""
        raw, self._raw = self._raw, None
        if raw is not None:
            with contextlib.suppress(self.errors):
                raw.close()

    def begin(self) -> None:
        self.run("BEGIN")

    def commit(self, *, durable: bool = True) -> None:
        """Commit the open transaction.

        Without ``durable`` the server need not wait for its disk. Others see the commit at once, but
        a crash of the server may undo it and all later ones.
        """
        self._raw.commit()

    def rollback(self) -> None:
        """Undo an open transaction. Never raises."""
        if self._raw is not None:
            with contextlib.suppress(self.errors):
                self._raw.rollback()

    @contextlib.contextmanager
    def attempt(self) -> Iterator[None]:
        """Return a block in a savepoint, undone if it raises."""
        name = f"waltap_{next(self._savepoints)}"
        self.run(f"SAVEPOINT {name}")
        try:
            yield
        except BaseException:
            with contextlib.suppress(self.errors):
                self.run(f"ROLLBACK TO SAVEPOINT {name}")
            raise
        self.run(f"RELEASE SAVEPOINT {name}")

    @contextlib.contextmanager
    def without_ddl(self) -> Iterator[None]:
        """Return a block that raises DdlNeeded before it would run DDL."""
        self._takes_ddl = False
        try:
            yield
        finally:
            self._takes_ddl = True

    # --- tables ---

    @abc.abstractmethod
    def describe(self, name: TargetName) -> TargetDescription | None:
        """Return the description of a table, None if it is missing."""

    def obstacles(self, name: TargetName) -> "list[WriteObstacle]":
        """Return the obstacles that make the table ignore rows."""
        return []

    def cascades(self, name: TargetName) -> bool:
        """Return whether a DELETE changes rows that refer to the table."""
        return False

    @abc.abstractmethod
    def type_for(self, column: TargetColumn) -> str:
        """Return the type for ``column`` as the target prints it."""

    @abc.abstractmethod
    def widened(self, existing: str, wanted: str) -> bool | None:
        """Return whether type ``wanted`` holds values that ``existing`` does not.

        None for types of different kinds.
        """

    def common_type(self, existing: str, wanted: str) -> str:
        """Return a type that holds the values of both."""
        sizes = common_decimal(existing, wanted)
        if sizes is not None:
            return f"decimal{sizes}" if sizes[0] <= MOST_DIGITS else self.text_type
        holds = self.widened(existing, wanted) or is_lossless(existing, wanted)
        return wanted if holds else self.text_type

    def holds(self, name: TargetName, column: str, type_: str) -> bool:
        """Return false if ALTER TABLE would fail and end the transaction."""
        return True

    def quoted(self, name: str) -> str:
        return '"' + name.replace('"', '""') + '"'

    def text_literal(self, text: str) -> str:
        return "'" + text.replace("'", "''") + "'"

    def quoted_table(self, name: TargetName) -> str:
        table = self.quoted(name.name)
        return table if name.schema is None else f"{self.quoted(name.schema)}.{table}"

    def run(self, statement: str, parameters: Sequence[object] = ()) -> list[Any]:
        """Run one statement with %s parameters; return its rows. Raises: DdlNeeded."""
        if not self._takes_ddl and statement.startswith(DDL):
            raise DdlNeeded
        cursor = self._executed(statement, parameters)
        found = list(cursor.fetchall()) if cursor.description else []
        cursor.close()
        return found

    def change(self, statement: str, parameters: Sequence[object]) -> int:
        return int(self._executed(statement, parameters).rowcount)

    def can_name(self, name: str) -> bool:
        return True

    def create_schema(self, name: TargetName) -> None:
        if name.schema is not None:
            self.run(f"CREATE SCHEMA IF NOT EXISTS {self.quoted(name.schema)}")

    def create(
        self, name: TargetName, columns: Sequence[tuple[str, str]], key: Sequence[str]
    ) -> None:
        """Create a table with columns (name, type)."""
        self.create_schema(name)
        self.run(self.create_statement(name, columns, key))

    def create_statement(
        self, name: TargetName, columns: Sequence[tuple[str, str]], key: Sequence[str]
    ) -> str:
        parts = [f"{self.quoted(column)} {type_}" for column, type_ in columns]
        if key:
            parts.append(f"PRIMARY KEY ({', '.join(map(self.quoted, key))})")
        return f"CREATE TABLE IF NOT EXISTS {self.quoted_table(name)} ({', '.join(parts)})"

    def add_column(self, name: TargetName, column: str, type_: str, value: Any) -> None:
        """Add a column; existing rows get ``value``, as `value` returns it."""
        table, quoted = self.quoted_table(name), self.quoted(column)
        self.run(f"ALTER TABLE {table} ADD COLUMN {quoted} {type_}")
        if value is not None:
            self.run(f"UPDATE {escaped(table)} SET {escaped(quoted)} = %s", [value])

    def value(self, shape: TargetShape, column: TargetColumn, text: str) -> Any:
        """Return a value from PostgreSQL's text, as rows have it."""
        row: list[str | None] = [None] * len(shape.relation.columns)
        row[column.index] = text
        return self.rows.columns(shape, [column], [tuple(row)])[0][0]

    def alter_type(self, name: TargetName, column: str, type_: str) -> None:
        table, quoted = self.quoted_table(name), self.quoted(column)
        self.run(f"ALTER TABLE {table} ALTER COLUMN {quoted} TYPE {type_}")

    def convert(self, name: TargetName, before: TargetColumn, column: TargetColumn) -> None:
        """Give values the form of another type of the source, where columns have the same."""

    def allow_nulls(self, name: TargetName, columns: Sequence[str]) -> bool:
        """Let columns that left the key be null; return whether needed."""
        return False

    def exact_statement(self, name: TargetName, column: str, type_: str) -> str:
        """Return the SQL that makes a column compare texts bytewise."""
        table = self.quoted_table(name)
        return f"ALTER TABLE {table} ALTER COLUMN {self.quoted(column)} TYPE {type_}"

    def rename_column(self, name: TargetName, old: str, new: str) -> None:
        table = self.quoted_table(name)
        self.run(f"ALTER TABLE {table} RENAME COLUMN {self.quoted(old)} TO {self.quoted(new)}")

    def rename_table(self, old: TargetName, new: str) -> None:
        self.run(f"ALTER TABLE {self.quoted_table(old)} RENAME TO {self.quoted(new)}")

    def move_table(self, old: TargetName, new: TargetName) -> None:
        """Give a table another schema, and another name if it has one."""
        self.create_schema(new)
        assert new.schema is not None
        schema = self.quoted(new.schema)
        # Either schema may have a table of the other name.
        between = old._replace(name=with_suffix(new.name, "_waltap_moves"))
        self.rename_table(old, between.name)
        self.run(f"ALTER TABLE {self.quoted_table(between)} SET SCHEMA {schema}")
        self.rename_table(new._replace(name=between.name), new.name)

    def ordered(self, tables: Sequence[BoundTable]) -> list[BoundTable]:
        """Return ``tables``, those that others reference first."""
        return list(tables)

    # --- statements ---

    @property
    def rows(self) -> TypedRows:
        """Return the conversion of tuples to values."""
        if self._rows is None:
            assert self._context.types is not None
            self._rows = TypedRows(self._context.types, self.adapter)
        return self._rows

    def adapter(self, kind: Any) -> Any:
        """Return the driver's conversion for an Arrow type.

        None leaves the values as they are.
        """
        return None

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
        """Yield a query's rows for a caller that writes nothing."""
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
        """Return a driver's value as an equal literal."""
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
        return f"x'{value.hex()}'"

    def read_as(self, quoted: str, type_: str) -> str:
        """Return SQL that reads a column of ``type_`` without loss."""
        return quoted

    def _with_placeholders(self, statement: str) -> str:
        if not self.qmark:
            return statement
        return PLACEHOLDER.sub(lambda found: "?" if found[0] == "%s" else "%", statement)

    # --- rows: `RowWriter` compares the counts with the number of given rows ---

    def insert(self, table: BoundTable, rows: Sequence[Tuple]) -> int:
        return self._put("", table, table.written, rows)

    def upsert(self, table: BoundTable, rows: Sequence[Tuple], *, keep: bool = False) -> int:
        """Insert rows, or replace those with the same keys.

        With ``keep`` existing rows stay as they are. Return at least the number of rows that were
        inserted or set.
        """
        return self._put(self.on_conflict(table, keep=keep), table, table.written, rows)

    def update(
        self, table: BoundTable, columns: Sequence[TargetColumn], rows: Sequence[Tuple]
    ) -> int:
        """Set ``columns`` of rows by their keys and return the count.

        A missing row is inserted with the known values.
        """
        return self._update(table, columns, rows, self.on_conflict(table, keep=True))

    def _update(
        self, table: BoundTable, columns: Sequence[TargetColumn], rows: Sequence[Tuple], ending: str
    ) -> int:
        sent = {column.index for column in columns}
        chosen = [column for column in table.written if column.source.index in sent]
        settable = [
            c for c in table.set_by_upsert() if c.existing.written and c.source.index in sent
        ] or [*table.key]
        statement = (
            f"UPDATE {escaped(table.quoted)} SET {_sets(table, settable)}{self._of_key(table)}"
        )
        values = self.rows.columns(table.shape, [c.source for c in (*settable, *table.key)], rows)
        count = self.many(statement, values)
        if count == len(rows):
            return count
        missing = [
            row
            for row, given in zip(rows, zip(*values, strict=True), strict=True)
            if not self.change(statement, given)
        ]
        return len(rows) - len(missing) + self._put(ending, table, chosen, missing)

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
        names = ", ".join(escaped(key.quoted) for key in table.key)
        sets = assignments(table, table.set_by_upsert(), lambda c: f"excluded.{escaped(c.quoted)}")
        if keep or not sets:
            return f" ON CONFLICT ({names}) DO NOTHING"
        return f" ON CONFLICT ({names}) DO UPDATE SET {sets}"

    def move(self, table: BoundTable, old: Sequence[Any], row: Tuple) -> int:
        """Give the row with key ``old`` the values of ``row``.

        The key is among them. Return the number of rows.
        """
        sent = [
            c for c in table.columns if row[c.source.index] is not UNCHANGED and c.existing.settable
        ]
        values = self.rows.columns(table.shape, [c.source for c in sent], [row])
        keys = self.rows.keys(table.shape, [old[0] if len(old) == 1 else tuple(old)])
        statement = f"UPDATE {escaped(table.quoted)} SET {_sets(table, sent)}{self._of_key(table)}"
        return self.many(statement, [*values, *keys])

    def change_keys(
        self,
        table: BoundTable,
        keys: Sequence[Any],
        sets: Assignments = NO_SETS,
        where: str = "",
        times: Sequence[int] = (),
    ) -> int:
        """Update rows by `TargetShape.key_of`, or delete them without ``sets``.

        Only rows that meet the SQL ``where`` count. ``times`` has a time for each key, in µs since
        1970 UTC. Return the number of rows.
        """
        tests = self._of_key(table) + (f" AND {escaped(where)}" if where else "")
        moments = [list(map(self.moment, times))] if times else []
        statement = changing(table, sets, self.moment_sql) + tests
        return self.many(statement, [*moments, *self.rows.keys(table.shape, keys)])

    def holding(self, table: BoundTable, keys: Sequence[Any], where: str = "") -> int:
        """Count the rows of ``keys`` that meet the SQL ``where``."""
        one = self.key_tests(table)
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

    def operand(self, column: BoundColumn) -> str:
        """Return SQL that compares a value by its column's type.

        A column has another type than the source's, such as text for former values.
        """
        return "%s"

    def key_tests(self, table: BoundTable, alias: str = "") -> str:
        """Return the condition that a row has a key."""
        return " AND ".join(
            f"{alias}{escaped(key.quoted)} = {self.operand(key)}" for key in table.key
        )

    def _of_key(self, table: BoundTable) -> str:
        return f" WHERE {self.key_tests(table)}"

    @abc.abstractmethod
    def moment(self, ts: int) -> object:
        """Return an instant (µs since 1970 UTC) as a parameter."""

    def index_history(self, shape: HistoryShape) -> None:
        """Create the index that finds the open version of a key."""
        if shape.key:
            # An index keeps its name when its table is renamed, so the name has the relation's OID.
            name = f"{shape.name.name}_{abs(shape.relation.oid)}"
            self._index(shape, name, map(self.quoted, indexed(shape)))

    def _index(self, shape: HistoryShape, name: str, columns: Iterable[str]) -> None:
        index, table = self.quoted(with_suffix(name, "_open")), self.quoted_table(shape.name)
        self.run(f"CREATE INDEX {index} ON {table} ({', '.join(columns)})")

    def insert_filled(
        self,
        table: BoundTable,
        rows: Sequence[Tuple],
        missing: Sequence[TargetColumn],
        keys: Sequence[Any],
    ) -> int:
        """Insert history rows with the missing values of open versions.

        ``keys`` has one key for each row; without an open version the values are null. Return the
        number of inserted rows.
        """
        quoted, current = escaped(table.quoted), escaped(self.quoted(shape_of(table).current))
        sent, absent = table.with_and_without(missing)
        names = ", ".join(escaped(column.quoted) for column in (*sent, *absent))
        chosen = ["%s"] * len(sent) + [f"o.{escaped(column.quoted)}" for column in absent]
        tests = self.key_tests(table, "o.")
        statement = (
            f"INSERT INTO {quoted} ({names}) SELECT {', '.join(chosen)} FROM (SELECT 1 AS one) AS s"
            f" LEFT JOIN {quoted} AS o ON {tests} AND o.{current}"
        )
        values = self.rows.columns(table.shape, [column.source for column in sent], rows)
        return self.many(statement, [*values, *self.rows.keys(table.shape, keys)])

    def equal_tests(
        self, shape: TargetShape, columns: Sequence[BoundColumn], row: Tuple
    ) -> tuple[list[str], list[Any]]:
        """Return conditions that ``columns`` equal ``row``, and their parameters.

        NULL equals NULL.
        """
        values = self.rows.columns(shape, [column.source for column in columns], [row])
        tests = [f"{escaped(c.quoted)} {self.same} {self.operand(c)}" for c in columns]
        return tests, [value for (value,) in values]

    def one_row(self, table: str, tests: str) -> str:
        """Return a one-row DELETE's or UPDATE's end with ``tests``."""
        return f" WHERE rowid = (SELECT rowid FROM {table} WHERE {tests} LIMIT 1)"

    def change_row(
        self,
        table: BoundTable,
        shape: TargetShape,
        row: Tuple,
        sets: Assignments = NO_SETS,
        where: str = "",
        time: int | None = None,
    ) -> bool:
        """Update or delete one row that equals ``row``, as `change_keys` does.

        The row has the columns of ``shape``, the first ones of the table. Return false if such a
        row exists and stays.
        """
        columns = [column for column in table.written if column.source.index < len(row)]
        tests, values = self.equal_tests(shape, columns, row)
        quoted = escaped(table.quoted)
        condition = " AND ".join([*tests, *filter(None, [escaped(where)])]) or "1 = 1"
        moment = [] if time is None else [self.moment(time)]
        ending = self.one_row(quoted, condition)
        if self.change(changing(table, sets, self.moment_sql) + ending, [*moment, *values]):
            return True
        return not self.run(f"SELECT 1 FROM {quoted} WHERE {condition} LIMIT 1", values)

    def delete_all(self, table: BoundTable) -> None:
        """Delete every row; older readers still see them."""
        self.run(f"DELETE FROM {table.quoted}")

    def truncate(self, tables: Sequence[BoundTable], *, cascade: bool, restart: bool) -> None:
        for table in reversed(self.ordered(tables)):
            self.delete_all(table)

    def replaced(self) -> bool:
        """Return whether another file has the address after a commit."""
        return False

    # --- failures ---

    def speaks(self, error: BaseException) -> bool:
        """Return whether the driver or the system raised ``error``."""
        import sqlalchemy

        return isinstance(error, (self.errors, sqlalchemy.exc.SQLAlchemyError, OSError))

    def lost(self, error: BaseException) -> bool:
        return isinstance(error, OSError) or self.meaning(error) is SqlUnreachable

    def conflict(self, error: BaseException) -> bool:
        """Return whether another session caused ``error``, so that a retry may succeed."""
        return self.meaning(error) is SqlConflict

    @abc.abstractmethod
    def meaning(self, error: BaseException) -> type[SinkError] | None:
        """Return the class of a known exception, else None."""

    def error_text(self, error: BaseException) -> str:
        """Return the driver's message without values of rows."""
        if self.meaning(error) is SqlValueUnfit:
            return "a value does not fit its column"
        return redacted(str(error).partition("\n")[0])

    def failure(
        self, error: BaseException, *, table: BoundTable | None, position: str, positions: str
    ) -> SinkError:
        """Translate an exception of the driver, without values of rows."""
        kind = SqlUnreachable if isinstance(error, OSError) else self.meaning(error) or SqlFailed
        name = "the table" if table is None else str(table.shape.name)
        where = "the target" if table is None else name
        fields = {"url": self.url, "table": name, "position": position, "positions": positions}
        if kind is SqlColumnMissing:
            fields["statement"] = f"ALTER TABLE {name} ADD COLUMN …"
        if kind is SqlTableUnfit:
            columns = () if table is None else table.shape.key
            key = ", ".join(self.quoted(column.name) for column in columns)
            fields["statement"] = f"ALTER TABLE {name} ADD PRIMARY KEY ({key})"
        return kind(f"{where}: {self.error_text(error)}", **fields)


def shape_of(table: BoundTable) -> HistoryShape:
    """Return the shape of a history's table."""
    assert isinstance(table.shape, HistoryShape)
    return table.shape


def chunks(rows: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    """Yield ``rows`` in pieces of ``size``."""
    if len(rows) <= size:
        yield rows
        return
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def assignments(
    table: BoundTable, columns: Iterable[BoundColumn], value: Callable[[BoundColumn], str]
) -> str:
    """Return the SET list of ``columns``, which ends a soft delete."""
    sets = [f"{escaped(column.quoted)} = {value(column)}" for column in columns]
    if table.soft is not None:
        sets.append(f"{escaped(table.soft)} = NULL")
    return ", ".join(sets)


def changing(table: BoundTable, sets: Assignments, moment: str, alias: str = "") -> str:
    """Return the start of an UPDATE, without ``sets`` a DELETE's."""
    quoted = escaped(table.quoted) + alias
    if not sets:
        return f"DELETE FROM {quoted}"
    values = ", ".join(f"{escaped(column)} = {value or moment}" for column, value in sets.items())
    return f"UPDATE {quoted} SET {values}"


def _sets(table: BoundTable, columns: Sequence[BoundColumn]) -> str:
    return assignments(table, columns, lambda _column: "%s")


def indexed(shape: HistoryShape) -> list[str]:
    """Return the columns that find the open version of a key."""
    return [*(column.name for column in shape.key), shape.current]
