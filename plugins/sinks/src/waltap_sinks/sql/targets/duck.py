"""Write to a DuckDB file."""

import atexit
import contextlib
import gc
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import duckdb

from waltap.base.import_rules import pa
from waltap.base.text import escaped
from waltap.changes.decode.tuple_image import Tuple
from waltap.errors import SinkError
from waltap_sinks.sql.errors import (
    SqlColumnMissing,
    SqlConflict,
    SqlConstraintViolated,
    SqlUnreachable,
    SqlValueUnfit,
)
from waltap_sinks.sql.shape import HistoryShape, TargetColumn, TargetName
from waltap_sinks.sql.targets.file import FileTarget
from waltap_sinks.sql.targets.target import (
    NO_SETS,
    READ_AT_ONCE,
    Assignments,
    BoundColumn,
    BoundTable,
    ExistingColumn,
    TargetDescription,
    changing,
)
from waltap_sinks.sql.targets.typed import arrow_type, instant, is_wider

# DuckDB reports as leaks, at the end, what the collector leaves alone, as `waltap.cli` has it.
atexit.register(gc.unfreeze)

COLUMNS: Final = """
    SELECT column_name, data_type FROM duckdb_columns()
    WHERE lower(schema_name) = lower(coalesce(%s, current_schema())) AND lower(table_name) = lower(%s)
      AND database_name = current_database() ORDER BY column_index
"""
KEYS: Final = """
    SELECT constraint_column_names FROM duckdb_constraints()
    WHERE lower(schema_name) = lower(coalesce(%s, current_schema())) AND lower(table_name) = lower(%s)
      AND database_name = current_database() AND constraint_type IN ('PRIMARY KEY', 'UNIQUE')
"""
MADE: Final = """
    SELECT sql FROM duckdb_tables()
    WHERE lower(schema_name) = lower(coalesce(%s, current_schema())) AND lower(table_name) = lower(%s)
      AND database_name = current_database()
"""
# Columns are as they are written in the statement.
INDEXES: Final = MADE.replace(
    "sql FROM duckdb_tables", "index_name, is_unique, expressions::VARCHAR[] FROM duckdb_indexes"
)

NO_NAMES: Final[Mapping[str, str]] = {}
WIDER: Final = (("SMALLINT", "INTEGER", "BIGINT"), ("FLOAT", "DOUBLE"))


