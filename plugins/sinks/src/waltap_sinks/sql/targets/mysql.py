"""MariaDB and MySQL as targets."""

import datetime as dt
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import pymysql
import pymysql.cursors
from pymysql.constants import CLIENT

from waltap.changes.decode.tuple_image import Tuple
from waltap.errors import SinkError
from waltap_sinks.sql.errors import (
    SqlColumnMissing,
    SqlConflict,
    SqlConstraintViolated,
    SqlReadOnly,
    SqlRefused,
    SqlUnreachable,
    SqlValueUnfit,
)
from waltap_sinks.sql.shape import TargetColumn, TargetName
from waltap_sinks.sql.targets.generic import GenericTarget, escaped
from waltap_sinks.sql.targets.target import (
    BoundTable,
    ExistingColumn,
    TargetDescription,
    WriteObstacle,
    chunks,
)
from waltap_sinks.sql.targets.typed import arrow_type, finite, json_text

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["MysqlTarget"]

INDEX_BYTES: Final = 3072
"""Bytes of an index entry of InnoDB: each column of a key gets its share."""
COLLATIONS: Final = ("utf8mb4_nopad_bin", "utf8mb4_0900_bin")
"""Of MariaDB and MySQL: they compare texts as they are, the spaces at their ends too."""
EXACT: Final = re.compile(r".*_nopad_bin|utf8mb4_0900_bin|binary")

CONFLICTS: Final = frozenset({1205, 1213, 1020})
LOST: Final = frozenset({2002, 2003, 2006, 2013, 2055, 1053, 1927, 1040, 1203, 1021, 0})
REFUSED: Final = frozenset({1044, 1045, 1049, 1142, 1143, 1227, 1698, 1820, 1862, 3118, 4151})
READ_ONLY: Final = frozenset({1290, 1792, 1836})
MISSING: Final = frozenset({1054, 1146, 1109})
UNFIT: Final = frozenset({1264, 1265, 1366, 1406, 1292, 1411, 1367, 1690, 3140})
COLUMNS: Final = """
    SELECT column_name, column_type, extra, collation_name FROM information_schema.columns
    WHERE table_schema = database() AND table_name = %s ORDER BY ordinal_position
"""
INDEXES: Final = """
    SELECT index_name, column_name FROM information_schema.statistics
    WHERE table_schema = database() AND table_name = %s AND non_unique = 0 AND sub_part IS NULL
"""
ENGINE: Final = """
    SELECT e.engine FROM information_schema.tables t JOIN information_schema.engines e
      ON e.engine = t.engine
    WHERE t.table_schema = database() AND t.table_name = %s AND e.transactions = 'NO'
"""
WIDER: Final = (
    ("smallint", "int", "bigint"),
    ("float", "double"),
    ("varchar", "text", "longtext"),
    ("varbinary", "blob", "longblob"),
)


