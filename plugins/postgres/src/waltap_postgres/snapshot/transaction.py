"""A transaction that reads tables as its snapshot has them, and tells where PostgreSQL cannot.

Rows are kept for older snapshots, but not through everything that DDL does: a table that was rewritten
(ALTER TABLE with a rewrite, TRUNCATE) is empty to an older snapshot, without an error; and names are
always those of now. So a table is locked before it is read (ACCESS SHARE, until it has been read), and
then what the catalogue says of it now is compared with what it said in the snapshot. Same files: its
rows are as the snapshot has them, whatever table and columns are called now. CLUSTER and VACUUM FULL keep
the rows of older snapshots and cannot be told from a rewrite: they count as one.

Source: PostgreSQL manual, "Data Consistency Checks at the Application Level" (caveats) and LOCK: locks
taken before the first query of a REPEATABLE READ transaction come before its snapshot.
"""

from collections.abc import Sequence

import msgspec
from psycopg import pq

from waltap.errors import ConnectionLost, RetryVerdict, SourceError
from waltap.session import PINNED_AGAIN, USERS_PATH
from waltap.source.published import EVERYTHING, PublishedSubset
from waltap_postgres.catalog.catalogue import CatalogTable, PostgresCatalogue
from waltap_postgres.connection import PostgresSession
from waltap_postgres.errors import QueryFailed
from waltap_postgres.properties import PostgresProperties
from waltap_postgres.replication.publication import identifier
from waltap_postgres.snapshot.errors import SnapshotLockRefused, SnapshotNotShared
from waltap_postgres.waiting import ServerWaits

__all__ = [
    "ISOLATION",
    "ONE_FOR_ALL",
    "ONE_SNAPSHOT",
    "CatalogShape",
    "ReadingTransaction",
    "SnapshotTable",
    "shapes",
]

ONE_SNAPSHOT = "REPEATABLE READ READ ONLY"
"""The isolation in which all statements of a transaction see the same."""
ISOLATION = {
    "serializable": "SERIALIZABLE READ ONLY DEFERRABLE",
    "repeatable_read": ONE_SNAPSHOT,
    "read_committed": "READ COMMITTED READ ONLY",
    "read_uncommitted": "READ UNCOMMITTED READ ONLY",
}
ONE_FOR_ALL = frozenset({"serializable", "repeatable_read"})
"""The modes in which all statements see the same."""

MOST_RENAMES = 20
GONE = frozenset({"42P01", "3F000"})
"""No such table, no such schema."""
UNKNOWN_SNAPSHOT = frozenset({"22023", "55000"})

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
    """A table to read. ``deep``: with its partitions, or the tables that inherit from it. ``published``:
    what of it is read."""

    table: CatalogTable
    deep: bool
    published: PublishedSubset = EVERYTHING

    @classmethod
    def of(cls, table: CatalogTable, published: PublishedSubset, *, deep: bool) -> "SnapshotTable":
        """Return what of ``table`` is published, to be read."""
        relation = published.of(table.relation)
        if relation is not table.relation:
            table = msgspec.structs.replace(table, relation=relation)
        return cls(table, deep, published)

    def selected(self, statement: str) -> str:
        """Return a SELECT of those rows of ``statement``, which reads this table, that are published."""
        return self.published.of_select(statement, identifier(self.table.relation.table))

    @property
    def oid(self) -> int:
        return self.table.relation.oid


class CatalogShape(msgspec.Struct, frozen=True):
    """What the catalogue says of a table at a moment: its name, the files that hold its rows, and by
    number each column's name and type."""

    schema: str
    table: str
    files: tuple[str, ...]
    columns: dict[int, tuple[str, int]]

    @property
    def name(self) -> str:
        """Return ``schema.table``."""
        return f"{self.schema}.{self.table}"

    def holds(self, other: "CatalogShape") -> bool:
        """Tell whether a table of this shape still has the rows and columns of ``other``."""
        types = {number: kind for number, (_, kind) in self.columns.items()}
        return self.files == other.files and all(
            types.get(number) == kind for number, (_, kind) in other.columns.items()
        )

    def source(self, *, deep: bool) -> str:
        """Return what stands after FROM."""
        return f"{'' if deep else 'ONLY '}{identifier(self.schema, self.table)}"


def shapes(
    catalogue: PostgresCatalogue, oids: list[int], *, deep: list[int]
) -> dict[int, CatalogShape]:
    """Return the shapes of the tables that exist, by OID; of those in ``deep`` with their children."""
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


def _shapes(
    catalogue: PostgresCatalogue, targets: Sequence[SnapshotTable]
) -> dict[int, CatalogShape]:
    oids = [target.oid for target in targets]
    return shapes(catalogue, oids, deep=[target.oid for target in targets if target.deep])


