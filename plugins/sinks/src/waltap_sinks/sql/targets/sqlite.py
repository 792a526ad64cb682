"""Write to a SQLite file."""

import datetime as dt
import math
import re
import sqlite3
from collections.abc import Sequence
from typing import Any, Final

import sqlalchemy

from waltap.base.import_rules import pa
from waltap.changes.decode.tuple_image import Tuple
from waltap.errors import SinkError
from waltap_sinks.sql.errors import (
    SqlColumnMissing,
    SqlConflict,
    SqlConstraintViolated,
    SqlReadOnly,
    SqlTableUnfit,
    SqlUnreachable,
    SqlValueUnfit,
)
from waltap_sinks.sql.shape import TargetColumn, TargetName
from waltap_sinks.sql.targets.file import FileTarget
from waltap_sinks.sql.targets.target import (
    BoundTable,
    ExistingColumn,
    TargetDescription,
    WriteObstacle,
)
from waltap_sinks.sql.targets.typed import arrow_type, instant, json_text

# A REAL has so many exact digits; longer numbers are stored as text.
EXACT_DIGITS: Final = 15

# SQLite says so of an index that has the INTEGER PRIMARY KEY beside others.
NO_INDEX: Final = "ON CONFLICT clause does not match"

# SQLite's driver has one class for these failures, so their texts decide.
MEANINGS: Final = (
    ("is locked", SqlConflict),  # the database, a table or the schema
    ("no such column", SqlColumnMissing),
    ("has no column", SqlColumnMissing),
    ("no such table", SqlColumnMissing),
    ("readonly", SqlReadOnly),
    ("unable to open", SqlUnreachable),
    ("disk", SqlUnreachable),
)


COLUMNS: Final = "SELECT name, type, pk, hidden FROM pragma_table_xinfo(%s)"
# The statements of a table, its indexes and its triggers.
MADE: Final = """
    SELECT sql FROM sqlite_master WHERE tbl_name = %s COLLATE NOCASE AND sql IS NOT NULL
    ORDER BY type <> 'table', type
"""
# A space or comment in them.
GAP: Final = r"(?:\s|--[^\n]*+|/\*[\s\S]*?\*/)"


