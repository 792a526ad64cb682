"""Which kind of target an address leads to."""

import abc
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

from waltap.changes.decode.tuple_image import Tuple
from waltap.errors import ConfigurationError, PropertyProblem, SinkError
from waltap.ports.sink.sink import SinkContext
from waltap_sinks.sql.errors import SqlDriverMissing
from waltap_sinks.sql.properties import SqlProperties
from waltap_sinks.sql.shape import TargetColumn, TargetName, TargetShape

__all__ = [
    "BoundColumn",
    "BoundTable",
    "ExistingColumn",
    "SqlTarget",
    "TargetDescription",
    "WriteObstacle",
    "chunks",
    "target_of",
]


# The contract of a kind of target: what the sink asks of a database, in the words of the sink.


@dataclass(frozen=True, slots=True)
class ExistingColumn:
    """A column that the target has. ``type`` is written as the target prints it, ``bare`` is what values
    are cast to: the type without length or precision, so that what does not fit is refused, not cut.
    ``written``: values can be put in; not in a generated one. ``settable``: an UPDATE may set it.
    ``collation``: by which different texts may be equal here, "" where they are compared as they are.
    ``operators``: the schema of the type's operators, quoted, "" where they are built in."""

    name: str
    type: str
    bare: str
    written: bool = True
    settable: bool = True
    collation: str = ""
    operators: str = ""


@dataclass(frozen=True, slots=True)
class TargetDescription:
    """A table that the target has. ``unique``: the column sets of unique indexes that an upsert can go by.
    ``is_table``: rows can be put in."""

    columns: dict[str, ExistingColumn]
    unique: tuple[frozenset[str], ...]
    is_table: bool = True


@dataclass(frozen=True, slots=True)
class WriteObstacle:
    """What keeps rows that are written from a table, or where not ``certain``, what may. ``verbs`` are
    those of the statements, ``statement`` is the SQL that takes it away."""

    problem: str
    statement: str
    certain: bool = True
    verbs: frozenset[str] = frozenset({"INSERT", "UPDATE", "DELETE"})


@dataclass(frozen=True, slots=True)
class BoundColumn:
    """A column of the source and what it is in the target; ``quoted`` is its name in SQL."""

    source: TargetColumn
    quoted: str
    existing: ExistingColumn


@dataclass(eq=False, slots=True)
class BoundTable:
    """A shape and the target's table that its rows go to. ``quoted`` is the table's name in SQL, ``soft``
    that of the column for soft deletes, None without. ``only_key``: no other columns must be unique."""

    shape: TargetShape
    quoted: str
    columns: tuple[BoundColumn, ...]
    key: tuple[BoundColumn, ...]
    soft: str | None
    only_key: bool = True

    @property
    def settable(self) -> bool:
        """Tell whether a row has anything besides its key that an upsert sets."""
        keys = {key.quoted for key in self.key}
        return self.soft is not None or any(
            column.existing.settable and column.quoted not in keys for column in self.columns
        )


