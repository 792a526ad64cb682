"""Write to PostgreSQL in its texts, by COPY and arrays."""

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final

import psycopg
import sqlalchemy
from psycopg import sql

from waltap.base.import_rules import spare_pandas
from waltap.base.redaction import redacted
from waltap.base.text import escaped
from waltap.changes.decode.relation import TypeKind
from waltap.changes.decode.row_block import RowBlock
from waltap.changes.decode.tuple_image import MissingValue, Tuple
from waltap.errors import SinkError
from waltap.ports.sink.sink import SinkContext
from waltap.ports.source.session import DEAD_LINK, PINNED_AGAIN, USERS_PATH, beginning
from waltap_sinks.sql.errors import (
    SqlChangeIgnored,
    SqlColumnMissing,
    SqlConflict,
    SqlConstraintViolated,
    SqlFunctionFailed,
    SqlReadOnly,
    SqlRefused,
    SqlTableUnfit,
    SqlUnreachable,
    SqlValueUnfit,
)
from waltap_sinks.sql.properties import SqlProperties
from waltap_sinks.sql.shape import HistoryShape, TargetColumn, TargetName, TargetShape, with_suffix
from waltap_sinks.sql.targets.postgres_statements import (
    WITHOUT_EQUALITY,
    array_literal,
    cast_to,
    copy_lines,
    equals,
    insert_statement,
    key_literals,
    keys_relation,
    sql_name,
    texts,
    unnested,
    update_statement,
)
from waltap_sinks.sql.targets.silence import LINK_LOSES, QUESTION_S, SilenceWatch
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
    shape_of,
)
from waltap_sinks.sql.targets.typed import common_decimal, is_wider

# Each type holds the values of those before it.
WIDER: Final = (
    ("smallint", "integer", "bigint", "numeric"),
    ("real", "double precision"),
    ("date", "timestamp without time zone"),
)
# The indexes of a table whose names another schema has.
INDEXES_IN_THE_WAY: Final = """
SELECT c.relname, c.oid FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
 WHERE i.indrelid = %s::regclass AND EXISTS (
   SELECT FROM pg_class o JOIN pg_namespace n ON n.oid = o.relnamespace
    WHERE n.nspname = %s AND o.relname = c.relname)
"""

# From this number of new rows on COPY is worth its round trips.
COPY_ROWS: Final = 64

# Rows of one statement.
AT_ONCE: Final = 10_000

# Rows of one write to COPY; of columns, whose size is known, the bytes.
PIECE_ROWS: Final = 1_000
PIECE_BYTES: Final = 1024 * 1024

# Types with smaller OIDs exist on every server.
BUILT_IN: Final = 10_000

# Settings of the sink's session besides every session's.
SESSION: Final = {
    # If a policy would hide rows, the server refuses access. Otherwise a DELETE would silently
    # match nothing.
    "row_security": "off",
    # Look up keys by their index, also while the server does not know the size of a new table.
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_seqscan": "off",
    "plan_cache_mode": "force_generic_plan",
    # A durable commit also makes all earlier commits durable.
    "synchronous_commit": "off",
    # Else locks of a process whose machine is gone keep its successor waiting for hours.
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
}

PATH: Final = (
    b"SELECT pg_catalog.current_schemas(false)::pg_catalog.text[], pg_catalog.pg_backend_pid()"
)
# A session whose backend waits for the client is not busy. Its number may be another one's by now.
IS_BUSY: Final = """
    SELECT wait_event_type IS DISTINCT FROM 'Client',
      %s AND wait_event_type = 'Client' AND pg_catalog.pg_terminate_backend(pid)
    FROM pg_catalog.pg_stat_activity
    WHERE pid = %s AND application_name = pg_catalog.current_setting('application_name')
"""
# The schema of a table without one: the first of the user's path that has it.
SCHEMA_OF_TABLE: Final = """
    SELECT s.name FROM unnest(%s::text[]) WITH ORDINALITY s(name, place)
      JOIN pg_namespace n ON n.nspname = s.name
      JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = %s
    ORDER BY s.place LIMIT 1
"""

