"""Write to MariaDB or MySQL."""

import contextlib
import datetime as dt
import itertools
import re
import select
import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import pymysql
import pymysql.cursors
from pymysql.constants import CLIENT

from waltap.base.import_rules import pa
from waltap.base.text import escaped
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
from waltap_sinks.sql.shape import HistoryShape, TargetColumn, TargetName
from waltap_sinks.sql.targets.silence import LINK_LOSES, QUESTION_S, SILENCE_S, SilenceWatch
from waltap_sinks.sql.targets.target import (
    NO_SETS,
    Assignments,
    BoundColumn,
    BoundTable,
    ExistingColumn,
    SqlTarget,
    TargetDescription,
    WriteObstacle,
    assignments,
    changing,
    chunks,
    indexed,
)
from waltap_sinks.sql.targets.typed import arrow_type, finite, instant, is_wider, json_text

# A link is dead after a minute without a sign from the other kernel; systems wait for hours.
DEAD_LINK: Final = {
    "TCP_KEEPIDLE": 30,
    "TCP_KEEPINTVL": 10,
    "TCP_KEEPCNT": 3,
    "TCP_USER_TIMEOUT": 60_000,
}

# Bytes of an index entry of InnoDB, which the columns of a key share, and of a history's flag in it.
INDEX_BYTES: Final = 3072
FLAG_BYTES: Final = 32
KEYS_AT_ONCE: Final = 1_000
# Collations of MariaDB and MySQL that compare texts bytewise, with the spaces at their ends.
COLLATIONS: Final = ("utf8mb4_nopad_bin", "utf8mb4_0900_bin")
EXACT: Final = re.compile(r".*_nopad_bin|utf8mb4_0900_bin|binary")

