"""Relations and data types from the system catalogues.

Answers show the present schema, which may be newer than the WAL being decoded; description.py joins
them with the relations of the wire.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Literal, Self, TypeVar

import msgspec
import psycopg

from waltap.base.text import sql_name
from waltap.changes.decode.relation import Column, DataType, Relation, TypeKind
from waltap.changes.decode.tuple_image import Tuple
from waltap.changes.transactions.position import parse_lsn
from waltap.ports.snapshot.chunk_source import NamedTable
from waltap.ports.source.session import USERS_PATH
from waltap_postgres.catalog.bounds import bounded, one_of_sql
from waltap_postgres.connection import driver_error, text_rows
from waltap_postgres.identity import IdentityEvidence, identity_evidence
from waltap_postgres.properties import PostgresProperties

# Key columns of a table: its primary key, or a unique index instead.
#
# ``waltap.key.index`` chooses one of two rules for tables without a primary key:
#
# - *sound*: the first unique index by name that holds for every row at every moment. Its columns
# are NOT NULL; it has no WHERE and no expressions, and is not deferrable. Columns of INCLUDE do
# not belong to the key; - *debezium*: the first unique index without expressions in the order of
# PostgreSQL's JDBC driver: clustered ones first, then by name. It may be partial or nullable.
# Columns of INCLUDE belong to it.

_Name = TypeVar("_Name", int, str)
# Schema and table.
TableId = tuple[str, str]

KeyRule = Literal["sound", "debezium"]


class UniqueIndex(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Describe one valid unique index."""

    name: str
    # Column numbers, 0 for an expression; the columns of INCLUDE are last.
    columns: tuple[int, ...]
    # The number of columns before the columns of INCLUDE.
    key_columns: int
    primary: bool = False
    identity: bool = False
    # Not deferrable.
    immediate: bool = True
    partial: bool = False
    clustered: bool = False
    # The transaction that last wrote its row in the catalogue.
    changed: int = 0

    def key(self, rule: KeyRule) -> tuple[int, ...]:
        """Return the key's column numbers if this index is the key."""
        if rule == "debezium" and not self.primary:
            return self.columns
        return self.columns[: self.key_columns]


def key_index(
    indexes: Sequence[UniqueIndex], not_null: Collection[int], rule: KeyRule
) -> UniqueIndex | None:
    """Return the index whose columns are the key, None without any."""
    primary = next((index for index in indexes if index.primary), None)
    if rule == "debezium":
        return primary or _as_listed(indexes)
    chosen = primary or usable_index(indexes, not_null)
    identity = next((index for index in indexes if index.identity), None)
    # Old rows have only the columns of the replica identity. Without all key columns in it, deletes
    # would have a key that no row has; so the replica identity is the key then.
    if identity is None or (chosen and covers(identity.key(rule), chosen.key(rule))):
        return chosen
    return identity


def usable_index(indexes: Sequence[UniqueIndex], not_null: Collection[int]) -> UniqueIndex | None:
    """Return the first index that PostgreSQL accepts as a replica identity.

    It holds for every row at every moment.
    """
    usable = (
        index
        for index in indexes
        if index.immediate
        and not index.partial
        and all(number in not_null for number in index.columns[: index.key_columns])
    )
    return min(usable, key=lambda index: index.name, default=None)


def covers(identifying: Collection[_Name], key: Collection[_Name]) -> bool:
    """Return whether old rows with ``identifying`` have all of ``key``."""
    return set(key) <= set(identifying)


def _as_listed(indexes: Sequence[UniqueIndex]) -> UniqueIndex | None:
    """Return the first usable index in the JDBC driver's order."""
    listed = sorted(indexes, key=lambda index: (not index.clustered, index.name))
    # Debezium skips indexes with an expression, whose column number is 0.
    return next((index for index in listed if all(index.columns)), None)


# ``pg_type.typtype`` is the first letter of the kind's word; arrays have the letter of base types.
KINDS = {kind.value[0]: kind for kind in TypeKind}

# Objects that users created have OIDs from here on (``FirstNormalObjectId``).
FIRST_USER_OID = 16384