COLUMNS: Final = """
    SELECT c.relkind::text, a.attname::text, format_type(a.atttypid, a.atttypmod),
      format_type(a.atttypid, -1), a.attgenerated <> '', a.attidentity = 'a',
      (SELECT collname::text FROM pg_collation l WHERE oid = a.attcollation
         AND NOT coalesce((to_jsonb(l) ->> 'collisdeterministic')::bool, true)),
      (SELECT quote_ident(n.nspname) FROM pg_type y
         JOIN pg_opclass k ON k.opcintype IN (y.oid, y.typbasetype) AND k.opcdefault
         JOIN pg_am m ON m.oid = k.opcmethod AND m.amname = 'btree'
         JOIN pg_amop p ON p.amopfamily = k.opcfamily AND p.amopstrategy = 3
           AND p.amoplefttype = k.opcintype AND p.amoprighttype = k.opcintype
         JOIN pg_operator o ON o.oid = p.amopopr
         JOIN pg_namespace n ON n.oid = o.oprnamespace AND n.nspname <> 'pg_catalog'
       WHERE y.oid = a.atttypid)
    FROM pg_class c LEFT JOIN pg_attribute a
      ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    WHERE c.oid = to_regclass(%s) ORDER BY a.attnum
"""
UNIQUE: Final = """
    SELECT array_agg(a.attname::text) FROM pg_index i JOIN pg_attribute a
      ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey[0:i.indnkeyatts - 1])
    WHERE i.indrelid = to_regclass(%s) AND i.indisunique AND i.indimmediate AND i.indisvalid
      AND i.indpred IS NULL AND i.indexprs IS NULL
    GROUP BY i.indexrelid
"""
# Columns that cannot be null, with the primary key that has them.
REQUIRED: Final = """
    SELECT a.attname::text, k.conname::text FROM pg_attribute a LEFT JOIN pg_constraint k
      ON k.conrelid = a.attrelid AND k.contype = 'p' AND a.attnum = ANY (k.conkey)
    WHERE a.attrelid = to_regclass(%s) AND a.attname = ANY (%s) AND a.attnotnull
"""
CASCADES: Final = """
    SELECT 1 FROM pg_constraint WHERE confrelid = to_regclass(%s) AND confdeltype IN ('c', 'n', 'd')
"""
REFERENCES: Final = """
    SELECT conrelid::regclass::oid, confrelid::regclass::oid FROM pg_constraint
    WHERE contype = 'f' AND conrelid <> confrelid
"""


# Obstacles of a table: problem, remedy, whether it is certain, and the statements, by the letters
# of pg_rewrite.
OBSTACLES: Final = """
    SELECT 'row security applies to ' || current_user, CASE WHEN pg_has_role(c.relowner, 'usage')
        THEN format('ALTER TABLE %%s NO FORCE ROW LEVEL SECURITY', c.oid::regclass)
        ELSE format('ALTER ROLE %%I BYPASSRLS', current_user) END, true, ''
    FROM pg_class c WHERE c.oid = to_regclass(%s) AND row_security_active(c.oid)
    UNION ALL
    SELECT format('rule %%I does something else instead', r.rulename),
      format('ALTER TABLE %%s DISABLE RULE %%I', r.ev_class::regclass, r.rulename), true, r.ev_type::text
    FROM pg_rewrite r WHERE r.ev_class = to_regclass(%s) AND r.is_instead AND r.ev_type <> '1'
      AND r.ev_enabled = ANY (%s)
    UNION ALL
    SELECT format('trigger %%I may keep rows from %%s', t.tgname, t.tgrelid::regclass),
      format('ALTER TABLE %%s DISABLE TRIGGER %%I', t.tgrelid::regclass, t.tgname), false,
      CASE WHEN t.tgtype & 4 > 0 THEN '3' ELSE '' END || CASE WHEN t.tgtype & 8 > 0 THEN '4' ELSE '' END
        || CASE WHEN t.tgtype & 16 > 0 THEN '2' ELSE '' END
    FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid JOIN pg_language l ON l.oid = p.prolang
    WHERE t.tgrelid IN (
        WITH RECURSIVE parts(oid) AS (SELECT to_regclass(%s)::oid
          UNION SELECT i.inhrelid FROM pg_inherits i JOIN parts ON i.inhparent = parts.oid)
        SELECT oid FROM parts)
      AND NOT t.tgisinternal AND t.tgtype & 3 = 3 AND t.tgenabled = ANY (%s)
      AND (l.lanname <> 'plpgsql' OR p.prosrc ~* 'return\\s+null')
"""

