"""Define the interface of a kind of database."""

import abc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

from waltap.changes.decode.tuple_image import Tuple
from waltap.errors import ConfigurationError, PropertyProblem, SinkError
from waltap.ports.sink.sink import SinkContext
from waltap_sinks.sql.errors import (
    SqlColumnMissing,
    SqlDriverMissing,
    SqlFailed,
    SqlTableUnfit,
    SqlUnreachable,
)
from waltap_sinks.sql.properties import SqlProperties
from waltap_sinks.sql.shape import HistoryShape, TargetColumn, TargetName, TargetShape


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
    """Pair a column of the source with its column in the target."""

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

    @property
    def written(self) -> list[BoundColumn]:
        """Return the columns that an INSERT may set."""
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
        """Return the columns that an upsert sets."""
        keys = {key.quoted for key in self.key}
        return [c for c in self.columns if c.existing.settable and c.quoted not in keys]


# SQL values by quoted column; None is a time that comes as a parameter.
Assignments = Mapping[str, str | None]
NO_SETS: Final[Assignments] = {}


class SqlTarget(abc.ABC):
    """Hold one connection to a target.

    Rows are tuples of the source with PostgreSQL's text. Exceptions of the driver come out unchanged;
    `failure` translates them. Single-threaded: `begin`, then `commit` or `rollback`.
    """

    # Tables have schemas.
    schemas: bool = True
    # `attempt` undoes its block. Without savepoints a failure ends the transaction.
    savepoints: bool = True
    # Tables are created and altered in the transaction of the data.
    transactional_ddl: bool = True
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
    # The placeholder of `moment`.
    moment_sql: str = "%s"

    # --- life ---

    @abc.abstractmethod
    def open(self) -> None:
        """Connect."""

    @abc.abstractmethod
    def close(self) -> None:
        """Disconnect, which undoes an open transaction. May be called twice."""

    @abc.abstractmethod
    def begin(self) -> None:
        """Begin a transaction."""

    @abc.abstractmethod
    def commit(self, *, durable: bool = True) -> None:
        """Commit the open transaction.

        Without ``durable`` the server need not wait for its disk. Others see the commit at once, but
        a crash of the server may undo it and all later ones.
        """

    @abc.abstractmethod
    def rollback(self) -> None:
        """Undo an open transaction. Never raises."""

    @abc.abstractmethod
    def attempt(self) -> AbstractContextManager[None]:
        """Return a block in a savepoint, undone if it raises."""

    # --- tables ---

    @abc.abstractmethod
    def describe(self, name: TargetName) -> TargetDescription | None:
        """Return the description of a table, None if it is missing."""

    def obstacles(self, name: TargetName) -> "list[WriteObstacle]":
        """Return the obstacles that make the table ignore rows."""
        return []

    @abc.abstractmethod
    def type_for(self, column: TargetColumn) -> str:
        """Return the type for ``column`` as the target prints it."""

    @abc.abstractmethod
    def widened(self, existing: str, wanted: str) -> bool:
        """Return whether type ``wanted`` holds values that ``existing`` does not."""

    def quoted(self, name: str) -> str:
        """Return an identifier as SQL."""
        return '"' + name.replace('"', '""') + '"'

    def text_literal(self, text: str) -> str:
        """Return ``text`` as a literal of SQL."""
        return "'" + text.replace("'", "''") + "'"

    def quoted_table(self, name: TargetName) -> str:
        """Return a table's name as SQL."""
        table = self.quoted(name.name)
        return table if name.schema is None else f"{self.quoted(name.schema)}.{table}"

    @abc.abstractmethod
    def run(self, statement: str, parameters: Sequence[object] = ()) -> list[Any]:
        """Run one statement and return its rows.

        A parameter is %s in all dialects.
        """

    @abc.abstractmethod
    def change(self, statement: str, parameters: Sequence[object]) -> int:
        """Run one statement and return the number of changed rows."""

    def can_name(self, name: str) -> bool:
        """Return whether a table or column can have the name."""
        return True

    def create_schema(self, name: TargetName) -> None:
        """Create the schema of ``name`` if it is missing."""
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
        """Return the SQL that `create` runs."""
        parts = [f"{self.quoted(column)} {type_}" for column, type_ in columns]
        if key:
            parts.append(f"PRIMARY KEY ({', '.join(map(self.quoted, key))})")
        return f"CREATE TABLE IF NOT EXISTS {self.quoted_table(name)} ({', '.join(parts)})"

    def add_column(self, name: TargetName, column: str, type_: str, missing: str | None) -> None:
        """Add a column; existing rows get ``missing``, PostgreSQL's text of a value."""
        table, quoted = self.quoted_table(name), self.quoted(column)
        self.run(f"ALTER TABLE {table} ADD COLUMN {quoted} {type_}")
        if missing is not None:
            self.run(f"UPDATE {table} SET {quoted} = %s", [missing])

    def alter_type(self, name: TargetName, column: str, type_: str) -> None:
        """Change the type of a column and keep its values."""
        table, quoted = self.quoted_table(name), self.quoted(column)
        self.run(f"ALTER TABLE {table} ALTER COLUMN {quoted} TYPE {type_}")

    def exact_statement(self, name: TargetName, column: str, type_: str) -> str:
        """Return the SQL that makes a column compare texts bytewise."""
        table = self.quoted_table(name)
        return f"ALTER TABLE {table} ALTER COLUMN {self.quoted(column)} TYPE {type_}"

    def rename_column(self, name: TargetName, old: str, new: str) -> None:
        """Rename a column."""
        table = self.quoted_table(name)
        self.run(f"ALTER TABLE {table} RENAME COLUMN {self.quoted(old)} TO {self.quoted(new)}")

    def rename_table(self, old: TargetName, new: str) -> None:
        """Rename a table within its schema."""
        self.run(f"ALTER TABLE {self.quoted_table(old)} RENAME TO {self.quoted(new)}")

    def move_table(self, old: TargetName, new: TargetName) -> None:
        """Give a table another schema, and another name if it has one."""
        self.create_schema(new)
        assert new.schema is not None
        schema = self.quoted(new.schema)
        if old.name != new.name:  # either schema may have a table of the other name
            between = old._replace(name=f"{new.name[:40]}_waltap_moves")
            self.rename_table(old, between.name)
            self.run(f"ALTER TABLE {self.quoted_table(between)} SET SCHEMA {schema}")
            self.rename_table(new._replace(name=between.name), new.name)
        else:
            self.run(f"ALTER TABLE {self.quoted_table(old)} SET SCHEMA {schema}")

    def ordered(self, tables: Sequence[BoundTable]) -> list[BoundTable]:
        """Return ``tables``, those that others reference first."""
        return list(tables)

    # --- rows: `RowWriter` compares the counts with the number of given rows ---

    @abc.abstractmethod
    def insert(self, table: BoundTable, rows: Sequence[Tuple]) -> int:
        """Insert rows with new keys and return their number."""

    @abc.abstractmethod
    def upsert(self, table: BoundTable, rows: Sequence[Tuple], *, keep: bool = False) -> int:
        """Insert rows, or replace those with the same keys.

        With ``keep`` existing rows stay as they are. Return at least the number of rows that were
        inserted or set.
        """

    @abc.abstractmethod
    def update(
        self, table: BoundTable, columns: Sequence[TargetColumn], rows: Sequence[Tuple]
    ) -> int:
        """Set ``columns`` of rows by their keys and return the count.

        A missing row is inserted with the known values.
        """

    @abc.abstractmethod
    def move(self, table: BoundTable, old: Sequence[Any], row: Tuple) -> int:
        """Give the row with key ``old`` the values of ``row``.

        The key is among them. Return the number of rows.
        """

    @abc.abstractmethod
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

    @abc.abstractmethod
    def holding(self, table: BoundTable, keys: Sequence[Any], where: str = "") -> int:
        """Count the rows of ``keys`` that meet the SQL ``where``."""

    @abc.abstractmethod
    def moment(self, ts: int) -> object:
        """Return an instant (µs since 1970 UTC) as a parameter."""

    @abc.abstractmethod
    def index_history(self, shape: HistoryShape) -> None:
        """Create the index that finds the open version of a key."""

    @abc.abstractmethod
    def insert_filled(
        self,
        table: BoundTable,
        rows: Sequence[Tuple],
        missing: Sequence[TargetColumn],
        keys: Sequence[Any],
    ) -> int:
        """Insert rows into a history with the missing values of open versions.

        ``keys`` has one key for each row; without an open version the values are null. Return the
        number of inserted rows.
        """

    @abc.abstractmethod
    def equal_tests(
        self, shape: TargetShape, columns: Sequence[BoundColumn], row: Tuple
    ) -> tuple[list[str], list[Any]]:
        """Return conditions that ``columns`` equal ``row``, and their parameters.

        NULL equals NULL.
        """

    @abc.abstractmethod
    def one_row(self, table: str, tests: str) -> str:
        """Return the end of a DELETE or UPDATE of one row that meets ``tests``."""

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

    @abc.abstractmethod
    def truncate(self, tables: Sequence[BoundTable], *, cascade: bool, restart: bool) -> None:
        """Empty tables at once."""

    # --- failures ---

    def replaced(self) -> bool:
        """Return whether another file has the address after a commit.

        The committed file may have been moved, deleted, or written by another process.
        """
        return False

    @abc.abstractmethod
    def speaks(self, error: BaseException) -> bool:
        """Return whether the driver or the system raised ``error``."""

    @abc.abstractmethod
    def lost(self, error: BaseException) -> bool:
        """Return whether the connection is lost."""

    @abc.abstractmethod
    def conflict(self, error: BaseException) -> bool:
        """Return whether another session caused ``error``, so that a retry may succeed."""

    @abc.abstractmethod
    def meaning(self, error: BaseException) -> type[SinkError] | None:
        """Return the class of an exception, None if it has no class of its own."""

    @abc.abstractmethod
    def error_text(self, error: BaseException) -> str:
        """Return the driver's message without values of rows."""

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
            key = "" if table is None else ", ".join(key.quoted for key in table.key)
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
    """Return the SET list of ``columns``; the row is no longer soft-deleted."""
    sets = [f"{escaped(column.quoted)} = {value(column)}" for column in columns]
    if table.soft is not None:
        sets.append(f"{escaped(table.soft)} = NULL")
    return ", ".join(sets)