# Bytes before the first record of a WAL page, and of a segment's first page.
PAGE_HEADERS = frozenset({24, 40})

TYPE_SQL = """
SELECT t.oid::int8, n.nspname, t.typname, t.typtype, t.typelem::int8, t.typbasetype::int8,
       t.typtypmod, t.typdelim, t.typsubscript::regproc::text = 'array_subscript_handler',
       (SELECT array_agg(e.enumlabel::text ORDER BY e.enumsortorder)
          FROM pg_enum e WHERE e.enumtypid = t.oid),
       CASE WHEN t.typtype = 'c' THEN (
         SELECT array_agg(a.attname::text || E'\\t' || a.atttypid::int8 || E'\\t' || a.atttypmod
                          || E'\\t' || a.attnum ORDER BY a.attnum)
           FROM pg_attribute a
          WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped) END,
       concat(t.typlen, t.typalign, t.typbyval, t.typcollation <> 0)
  FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace
 WHERE t.oid = ANY(%s)
"""

# typsubscript came with 14.
TYPE_SQL_13 = TYPE_SQL.replace(
    "t.typsubscript::regproc::text = 'array_subscript_handler'", "t.typlen = -1 AND t.typelem <> 0"
)

# A NOT NULL that is NOT VALID (18) is not of the rows from before it. Only partitions have the
# value of rows from before a column.
RELATION_SQL = """
SELECT c.oid::int8, n.nspname, c.relname, c.relreplident, c.relkind, c.relispartition,
       greatest(c.reltuples, 0)::int8,
       (SELECT array_agg(ARRAY[a.attname::text, a.atttypid::int8::text, a.atttypmod::text,
                               (a.attnotnull AND nn.conrelid IS NULL)::text,
                               (a.attgenerated <> '')::text,
                               (d.oid IS NOT NULL)::text,
                               coalesce(col_description(c.oid, a.attnum), chr(1)),
                               a.attnum::text,
                               coalesce(CASE WHEN mt.typdelim <> ',' THEN NULL WHEN a.atthasmissing
                                 THEN (a.attmissingval::text::text[])[1] WHEN c.relkind = 'p' THEN (
                                 WITH RECURSIVE tree AS (SELECT c.oid UNION ALL SELECT h.inhrelid
                                   FROM tree JOIN pg_inherits h ON h.inhparent = tree.oid)
                                 SELECT min((pa.attmissingval::text::text[])[1]) FROM tree JOIN
                                   pg_attribute pa ON pa.attrelid = tree.oid AND pa.atthasmissing
                                  WHERE pa.attname = a.attname
                                 HAVING count(DISTINCT pa.attmissingval::text) = 1) END, chr(1)),
                               a.xmin::text, d.xmin::text]
                         ORDER BY a.attnum)
          FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
          LEFT JOIN pg_type mt ON mt.oid = a.atttypid
          LEFT JOIN pg_constraint nn ON nn.conrelid = c.oid AND nn.contype = 'n'
           AND NOT nn.convalidated AND nn.conkey[1] = a.attnum
         WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
       (SELECT array_agg(ARRAY[ic.relname::text, i.indkey::text, i.indnkeyatts::text,
                               i.indisprimary::text, i.indisreplident::text, i.indimmediate::text,
                               (i.indpred IS NOT NULL)::text, i.indisclustered::text, i.xmin::text]
                         ORDER BY ic.relname)
          FROM pg_index i JOIN pg_class ic ON ic.oid = i.indexrelid
         WHERE i.indrelid = c.oid AND i.indisunique AND i.indisvalid), c.xmin::text,
       (SELECT rt.xmin::text FROM pg_type rt WHERE rt.oid = c.reltype),
       coalesce((SELECT sa.xmin::text FROM pg_attribute sa
                  WHERE sa.attrelid = c.oid AND sa.attnum = -1), '0'), c.relfrozenxid::text,
       (SELECT array_agg(ARRAY[da.attnum::text, da.xmin::text, da.atttypmod::text,
                               concat(da.attlen, da.attalign, da.attbyval, da.attcollation <> 0)])
          FROM pg_attribute da
         WHERE da.attrelid = c.oid AND da.attnum > 0 AND da.attisdropped),
       EXISTS (SELECT FROM pg_attribute sa
                WHERE sa.attrelid = c.oid AND sa.attnum = -1 AND sa.cmin::text = '0')
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p'
   AND n.nspname NOT IN ('pg_catalog', 'information_schema') AND n.nspname !~ '^pg_temp'
"""