class SqliteTarget(FileTarget):
    """Connect to a SQLite file.

    Numbers are INTEGER, REAL or NUMERIC, and numerics of more than 15 digits TEXT. Dates and times are
    ISO texts, in UTC if they have a zone; arrays are JSON. A column of text holds any value.
    """

    schemas = adds_keys = False
    backend = "sqlite+pysqlite"
    errors = sqlite3.Error
    for_update = ""
    ignores_table_case = ignores_column_case = True
    number_type, word_type, text_type, time_type = "INTEGER", "TEXT", "TEXT", "TEXT"
    same = "IS"

    def options(self) -> dict[str, Any]:
        return {
            "isolation_level": None,
            "check_same_thread": False,
            "timeout": self._properties.lock_timeout_ms / 1000,
        }

    def prepare(self) -> None:
        self.keep_file(sqlalchemy.make_url(self._properties.url).database)
        if self._properties.foreign_keys == "check":
            self.run("PRAGMA foreign_keys = ON")

    def begin(self) -> None:
        # A transaction that begins as a reader can fail when it becomes a writer.
        self.run("BEGIN IMMEDIATE")
        if self._properties.foreign_keys == "check":
            self.run("PRAGMA defer_foreign_keys = ON")

    # --- tables ---

    def describe(self, name: TargetName) -> TargetDescription | None:
        kinds = self.run(
            "SELECT type FROM sqlite_master WHERE name = %s COLLATE NOCASE", [name.name]
        )
        if not kinds:
            return None
        info = self.run(COLUMNS, [name.name])
        unique = [frozenset(column for column, _kind, key, _hidden in info if key)]
        collations: dict[str, str] = {}
        for index, partial in self.run(
            'SELECT name, partial FROM pragma_index_list(%s) WHERE "unique"', [name.name]
        ):
            names = self.run("SELECT name, coll FROM pragma_index_xinfo(%s) WHERE key", [index])
            if not partial and all(column for column, _collation in names):
                unique.append(frozenset(column for column, _collation in names))
            collations |= {column: by for column, by in names if by != "BINARY"}
        columns = {
            column: ExistingColumn(
                column, kind, kind, written=not hidden, settable=not hidden,
                collation=collations.get(column, ""),
            )
            for column, kind, _key, hidden in info
        }  # fmt: skip
        return TargetDescription(
            columns, tuple(filter(None, unique)), is_table=kinds[0][0] == "table"
        )

    def obstacles(self, name: TargetName) -> list[WriteObstacle]:
        triggers = self.run(
            "SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = %s COLLATE NOCASE"
            " AND sql LIKE '%%raise%%ignore%%'",
            [name.name],
        )
        return [
            WriteObstacle(f"trigger {trigger} may keep rows from it", drop, certain=False)
            for (trigger,) in triggers
            for drop in [f"DROP TRIGGER {self.quoted(trigger)}"]
        ]

    def cascades(self, name: TargetName) -> bool:
        return self._properties.foreign_keys == "check" and bool(
            self.run(
                "SELECT 1 FROM sqlite_master m JOIN pragma_foreign_key_list(m.name) f"
                " WHERE f.\"table\" = %s COLLATE NOCASE AND f.on_delete NOT IN ('NO ACTION', 'RESTRICT')",
                [name.name],
            )
        )

    def type_for(self, column: TargetColumn) -> str:
        kind = arrow_type(column)
        if pa.types.is_boolean(kind):
            return "BOOLEAN"
        if pa.types.is_integer(kind):
            return "INTEGER"
        if pa.types.is_floating(kind):
            return "REAL"
        if pa.types.is_decimal(kind):
            return "NUMERIC" if kind.precision <= EXACT_DIGITS else "TEXT"
        return "BLOB" if pa.types.is_binary(kind) else "TEXT"

    def exact_statement(self, name: TargetName, column: str, type_: str) -> str:
        return f"a new table with {self.quoted(column)} {type_}: SQLite alters no collation"

    def widened(self, existing: str, wanted: str) -> bool | None:
        # Columns take values of any type. Numeric columns make a number of a text of digits, and
        # REAL a rounded one of an integer.
        changes = wanted == "TEXT" or existing == "REAL"
        return False if not changes or existing in {wanted, "TEXT", "BLOB", ""} else None

    def alter_type(self, name: TargetName, column: str, type_: str) -> None:
        table, info = self.quoted_table(name), self.run(COLUMNS, [name.name])
        kind = next(kind for each, kind, *_ in info if each.lower() == column.lower())
        forms = self.quoted(column), f"`{column}`", f"[{column}]", column
        named = "|".join(map(re.escape, forms))
        before = rf"([(,]{GAP}*+(?:{named}){GAP}++){re.escape(kind)}(?!\w)"
        (made, *others) = (made for (made,) in self.run(MADE, [name.name]))
        made, found = re.subn(before, rf"\g<1>{type_}", made, count=1, flags=re.IGNORECASE)
        names = ", ".join(self.quoted(each) for each, *_, hidden in info if not hidden)
        if not found or self.cascades(name):  # a drop would delete rows that refer to these
            raise SqlTableUnfit(
                f"column {column} of {name} needs the type {type_}, and SQLite alters no type",
                statement=f"a new table with {self.quoted(column)} {type_}",
            )
        self.run(f"CREATE TEMP TABLE waltap_copy AS SELECT {names} FROM {table}")
        self.run(f"DROP TABLE {table}")
        # Tables may refer to these rows by an index, and triggers must see no new rows.
        triggers = [each for each in others if each.startswith("CREATE TRIGGER")]
        for each in (made, *others[: len(others) - len(triggers)]):
            self.run(each)
        self.run(f"INSERT INTO {table} ({names}) SELECT {names} FROM temp.waltap_copy")
        self.run("DROP TABLE temp.waltap_copy")
        for each in triggers:
            self.run(each)

    def convert(self, name: TargetName, before: TargetColumn, column: TargetColumn) -> None:
        if pa.types.is_date(arrow_type(before)) and pa.types.is_timestamp(arrow_type(column)):
            quoted = self.quoted(column.name)
            self.run(
                f"UPDATE {self.quoted_table(name)} SET {quoted} = {quoted} || ' 00:00:00'"
                f" WHERE {quoted} NOT LIKE '% %'"
            )

    def adapter(self, kind: Any) -> Any:
        if pa.types.is_decimal(kind):
            return "{:f}".format  # str() would write 0E-9
        if pa.types.is_timestamp(kind):
            return _moment
        if pa.types.is_date(kind) or pa.types.is_time(kind):
            return dt.date.isoformat if pa.types.is_date(kind) else dt.time.isoformat
        if pa.types.is_floating(kind):
            return lambda value: None if math.isnan(value) else value  # as SQLite stores NaN
        return json_text(kind)

    def moment(self, ts: int) -> object:
        return _moment(instant(ts))

    def upsert(self, table: BoundTable, rows: Sequence[Tuple], *, keep: bool = False) -> int:
        try:
            return super().upsert(table, rows, keep=keep)
        except sqlite3.OperationalError as error:
            if keep or NO_INDEX not in str(error):
                raise
            return self._update(table, table.shape.columns, rows, "")

    def update(
        self, table: BoundTable, columns: Sequence[TargetColumn], rows: Sequence[Tuple]
    ) -> int:
        try:
            return super().update(table, columns, rows)
        except sqlite3.OperationalError as error:
            if NO_INDEX not in str(error):
                raise
            return self._update(table, columns, rows, "")

    # --- failures ---

    def meaning(self, error: BaseException) -> type[SinkError] | None:
        if isinstance(error, sqlite3.IntegrityError):
            return SqlValueUnfit if "datatype mismatch" in str(error) else SqlConstraintViolated
        if isinstance(error, sqlite3.OperationalError):
            return next((kind for words, kind in MEANINGS if words in str(error)), None)
        if isinstance(error, (sqlite3.InterfaceError, OverflowError)):
            return SqlValueUnfit
        return None


def _moment(value: dt.datetime) -> str:
    return value.replace(tzinfo=None).isoformat(" ")