class ReadingTransaction:
    """One connection, one transaction. Order of calls: `lock`, `begin`, then `hold` and `let_go` around
    the reading of some tables. ``now`` is a catalogue that shows the present."""

    def __init__(
        self, properties: PostgresProperties, now: PostgresCatalogue, watch: ServerWaits
    ) -> None:
        self.session = PostgresSession(properties, role="snapshot", watch=watch)
        self.catalogue = now.on(self.session.connection)
        self.properties, self._now = properties, now
        self._begun = False
        self.then: dict[int, CatalogShape] = {}
        # A policy that hides rows from this role must fail the snapshot, not shorten it; and rows come
        # in the order they lie in, also when another scan of the table is under way.
        self.session.execute("SET row_security = off; SET synchronize_seqscans = off")

    def lock(self, statements: Sequence[str], isolation: str) -> None:
        """Run the statements that lock tables, before there is a snapshot: it then sees them as they are,
        and stay, until the end of the transaction. Raises: SnapshotReadFailed, ConnectionLost."""
        self.start(isolation)
        timeout = self.properties.snapshot_lock_timeout_ms
        self.session.execute(f"SET LOCAL lock_timeout = {timeout}; {USERS_PATH}")
        for statement in statements:
            try:
                self.session.execute(statement)
            except SourceError as error:
                if error.retry is not RetryVerdict.NEVER:
                    raise
                raise SnapshotLockRefused(
                    f"a lock of the snapshot was not to be had: {error.problem} ({statement})",
                    timeout=str(timeout),
                ) from error
        self.session.execute(PINNED_AGAIN)
        if self._has_id():
            raise SnapshotLockRefused(
                "a lock of the snapshot gives its transaction an id, as ACCESS EXCLUSIVE does: the slot "
                "would wait for its end; EXCLUSIVE keeps all writers away",
                timeout=str(timeout),
            )

    def _has_id(self) -> bool:
        return bool(
            self._now.query(
                "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND backend_xid IS NOT NULL",
                (self.session.pgconn.backend_pid,),
            )
        )

    def begin(self, given: str | None, isolation: str) -> None:
        """Begin, in the snapshot that was given with a slot or one of its own. Raises: SourceError;
        ConnectionLost when the connection that exported it is gone."""
        self.start(isolation)
        if given is not None:
            self.adopt(given)

    def adopt(self, given: str) -> None:
        """See from now on what the snapshot shows that was given with a slot. Raises: as `begin`."""
        try:
            self.session.execute(f"SET TRANSACTION SNAPSHOT '{given}'")
        except SourceError as error:
            if error.fields.get("sqlstate") not in UNKNOWN_SNAPSHOT:
                raise
            raise ConnectionLost(f"the exported snapshot is gone: {error.problem}") from error

    def export(self) -> str | None:
        """Return the name under which other connections can begin in this transaction's snapshot, for as
        long as it lasts; None where the server cannot. To be called before anything is read."""
        if self.catalogue.snapshot() is None:
            return None
        ((name,),) = self.session.execute("SELECT pg_export_snapshot()")
        return name

    def join(self, leader: "ReadingTransaction", given: str) -> None:
        """Begin in the snapshot that ``leader`` exported as ``given``, and know the shapes that it knows.

        Raises: as `begin`; SnapshotNotShared when this does not see what the leader sees.
        """
        self.begin(given, ONE_SNAPSHOT)
        mine, wanted = self.catalogue.snapshot(), leader.catalogue.snapshot()
        if mine != wanted:
            raise SnapshotNotShared(f"a reader of snapshot {wanted} sees {mine}")
        self.then = leader.then

    def start(self, isolation: str) -> None:
        """Begin the transaction where it has not. Raises: SourceError."""
        if not self._begun:
            self.session.execute(f"BEGIN ISOLATION LEVEL {isolation}")
            self._begun = True

    def seen(self) -> str:
        """Return which transactions the snapshot contains, as `Offset.visible_in` has it; "" where the
        server does not tell: then the stream repeats what was committed between slot and snapshot."""
        snapshot = self.catalogue.snapshot()
        return "" if snapshot is None else f"{snapshot}@{self.catalogue.horizon()}"

    def expect(self, targets: Sequence[SnapshotTable]) -> None:
        """Take note of the shapes that tables have in the snapshot."""
        self.then.update(_shapes(self.catalogue, targets))

    def source(self, target: SnapshotTable) -> str:
        """Return what stands after FROM, as names were in the snapshot."""
        return self.then[target.oid].source(deep=target.deep)

    def files(self, oid: int) -> tuple[str, ...]:
        """Return the files that held a table's rows in the snapshot, none where it was not there."""
        shape = self.then.get(oid)
        return () if shape is None else shape.files

    def attempt(self, sql: str, lock_ms: int) -> list[tuple[str | None, ...]] | None:
        """Run a query of which something depends, and nothing must: None when the server refuses it, or a
        lock is in its way for longer than ``lock_ms``. Raises: ConnectionLost."""
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
        """Lock tables and return the shapes that they now have, by OID; of those that are gone, none.

        Raises: SourceError, for one of several tables without saying which.
        """
        shapes = {t.oid: self.then[t.oid] for t in targets if t.oid in self.then}
        self.session.execute("SAVEPOINT waltap_tables")
        for _ in range(MOST_RENAMES):
            there = [target for target in targets if target.oid in shapes]
            statements = [
                f"SELECT FROM {shapes[target.oid].source(deep=target.deep)} LIMIT 0"
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
            found = _shapes(self._now, there)
            if not missing and all(
                oid in found and found[oid].name == shape.name for oid, shape in shapes.items()
            ):
                return found
            self.session.execute("ROLLBACK TO SAVEPOINT waltap_tables")
            shapes = found
        raise QueryFailed("tables are renamed all the time", sqlstate="42P01")

    def let_go(self) -> None:
        """Release what `hold` locked; after an error of a query too."""
        self.session.execute("ROLLBACK TO SAVEPOINT waltap_tables")

    def unchanged(self, target: SnapshotTable, shape: CatalogShape) -> bool:
        """Tell whether the rows of a table that is held are as the snapshot has them."""
        return shape.holds(self.then[target.oid])

    def blocks(self, now: PostgresCatalogue) -> bool:
        """Tell whether a transaction that has written something waits for our locks."""
        rows = now.query(
            "SELECT 1 FROM pg_stat_activity WHERE backend_xid IS NOT NULL"
            " AND %s = ANY(pg_blocking_pids(pid)) LIMIT 1",
            (self.session.pgconn.backend_pid,),
        )
        return bool(rows)

    def close(self) -> None:
        """Close the connection; may be called twice."""
        self.session.close()
