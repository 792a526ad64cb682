"""A transaction that reads tables as its snapshot has them.

It also detects tables that PostgreSQL cannot show so. Rows of older snapshots do not survive all
DDL: a rewritten table (ALTER TABLE with a rewrite, TRUNCATE) is empty to an older snapshot, without
an error; and names are always the present ones. So the transaction locks a table (ACCESS SHARE)
until it has been read, and compares the present catalogue with the snapshot's. With the same files,
the rows are as the snapshot has them, under any names. CLUSTER and VACUUM FULL keep the rows of
older snapshots, but look like a rewrite and are treated as one.

Source: PostgreSQL manual, "Data Consistency Checks at the Application Level" (caveats) and LOCK: locks
taken before the first query of a REPEATABLE READ transaction come before its snapshot.
"""

from collections.abc import Mapping, Sequence

import msgspec
from psycopg import pq

from waltap.base.text import sql_name
from waltap.changes.transactions.position import lsn_text, parse_lsn
from waltap.errors import ConnectionLost, RetryVerdict, SourceError
from waltap.ports.source.published import EVERYTHING, PublishedSubset
from waltap.ports.source.session import PINNED_AGAIN, USERS_PATH
from waltap_postgres.catalog.catalogue import CatalogTable, PostgresCatalogue
from waltap_postgres.connection import PostgresSession
from waltap_postgres.errors import QueryFailed, SnapshotLockRefused, SnapshotNotShared
from waltap_postgres.replication.publication import locked_tables
from waltap_postgres.waiting import ServerWaits

# All statements of a transaction see the same rows with this isolation.
ONE_SNAPSHOT = "REPEATABLE READ READ ONLY"
ISOLATION = {
    "serializable": "SERIALIZABLE READ ONLY DEFERRABLE",
    "repeatable_read": ONE_SNAPSHOT,
    "read_committed": "READ COMMITTED READ ONLY",
    "read_uncommitted": "READ UNCOMMITTED READ ONLY",
}
# The modes in which all statements see the same rows.
ONE_FOR_ALL = frozenset({"serializable", "repeatable_read"})

MOST_RENAMES = 20
# SQLSTATEs: no such table, no such schema.
GONE = frozenset({"42P01", "3F000"})
# The last one is of newer servers.
UNKNOWN_SNAPSHOT = frozenset({"22023", "55000", "42704"})

SHAPES_SQL = """
WITH RECURSIVE family(root, oid) AS (
  SELECT o.oid, o.oid FROM unnest(%s::oid[]) o(oid)
  UNION
  SELECT f.root, i.inhrelid FROM family f JOIN pg_inherits i ON i.inhparent = f.oid
   WHERE f.root = ANY(%s::oid[])
), files AS (
  SELECT f.root, array_agg(c.oid::text || ':' || c.relfilenode ORDER BY c.oid) AS paths
    FROM family f JOIN pg_class c ON c.oid = f.oid GROUP BY f.root
), attributes AS (
  SELECT a.attrelid, array_agg(a.attnum::int4 ORDER BY a.attnum) AS numbers,
         array_agg(a.attname::text ORDER BY a.attnum) AS names,
         array_agg(a.atttypid::int8 ORDER BY a.attnum) AS types
    FROM pg_attribute a
   WHERE a.attrelid = ANY(%s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped GROUP BY a.attrelid
)
SELECT c.oid::int8, n.nspname::text, c.relname::text, f.paths, a.numbers, a.names, a.types
  FROM files f JOIN pg_class c ON c.oid = f.root JOIN pg_namespace n ON n.oid = c.relnamespace
  LEFT JOIN attributes a ON a.attrelid = c.oid
 WHERE c.relpersistence = 'p'
"""


class SnapshotTable(msgspec.Struct, frozen=True):
    """Describe a table to read."""

    table: CatalogTable
    # Whether its partitions, or the tables that inherit from it, are read too.
    deep: bool
    # The part of the table that is read.
    published: PublishedSubset = EVERYTHING

    @classmethod
    def of(cls, table: CatalogTable, published: PublishedSubset, *, deep: bool) -> "SnapshotTable":
        relation = published.of(table.relation)
        if relation is not table.relation:
            table = msgspec.structs.replace(table, relation=relation)
        return cls(table, deep, published)

    def selected(self, statement: str) -> str:
        """Return a SELECT of the published rows of ``statement``."""
        return self.published.of_select(statement, sql_name(self.table.relation.table))

    @property
    def oid(self) -> int:
        return self.table.relation.oid


class CatalogShape(msgspec.Struct, frozen=True):
    """Hold the catalogue's description of a table at one moment."""

    schema: str
    table: str
    # The files that hold its rows.
    files: tuple[str, ...]
    # Column number → name and type.
    columns: dict[int, tuple[str, int]]

    @property
    def name(self) -> str:
        return f"{self.schema}.{self.table}"

    def holds(self, other: "CatalogShape") -> bool:
        types = {number: kind for number, (_, kind) in self.columns.items()}
        return self.files == other.files and all(
            types.get(number) == kind for number, (_, kind) in other.columns.items()
        )

    def source(self, *, deep: bool) -> str:
        """Return the text after FROM."""
        return f"{'' if deep else 'ONLY '}{sql_name(self.schema, self.table)}"