class MysqlTarget(GenericTarget):
    """A connection to a MariaDB or MySQL server. Here a schema is a database, so tables have none.

    Texts are longtext (in keys varchar), of utf8mb4 and compared as they are, numerics decimal up to 38
    digits, instants datetime(6) in UTC, arrays JSON text. DDL commits by itself there: it is done before
    the transaction of the data.
    """

    backend = "mysql+pymysql"
    errors = pymysql.MySQLError
    qmark = False
    transactional_ddl = False
    folds_columns = True
    versions = ("generic_versions", "MysqlVersions")
    word_type, text_type, time_type = "varchar(191)", "longtext", "datetime(6)"

    def options(self) -> dict[str, Any]:
        return {
            "charset": "utf8mb4",
            "client_flag": CLIENT.FOUND_ROWS,
            "connect_timeout": 10,
            "autocommit": False,
            "init_command": "SET time_zone = '+00:00', sql_mode = 'STRICT_ALL_TABLES,"
            "NO_ZERO_DATE,NO_ZERO_IN_DATE,NO_BACKSLASH_ESCAPES,NO_AUTO_VALUE_ON_ZERO'",
        }

    def prepare(self) -> None:
        seconds = max(1, self._properties.lock_timeout_ms // 1000)
        self.run(f"SET SESSION innodb_lock_wait_timeout = {seconds}, lock_wait_timeout = {seconds}")
        self.run("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        found = self.run(
            "SELECT collation_name FROM information_schema.collations WHERE collation_name IN (%s, %s)",
            list(COLLATIONS),
        )
        # servers before both pad texts with spaces when they compare
        self._collation = found[0][0] if found else "utf8mb4_bin"
        self.collated = f"CHARACTER SET utf8mb4 COLLATE {self._collation}"
        """What a type of texts ends with."""
        self.word_type = f"varchar(191) {self.collated}"
        self.text_type = f"longtext {self.collated}"
        ((folding,),) = self.run("SELECT @@lower_case_table_names")
        self.folds_tables = bool(folding)
        if self._properties.foreign_keys == "auto":
            self.run("SET SESSION foreign_key_checks = 0")

    def close(self) -> None:
        raw, self._raw = self._raw, None
        if raw is not None and raw.open:
            raw._force_close()  # noqa: SLF001 - a polite goodbye waits for a server that may be gone

    def begin(self) -> None:
        self.run("START TRANSACTION")

    # --- tables ---

    def text_literal(self, text: str) -> str:
        return super().text_literal(text.replace("\\", "\\\\"))

    def quoted(self, name: str) -> str:
        return "`" + name.replace("`", "``") + "`"

    def describe(self, name: TargetName) -> TargetDescription | None:
        info = self.run(COLUMNS, [name.name])
        if not info:
            return None
        columns = {
            column: ExistingColumn(
                column, _plain(kind), kind, written="GENERATED" not in extra.upper(),
                settable="GENERATED" not in extra.upper(),
                collation="" if self._is_exact(collation) else collation,
            )
            for column, kind, extra, collation in info
        }  # fmt: skip
        unique: dict[str, set[str]] = {}
        for index, column in self.run(INDEXES, [name.name]):
            unique.setdefault(index, set()).add(column)
        ((kind,),) = self.run(
            "SELECT table_type FROM information_schema.tables"
            " WHERE table_schema = database() AND table_name = %s",
            [name.name],
        )
        return TargetDescription(
            columns, tuple(map(frozenset, unique.values())), is_table="VIEW" not in kind
        )

    def obstacles(self, name: TargetName) -> list[WriteObstacle]:
        rows = self.run(ENGINE, [name.name])
        return [
            WriteObstacle(
                f"its engine {engine} has no transactions",
                f"ALTER TABLE {self.quoted_table(name)} ENGINE = InnoDB",
            )
            for (engine,) in rows
        ]

    def _is_exact(self, collation: str | None) -> bool:
        return collation in {None, self._collation} or bool(EXACT.fullmatch(str(collation)))

    def type_for(self, column: TargetColumn) -> str:
        kind = _type_of(arrow_type(column), column)
        return f"{kind} {self.collated}" if kind.startswith(("varchar", "longtext")) else kind

    def exact_statement(self, name: TargetName, column: str, type_: str) -> str:
        return (
            f"ALTER TABLE {self.quoted_table(name)} MODIFY {self.quoted(column)} {type_} NOT NULL"
        )

    def widened(self, existing: str, wanted: str) -> bool:
        old, new = _parsed(existing), _parsed(wanted)
        for family in WIDER:
            if old[0] in family and new[0] in family and old[0] != new[0]:
                return family.index(new[0]) > family.index(old[0])
        if old[0] != new[0]:
            return False
        if old[0] == "decimal":
            (precision, scale), (wide, fine) = old[1], new[1]
            return wide - fine > precision - scale or fine > scale
        return new[1] > old[1]

    def alter_type(self, name: TargetName, column: str, type_: str) -> None:
        table, quoted = self.quoted_table(name), self.quoted(column)
        self.run(f"ALTER TABLE {table} MODIFY COLUMN {quoted} {type_}")

    def adapter(self, kind: Any) -> Any:
        import pyarrow.types as pat

        if pat.is_timestamp(kind):
            return _naive
        if pat.is_floating(kind):
            return finite
        return json_text(kind)

    def moment(self, ts: int) -> object:
        return _naive(dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(microseconds=ts))

    # --- rows ---

    def streaming_cursor(self) -> Any:
        return self._raw.cursor(pymysql.cursors.SSCursor)

    def read_as(self, quoted: str, type_: str) -> str:
        # a float is written with six digits
        return f"CAST({quoted} AS DOUBLE)" if type_ == "float" else quoted

    def on_conflict(self, table: BoundTable, *, keep: bool) -> str:
        keys = {key.quoted for key in table.key}
        sets = [
            f"{escaped(column.quoted)} = VALUES({escaped(column.quoted)})"
            for column in table.columns
            if column.quoted not in keys and column.existing.settable
        ]
        if table.soft is not None:
            sets.append(f"{escaped(table.soft)} = NULL")
        if keep or not sets:
            key = escaped(table.key[0].quoted)
            sets = [f"{key} = {key}"]
        return f" ON DUPLICATE KEY UPDATE {', '.join(sets)}"

    def upsert(self, table: BoundTable, rows: Sequence[Tuple], *, keep: bool = False) -> int:
        """Here any unique index counts as the key: where there are more, old rows go first."""
        if table.only_key:
            return super().upsert(table, rows, keep=keep)
        key_of = table.shape.key_of
        assert key_of is not None
        keys = [key_of(row) for row in rows]
        if keep:
            super().upsert(table, rows, keep=True)
            return self.holding(table, keys)  # one that is there may be of another key
        self.delete(table, keys)
        return self.insert(table, rows)

    def delete(self, table: BoundTable, keys: Sequence[Any]) -> int:
        names = ", ".join(escaped(key.quoted) for key in table.key)
        one = f"({', '.join(['%s'] * len(table.key))})"
        rows = list(zip(*self.rows.keys(table.shape, keys), strict=True))
        count = 0
        for some in chunks(rows, 1000):
            places = ", ".join([one] * len(some))
            statement = f"DELETE FROM {escaped(table.quoted)} WHERE ({names}) IN ({places})"
            count += self.change(statement, [value for row in some for value in row])
        return count

    def same(self, name: str) -> str:
        return f"{name} <=> %s"

    def one_row(self, table: str, tests: str) -> str:
        return f" WHERE {tests} LIMIT 1"

    # --- failures ---

    def meaning(self, error: BaseException) -> type[SinkError] | None:
        if not isinstance(error, pymysql.MySQLError):
            return None
        number = error.args[0] if error.args and isinstance(error.args[0], int) else 0
        if isinstance(error, pymysql.ProgrammingError) and not number:
            return SqlValueUnfit  # the driver's own refusal, before it asked the server
        if isinstance(error, pymysql.IntegrityError) or number in {
            1062,
            1452,
            1451,
            1048,
            3819,
            4025,
        }:
            return SqlConstraintViolated
        if number in CONFLICTS:
            return SqlConflict
        if number in READ_ONLY:
            return SqlReadOnly
        if number in REFUSED:
            return SqlRefused
        if number in MISSING:
            return SqlColumnMissing
        if number in LOST:
            return SqlUnreachable
        if number in UNFIT or isinstance(error, pymysql.DataError):
            return SqlValueUnfit
        return None

    def said(self, error: BaseException) -> str:
        """Return what the server says; ``entry 'VALUE'`` and ``value: 'VALUE'`` without the value."""
        return re.sub(r"(entry|value:?) '(?:[^']|'')*'", r"\1", super().said(error))


def _naive(value: dt.datetime) -> dt.datetime:
    return value.astimezone(dt.UTC).replace(tzinfo=None) if value.tzinfo else value


def _plain(kind: str) -> str:
    """Return a type as `_type_of` writes it: without the width that integers are shown with."""
    return re.sub(r"^(smallint|int|bigint)\(\d+\)", r"\1", kind)


def _parsed(kind: str) -> tuple[str, tuple[int, ...]]:
    match = re.match(r"(\w+)(?:\(([\d,]+)\))?", kind)
    assert match is not None
    return match[1], tuple(map(int, match[2].split(","))) if match[2] else ()


def _type_of(kind: "pa.DataType", column: TargetColumn) -> str:
    import pyarrow.types as pat

    simple = {
        "bool": "tinyint(1)", "int16": "smallint", "int32": "int", "int64": "bigint",
        "float": "float", "double": "double", "date32[day]": "date", "time64[us]": "time(6)",
    }  # fmt: skip
    if str(kind) in simple:
        return simple[str(kind)]
    if pat.is_timestamp(kind):
        return "datetime(6)"
    if pat.is_decimal(kind):
        return f"decimal({max(kind.precision, kind.scale)},{max(kind.scale, 0)})"
    if pat.is_binary(kind):
        return f"varbinary({INDEX_BYTES // column.key_columns})" if column.key else "longblob"
    data_type = column.column.data_type
    limited = data_type is not None and data_type.name in {"varchar", "bpchar"}
    most = INDEX_BYTES // 4 // column.key_columns if column.key else 4000
    if limited and 4 < column.column.typmod <= most + 4:
        return f"varchar({column.column.typmod - 4})"
    return f"varchar({most})" if column.key else "longtext"