class DuckTarget(FileTarget):
    """Connect to a DuckDB file, which no other process may open.

    Rows go in as Arrow columns. There are no savepoints, so a failure undoes the whole transaction.
    """

    savepoints = False
    backend = "duckdb"
    errors = duckdb.Error
    for_update = ""
    ignores_table_case = ignores_column_case = True
    word_type = text_type = "VARCHAR"
    time_type = "TIMESTAMP WITH TIME ZONE"
    _begun = False
    _written: tuple[int, int] | None = None
    _overwritten = False

    def open(self) -> None:
        path = self._properties.url.partition("://")[2].removeprefix("/")
        if path and not Path(path).exists():
            _made(Path(path))
        self._raw = duckdb.connect(path or ":memory:")
        self.run("SET TimeZone = 'UTC'")  # casts of instants to text use the session's zone
        self.keep_file(path)
        self._written, self._overwritten = self._file_state(), False

    def begin(self) -> None:
        # Another process may copy a file over this one: the commit would go into it unnoticed.
        if self._file_state() != self._written:
            self._overwritten = True
        self._raw.begin()
        self._begun = True

    def commit(self, *, durable: bool = True) -> None:
        if self._begun:
            self._begun = False
            self._raw.commit()
            self._written = self._file_state()

    def rollback(self) -> None:
        self._begun = False
        super().rollback()
        self._written = self._file_state()

    def replaced(self) -> bool:
        return self._overwritten or super().replaced()

    def _file_state(self) -> tuple[int, int] | None:
        """Return the file's size and time, which commits change."""
        found = self._status()
        return None if found is None else (found.st_size, found.st_mtime_ns)

    @contextlib.contextmanager
    def attempt(self) -> Iterator[None]:
        yield

    def _executed(self, statement: str, parameters: Sequence[object]) -> Any:
        text = self._with_placeholders(statement) if parameters else statement
        return _DuckCursor(self._raw.execute(text, list(parameters)))

    def read(self, statement: str) -> Iterator[Sequence[Any]]:
        reader = self._raw.sql(statement).to_arrow_reader(READ_AT_ONCE)
        for batch in reader:
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)

    def many(self, statement: str, columns: Sequence[Sequence[Any]]) -> int:
        text, count = self._with_placeholders(statement), 0
        for row in zip(*columns, strict=True):
            count += _DuckCursor(self._raw.execute(text, list(row))).rowcount
        return count

    # --- tables ---

    def describe(self, name: TargetName) -> TargetDescription | None:
        info = self.run(COLUMNS, name)
        if not info:
            return None
        listed = [names for (names,) in self.run(KEYS, name)]
        listed += [
            map(_plain, names) for _index, is_unique, names in self.run(INDEXES, name) if is_unique
        ]
        # An index of an expression is no key.
        known = {column.lower() for column, _kind in info}
        unique = [names for names in map(frozenset, listed) if {*map(str.lower, names)} <= known]
        ((made,),) = self.run(MADE, name) or (("",),)  # a view has none
        columns = {
            column: ExistingColumn(column, kind, kind, collation=_collation(made, column))
            for column, kind in info
        }
        return TargetDescription(columns, tuple(unique), is_table=bool(made))

    def type_for(self, column: TargetColumn) -> str:
        return _type_of(arrow_type(column))

    def widened(self, existing: str, wanted: str) -> bool | None:
        return is_wider(existing, wanted, WIDER, text="VARCHAR")

    def holds(self, name: TargetName, column: str, type_: str) -> bool:
        quoted, cast = self.quoted(column), self._cast(name, column, type_)
        query = f"SELECT count({quoted}) = count({cast}) FROM {self.quoted_table(name)}"
        return bool(self.run(query)[0][0])

    def alter_type(self, name: TargetName, column: str, type_: str) -> None:
        quoted, cast = self.quoted(column), self._cast(name, column, type_)
        if column.lower() not in self._keyed(name) and not self.run(INDEXES, name):
            super().alter_type(name, column, f"{type_} USING {cast}")
            return
        kind = re.escape(self._kind(name, column))
        before = rf"([(,]\s*(?:{_written(column)})\s+){kind}"
        self._make_again(name, before, rf"\1{type_}", f"* REPLACE ({cast} AS {quoted})")

    def rename_column(self, name: TargetName, old: str, new: str) -> None:
        with self._made_again(name, renamed={old.lower(): self.quoted(new)}):
            super().rename_column(name, old, new)

    def rename_table(self, old: TargetName, new: str) -> None:
        with self._made_again(old, after=old._replace(name=new)):
            super().rename_table(old, new)

    def _cast(self, name: TargetName, column: str, type_: str) -> str:
        """Return the cast of a column by its text, else null."""
        quoted = self.quoted(column)
        text = quoted if self._kind(name, column) == "BOOLEAN" else f"CAST({quoted} AS VARCHAR)"
        return f"TRY_CAST({text} AS {type_})"

    def _kind(self, name: TargetName, column: str) -> str:
        kinds = {found.lower(): str(kind) for found, kind in self.run(COLUMNS, name)}
        return kinds[column.lower()]

    def allow_nulls(self, name: TargetName, columns: Sequence[str]) -> bool:
        keyed = not self._keyed(name).isdisjoint(map(str.lower, columns))
        return keyed and self._make_again(name, r", PRIMARY KEY\(.*\)\);$", ");")

    def _keyed(self, name: TargetName) -> set[str]:
        """Return the columns in keys, in lower case."""
        return {column.lower() for (names,) in self.run(KEYS, name) for column in names}

    def _make_again(self, name: TargetName, before: str, after: str, values: str = "*") -> bool:
        """Make a table by a statement with ``after``: DuckDB alters no key.

        Return false if its statement has no ``before``.
        """
        ((made,),) = self.run(MADE, name)
        made, found = re.subn(before, after, made, count=1, flags=re.IGNORECASE | re.DOTALL)
        if found:
            with self._made_again(name, made, values=values):
                pass
        return bool(found)

    @contextlib.contextmanager
    def _made_again(
        self,
        name: TargetName,
        made: str = "",
        *,
        after: TargetName | None = None,
        values: str = "*",
        renamed: Mapping[str, str] = NO_NAMES,
    ) -> Iterator[None]:
        """Return a block without rows and indexes of a table that ``made`` made again.

        Without ``made`` it is as it was, if it has indexes: DuckDB renames nothing that has some.
        ``after`` is its name behind the block, ``renamed`` has new names of columns in lower case.
        """
        indexes = self.run(INDEXES, name)
        if not (made or indexes):
            yield
            return
        made = made or self.run(MADE, name)[0][0]
        self.run(
            f"CREATE OR REPLACE TEMP TABLE waltap_copy AS SELECT {values} FROM {self.quoted_table(name)}"
        )
        self.run(f"DROP TABLE {self.quoted_table(name)}")
        self.run(made)
        yield
        table = self.quoted_table(after or name)
        self.run(f"INSERT INTO {table} FROM waltap_copy")
        self.run("DROP TABLE waltap_copy")
        for index, is_unique, columns in indexes:
            names = ", ".join(renamed.get(_plain(each).lower(), each) for each in columns)
            unique = "UNIQUE " if is_unique else ""
            self.run(f"CREATE {unique}INDEX {self.quoted(index)} ON {table} ({names})")

    def bytes_literal(self, value: bytes) -> str:
        return f"from_hex('{value.hex()}')"

    def moment(self, ts: int) -> object:
        return instant(ts)

    # --- rows ---

    def operand(self, column: BoundColumn) -> str:
        return f"CAST(%s AS {escaped(column.existing.type)})"

    def index_history(self, shape: HistoryShape) -> None:
        # With an index DuckDB would make a DELETE and an INSERT of each UPDATE.
        pass

    def change_keys(
        self,
        table: BoundTable,
        keys: Sequence[Any],
        sets: Assignments = NO_SETS,
        where: str = "",
        times: Sequence[int] = (),
    ) -> int:
        # The keys come as a table, since DuckDB scans the target for each statement.
        columns = self.rows.keys(table.shape, keys)
        given = {f"waltap_{n}": column for n, column in enumerate(columns)}
        if times:
            given["waltap_time"] = list(map(self.moment, times))
        tests = [
            f"t.{key.quoted} = {_fitted(f'k.waltap_{n}', key)}" for n, key in enumerate(table.key)
        ]
        begin = changing(table, sets, "k.waltap_time", " AS t").replace("%%", "%")
        join = "FROM" if sets else "USING"
        with self.given(given):
            return self.change(
                f"{begin} {join} waltap_rows AS k WHERE {' AND '.join([*tests, where or 'TRUE'])}",
                (),
            )

    @contextlib.contextmanager
    def given(self, columns: Any) -> Iterator[None]:
        """Provide ``columns`` as the table ``waltap_rows`` within the block."""
        table = pa.table(columns) if isinstance(columns, dict) else columns
        self._raw.register("waltap_rows", table)
        try:
            yield
        finally:
            with contextlib.suppress(duckdb.Error):  # a failed transaction refuses statements
                self._raw.unregister("waltap_rows")

    def _put(
        self, ending: str, table: BoundTable, columns: Sequence[BoundColumn], rows: Sequence[Tuple]
    ) -> int:
        names = ", ".join(column.quoted for column in columns)
        sent = ", ".join(_fitted(self.quoted(c.source.column.name), c) for c in columns)
        select = f"SELECT {sent} FROM waltap_rows{ending.replace('%%', '%')}"
        with self.given(self.rows.batch(table.shape, rows)):
            return self.change(f"INSERT INTO {table.quoted} ({names}) {select}", ())

    # --- failures ---

    def meaning(self, error: BaseException) -> type[SinkError] | None:
        if isinstance(error, duckdb.ConstraintException):
            return SqlConstraintViolated
        commits = isinstance(error, duckdb.TransactionException)
        if isinstance(error, duckdb.IOException) or (commits and ": Could not" in str(error)):
            return SqlUnreachable
        if commits and "onflict" in str(error):
            return SqlConflict
        if isinstance(error, (duckdb.ConversionException, duckdb.OutOfRangeException)):
            return SqlValueUnfit
        missing = isinstance(error, (duckdb.BinderException, duckdb.CatalogException))
        if missing and "Could not drop" not in str(error):  # another table refers to it
            return SqlColumnMissing
        return None

    def error_text(self, error: BaseException) -> str:
        # The message of a constraint names the values of a key.
        text, _, rest = super().error_text(error).partition(' key "')
        found = re.search(r'" (violates [a-z ]+ constraint)', rest)
        return f"{text} key {found[1]}" if found else text