VERBS: Final = {"2": "UPDATE", "3": "INSERT", "4": "DELETE"}


# Statements that a table refuses while its deferred constraints wait.
DDL: Final = ("ALTER ", "CREATE ", "TRUNCATE ")

# An instant of µs since 1970 UTC.
MOMENT: Final = "timestamptz 'epoch' + {} * interval '1 microsecond'"

# SQLSTATE, or its class, with the meaning.
STATES: Final[dict[str, type[SinkError]]] = {
    "21": SqlValueUnfit,
    "22": SqlValueUnfit,
    "23": SqlConstraintViolated,
    "25006": SqlReadOnly,
    "28": SqlRefused,
    "3D000": SqlRefused,
    "3F000": SqlColumnMissing,
    "40001": SqlConflict,
    "40P01": SqlConflict,
    "428C9": SqlTableUnfit,
    "42501": SqlRefused,
    "42703": SqlColumnMissing,
    "42804": SqlValueUnfit,
    "42809": SqlTableUnfit,
    "42846": SqlValueUnfit,
    "42P01": SqlColumnMissing,
    "42P10": SqlTableUnfit,
    "53": SqlUnreachable,
    "54000": SqlValueUnfit,
    "55P03": SqlConflict,
    "P0": SqlConstraintViolated,
}
# Messages of a server that refuses a login; the driver gives no SQLSTATE for them.
REFUSALS: Final = (
    r"FATAL:.*(authentication failed|no pg_hba\.conf entry|does not exist|permission denied|"
    r"not permitted to log in)"
)
UNKNOWN_NAMES: Final = frozenset({"3F000", "42703", "42704", "42883", "42P01"})


class _Connection(psycopg.Connection[Any]):
    """End a wait for a server that waits for the client."""

    is_busy: Callable[[bool], bool] | None = None

    def wait(self, gen: Any, *arguments: Any, **more: Any) -> Any:
        return super().wait(self._watched(gen), *arguments, **more)

    def _watched(self, gen: Any) -> Any:
        watch = None
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if ready or self.is_busy is None:
                    watch = None
                elif watch is None:
                    watch = SilenceWatch(self.is_busy)
                elif watch.is_final():
                    self.pgconn.finish()
                    raise psycopg.errors.ConnectionTimeout(LINK_LOSES)
                wanted = gen.send(ready)
        except StopIteration as end:
            return end.value