def shapes(catalogue: PostgresCatalogue, tables: Mapping[int, bool]) -> dict[int, CatalogShape]:
    """Return OID → shape of the existing tables.

    ``tables`` is OID → whether the shape includes the files of the table's children.
    """
    oids, deep = list(tables), [oid for oid, children in tables.items() if children]
    return {
        oid: CatalogShape(
            schema,
            table,
            tuple(files),
            {
                n: (name, kind)
                for n, name, kind in zip(numbers or (), names or (), types or (), strict=True)
            },
        )
        for oid, schema, table, files, numbers, names, types in catalogue.query(
            SHAPES_SQL, (oids, deep, oids)
        )
    }


class ReadingTransaction:
    """Read tables over one connection in one transaction.

    Order of calls: `lock`, `begin`, then `hold` and `release_tables` around the reading of some tables.
    ``now`` is a catalogue of the present.
    """

    def __init__(self, now: PostgresCatalogue, watch: ServerWaits) -> None:
        self.session = PostgresSession(now.properties, role="snapshot", watch=watch)
        self.catalogue = now.on(self.session.connection)
        self.properties, self._now = now.properties, now
        self._begun = False
        # The end of what a standby had replayed before the snapshot; 0 on other servers.
        self.replayed = 0
        self.then: dict[int, CatalogShape] = {}
        # A policy that hides rows from this role must fail the snapshot, not shorten it. Rows must
        # arrive in their stored order, even while another session scans the table.
        self.session.execute("SET row_security = off; SET synchronize_seqscans = off")

    def lock(
        self,
        statements: Sequence[str],
        isolation: str,
        targets: Sequence[SnapshotTable],
        *,
        timeout_ms: int | None = None,
    ) -> None:
        """Run the statements that lock ``targets`` until the transaction ends.

        Called before the snapshot exists, so that it sees the locked tables. ``timeout_ms`` replaces
        the profile's. Raises: SnapshotLockRefused, ConnectionLost.
        """
        self.start(isolation)
        timeout = self.properties.snapshot_lock_timeout_ms if timeout_ms is None else timeout_ms
        self.session.execute(f"SET LOCAL lock_timeout = {timeout}; {USERS_PATH}")
        for statement in statements:
            try:
                self.session.execute(statement)
            except SourceError as error:
                if error.retry is not RetryVerdict.NEVER:
                    raise
                # Readers and writers do not block ACCESS SHARE.
                shared = statement.endswith("IN ACCESS SHARE MODE")
                modes = "= 'AccessExclusiveLock'" if shared else "<> 'AccessShareLock'"
                tables = [t.table.relation.table_id for t in targets]
                raise SnapshotLockRefused(
                    f"a lock of the snapshot was not to be had: {error.problem} ({statement})",
                    timeout=str(timeout),
                    modes=modes,
                    tables=locked_tables(self._now.query, tables, modes),
                ) from error
        self.session.execute(PINNED_AGAIN)
        if self._has_id():
            raise SnapshotLockRefused(
                "a lock of the snapshot gives its transaction an id, as ACCESS EXCLUSIVE does: the slot "
                "would wait for its end; EXCLUSIVE keeps all writers away",
                timeout=str(timeout),
                modes="= 'AccessExclusiveLock'",
                tables="relation",
            )

    def _has_id(self) -> bool:
        return bool(
            self._now.query(
                "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND backend_xid IS NOT NULL",
                (self.session.pgconn.backend_pid,),
            )
        )

    def begin(self, given: str | None, isolation: str) -> None:
        """Begin in the snapshot ``given``, or in a new one.

        Raises: SourceError; ConnectionLost if the exporting connection has ended.
        """
        self.start(isolation)
        if self._now.standby():
            self.replayed = parse_lsn(self._now.horizon())
        if given is not None:
            self.use_snapshot(given)

    def use_snapshot(self, given: str) -> None:
        """Switch to a slot's exported snapshot. Raises: as `begin`."""
        try:
            self.session.execute(f"SET TRANSACTION SNAPSHOT '{given}'")
        except SourceError as error:
            if error.fields.get("sqlstate") not in UNKNOWN_SNAPSHOT:
                raise
            raise ConnectionLost(f"the exported snapshot is gone: {error.problem}") from error

    def export(self) -> str | None:
        """Export the snapshot and return its name, or None.

        Other connections can begin in it while this transaction lasts. Call it before any read.
        """
        if self.catalogue.snapshot() is None:
            return None
        ((name,),) = self.session.execute("SELECT pg_export_snapshot()")
        return name

    def join(self, given: str, seen: str | None, then: dict[int, CatalogShape]) -> None:
        """Begin in an exported snapshot, with the shapes ``then`` of its leader.

        The leader's catalogue has ``seen`` as its snapshot. Raises: as `begin`; SnapshotNotShared if
        this one has another.
        """
        self.start(ONE_SNAPSHOT)
        self.use_snapshot(given)
        # A pooler or a load balancer may have given another server's connection.
        if (mine := self.catalogue.snapshot()) != seen:
            raise SnapshotNotShared(f"a reader of snapshot {seen} sees {mine}")
        self.then = then

    def start(self, isolation: str) -> None:
        """Begin the transaction if it has not begun. Raises: SourceError."""
        if not self._begun:
            if isolation.startswith("SERIALIZABLE") and self._now.standby():
                isolation = ONE_SNAPSHOT  # a standby refuses SERIALIZABLE
            self.session.execute(f"BEGIN ISOLATION LEVEL {isolation}")
            self._begun = True

    def seen(self) -> str:
        """Return the snapshot's visibility, as in `Offset.visible_in`."""
        # Without it the stream repeats the commits between slot and snapshot. A standby does not know
        # which transactions are in progress.
        if self.replayed:
            return f"@{lsn_text(self.replayed)}"
        snapshot = self.catalogue.snapshot()
        return "" if snapshot is None else f"{snapshot}@{self.catalogue.horizon()}"

    def timestamp(self) -> int:
        """Return the transaction's time in µs since 1970 UTC."""
        ((ts,),) = self.session.execute(
            "SELECT (extract(epoch FROM transaction_timestamp()) * 1000000)::int8::text"
        )
        return int(ts or 0)

    def expect(self, targets: Sequence[SnapshotTable]) -> None:
        """Remember the tables' shapes in the snapshot."""
        self.then.update(shapes(self.catalogue, {t.oid: t.deep for t in targets}))

    def source(self, target: SnapshotTable) -> str:
        """Return the text after FROM, with the snapshot's names."""
        return self.then[target.oid].source(deep=target.deep)

    def files(self, oid: int) -> tuple[str, ...]:
        """Return a table's files in the snapshot."""
        shape = self.then.get(oid)
        return () if shape is None else shape.files

    def attempt(self, sql: str, lock_ms: int) -> list[tuple[str | None, ...]] | None:
        """Run an optional query, and return None if it fails.

        It fails if the server refuses it, or a lock blocks it for longer than ``lock_ms``. Raises:
        ConnectionLost.
        """
        self.session.execute(f"SAVEPOINT waltap_attempt; SET LOCAL lock_timeout = {lock_ms}")
        try:
            return self.session.execute(sql)
        except SourceError as error:
            if error.retry is not RetryVerdict.NEVER:
                raise
            return None
        finally:
            if self.session.pgconn.status == pq.ConnStatus.OK:
                self.session.execute(
                    "ROLLBACK TO SAVEPOINT waltap_attempt; RELEASE SAVEPOINT waltap_attempt"
                )

    def hold(self, targets: Sequence[SnapshotTable]) -> dict[int, CatalogShape]:
        """Lock tables and return their present shapes by OID.

        Raises: SourceError, which does not say for which of several tables.
        """
        known = {t.oid: self.then[t.oid] for t in targets if t.oid in self.then}
        self.session.execute("SAVEPOINT waltap_tables")
        # A name can change between its query and its lock, so the locked table may be another.
        for _ in range(MOST_RENAMES):
            there = [target for target in targets if target.oid in known]
            statements = [
                f"SELECT FROM {known[target.oid].source(deep=target.deep)} LIMIT 0"
                for target in there
            ]
            missing = False
            try:
                if statements:
                    self.session.execute("; ".join(statements))
            except SourceError as error:
                if error.fields.get("sqlstate") not in GONE:
                    raise
                missing = True
            found = shapes(self._now, {t.oid: t.deep for t in there})
            if not missing and all(
                oid in found and found[oid].name == shape.name for oid, shape in known.items()
            ):
                return found
            self.session.execute("ROLLBACK TO SAVEPOINT waltap_tables")
            known = found
        raise QueryFailed("tables are renamed all the time", sqlstate="42P01")

    def release_tables(self) -> None:
        """Release the locks of `hold`, also after a failed query."""
        self.session.execute("ROLLBACK TO SAVEPOINT waltap_tables; RELEASE SAVEPOINT waltap_tables")

    def unchanged(self, target: SnapshotTable, shape: CatalogShape) -> bool:
        """Return whether a held table's rows are as in the snapshot."""
        return shape.holds(self.then[target.oid])

    def blocks(self, now: PostgresCatalogue) -> bool:
        """Return whether a writing transaction waits for our locks."""
        rows = now.query(
            "SELECT 1 FROM pg_stat_activity WHERE backend_xid IS NOT NULL"
            " AND %s = ANY(pg_blocking_pids(pid)) LIMIT 1",
            (self.session.pgconn.backend_pid,),
        )
        return bool(rows)

    def close(self) -> None:
        self.session.close()