# For servers whose catalogue rows do not show their writers, and that may lack generated columns.
UNVERSIONED_RELATION_SQL = re.sub(
    r"EXISTS \(SELECT FROM pg_attribute sa.*?'0'\)\n  FROM pg_class",
    "false\n  FROM pg_class",
    re.sub(r"\b\w+\.xmin::text", "'0'::text", RELATION_SQL),
    flags=re.DOTALL,
).replace(
    "(a.attgenerated <> '')::text", "(coalesce(to_jsonb(a) ->> 'attgenerated', '') <> '')::text"
)

NAMES_SQL = (
    "SELECT n.nspname::text, c.relname::text, c.oid::int8, c.relispartition, c.relkind = 'p'"
    + RELATION_SQL[RELATION_SQL.rindex("  FROM pg_class c") :]
)

PRESENT_NAMES_SQL = """
SELECT n.nspname::text, c.relname::text, c.relkind = 'p', a.attnum::int4, a.attname::text
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_attribute a ON a.attrelid = c.oid
 WHERE c.oid = %s AND a.attnum > 0 AND NOT a.attisdropped
"""

SEEN_SQL = """
SELECT s.seen, r.* FROM (SELECT txid_current_snapshot()::text AS seen OFFSET 0) s
  LEFT JOIN ({} AND c.oid = %s) r ON true
"""

# Partitioned tables, and the partitions that hold their rows.
PARTITIONS_SQL = """
WITH RECURSIVE tree AS (
  SELECT i.inhparent AS root, i.inhrelid AS part FROM pg_inherits i
    JOIN pg_class r ON r.oid = i.inhparent WHERE r.relkind = 'p'
  UNION ALL
  SELECT t.root, i.inhrelid FROM tree t JOIN pg_inherits i ON i.inhparent = t.part)
SELECT t.root::int8, t.part::int8 FROM tree t JOIN pg_class p ON p.oid = t.part
 WHERE p.relkind <> 'p' ORDER BY t.part
"""

# ``pg_get_expr`` locks the table in current releases. The lock timeout keeps it from waiting for a
# session that alters the table.
DEFAULTS_SQL = """
SELECT d.adrelid::int8, d.adnum, pg_get_expr(d.adbin, d.adrelid)
  FROM (SELECT set_config('lock_timeout', %s, true) AS done OFFSET 0) s, pg_attrdef d
 WHERE s.done IS NOT NULL AND d.adrelid::int8 = ANY(%s)
"""

DEFAULTS_WITHIN_MS = 1000
# Also a waiting ALTER TABLE keeps readers out.
LOCKED_SQL = """
SELECT DISTINCT relation::int8 FROM pg_locks
 WHERE locktype = 'relation' AND mode = 'AccessExclusiveLock' AND relation::int8 = ANY(%s)
   AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""

# A query while streaming waits so long for a lock, because the stream waits meanwhile.
LOCK_MS = 200


class CatalogTable(msgspec.Struct, frozen=True, kw_only=True):
    """Describe a table as the catalogue has it now."""

    relation: Relation
    partitioned: bool
    partition: bool
    # The planner's row count.
    estimate: int
    # The real primary key, whatever the key rule chose.
    primary_key: tuple[str, ...] = ()
    # The key if the primary key is ignored.
    stand_in: tuple[str, ...] = ()
    # Column number → transactions that last changed the column and its default.
    changed: dict[int, tuple[int, ...]] = {}
    # The transaction that last changed the index whose columns are the key.
    key_changed: int = 0
    # The transaction that last created, renamed or altered the table.
    row_changed: int = 0
    # The transaction that gave the table its name. It wrote the row type, which has the table's
    # name and schema and which ALTER TABLE does not write.
    named: int = 0
    # The transaction that created the table.
    made: int = 0
    # No older transaction ran when the table was created, rewritten or vacuumed; 0: unknown.
    frozen: int = 0
    # The first writing command of its transaction created the table.
    made_first: bool = False
    # Number of a dropped column → the transaction that last wrote its row.
    dropped: dict[int, int] = {}
    # Number of a dropped column → `DataType.layout` and modifier of its last type.
    layouts: dict[int, tuple[str, int]] = {}
    # False while another session locks the table; its columns then have no defaults here.
    defaults_known: bool = True

    @property
    def writers(self) -> Iterator[int]:
        """Yield the transactions that wrote the table's description."""
        yield self.row_changed
        yield self.key_changed
        yield from self.dropped.values()
        for changed in self.changed.values():
            yield from changed

    @property
    def supports_updates(self) -> bool:
        """Return whether a published table still allows UPDATE and DELETE."""
        relation = self.relation
        sends_row = identity_evidence(relation.identity) is IdentityEvidence.ROW
        return sends_row or any(column.in_identity for column in relation.columns)

    @property
    def generated_identity(self) -> bool:
        """Return whether the replica identity has a generated column."""
        return any(column.in_identity and column.generated for column in self.relation.columns)