class PostgresTarget(SqlTarget):
    """Connect to a PostgreSQL server.

    Rows are arrays of text that a statement unnests and casts; many new rows go by COPY. If the
    user may, the session has the role ``replica``, so that only the source checks foreign keys and
    runs triggers.
    """

    lazy_commits = moves_tables = prints_as_source = True
    errors = psycopg.Error
    moment_sql = MOMENT.format("%s::int8")

    def __init__(self, properties: SqlProperties, context: SinkContext) -> None:
        super().__init__(properties, context)
        self._replica = False
        self._path: list[str] = []
        self._schemas: dict[str, str] = {}

    # --- life ---

    def open(self) -> None:
        import pyarrow.compute  # noqa: F401 - now, not when the first changes wait

        spare_pandas()
        self.close()
        url = sqlalchemy.make_url(self._properties.url).set(drivername="postgresql+psycopg")
        # SQLAlchemy's own connection would query the catalogue along the user's search path.
        _, given = url.get_dialect()().create_connect_args(url)
        own = {
            "connect_timeout": QUESTION_S,
            "application_name": f"waltap {self._context.pipeline}"[:63],
        }
        # Another encoding, of the url or the environment, lacks characters.
        own["client_encoding"] = "UTF8"
        self._dial = partial(_Connection.connect, **{**DEAD_LINK, **given, **own}, autocommit=True)
        if self._abandoned is not None:
            self._is_busy(self._abandoned, True)
        raw = self._raw = self._dial()
        more = SESSION | {"lock_timeout": f"{self._properties.lock_timeout_ms}ms"}
        ((self._path, session),) = raw.execute(PATH).fetchall()
        if session == raw.info.backend_pid:  # not behind a pooler, which exchanges sessions
            raw.is_busy = partial(self._is_busy, session)
        raw.execute(beginning(raw.info.server_version, more=more).encode())
        raw.autocommit = False
        if self._properties.foreign_keys == "auto":
            with contextlib.suppress(psycopg.errors.InsufficientPrivilege), raw.transaction():
                raw.execute("SET SESSION session_replication_role = replica")
                self._replica = True
        raw.commit()

    def _ask_about(self, session: int, end: bool) -> bool | None:
        try:
            with self._dial() as other:
                other.is_busy = lambda _end: False
                row = other.execute(IS_BUSY, [end, session]).fetchone()
        except psycopg.errors.ConnectionTimeout:
            return None
        except psycopg.Error:
            return True  # a refusal is a sign of life
        return row is not None and row[0]

    def move_table(self, old: TargetName, new: TargetName) -> None:
        # An index keeps its name when its table is renamed, and moves with it.
        for name, oid in self.run(INDEXES_IN_THE_WAY, [self.quoted_table(old), new.schema]):
            other = self.quoted(with_suffix(name, f"_{oid}"))
            index = self.quoted_table(old._replace(name=name))
            self.run(f"ALTER INDEX {index} RENAME TO {other}")
        super().move_table(old, new)

    def reads_whole_tables(self) -> None:
        """Reset the settings that only help to look up keys."""
        own = {"row_security": SESSION["row_security"]}
        begin = beginning(self.raw.info.server_version, more=own)
        # One message is one transaction, so no statement runs with the user's search path.
        self.raw.execute(f"RESET ALL; {begin}".encode())

    @property
    def raw(self) -> "psycopg.Connection[Any]":
        assert self._raw is not None, "not opened"
        connection: psycopg.Connection[Any] = self._raw
        return connection

    def begin(self) -> None:
        if not self._replica:
            self.raw.execute("SET CONSTRAINTS ALL DEFERRED")

    def commit(self, *, durable: bool = True) -> None:
        if durable:
            self.raw.execute("SET LOCAL synchronous_commit TO DEFAULT")
        self.raw.commit()

    @contextlib.contextmanager
    def attempt(self) -> Iterator[None]:
        if self.raw.info.transaction_status is psycopg.pq.TransactionStatus.IDLE:
            self.raw.execute("SELECT 1")  # otherwise the block would be a transaction of its own
        with self.raw.transaction():
            yield

    # --- tables ---

    def quoted_table(self, name: TargetName) -> str:
        if name.schema is None:
            if not self._path:
                problem = "the target: no schema of the user's search_path is there and lets it in"
                raise SqlRefused(problem, positions=self._properties.position_table)
            schema = self._schemas.get(name.name)
            if schema is None:
                found = self.run(SCHEMA_OF_TABLE, [self._path, name.name])
                schema = found[0][0] if found else self._path[0]
                if found:
                    self._schemas[name.name] = schema
            name = TargetName(schema, name.name)
        return super().quoted_table(name)

    def run(self, statement: str, parameters: Sequence[object] = ()) -> list[Any]:
        if self._replica or not statement.startswith(DDL):
            return super().run(statement, parameters)
        try:
            with self.attempt():
                return super().run(statement, parameters)
        except psycopg.errors.ObjectInUse:  # deferred constraints of the table wait for the commit
            super().run("SET CONSTRAINTS ALL IMMEDIATE")
            found = super().run(statement, parameters)
            self.begin()
            return found

    def _executed(self, statement: str, parameters: Sequence[object]) -> Any:
        # Without parameters a % in a name is no placeholder.
        return self.raw.execute(statement.encode(), parameters or None)

    def describe(self, name: TargetName) -> TargetDescription | None:
        written = self.quoted_table(name)
        rows = self.run(COLUMNS, [written])
        if not rows:
            return None
        columns = {
            column: ExistingColumn(
                column,
                type_,
                bare,
                written=not generated,
                settable=not (generated or always),
                collation=collation or "",
                operators=operators or "",
            )
            for _kind, column, type_, bare, generated, always, collation, operators in rows
            if column is not None
        }
        unique = tuple(frozenset(names) for (names,) in self.run(UNIQUE, [written]))
        return TargetDescription(columns, unique, is_table=rows[0][0] in "rpf")

    def create_schema(self, name: TargetName) -> None:
        # The server asks for the right to make a schema before it looks for it.
        if not self.run("SELECT 1 FROM pg_namespace WHERE nspname = %s", [name.schema]):
            super().create_schema(name)

    def obstacles(self, name: TargetName) -> list[WriteObstacle]:
        written, fired = self.quoted_table(name), ["A", "R" if self._replica else "O"]
        rows = self.run(OBSTACLES, [written, written, fired, written, fired])
        return [
            WriteObstacle(
                problem,
                statement,
                certain=certain,
                verbs=frozenset(VERBS[letter] for letter in letters or VERBS),
            )
            for problem, statement, certain, letters in rows
        ]

    def cascades(self, name: TargetName) -> bool:
        return not self._replica and bool(self.run(CASCADES, [self.quoted_table(name)]))

    def type_for(self, column: TargetColumn) -> str:
        """Return the source's type if the target has it, else text."""
        found = column.column
        kind = found.data_type
        if found.type_oid < BUILT_IN:
            ((name,),) = self.run(
                "SELECT format_type(%s::oid, %s::int)", [found.type_oid, found.typmod]
            )
            return str(name)
        text = found.type_text or ("" if kind is None else f"{kind.schema}.{kind.name}")
        try:
            with self.attempt():
                self.run(USERS_PATH)
                ((oid,),) = self.run("SELECT pg_catalog.to_regtype(%s)::pg_catalog.oid", [text])
                self.run(PINNED_AGAIN)
                ((name,),) = self.run("SELECT format_type(%s::oid, %s::int)", [oid, found.typmod])
        except psycopg.Error:
            name = None
        if name is not None:
            return str(name)
        return "text[]" if kind is not None and kind.kind is TypeKind.ARRAY else "text"

    def exact_statement(self, name: TargetName, column: str, type_: str) -> str:
        return f'{super().exact_statement(name, column, type_)} COLLATE "C"'

    def widened(self, existing: str, wanted: str) -> bool | None:
        # Both kinds of character have a limit in characters.
        old, new = (text.replace("character varying", "character") for text in (existing, wanted))
        wider = is_wider(old, new, WIDER, text="text")
        # Only one of them keeps the spaces at the end of a text.
        pads = existing.startswith("character(") and wanted.startswith("character varying")
        return None if pads and not wider else wider

    def common_type(self, existing: str, wanted: str) -> str:
        if common_decimal(existing, wanted):
            return "numeric"
        return super().common_type(existing, wanted)

    def value(self, shape: TargetShape, column: TargetColumn, text: str) -> Any:
        return shape.values(column, [text])[0]

    def add_column(self, name: TargetName, column: str, type_: str, value: Any) -> None:
        table, quoted = self.quoted_table(name), self.quoted(column)
        if value is None:
            self.run(f"ALTER TABLE {table} ADD COLUMN IF NOT EXISTS {quoted} {type_}")
            return
        literal = sql.Literal(value).as_string(self.raw)  # a constant default writes no rows
        self.run(f"ALTER TABLE {table} ADD COLUMN {quoted} {type_} DEFAULT {literal}")
        self.run(f"ALTER TABLE {table} ALTER COLUMN {quoted} DROP DEFAULT")

    def alter_type(self, name: TargetName, column: str, type_: str) -> None:
        table, quoted = self.quoted_table(name), self.quoted(column)
        self.run(f"ALTER TABLE {table} ALTER COLUMN {quoted} TYPE {type_} USING {quoted}::{type_}")

    def allow_nulls(self, name: TargetName, columns: Sequence[str]) -> bool:
        table = self.quoted_table(name)
        found = self.run(REQUIRED, [table, list(columns)])
        drops = [f"DROP CONSTRAINT {self.quoted(key)}" for key in {k for _, k in found if k}]
        drops += [f"ALTER COLUMN {self.quoted(column)} DROP NOT NULL" for column, _ in found]
        if drops:
            self.run(f"ALTER TABLE {table} {', '.join(drops)}")
        return bool(drops)

    def ordered(self, tables: Sequence[BoundTable]) -> list[BoundTable]:
        if self._replica or len(tables) < 2:
            return list(tables)
        oids = {
            table: self.run("SELECT to_regclass(%s)::oid", [table.quoted])[0][0] for table in tables
        }
        graph: dict[int, set[int]] = {oid: set() for oid in oids.values()}
        for child, parent in self.run(REFERENCES):
            if child in graph and parent in graph:
                graph[child].add(parent)
        try:
            order = list(TopologicalSorter(graph).static_order())
        except CycleError:
            return list(tables)
        return sorted(tables, key=lambda table: order.index(oids[table]))

    # --- rows ---

    def insert(self, table: BoundTable, rows: Sequence[Tuple]) -> int:
        if len(rows) >= COPY_ROWS:
            return self._copy(table, rows)
        return self._unnested(
            partial(insert_statement, table, ""), "insert", table, table.written, rows
        )

    def _copy(self, table: BoundTable, rows: Sequence[Tuple]) -> int:
        columns = table.written
        names = ", ".join(column.quoted for column in columns)
        statement = f"COPY {table.quoted} ({names}) FROM STDIN"
        with self.raw.cursor() as cursor:
            with cursor.copy(statement.encode()) as copy:
                # the server reads one piece while the next is made
                for some in chunks(rows, _piece_rows(rows)):
                    copy.write(copy_lines(texts(table, columns, some)))
            return cursor.rowcount

    def upsert(self, table: BoundTable, rows: Sequence[Tuple], *, keep: bool = False) -> int:
        kind = "keep" if keep else "upsert"
        build = partial(insert_statement, table, self.on_conflict(table, keep=keep))
        return sum(
            self._unnested(build, kind, table, table.written, some)
            for some in chunks(rows, AT_ONCE)
        )

    def _unnested(
        self,
        build: Any,
        kind: str,
        table: BoundTable,
        columns: Sequence[BoundColumn],
        rows: Sequence[Tuple],
    ) -> int:
        literals = [array_literal(values) for values in texts(table, columns, rows)]
        key = (kind, *(column.quoted for column in columns))
        statement = table.statements.get(key)
        if statement is None:
            statement = table.statements[key] = build(columns)
        return self.raw.execute(statement.encode(), literals).rowcount

    def update(
        self, table: BoundTable, columns: Sequence[TargetColumn], rows: Sequence[Tuple]
    ) -> int:
        sent = {column.index for column in columns}
        chosen = [column for column in table.written if column.source.index in sent]
        total = 0
        for some in chunks(rows, AT_ONCE):
            count = self._unnested(partial(update_statement, table), "update", table, chosen, some)
            if count < len(some):
                build = partial(insert_statement, table, self.on_conflict(table, keep=True))
                count += self._unnested(build, "keep", table, chosen, some)
            total += count
        return total

    def move(self, table: BoundTable, old: Sequence[Any], row: Tuple) -> int:
        keys = list(zip(table.key, old, strict=True))
        # A key GENERATED ALWAYS must not stay silently as it is.
        changed = [key for key, value in keys if row[key.source.index] != value]
        sent = [
            c
            for c in table.written
            if (c.existing.settable or c in changed)
            and not isinstance(row[c.source.index], MissingValue)
        ]
        sets = assignments(table, sent, lambda c: f"%s::{cast_to(c)}")
        where = " AND ".join(
            f"{sql_name(key)} {equals(key)} %s::{cast_to(key)}" for key in table.key
        )
        given = [(c, row[c.source.index]) for c in sent] + keys
        values = [table.shape.values(column.source, [value])[0] for column, value in given]
        return self.change(f"UPDATE {escaped(table.quoted)} SET {sets} WHERE {where}", values)

    def change_keys(
        self,
        table: BoundTable,
        keys: Sequence[Any],
        sets: Assignments = NO_SETS,
        where: str = "",
        times: Sequence[int] = (),
    ) -> int:
        source, tests = keys_relation(table, *([("waltap_ts", "int8")] if times else []))
        if where:
            tests = f"{tests} AND {escaped(where)}"
        begin = changing(table, sets, MOMENT.format("k.waltap_ts"), " AS t")
        statement = f"{begin} {'FROM' if sets else 'USING'} {source} WHERE {tests}".encode()
        count = 0
        for start in range(0, len(keys), AT_ONCE):
            some = slice(start, start + AT_ONCE)
            literals = key_literals(table, keys[some])
            if times:
                literals.append(array_literal([str(ts) for ts in times[some]]))
            count += self.raw.execute(statement, literals).rowcount
        return count

    def holding(self, table: BoundTable, keys: Sequence[Any], where: str = "") -> int:
        source, join = keys_relation(table)
        tests = f"{join} AND {escaped(where)}" if where else join
        statement = f"SELECT count(*) FROM {escaped(table.quoted)} AS t, {source} WHERE {tests}"
        return sum(
            self.run(statement, key_literals(table, some))[0][0] for some in chunks(keys, AT_ONCE)
        )

    def moment(self, ts: int) -> object:
        return ts

    def index_history(self, shape: HistoryShape) -> None:
        if shape.key:
            names = ", ".join(self.quoted(column.name) for column in shape.key)
            table, current = self.quoted_table(shape.name), self.quoted(shape.current)
            self.run(f"CREATE INDEX ON {table} ({names}) WHERE {current}")
            # Rows of `insert_filled` are opened by this index, which is otherwise empty.
            waits = f"NOT {current} AND {self.quoted(shape.valid_to)} IS NULL"
            self.run(f"CREATE INDEX ON {table} ({names}) WHERE {waits}")

    def insert_filled(
        self,
        table: BoundTable,
        rows: Sequence[Tuple],
        missing: Sequence[TargetColumn],
        keys: Sequence[Any],
    ) -> int:
        sent, absent = table.with_and_without(missing)
        names = ", ".join(sql_name(column) for column in (*sent, *absent))
        casts = [f"s.c{n}::{cast_to(column)}" for n, column in enumerate(sent)]
        casts += [f"o.{sql_name(column)}" for column in absent]
        tests = " AND ".join(
            f"o.{sql_name(key)} {equals(key)} s.c{n}::{cast_to(key)}"
            for n, key in enumerate(table.key, len(sent))
        )
        quoted, current = escaped(table.quoted), escaped(self.quoted(shape_of(table).current))
        statement = (
            f"INSERT INTO {quoted} ({names}) OVERRIDING SYSTEM VALUE SELECT {', '.join(casts)}"
            f" FROM {unnested(len(sent) + len(table.key))}"
            f" LEFT JOIN {quoted} AS o ON {tests} AND o.{current}"
        )
        count = 0
        for some in chunks(list(zip(rows, keys, strict=True)), AT_ONCE):
            literals = [array_literal(v) for v in texts(table, sent, [row for row, _ in some])]
            literals += key_literals(table, [key for _, key in some])
            count += self.change(statement, literals)
        return count

    def equal_tests(
        self, shape: TargetShape, columns: Sequence[BoundColumn], row: Tuple
    ) -> tuple[list[str], list[Any]]:
        tests, values = list[str](), list[Any]()
        for column in columns:
            value = row[column.source.index]
            if isinstance(value, MissingValue):
                continue
            name, cast = sql_name(column), cast_to(column)
            kind = column.existing.bare.removesuffix("[]")
            # Types of extensions and users compare by their text.
            if kind in WITHOUT_EQUALITY or "." in kind:
                name, cast = f"{name}::text", "text"
            tests.append(f"{name} IS NOT DISTINCT FROM %s::{cast}")
            values += shape.values(column.source, [value])
        return tests, values

    def one_row(self, table: str, tests: str) -> str:
        alike = f"SELECT tableoid, ctid FROM {table} WHERE {tests} LIMIT 1"
        return f" WHERE (tableoid, ctid) = ({alike})"

    def truncate(self, tables: Sequence[BoundTable], *, cascade: bool, restart: bool) -> None:
        names = ", ".join(table.quoted for table in tables)
        words = (" RESTART IDENTITY" if restart else "") + (" CASCADE" if cascade else "")
        self.run(f"TRUNCATE {names}{words}")

    # --- failures ---

    def lost(self, error: BaseException) -> bool:
        if not isinstance(error, psycopg.Error):
            return isinstance(error, OSError)
        state = error.sqlstate or ""
        return state[:2] in {"08", "57"} or self._raw is None or self._raw.closed

    def meaning(self, error: BaseException) -> type[SinkError] | None:
        state = getattr(error, "sqlstate", None) or ""
        kind = STATES.get(state) or STATES.get(state[:2])
        if kind is SqlRefused or re.search(REFUSALS, str(error), re.DOTALL):
            return SqlRefused
        if self.lost(error) or (isinstance(error, psycopg.OperationalError) and not state):
            return SqlUnreachable
        return kind

    def error_text(self, error: BaseException) -> str:
        if not isinstance(error, psycopg.Error) or error.diag.message_primary is None:
            return redacted(str(error).strip().partition("\n")[0]) or type(error).__name__
        # Values of rows are quoted behind a colon or at the start, as they are.
        text = re.sub(r'(: |^(?:value )?)".*"', r"\1…", error.diag.message_primary, flags=re.DOTALL)
        return text if "violates" in text or "column" in text else text.partition(":")[0]

    def failure(
        self, error: BaseException, *, table: BoundTable | None, position: str, positions: str
    ) -> SinkError:
        found = super().failure(error, table=table, position=position, positions=positions)
        if isinstance(error, psycopg.Error) and error.diag.source_function == "check_enable_rls":
            role = self.quoted(self.raw.info.user)
            return SqlChangeIgnored(found.problem, statement=f"ALTER ROLE {role} BYPASSRLS")
        always = re.match(r'column "(.*)" can only be updated to DEFAULT', str(error))
        if always and table is not None:
            column = self.quoted(always[1])
            found.fields["statement"] = (
                f"ALTER TABLE {table.quoted} ALTER COLUMN {column} SET GENERATED BY DEFAULT"
            )
        called = _called(error)
        if called and getattr(error, "sqlstate", None) in UNKNOWN_NAMES:
            schema = called[: called.index("(")].rpartition(".")[0] or "public"
            statement = f"ALTER FUNCTION {called} SET search_path = {schema}"
            text = f"{found.problem} (in the function {called})"
            return SqlFunctionFailed(text, statement=statement)
        if isinstance(found, SqlValueUnfit):
            found.problem += self._named_columns(error, table)
        return found

    def _named_columns(self, error: BaseException, table: BoundTable | None) -> str:
        if table is None:
            return ""
        names = [c.existing.name for c in table.columns if f"type {c.existing.type}" in str(error)]
        return f" (column {' or '.join(names)})" if names else ""


def _piece_rows(rows: Sequence[Tuple]) -> int:
    if not isinstance(rows, RowBlock):
        return PIECE_ROWS
    return max(1, PIECE_BYTES * len(rows) // max(1, rows.nbytes))


def _called(error: BaseException) -> str:
    """Return the failed statement's function with its arguments, or ""."""
    context = error.diag.context if isinstance(error, psycopg.Error) else None
    found = re.search(r"^PL/\S+ function (.+?\(.*?\)) line", context or "", re.MULTILINE)
    return found[1] if found else ""