class _DuckCursor:
    """Give DuckDB's result the attributes of a cursor."""

    def __init__(self, found: Any) -> None:
        self.description = found.description
        self._rows = found.fetchall() if found.description else []
        counted = [name[0] for name in found.description or ()] == ["Count"]
        self.rowcount = self._rows[0][0] if counted and self._rows else 0

    def fetchall(self) -> list[Any]:
        return list(self._rows)

    def close(self) -> None:
        """Do nothing: the result is complete."""


def _made(path: Path) -> None:
    """Create a file atomically: DuckDB refuses a half-made one."""
    begun = path.with_name(f"{path.name}.new")
    begun.unlink(missing_ok=True)
    duckdb.connect(begun).close()
    begun.replace(path)


def _fitted(value: str, column: BoundColumn) -> str:
    """Return a value in its column's type: in an upsert DuckDB would cast the column."""
    return f"CAST({value} AS {column.existing.type})"


def _plain(written: str) -> str:
    """Return a column's name as it is without quotation marks."""
    return written[1:-1].replace('""', '"') if written[0] == '"' else written


def _written(column: str) -> str:
    """Return the pattern of a column's name in a statement."""
    return re.escape('"' + column.replace('"', '""') + '"') + "|" + re.escape(column)


def _collation(made: str, column: str) -> str:
    """Return a column's collation in the table's statement, or "".

    DuckDB shows it nowhere else.
    """
    found = re.search(
        rf"[(,]\s*(?:{_written(column)})\s+\w+(?:\([^)]*\))?\s+COLLATE\s+([\w.]+)",
        made,
        re.IGNORECASE,
    )
    return found[1] if found and found[1].upper() not in {"C", "BINARY", "POSIX"} else ""


def _type_of(kind: "pa.DataType") -> str:
    simple = {
        "bool": "BOOLEAN", "int16": "SMALLINT", "int32": "INTEGER", "int64": "BIGINT",
        "float": "FLOAT", "double": "DOUBLE", "binary": "BLOB", "date32[day]": "DATE",
        "time64[us]": "TIME",
    }  # fmt: skip
    if str(kind) in simple:
        return simple[str(kind)]
    if pa.types.is_timestamp(kind):
        return "TIMESTAMP WITH TIME ZONE" if kind.tz else "TIMESTAMP"
    if pa.types.is_decimal(kind) and kind.precision <= 38:
        return f"DECIMAL({kind.precision},{kind.scale})"
    return f"{_type_of(kind.value_type)}[]" if pa.types.is_list(kind) else "VARCHAR"