class PostgresCatalogue:
    """Read the catalogues over one ordinary connection.

    Types are cached, relations are not.
    """

    # Servers without writers of catalogue rows override it with `UNVERSIONED_RELATION_SQL`.
    relation_sql: ClassVar[str] = RELATION_SQL

    def __init__(
        self, connection: "psycopg.Connection[tuple[Any, ...]]", properties: PostgresProperties
    ) -> None:
        self.connection, self.properties = connection, properties
        self.backend_pid = connection.info.backend_pid
        self.version_num = connection.info.server_version
        self._types: dict[int, DataType] = {}
        # Rows of the queries in a block of `once`, by SQL and parameters.
        self._answers: dict[tuple[str, str], list[tuple[Any, ...]]] | None = None

    @contextmanager
    def once(self) -> Iterator[None]:
        """Run equal queries once while the block lasts.

        The block neither changes the server nor waits for a change. Blocks may be nested.
        """
        before = self._answers
        if before is None:
            self._answers = {}
        try:
            yield
        finally:
            self._answers = before

    @contextmanager
    def brief_locks(self) -> Iterator[None]:
        """Wait for locks for `LOCK_MS` in the block, which only reads.

        Raises: TableLocked, also from its queries.
        """
        try:
            # The rollback ends the timeout, also within a transaction.
            with self.connection.transaction(force_rollback=True):
                self.connection.execute(f"SET LOCAL lock_timeout = {LOCK_MS}".encode())
                yield
        except psycopg.Error as error:
            raise driver_error(error, self.properties) from error

    def query(self, sql: str, parameters: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        """Run one query. Raises: SourceError."""
        known, key = self._answers, (sql, repr(parameters))
        if known is not None and key in known:
            return list(known[key])
        try:
            rows = self.connection.execute(sql.encode(), parameters or None).fetchall()
        except psycopg.Error as error:
            raise driver_error(error, self.properties) from error
        if known is not None:
            known[key] = list(rows)
        return rows

    def plan(self, statement: str) -> None:
        """Plan a SELECT of the profile without reading rows. Raises: SourceError."""
        try:
            with self.connection.transaction():
                # Names in the statement must resolve as in a session of its user.
                self.connection.execute(USERS_PATH.encode())
                self.connection.execute(f"EXPLAIN {statement}".encode())
        except psycopg.Error as error:
            raise driver_error(error, self.properties) from error

    def rows_now(
        self, relation: Relation, columns: Sequence[str], key: Sequence[str], keys: Sequence[Tuple]
    ) -> list[Tuple]:
        """Return ``columns`` of the rows with ``keys``, as printed text.

        Raises: SourceError.
        """
        # The table and its columns may have other names by now, and others may have theirs.
        found = self.query(PRESENT_NAMES_SQL, (relation.oid,))
        present = {number: name for *_, number, name in found}
        table = sql_name(*found[0][:2]) if found else sql_name(relation.schema, relation.table)
        # Rows of tables that inherit from it may have the same keys.
        only = "ONLY " if found and not found[0][2] else ""
        of = {
            column.name: msgspec.structs.replace(
                column, name=present.get(column.number, column.name)
            )
            for column in relation.columns
            if column.name in {*columns, *key}
        }
        names = [sql_name(of[name].name) for name in columns]
        where = one_of_sql([bounded(of[name]) for name in key], keys)
        query = f"SELECT {', '.join(names)} FROM {only}{table} WHERE {where}"
        try:
            result = self.connection.execute(query.encode()).pgresult
        except psycopg.Error as error:
            raise driver_error(error, self.properties) from error
        assert result is not None
        return [*text_rows(result)]

    def on(self, connection: "psycopg.Connection[tuple[Any, ...]]") -> Self:
        """Return a catalogue of the same kind over another connection."""
        return type(self)(connection, self.properties)

    # Transaction ids and WAL positions are PostgreSQL's own: other servers return None.

    def wal_end(self) -> int | None:
        """Return the end of the server's written WAL.

        On a standby it is the end of the replayed WAL. None: the server has no positions.
        """
        ((text,),) = self.query(
            "SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()"
            " ELSE pg_current_wal_lsn() END::text"
        )
        return parse_lsn(text)

    def standby(self) -> bool:
        """Return whether the server only follows another."""
        ((standby,),) = self.query("SELECT pg_is_in_recovery()")
        return bool(standby)

    def transaction_id(self) -> int | None:
        """Return the id of a new transaction, None without ids."""
        ((xid,),) = self.query("SELECT txid_current()")
        return int(xid)

    def snapshot(self) -> str | None:
        """Return the present transaction's snapshot as text.

        `SnapshotVisibility.of_snapshot` parses it. None: the server does not report visible transactions.
        """
        ((text,),) = self.query("SELECT txid_current_snapshot()::text")
        return str(text)

    def visible_until(self) -> tuple[int, bool] | None:
        """Return an LSN after all commits visible so far.

        They are the commits in a snapshot taken before this call. The second value says whether the
        server is a standby. None: the server has no such LSN.
        """
        # A standby reports its replayed position a moment late, but not its received position.
        ((text, standby, block),) = self.query(
            "SELECT CASE WHEN pg_is_in_recovery()"
            " THEN greatest(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn())"
            " ELSE pg_current_wal_insert_lsn() END::text, pg_is_in_recovery(),"
            " current_setting('wal_block_size')::int8"
        )
        lsn = parse_lsn(text)
        # At a page's border the insert position is after the next page's header, where no record
        # can end; so subtract the header.
        offset = lsn % block
        return (lsn - offset if offset in PAGE_HEADERS else lsn), standby

    def horizon(self) -> str:
        """Return an LSN after every commit that is visible now."""
        ((text,),) = self.query(
            "SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()"
            " ELSE pg_current_wal_insert_lsn() END::text"
        )
        return str(text)

    # Whether transaction ids on the wire can be compared with the catalogue's rows.
    shows_transactions = True

    def data_type(self, oid: int) -> DataType | None:
        """Return the type with that OID, including its parts.

        None means that it does not exist, or was dropped.
        """
        if oid not in self._types:
            self._load_types([oid])
        return self._types.get(oid)

    def refresh_types(self, oids: set[int]) -> None:
        """Read user-defined types and their parts again.

        Enums get labels and composites change their attributes.
        """
        old: dict[int, DataType] = {}
        for oid in oids:
            self._take_out(oid, old)
        if old:
            self._load_types(set(old))
            # WAL may still have values of a dropped type.
            for oid, known in old.items():
                self._types.setdefault(oid, known)

    def _take_out(self, oid: int, out: dict[int, DataType]) -> None:
        known = self._types.get(oid) if oid >= FIRST_USER_OID and oid not in out else None
        if known is None:
            return
        out[oid] = self._types.pop(oid)
        for part in (known.element, known.base, *(a[1] for a in known.attributes)):
            if part is not None:
                self._take_out(part.oid, out)

    def tables(self) -> list[CatalogTable]:
        """Return every ordinary and partitioned table, sorted by name."""
        return self._tables(" ORDER BY n.nspname, c.relname")

    def streamed(self, *, via_root: bool) -> dict[TableId, list[NamedTable]]:
        """Return table → the names under which the stream sends its rows.

        Usually that is the table itself. A partitioned table's rows arrive under the names of its
        partitions. With ``via_root`` they arrive under the root's, and partitions have none.
        """
        rows = self.query(NAMES_SQL)
        names = {oid: NamedTable(schema, table, oid) for schema, table, oid, *_ in rows}
        found = {
            names[oid].table_id: [] if (partition if via_root else partitioned) else [names[oid]]
            for *_, oid, partition, partitioned in rows
        }
        if not via_root and any(partitioned for *_, partitioned in rows):
            for root, leaf in self.query(PARTITIONS_SQL):
                if root in names and leaf in names:
                    found[names[root].table_id].append(names[leaf])
        return found

    def names(self) -> list[NamedTable]:
        """Return the names of all `tables`, unsorted; cheap."""
        return [NamedTable(schema, table, oid) for schema, table, oid, *_ in self.query(NAMES_SQL)]

    def numbers(self, *, via_root: bool) -> dict[int, TableId]:
        """Return OID → name of every table that the stream names; cheap.

        With ``via_root`` the stream names partitioned tables instead of their partitions.
        """
        return {
            oid: (schema, table)
            for schema, table, oid, partition, partitioned in self.query(NAMES_SQL)
            if not (partition if via_root else partitioned)
        }

    def table(self, schema: str, table: str) -> CatalogTable | None:
        found = self._tables(" AND n.nspname = %s AND c.relname = %s", (schema, table))
        return next(iter(found), None)

    def named_since(self, xid: int) -> list[CatalogTable]:
        return self._tables(
            " AND age((SELECT rt.xmin FROM pg_type rt WHERE rt.oid = c.reltype))"
            " <= age(%s::text::xid)",
            (xid,),
        )

    def name_version(self, oid: int) -> str | None:
        """Return a text that changes with the table's name.

        None: the server has none.
        """
        # A new name or schema writes the row type's entry, as only a new owner does otherwise.
        rows = self.query("SELECT xmin::text FROM pg_type WHERE typrelid = %s", (oid,))
        return str(rows[0][0]) if rows else ""

    def gone(self, oids: Collection[int]) -> tuple[frozenset[int], int]:
        """Return the dropped ones of the relations, and a later WAL end."""
        rows = self.query(
            "SELECT o.oid FROM unnest(%s::int8[]) o(oid)"
            " WHERE NOT EXISTS (SELECT FROM pg_class c WHERE c.oid::int8 = o.oid)",
            (list(oids),),
        )
        return frozenset(row[0] for row in rows), self.wal_end() or 0

    def relation(self, schema: str, table: str) -> Relation | None:
        found = self.table(schema, table)
        return found.relation if found else None

    def is_materialized_view(self, schema: str, table: str, xid: int, *, was_table: bool) -> bool:
        """Return whether the name was a materialized view when ``xid`` wrote.

        Older rows under the name belong to a table that had it before. ``was_table``: such a table
        is remembered.
        """
        # Only its creation writes a view's rule, so the rule is as old as the view. But ``xid`` may
        # have created the view in a subtransaction, or refreshed a view created while it ran. Then
        # the rule is younger than ``xid``, and the frozen horizon is not. A remembered table makes
        # the horizon no evidence, because any older transaction holds it back.
        return bool(
            self.query(
                "SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
                " JOIN pg_rewrite r ON r.ev_class = c.oid WHERE c.relkind = 'm'"
                " AND n.nspname = %s AND c.relname = %s AND (age(%s::text::xid) <= age(r.xmin)"
                "  OR NOT %s AND c.relfrozenxid::text <> '0'"
                "     AND age(%s::text::xid) <= age(c.relfrozenxid))",
                (schema, table, xid, was_table, xid),
            )
        )

    def unreadable(self, relations: list[Relation]) -> list[Relation]:
        """Return the relations whose columns this role may not read completely."""
        # A table without columns has a NULL in place of them.
        read = [(r.oid, c and c.number) for r in relations for c in r.columns or (None,)]
        rows = self.query(
            "SELECT c.oid::int8 FROM unnest(%s::oid[], %s::int2[]) o(oid, number)"
            " JOIN pg_class c ON c.oid = o.oid"
            " WHERE NOT has_schema_privilege(c.relnamespace, 'USAGE')"
            "    OR NOT (has_table_privilege(c.oid, 'SELECT')"
            "            OR coalesce(has_column_privilege(c.oid, o.number, 'SELECT'), false))",
            ([oid for oid, _ in read], [number for _, number in read]),
        )
        found = {row[0] for row in rows}
        return [relation for relation in relations if relation.oid in found]

    def table_of(self, oid: int) -> CatalogTable | None:
        return next(iter(self._tables(" AND c.oid = %s", (oid,))), None)

    def exists(self, oid: int) -> bool:
        """Return whether there is a relation, of any kind."""
        return bool(self.query("SELECT FROM pg_class WHERE oid = %s", (oid,)))

    def table_seen(self, oid: int) -> tuple[CatalogTable | None, str]:
        """Return the table and the snapshot of the answer."""
        # One statement, so that both are of the same moment.
        ((seen, *row),) = self.query(SEEN_SQL.format(self.relation_sql), (oid,))
        found = self._built([tuple(row)] if row[0] is not None else [])
        return next(iter(found), None), seen

    def tables_of(self, oids: Iterable[int]) -> list[CatalogTable]:
        """Return the existing tables of ``oids``, unsorted."""
        return self._tables(" AND c.oid = ANY(%s)", (list(oids),))

    def _tables(self, ending: str, parameters: tuple[object, ...] = ()) -> list[CatalogTable]:
        return self._built(self.query(self.relation_sql + ending, parameters))

    def _built(self, rows: list[tuple[Any, ...]]) -> list[CatalogTable]:
        self._load_types({int(column[1]) for row in rows for column in row[7] or ()})
        having = [row[0] for row in rows if any(column[5] == "true" for column in row[7] or ())]
        defaults = self._defaults(having) if having else {}
        with_defaults = set(having)
        return [
            self._table(row, defaults.get(row[0]) if row[0] in with_defaults else {})
            for row in rows
        ]

    def _defaults(self, oids: list[int]) -> dict[int, dict[int, str]]:
        """Return OID → column number → expression of its default.

        Locked tables are left out.
        """
        try:
            # In a transaction, the rollback ends the error and the lock timeout.
            with self.connection.transaction(force_rollback=True):
                rows = self.connection.execute(
                    DEFAULTS_SQL.encode(), (str(DEFAULTS_WITHIN_MS), oids)
                ).fetchall()
        except psycopg.errors.LockNotAvailable:
            if len(oids) <= 1:
                return {}
            # The error does not name the locked table.
            locked = {oid for (oid,) in self.query(LOCKED_SQL, (oids,))}
            if locked:
                free = [oid for oid in oids if oid not in locked]
                return self._defaults(free) if free else {}
            middle = len(oids) // 2
            return self._defaults(oids[:middle]) | self._defaults(oids[middle:])
        except psycopg.Error as error:
            raise driver_error(error, self.properties) from error
        found: dict[int, dict[int, str]] = {oid: {} for oid in oids}
        for oid, number, text in rows:
            found[oid][number] = text
        return found

    def _table(self, row: tuple[Any, ...], defaults: dict[int, str] | None) -> CatalogTable:
        oid, schema, name, identity, kind, partition, estimate, attributes, rows, *by = row
        names = {int(a[7]): a[0] for a in attributes or ()}
        not_null = {int(a[7]) for a in attributes or () if a[3] == "true"}
        indexes = [_index(found) for found in rows or ()]

        def named(numbers: tuple[int, ...]) -> tuple[str, ...]:
            return tuple(names[number] for number in numbers if number in names)

        rule = self.properties.key_index
        primary = next((index for index in indexes if index.primary), None)
        others = [index for index in indexes if index is not primary]
        chosen = key_index(indexes, not_null, rule)
        stand_in = key_index(others, not_null, rule)
        usable = usable_index(others, not_null)
        replica = next((index for index in indexes if index.identity), None)
        identifying: tuple[int, ...] = ()
        marked = identity_evidence(identity)
        if marked is IdentityEvidence.KEY and primary is not None and primary.immediate:
            identifying = primary.key(rule)
        elif marked is IdentityEvidence.INDEX and replica is not None:
            identifying = replica.columns[: replica.key_columns]
        relation = Relation(
            oid=oid,
            schema=schema,
            table=name,
            identity=identity,
            primary_key=named(chosen.key(rule)) if chosen else (),
            wire_key=None if chosen is primary else named(primary.key(rule)) if primary else (),
            deferrable=primary is not None and not primary.immediate,
            usable_index=usable.name if usable else None,
            columns=tuple(
                Column(
                    name=a[0],
                    type_oid=int(a[1]),
                    typmod=int(a[2]),
                    in_identity=marked is IdentityEvidence.ROW or int(a[7]) in identifying,
                    data_type=self.data_type(int(a[1])),
                    nullable=a[3] != "true",
                    generated=a[4] == "true",
                    default=None if a[4] == "true" else (defaults or {}).get(int(a[7])),
                    comment=None if a[6] == "\x01" else a[6],
                    number=int(a[7]),
                    missing=None if a[8] == "\x01" else a[8],
                )
                for a in attributes or ()
            ),
        )
        return CatalogTable(
            relation=relation,
            partitioned=kind == "p",
            partition=partition,
            estimate=estimate,
            primary_key=named(primary.key(rule)) if primary else (),
            stand_in=named(stand_in.key(rule)) if stand_in else (),
            changed={
                int(a[7]): tuple(int(xid) for xid in a[9:11] if xid) for a in attributes or ()
            },
            key_changed=chosen.changed if chosen else 0,
            row_changed=int(by[0]),
            named=int(by[1]),
            made=int(by[2]),
            frozen=int(by[3]),
            dropped={int(number): int(xid) for number, xid, *_ in by[4] or ()},
            layouts={int(number): (text, int(typmod)) for number, _, typmod, text in by[4] or ()},
            made_first=by[5],
            defaults_known=defaults is not None,
        )

    def _load_types(self, oids: "set[int] | list[int]") -> None:
        """Fetch types and their parts, one query per level."""
        raw: dict[int, tuple[Any, ...]] = {}
        wanted = {oid for oid in oids if oid and oid not in self._types}
        sql = TYPE_SQL if self.version_num >= 140000 else TYPE_SQL_13
        while wanted:
            rows = self.query(sql, (list(wanted),))
            raw.update({row[0]: row for row in rows})
            wanted = {
                oid
                for row in rows
                for parts in [[int(part.rsplit("\t", 3)[1]) for part in row[10] or ()]]
                for oid in (row[4] if row[8] else 0, row[5], *parts)
                if oid and oid not in raw and oid not in self._types
            }
        for oid in raw:
            self._build(oid, raw)

    def _build(self, oid: int, raw: dict[int, tuple[Any, ...]]) -> DataType | None:
        """Build one type after the types within it."""
        if oid in self._types or oid not in raw:
            return self._types.get(oid)
        (
            number, schema, name, kind, element, base, typmod, delimiter, is_array, labels, parts, layout
        ) = raw[oid]  # fmt: skip
        attributes, last = [], 0
        for part in parts or ():
            attribute, type_oid, modifier, last = part.rsplit("\t", 3)
            built = self._build(int(type_oid), raw)
            if built is not None:
                attributes.append((attribute, built, int(modifier)))
        made = DataType(
            oid=number,
            schema=schema,
            name=name,
            kind=TypeKind.ARRAY if is_array else KINDS.get(kind, TypeKind.BASE),
            element=self._build(element, raw) if is_array else None,
            base=self._build(base, raw) if base else None,
            base_typmod=typmod,
            labels=tuple(labels or ()),
            delimiter=delimiter,
            attributes=tuple(attributes),
            attributes_dropped=int(last) != len(parts or ()),
            layout=layout,
        )
        self._types[oid] = made
        return made


def _index(row: list[str]) -> UniqueIndex:
    name, columns, *others = row
    return msgspec.convert([name, columns.split(), *others], UniqueIndex, strict=False)