class SqlTarget(abc.ABC):
    """One connection to a target. Single-threaded; `begin` … `commit` or `rollback`.

    Rows are tuples of the source, values PostgreSQL's text. What goes wrong comes out as the driver's own
    exceptions; `failure` tells what they mean.
    """

    schemas: bool = True
    """Whether tables have schemas."""
    savepoints: bool = True
    """Whether `attempt` undoes anything: without savepoints a failure ends the transaction."""
    transactional_ddl: bool = True
    """Whether tables are created and altered in the transaction of the data."""
    lazy_commits: bool = False
    """Whether a commit that need not be durable is quicker."""
    versions: tuple[str, str] = ("generic_versions", "GenericVersions")
    """Module and class of the statements on tables of histories."""
    folds_tables: bool = False
    """Whether names of tables that differ in case only are one."""
    folds_columns: bool = False
    """The same, of columns."""
    url: str
    """The address, without password."""

    for_update: str = " FOR UPDATE"
    """What a SELECT ends with that waits for, and locks, the row."""
    number_type: str = "bigint"
    word_type: str = "varchar(255)"
    text_type: str = "text"
    time_type: str = "timestamp with time zone"
    """Types of columns of the sink's own."""

    # --- life ---

    @abc.abstractmethod
    def open(self) -> None:
        """Connect."""

    @abc.abstractmethod
    def close(self) -> None:
        """Let go; what is not committed is undone. May be called twice."""

    @abc.abstractmethod
    def begin(self) -> None:
        """Begin a transaction."""

    @abc.abstractmethod
    def commit(self, *, durable: bool = True) -> None:
        """Commit. Without ``durable`` the server need not wait for its disk: others see it at once, and a
        crash of the server may undo it, together with all that was committed after it."""

    @abc.abstractmethod
    def rollback(self) -> None:
        """Undo the transaction, if one is open. Never raises."""

    @abc.abstractmethod
    def attempt(self) -> AbstractContextManager[None]:
        """Return a block that is undone by itself where it raises: a savepoint."""

    # --- tables ---

    @abc.abstractmethod
    def describe(self, name: TargetName) -> TargetDescription | None:
        """Return what the target has of this name; None: nothing."""

    def obstacles(self, name: TargetName) -> "list[WriteObstacle]":
        """Return what keeps rows from the table ``name`` in silence."""
        return []

    @abc.abstractmethod
    def type_for(self, column: TargetColumn) -> str:
        """Return the type that the target is to give ``column``, as the target prints it."""

    def exact_statement(self, name: TargetName, column: str, type_: str) -> str:
        """Return the statement that has a column compare texts as they are."""
        return (
            f"ALTER TABLE {self.quoted_table(name)} ALTER COLUMN {self.quoted(column)} TYPE {type_}"
        )

    @abc.abstractmethod
    def widened(self, existing: str, wanted: str) -> bool:
        """Tell whether a column of ``existing`` type must become ``wanted`` to hold its values."""

    @abc.abstractmethod
    def quoted(self, name: str) -> str:
        """Return an identifier as SQL."""

    def text_literal(self, text: str) -> str:
        """Return ``text`` as a literal of its SQL."""
        return "'" + text.replace("'", "''") + "'"

    def quoted_table(self, name: TargetName) -> str:
        """Return a table's name as SQL."""
        table = self.quoted(name.name)
        return table if name.schema is None else f"{self.quoted(name.schema)}.{table}"

    @abc.abstractmethod
    def run(self, statement: str, parameters: Sequence[object] = ()) -> list[Any]:
        """Run one statement, with %s for parameters; return its rows."""

    @abc.abstractmethod
    def change(self, statement: str, parameters: Sequence[object]) -> int:
        """Run one statement as `run` does; return how many rows it changed."""

    def create_schema(self, name: TargetName) -> None:
        """Make the schema of ``name`` where it is not there."""
        if name.schema is not None:
            self.run(f"CREATE SCHEMA IF NOT EXISTS {self.quoted(name.schema)}")

    def create(
        self, name: TargetName, columns: Sequence[tuple[str, str]], key: Sequence[str]
    ) -> None:
        """Make a table of (column, type)."""
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
        """Add a column; rows that are there get ``missing``, PostgreSQL's text of a value."""
        table, quoted = self.quoted_table(name), self.quoted(column)
        self.run(f"ALTER TABLE {table} ADD COLUMN {quoted} {type_}")
        if missing is not None:
            self.run(f"UPDATE {table} SET {quoted} = %s", [missing])

    def alter_type(self, name: TargetName, column: str, type_: str) -> None:
        """Give a column another type; its values stay."""
        table, quoted = self.quoted_table(name), self.quoted(column)
        self.run(f"ALTER TABLE {table} ALTER COLUMN {quoted} TYPE {type_}")

    def rename_column(self, name: TargetName, old: str, new: str) -> None:
        """Give a column another name."""
        table = self.quoted_table(name)
        self.run(f"ALTER TABLE {table} RENAME COLUMN {self.quoted(old)} TO {self.quoted(new)}")

    def rename_table(self, old: TargetName, new: str) -> None:
        """Give a table another name in its schema."""
        self.run(f"ALTER TABLE {self.quoted_table(old)} RENAME TO {self.quoted(new)}")

    def ordered(self, tables: Sequence[BoundTable]) -> list[BoundTable]:
        """Return ``tables`` with those before others that these refer to by foreign keys."""
        return list(tables)

    # --- rows: `Rows` holds the counts that are returned against what was given ---

    @abc.abstractmethod
    def insert(self, table: BoundTable, rows: Sequence[Tuple]) -> int:
        """Add rows whose keys the target does not have, however many; return how many it took."""

    @abc.abstractmethod
    def upsert(self, table: BoundTable, rows: Sequence[Tuple], *, keep: bool = False) -> int:
        """Add rows, or put them in place of those of their keys; ``keep``: those that are there stay.
        Return how many rows it added or set, at least."""

    @abc.abstractmethod
    def update(
        self, table: BoundTable, columns: Sequence[TargetColumn], rows: Sequence[Tuple]
    ) -> int:
        """Set ``columns`` of the rows of these keys; one that is not there is added with what is known.
        Return how many rows were set or added."""

    @abc.abstractmethod
    def move(self, table: BoundTable, old: Sequence[Any], row: Tuple) -> int:
        """Give the row whose key has the values ``old`` what ``row`` has values of, its key too;
        return how many rows that were."""

    @abc.abstractmethod
    def delete(self, table: BoundTable, keys: Sequence[Any]) -> int:
        """Delete the rows of ``keys``, as `TargetShape.key_of` gives them; return how many were there."""

    @abc.abstractmethod
    def mark_deleted(self, table: BoundTable, keys: Sequence[Any], times: Sequence[int]) -> int:
        """Set the column for soft deletes of the rows of ``keys``, to µs since 1970 UTC; return how many
        were there."""

    @abc.abstractmethod
    def holding(self, table: BoundTable, keys: Sequence[Any], where: str = "") -> int:
        """Return how many rows there are of ``keys`` of which ``where``, SQL, holds."""

    @abc.abstractmethod
    def delete_row(self, table: BoundTable, row: Tuple) -> bool:
        """Delete one row that is as ``row``, of a table without a key. False: there is one, and
        it stays."""

    @abc.abstractmethod
    def delete_all(self, table: BoundTable) -> None:
        """Delete every row, so that readers of before still see them."""

    @abc.abstractmethod
    def truncate(self, tables: Sequence[BoundTable], *, cascade: bool, restart: bool) -> None:
        """Empty tables at once."""

    # --- failures ---

    def replaced(self) -> bool:
        """Tell, behind a commit, whether what was committed to is not what others open by the address: a
        file was moved, deleted or written by somebody else."""
        return False

    @abc.abstractmethod
    def speaks(self, error: BaseException) -> bool:
        """Tell whether an exception is the driver's, or the system's: not a mistake of the code."""

    @abc.abstractmethod
    def lost(self, error: BaseException) -> bool:
        """Tell whether the connection is gone."""

    @abc.abstractmethod
    def conflict(self, error: BaseException) -> bool:
        """Tell whether another session was in the way, so that the same may succeed a moment later."""

    @abc.abstractmethod
    def failure(
        self, error: BaseException, *, table: BoundTable | None, position: str, positions: str
    ) -> SinkError:
        """Return what to tell of an exception of the driver: no value of a row is in it."""


def chunks(rows: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    """Give ``rows`` in pieces of ``size``."""
    if len(rows) <= size:
        yield rows
        return
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


KINDS: Final = {
    "postgresql": ("postgresql", "PostgresTarget"),
    "postgres": ("postgresql", "PostgresTarget"),
    "sqlite": ("sqlite", "SqliteTarget"),
    "duckdb": ("duck", "DuckTarget"),
    "mariadb": ("mysql", "MysqlTarget"),
    "mysql": ("mysql", "MysqlTarget"),
}
"""What an address begins with → module and class."""


def target_of(properties: SqlProperties, context: SinkContext) -> SqlTarget:
    """Return the target that ``sink.url`` names. Raises: ConfigurationError, SqlDriverMissing."""
    scheme = properties.url.partition("://")[0]
    kind = scheme.partition("+")[0].lower()
    if kind not in KINDS or "://" not in properties.url:
        known = ", ".join(f"{name}://" for name in KINDS)
        raise ConfigurationError(
            [PropertyProblem("sink.url", "names no kind of target", allowed=known)]
        )
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
