"""DuckDB as target: a file of columns, written by one process."""

import contextlib
import datetime as dt
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb

from waltap.changes.decode.tuple_image import Tuple
from waltap.errors import SinkError
from waltap_sinks.sql.errors import (
    SqlColumnMissing,
    SqlConflict,
    SqlConstraintViolated,
    SqlUnreachable,
    SqlValueUnfit,
)
from waltap_sinks.sql.shape import TargetColumn, TargetName
from waltap_sinks.sql.targets.generic import READ_AT_ONCE, GenericTarget
from waltap_sinks.sql.targets.target import (
    BoundColumn,
    BoundTable,
    ExistingColumn,
    TargetDescription,
)
from waltap_sinks.sql.targets.typed import arrow_type

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["DuckTarget"]

COLUMNS = """
    SELECT column_name, data_type FROM duckdb_columns()
    WHERE lower(schema_name) = lower(coalesce(%s, current_schema())) AND lower(table_name) = lower(%s)
      AND database_name = current_database() ORDER BY column_index
"""
KEYS = """
    SELECT constraint_column_names FROM duckdb_constraints()
    WHERE lower(schema_name) = lower(coalesce(%s, current_schema())) AND lower(table_name) = lower(%s)
      AND database_name = current_database() AND constraint_type IN ('PRIMARY KEY', 'UNIQUE')
"""
VIEWS = """
    SELECT count(*) FROM duckdb_views()
    WHERE lower(schema_name) = lower(coalesce(%s, current_schema())) AND lower(view_name) = lower(%s)
      AND database_name = current_database()
"""
MADE = """
    SELECT sql FROM duckdb_tables()
    WHERE lower(schema_name) = lower(coalesce(%s, current_schema())) AND lower(table_name) = lower(%s)
      AND database_name = current_database()
"""


class DuckTarget(GenericTarget):
    """A connection to a DuckDB file, which no other process may have open.

    Rows go in as Arrow columns, with their types. There are no savepoints: what fails in the middle of a
    large transaction undoes all of it.
    """

    savepoints = False
    versions = ("generic_versions", "DuckVersions")
    backend = "duckdb"
    errors = duckdb.Error
    schemas = True
    for_update = ""
    folds_tables = folds_columns = True
    word_type = text_type = "VARCHAR"
    time_type = "TIMESTAMP WITH TIME ZONE"
    _begun = False
    _written: tuple[int, int] | None = None
    _overwritten = False

    def open(self) -> None:
        place = self._properties.url.partition("://")[2].removeprefix("/")
        if place and not Path(place).exists():
            _made(Path(place))
        self._raw = duckdb.connect(place or ":memory:")
        self.run("SET TimeZone = 'UTC'")
        self.keep_file(place)
        self._written, self._overwritten = self._mark(), False

    def begin(self) -> None:
        if self._mark() != self._written:
            self._overwritten = True
        self._raw.begin()
        self._begun = True

    def commit(self, *, durable: bool = True) -> None:
        if self._begun:
            self._begun = False
            self._raw.commit()
            self._written = self._mark()

    def rollback(self) -> None:
        self._begun = False
        super().rollback()
        self._written = self._mark()

    def replaced(self) -> bool:
        return self._overwritten or super().replaced()

    def _mark(self) -> tuple[int, int] | None:
        """Return what changes with each write to the file. DuckDB writes within transactions only."""
        found = self._status()
        return None if found is None else (found.st_size, found.st_mtime_ns)

    @contextlib.contextmanager
    def attempt(self) -> Iterator[None]:
        yield

    def _executed(self, statement: str, parameters: Sequence[object]) -> Any:
        if parameters:
            return _DuckCursor(self._raw.execute(self._placed(statement), list(parameters)))
        return _DuckCursor(self._raw.execute(statement))

    def read(self, statement: str) -> Iterator[Sequence[Any]]:
        reader = self._raw.sql(statement).to_arrow_reader(READ_AT_ONCE)
        for batch in reader:
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)

    def many(self, statement: str, columns: Sequence[Sequence[Any]]) -> int:
        text, count = self._placed(statement), 0
        for row in zip(*columns, strict=True):
            count += _DuckCursor(self._raw.execute(text, list(row))).rowcount
        return count

    # --- tables ---

    def quoted(self, name: str) -> str:
        return '"' + name.replace('"', '""') + '"'

    def describe(self, name: TargetName) -> TargetDescription | None:
        place = [name.schema, name.name]
        info = self.run(COLUMNS, place)
        if not info:
            return None
        ((views,),) = self.run(VIEWS, place)
        unique = tuple(frozenset(names) for (names,) in self.run(KEYS, place))
        ((made,),) = self.run(MADE, place) or (("",),)
        columns = {
            column: ExistingColumn(column, kind, kind, collation=_collation(made, column))
            for column, kind in info
        }
        return TargetDescription(columns, unique, is_table=not views)

    def type_for(self, column: TargetColumn) -> str:
        return _type_of(arrow_type(column))

    def widened(self, existing: str, wanted: str) -> bool:
        families = (("SMALLINT", "INTEGER", "BIGINT"), ("FLOAT", "DOUBLE"))
        for family in families:
            if existing in family and wanted in family:
                return family.index(wanted) > family.index(existing)
        if existing.startswith("DECIMAL") and wanted.startswith("DECIMAL"):
            (p, s), (q, r) = _digits(existing), _digits(wanted)
            return q - r > p - s or r > s
        return wanted == "VARCHAR" != existing

    def adapter(self, kind: Any) -> Any:
        return None

    def bytes_literal(self, value: bytes) -> str:
        return f"from_hex('{value.hex()}')"

    def moment(self, ts: int) -> object:
        return dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(microseconds=ts)

    # --- rows ---

    @contextlib.contextmanager
    def given(self, name: str, columns: dict[str, Sequence[Any]]) -> Iterator[None]:
        """Have a table of these columns under ``name`` for as long as the block takes."""
        import pyarrow as pa

        self._raw.register(name, pa.table(columns))
        try:
            yield
        finally:
            with contextlib.suppress(duckdb.Error):  # a transaction that failed takes nothing more
                self._raw.unregister(name)

    def _put(
        self,
        verb: str,
        ending: str,
        table: BoundTable,
        columns: Sequence[BoundColumn],
        rows: Sequence[Tuple],
    ) -> int:
        batch = self.rows.batch(table.shape, rows)
        names = ", ".join(column.quoted for column in columns)
        sent = ", ".join(self.quoted(column.source.column.name) for column in columns)
        self._raw.register("waltap_rows", batch)
        try:
            return self.change(
                f"{verb} {table.quoted} ({names}) SELECT {sent} FROM waltap_rows{_plain(ending)}",
                (),
            )
        finally:
            with contextlib.suppress(duckdb.Error):  # a transaction that failed takes nothing more
                self._raw.unregister("waltap_rows")

    def same(self, name: str) -> str:
        return f"{name} IS NOT DISTINCT FROM %s"

    def one_row(self, table: str, tests: str) -> str:
        return f" WHERE rowid = (SELECT rowid FROM {table} WHERE {tests} LIMIT 1)"

    # --- failures ---

    def meaning(self, error: BaseException) -> type[SinkError] | None:
        if isinstance(error, duckdb.ConstraintException):
            return SqlConstraintViolated
        if isinstance(error, duckdb.IOException):
            return SqlUnreachable
        if isinstance(error, duckdb.TransactionException) and "onflict" in str(error):
            return SqlConflict
        if isinstance(error, (duckdb.ConversionException, duckdb.OutOfRangeException)):
            return SqlValueUnfit
        if isinstance(error, (duckdb.BinderException, duckdb.CatalogException)):
            return SqlColumnMissing
        return None

    def said(self, error: BaseException) -> str:
        """Return what DuckDB says, without the key that a constraint names."""
        text = super().said(error)
        return text.partition(" key ")[0] if "Duplicate key" in text else text