def changing(table: BoundTable, sets: Assignments, moment: str, alias: str = "") -> str:
    """Return the start of an UPDATE, or of a DELETE without ``sets``."""
    quoted = escaped(table.quoted) + alias
    if not sets:
        return f"DELETE FROM {quoted}"
    values = ", ".join(f"{escaped(column)} = {value or moment}" for column, value in sets.items())
    return f"UPDATE {quoted} SET {values}"


def on_conflict(table: BoundTable, *, keep: bool) -> str:
    """Return the end of an INSERT whose keys may exist."""
    names = ", ".join(escaped(key.quoted) for key in table.key)
    sets = assignments(table, table.set_by_upsert(), lambda c: f"excluded.{escaped(c.quoted)}")
    if keep or not sets:
        return f" ON CONFLICT ({names}) DO NOTHING"
    return f" ON CONFLICT ({names}) DO UPDATE SET {sets}"


def escaped(text: str) -> str:
    """Return SQL for a statement with %s for values."""
    return text.replace("%", "%%")


# The scheme of an address, with module and class.
KINDS: Final = {
    "postgresql": ("postgresql", "PostgresTarget"),
    "postgres": ("postgresql", "PostgresTarget"),
    "sqlite": ("sqlite", "SqliteTarget"),
    "duckdb": ("duck", "DuckTarget"),
    "mariadb": ("mysql", "MysqlTarget"),
    "mysql": ("mysql", "MysqlTarget"),
}