# The server's numbers of errors, by their meaning.
NUMBERS: Final = {
    SqlConstraintViolated: (1062, 1452, 1451, 1048, 1364, 1644, 3819, 4025),
    SqlConflict: (1205, 1213, 1020),
    SqlReadOnly: (1290, 1792, 1836),
    SqlRefused: (1044, 1045, 1049, 1142, 1143, 1227, 1698, 1820, 1862, 3118, 4151),
    SqlColumnMissing: (1054, 1146, 1109),
    SqlUnreachable: (
        2002,
        2003,
        2006,
        2013,
        2055,
        1053,
        1927,
        1040,
        1203,
        1021,
        1114,
        3675,
        1047,
        0,
    ),
    SqlValueUnfit: (1264, 1265, 1366, 1406, 1292, 1411, 1367, 1690, 1916, 3140),
}
TOO_LARGE, NO_TEXT, NO_SERVER, SERVER_LOST = 1153, 1366, 2003, 2013
POLL_MS: Final = 100
IS_BUSY: Final = "SELECT command <> 'Sleep' FROM information_schema.processlist WHERE id = %s"
MEANINGS: Final = {number: kind for kind, numbers in NUMBERS.items() for number in numbers}
COLUMNS: Final = """
    SELECT column_name, column_type, extra, collation_name, table_type
    FROM information_schema.columns JOIN information_schema.tables USING (table_schema, table_name)
    WHERE table_schema = database() AND table_name = %s ORDER BY ordinal_position
"""
REQUIRED: Final = """
    SELECT column_name, column_type, column_key FROM information_schema.columns
    WHERE table_schema = database() AND table_name = %s AND is_nullable = 'NO'
"""
# An expression has no name.
INDEXES: Final = """
    SELECT index_name, coalesce(column_name, ''), sub_part IS NULL, non_unique
    FROM information_schema.statistics
    WHERE table_schema = database() AND table_name = %s ORDER BY index_name, seq_in_index
"""
CASCADES: Final = """
    SELECT 1 FROM information_schema.referential_constraints WHERE referenced_table_name = %s
      AND unique_constraint_schema = database() AND delete_rule NOT IN ('RESTRICT', 'NO ACTION')
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
LONG: Final = r"long|var\w+\((\d+)\)"
BYTES: Final = ("longblob", "varbinary")


class _Cursor(pymysql.cursors.Cursor):  # type: ignore[misc]
    """Refuse a statement for which the server would end the connection."""

    def _query(self, q: Any) -> int:
        limit = self.connection.max_allowed_packet
        most = limit - 2  # a byte for the command, and the server takes less than the limit
        # A character has four bytes at most.
        if 4 * len(q) > most and len(q.encode() if isinstance(q, str) else q) > most:
            text = f"the row is larger than the server's max_allowed_packet of {limit} bytes"
            raise pymysql.DataError(TOO_LARGE, text)
        return int(super()._query(q))


class MysqlTarget(SqlTarget):
    """Connect to a MariaDB or MySQL server.

    A schema is a database there, so tables have none. Texts are longtext in utf8mb4 (varchar in keys) and
    compare bytewise. Numerics are decimal up to 38 digits, instants datetime(6) in UTC, and arrays JSON
    text. DDL commits by itself, so it precedes the transaction of the data.
    """

    schemas = False
    backend = "mysql+pymysql"
    errors = pymysql.MySQLError
    qmark = False
    transactional_ddl = False
    ignores_column_case = True
    same = "<=>"
    word_type, text_type, time_type = "varchar(191)", "longtext", "datetime(6)"

    def options(self) -> dict[str, Any]:
        return {
            "charset": "utf8mb4",
            "client_flag": CLIENT.FOUND_ROWS,
            "connect_timeout": QUESTION_S,
            "read_timeout": 2 * SILENCE_S,  # of the rest of an answer
            "autocommit": False,
            "cursorclass": _Cursor,
            "init_command": "SET time_zone = '+00:00', sql_mode = 'STRICT_ALL_TABLES,"
            "NO_ZERO_DATE,NO_ZERO_IN_DATE,NO_BACKSLASH_ESCAPES,NO_AUTO_VALUE_ON_ZERO'",
        }

    def prepare(self) -> None:
        with contextlib.suppress(OSError):  # a link within this machine has no such options
            for name, value in DEAD_LINK.items():
                option = getattr(socket, name, None)
                if option is not None:
                    self._raw._sock.setsockopt(socket.IPPROTO_TCP, option, value)  # noqa: SLF001
        seconds = max(1, self._properties.lock_timeout_ms // 1000)
        self.run(f"SET SESSION innodb_lock_wait_timeout = {seconds}, lock_wait_timeout = {seconds}")
        self.run("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        found = self.run(
            "SELECT collation_name FROM information_schema.collations WHERE collation_name IN (%s, %s)",
            list(COLLATIONS),
        )
        # Older servers have neither collation and ignore spaces at the end of texts.
        self._collation = found[0][0] if found else "utf8mb4_bin"
        # The end of a type for texts.
        self.collated = f"CHARACTER SET utf8mb4 COLLATE {self._collation}"
        self.word_type = f"varchar(191) {self.collated}"
        self.text_type = f"longtext {self.collated}"
        if self._abandoned is not None:
            self._is_busy(self._abandoned, True)
        ((folding, most, session),) = self.run(
            "SELECT @@lower_case_table_names, @@max_allowed_packet, connection_id()"
        )
        self.ignores_table_case, self._raw.max_allowed_packet = bool(folding), most
        if session == self._raw.thread_id():  # not behind a proxy, which exchanges sessions
            self._raw._execute_command = partial(self._send, partial(self._is_busy, session))  # noqa: SLF001
        if self._properties.foreign_keys == "auto":
            self.run("SET SESSION foreign_key_checks = 0")

    def _send(self, is_busy: Callable[[bool], bool], command: int, sql: Any) -> None:
        """Send a command and wait for its answer's first bytes."""
        raw = self._raw
        type(raw)._execute_command(raw, command, sql)  # noqa: SLF001
        answer, watch = select.poll(), SilenceWatch(is_busy)
        answer.register(raw._sock, select.POLLIN)  # noqa: SLF001
        while not answer.poll(POLL_MS):
            if watch.is_final():
                raw._force_close()  # noqa: SLF001
                raise pymysql.OperationalError(SERVER_LOST, LINK_LOSES)

    def _ask_about(self, session: int, end: bool) -> bool | None:
        try:
            with contextlib.closing(self._connected(read_timeout=QUESTION_S)) as other:
                cursor = other.cursor()
                cursor.execute(IS_BUSY, [session])
                ((busy,),) = cursor.fetchall() or ((None,),)
                if end and busy == 0:
                    cursor.execute(f"KILL {session}")
        except pymysql.MySQLError as error:
            # a refusal is a sign of life
            return None if error.args[0] in {SERVER_LOST, NO_SERVER} else True
        return bool(busy)

    def close(self) -> None:
        raw, self._raw = self._raw, None
        if raw is not None and raw.open:
            raw._force_close()  # noqa: SLF001 - close() would wait for a server that may be away

    # --- tables ---

    def text_literal(self, text: str) -> str:
        return super().text_literal(text.replace("\\", "\\\\"))

    def quoted(self, name: str) -> str:
        return "`" + name.replace("`", "``") + "`"

    def can_name(self, name: str) -> bool:
        return not name.endswith(" ") and max(name, default="") <= "\uffff"

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
            for column, kind, extra, collation, _table in info
        }  # fmt: skip
        unique: dict[str, set[str]] = {}
        for index, column, whole, repeats in self.run(INDEXES, [name.name]):
            if not repeats:
                unique.setdefault(index, set()).add(column if whole else "")
        return TargetDescription(
            columns, tuple(map(frozenset, unique.values())), is_table="VIEW" not in info[0][4]
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

    def cascades(self, name: TargetName) -> bool:
        checks = self._properties.foreign_keys == "check"
        return checks and bool(self.run(CASCADES, [name.name]))

    def _is_exact(self, collation: str | None) -> bool:
        return collation in {None, self._collation} or bool(EXACT.fullmatch(str(collation)))

    def type_for(self, column: TargetColumn) -> str:
        kind = _type_of(arrow_type(column), column)
        return f"{kind} {self.collated}" if kind.startswith(("varchar", "longtext")) else kind

    def exact_statement(self, name: TargetName, column: str, type_: str) -> str:
        return (
            f"ALTER TABLE {self.quoted_table(name)} MODIFY {self.quoted(column)} {type_} NOT NULL"
        )

    def widened(self, existing: str, wanted: str) -> bool | None:
        old, new = (text.partition(" ")[0] for text in (existing, wanted))
        # A text holds all values but bytes that are no text.
        holds = old == "longtext" and not new.startswith(BYTES)
        return False if holds else is_wider(old, new, WIDER, unlimited=False)

    def common_type(self, existing: str, wanted: str) -> str:
        return wanted if wanted.startswith(BYTES) else super().common_type(existing, wanted)

    def add_column(self, name: TargetName, column: str, type_: str, value: Any) -> None:
        if value is None:
            super().add_column(name, column, type_, None)
            return
        # In one statement, as it commits by itself: a crash must not leave rows without the value.
        table, quoted = self.quoted_table(name), self.quoted(column)
        self.run(
            f"ALTER TABLE {escaped(table)} ADD COLUMN {escaped(quoted)} {type_} DEFAULT (%s)",
            [value],
        )
        self.run(f"ALTER TABLE {table} ALTER COLUMN {quoted} DROP DEFAULT")

    def alter_type(self, name: TargetName, column: str, type_: str) -> None:
        table, quoted = self.quoted_table(name), self.quoted(column)
        statement = f"ALTER TABLE {table} MODIFY COLUMN {quoted} {type_}"
        try:
            self.run(statement)
        except pymysql.DataError as error:
            if error.args[0] != NO_TEXT or not type_.startswith(("varchar", "longtext")):
                raise
            # Bytes that are no text, written as PostgreSQL does.
            self.run(f"UPDATE {table} SET {quoted} = concat('\\x', lower(hex({quoted})))")
            self.run(statement)

    def allow_nulls(self, name: TargetName, columns: Sequence[str]) -> bool:
        marks = ", ".join(["%s"] * len(columns))
        found = self.run(f"{REQUIRED} AND column_name IN ({marks})", [name.name, *columns])
        drops = ["DROP PRIMARY KEY"] if any(key == "PRI" for *_, key in found) else []
        drops += [f"MODIFY {self.quoted(column)} {type_} NULL" for column, type_, _ in found]
        if drops:
            self.run(f"ALTER TABLE {self.quoted_table(name)} {', '.join(drops)}")
        return bool(drops)

    def adapter(self, kind: Any) -> Any:
        if pa.types.is_timestamp(kind):
            return _naive
        if pa.types.is_floating(kind):
            return finite
        return json_text(kind)

    def moment(self, ts: int) -> object:
        return _naive(instant(ts))

    # --- rows ---

    def streaming_cursor(self) -> Any:
        return self._raw.cursor(pymysql.cursors.SSCursor)

    def read_as(self, quoted: str, type_: str) -> str:
        # The server prints a float with six digits.
        return f"CAST({quoted} AS DOUBLE)" if type_ == "float" else quoted

    def on_conflict(self, table: BoundTable, *, keep: bool) -> str:
        columns = [] if keep else table.set_by_upsert()
        sets = assignments(table, columns, lambda c: f"VALUES({escaped(c.quoted)})")
        if keep or not sets:  # the statement needs an assignment
            key = escaped(table.key[0].quoted)
            sets = f"{key} = {key}"
        return f" ON DUPLICATE KEY UPDATE {sets}"

    def upsert(self, table: BoundTable, rows: Sequence[Tuple], *, keep: bool = False) -> int:
        # The server treats any unique index as the key. With several, delete the old rows first, or
        # set them by their keys if they have values of others, or rows that refer to them.
        if table.only_key:
            return super().upsert(table, rows, keep=keep)
        keys = list(map(table.shape.key_of, rows))
        if keep:
            super().upsert(table, rows, keep=True)
            return self.holding(table, keys)  # an existing row may have another key
        if not (table.shared or self._properties.foreign_keys == "check"):
            self.change_keys(table, keys)
        elif self.holding(table, keys):
            return self.update(table, table.shape.columns, rows)
        return self.insert(table, rows)

    def update(
        self, table: BoundTable, columns: Sequence[TargetColumn], rows: Sequence[Tuple]
    ) -> int:
        # An upsert would leave a missing row out if another has a unique value of it.
        return self._update(table, columns, rows, "")

    def change_keys(
        self,
        table: BoundTable,
        keys: Sequence[Any],
        sets: Assignments = NO_SETS,
        where: str = "",
        times: Sequence[int] = (),
    ) -> int:
        # The driver would send one statement for each row.
        names = ", ".join(escaped(key.quoted) for key in table.key)
        one = f"({', '.join(map(self.operand, table.key))})"
        tests = f" AND {escaped(where)}" if where else ""
        rows = zip(*self.rows.keys(table.shape, keys), strict=True)
        count = 0
        for time, some in itertools.groupby(
            zip(times or itertools.repeat(None), rows, strict=False), key=lambda each: each[0]
        ):
            moment = [] if time is None else [self.moment(time)]
            for piece in chunks([row for _, row in some], KEYS_AT_ONCE):
                count += self.change(
                    f"{changing(table, sets, '%s')} WHERE ({names})"
                    f" IN ({', '.join([one] * len(piece))}){tests}",
                    [*moment, *(value for row in piece for value in row)],
                )
        return count

    def index_history(self, shape: HistoryShape) -> None:
        if not shape.key:
            return
        # DDL commits by itself, so a crash may have left the table without its index.
        found: dict[str, list[str]] = {}
        for name, column, *_rest in self.run(INDEXES, [shape.name.name]):
            found.setdefault(name, []).append(column.casefold())
        wanted = [name.casefold() for name in indexed(shape)]
        if wanted in (columns[: len(wanted)] for columns in found.values()):
            return
        # A column that was in no key, or in a smaller one, may be too long for an entry.
        most = (INDEX_BYTES - FLAG_BYTES) // 4 // len(shape.key)
        columns = self.run(COLUMNS, [shape.name.name])
        sizes = {name.casefold(): re.match(LONG, kind) for name, kind, *_rest in columns}
        parts = [
            self.quoted(name) + (f"({most})" if size and int(size[1] or most + 1) > most else "")
            for name, size in zip(indexed(shape), map(sizes.get, wanted), strict=True)
        ]
        # The index of an earlier key may have the name.
        self._index(shape, f"{shape.name.name}_{abs(shape.relation.oid)}_{len(found)}", parts)

    def operand(self, column: BoundColumn) -> str:
        # Texts that are compared with a number become numbers.
        is_text = column.existing.type.startswith(("varchar", "longtext"))
        if not is_text or pa.types.is_string(arrow_type(column.source)):
            return "%s"
        return f"CAST(%s AS CHAR) COLLATE {self._collation}"

    def one_row(self, table: str, tests: str) -> str:
        return f" WHERE {tests} LIMIT 1"

    # --- failures ---

    def meaning(self, error: BaseException) -> type[SinkError] | None:
        if not isinstance(error, pymysql.MySQLError):
            return None
        number = error.args[0] if error.args and isinstance(error.args[0], int) else 0
        if isinstance(error, pymysql.ProgrammingError) and not number:
            return SqlValueUnfit  # the driver refused it before it asked the server
        if isinstance(error, pymysql.IntegrityError):
            return SqlConstraintViolated
        if isinstance(error, pymysql.DataError):
            return MEANINGS.get(number, SqlValueUnfit)
        return MEANINGS.get(number)

    def error_text(self, error: BaseException) -> str:
        if error.args and error.args[0] == TOO_LARGE:
            return str(error.args[1])
        # The server quotes values, entry 'VALUE' for key, value: 'VALUE', and escapes nothing.
        values = r"(entry|value:?) \\?'(?:.*'(?= for )|.*')"
        return re.sub(values, r"\1", super().error_text(error))


def _naive(value: dt.datetime) -> dt.datetime:
    return value.astimezone(dt.UTC).replace(tzinfo=None) if value.tzinfo else value


def _plain(kind: str) -> str:
    """Return a type without the display width of integers."""
    return re.sub(r"^(smallint|int|bigint)\(\d+\)", r"\1", kind)


def _type_of(kind: "pa.DataType", column: TargetColumn) -> str:
    simple = {
        "bool": "tinyint(1)", "int16": "smallint", "int32": "int", "int64": "bigint",
        "float": "float", "double": "double", "date32[day]": "date", "time64[us]": "time(6)",
    }  # fmt: skip
    if str(kind) in simple:
        return simple[str(kind)]
    if pa.types.is_timestamp(kind):
        return "datetime(6)"
    if pa.types.is_decimal(kind):
        return f"decimal({max(kind.precision, kind.scale)},{max(kind.scale, 0)})"
    share = (INDEX_BYTES - FLAG_BYTES * column.flagged) // column.key_columns
    if pa.types.is_binary(kind):
        return f"varbinary({share})" if column.key else "longblob"
    data_type = column.column.data_type
    limited = data_type is not None and data_type.name in {"varchar", "bpchar"}
    most = share // 4 if column.key else 4000
    if limited and 4 < column.column.typmod <= most + 4:
        return f"varchar({column.column.typmod - 4})"
    return f"varchar({most})" if column.key else "longtext"