class _DuckCursor:
    """What DuckDB answers, as a cursor has it."""

    def __init__(self, found: Any) -> None:
        self.description = found.description
        self._rows = found.fetchall() if found.description else []
        counted = [name[0] for name in found.description or ()] == ["Count"]
        self.rowcount = self._rows[0][0] if counted and self._rows else 0

    def fetchall(self) -> list[Any]:
        """Return the rows."""
        return list(self._rows)

    def close(self) -> None:
        """Let go of it."""


def _made(path: Path) -> None:
    """Make a file, whole or not at all: DuckDB opens none that it was killed in the making of."""
    begun = path.with_name(f"{path.name}.new")
    begun.unlink(missing_ok=True)
    duckdb.connect(begun).close()
    begun.replace(path)


def _plain(text: str) -> str:
    """Return SQL that has no values in it, of one that had doubled its %."""
    return text.replace("%%", "%")


def _collation(made: str, column: str) -> str:
    """Return the collation that the statement of a table gives a column, "" where it gives none. DuckDB
    shows it nowhere else."""
    name = re.escape('"' + column.replace('"', '""') + '"') + "|" + re.escape(column)
    found = re.search(
        rf"[(,]\s*(?:{name})\s+\w+(?:\([^)]*\))?\s+COLLATE\s+([\w.]+)", made, re.IGNORECASE
    )
    return found[1] if found and found[1].upper() not in {"C", "BINARY", "POSIX"} else ""


def _digits(kind: str) -> tuple[int, int]:
    precision, scale = kind.removeprefix("DECIMAL(").removesuffix(")").split(",")
    return int(precision), int(scale)


def _type_of(kind: "pa.DataType") -> str:
    import pyarrow.types as pat

    simple = {
        "bool": "BOOLEAN", "int16": "SMALLINT", "int32": "INTEGER", "int64": "BIGINT",
        "float": "FLOAT", "double": "DOUBLE", "binary": "BLOB", "date32[day]": "DATE",
        "time64[us]": "TIME",
    }  # fmt: skip
    if str(kind) in simple:
        return simple[str(kind)]
    if pat.is_timestamp(kind):
        return "TIMESTAMP WITH TIME ZONE" if kind.tz else "TIMESTAMP"
    if pat.is_decimal(kind) and kind.precision <= 38:
        return f"DECIMAL({kind.precision},{kind.scale})"
    return f"{_type_of(kind.value_type)}[]" if pat.is_list(kind) else "VARCHAR"