def _require_address(url: str, kind: str) -> None:
    """Check the address without a connection.

    Raises: ConfigurationError, which does not quote it: it may have a password.
    """
    import sqlalchemy

    try:
        address = sqlalchemy.make_url(url)
    except (sqlalchemy.exc.ArgumentError, ValueError):
        raise ConfigurationError.of(
            "sink.url", "is no address as KIND://USER:PASSWORD@HOST:PORT/DATABASE"
        ) from None
    if kind == "duckdb" and address.query:
        raise ConfigurationError.of("sink.url", "has parameters, and DuckDB takes none")
    if kind in {"sqlite", "duckdb"} and address.database in {None, "", ":memory:"}:
        raise ConfigurationError.of(
            "sink.url", "names no file, and a target in memory keeps neither rows nor position"
        )


def target_of(properties: SqlProperties, context: SinkContext) -> SqlTarget:
    """Return the target for ``sink.url``.

    Raises: ConfigurationError, SqlDriverMissing.
    """
    scheme = properties.url.partition("://")[0]
    kind = scheme.partition("+")[0].lower()
    if kind not in KINDS or "://" not in properties.url:
        known = ", ".join(f"{name}://" for name in KINDS)
        raise ConfigurationError(
            [PropertyProblem("sink.url", "names no kind of target", allowed=known)]
        )
    _require_address(properties.url, kind)
    module, name = KINDS[kind]
    try:
        found = getattr(import_module(f"waltap_sinks.sql.targets.{module}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("waltap"):
            raise
        raise SqlDriverMissing(
            f"the sink sql needs the Python package {error.name} for {kind}://",
            package="'waltap[sql]'",
        ) from error
    made: SqlTarget = found(properties, context)
    return made
