"""Read tables for an initial, a resumed or a blocking snapshot.

`SnapshotReader` reads the rows, or gives the chunks of an initial snapshot to other processes, which
read them by `PostgresChunk`. Incremental snapshots are in chunk_query.py.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final, Self

from waltap.changes.decode.relation import Relation
from waltap.changes.transactions.position import SnapshotProgress
from waltap.changes.transactions.transaction import SnapshotRows
from waltap.ports.signals.signal import SnapshotRequest
from waltap.ports.snapshot.chunk_source import SnapshotChunk
from waltap.ports.source.connector import ConnectorContext, SourceLacks, StartPosition
from waltap_postgres.catalog.catalogue import CatalogTable, PostgresCatalogue, TableId
from waltap_postgres.connection import connect, watch
from waltap_postgres.properties import PostgresProperties
from waltap_postgres.replication.publication import published_by_any
from waltap_postgres.snapshot.options import SnapshotOptions
from waltap_postgres.snapshot.parallel import ParallelReading
from waltap_postgres.snapshot.plan import ReadTask, SnapshotPlanner, TableSplit
from waltap_postgres.snapshot.requested import Refused, RequestedTables
from waltap_postgres.snapshot.resumed import resume
from waltap_postgres.snapshot.tables_reader import (
    SnapshotPoint,
    TablesReader,
    in_order,
    overtaken,
    set_markers,
    snapshot_tables,
)
from waltap_postgres.snapshot.transaction import (
    ONE_SNAPSHOT,
    CatalogShape,
    ReadingTransaction,
    SnapshotTable,
)
from waltap_postgres.visibility import XID_RANGE, SnapshotVisibility
from waltap_postgres.waiting import ServerWaits

log = logging.getLogger(__name__)


# Chunks of an initial snapshot that other processes read.
#
# They read in the snapshot that the engine exported for them.


@dataclass(frozen=True, kw_only=True)
class PostgresChunk(SnapshotChunk):
    """Describe one chunk; the engine that exported the snapshot locks its table."""

    properties: PostgresProperties
    catalogue: type[PostgresCatalogue]
    reading: type[ReadingTransaction]
    # Name of the exported snapshot.
    given: str
    # Transactions that the exported snapshot sees, None if the server does not report them.
    seen: str | None
    point: SnapshotPoint
    target: SnapshotTable
    shape: CatalogShape
    part: TableSplit | None
    visible: str
    # Number of the table's chunks.
    count: int
    # SELECT that returns the rows instead of the table.
    statement: str | None = None

    @property
    def relation(self) -> Relation:  # type: ignore[override]
        return self.target.table.relation

    @property
    def index(self) -> int:  # type: ignore[override]
        return 0 if self.part is None else self.part.index

    def read(self) -> Iterator[SnapshotRows]:
        watching = watch(self.properties)
        with closing(connect(self.properties, role="catalogue", watch=watching)) as connection:
            now = self.catalogue(connection, self.properties)
            with closing(self.reading(now, watching)) as transaction:
                transaction.join(self.given, self.seen, {self.target.oid: self.shape})
                # DDL that waits for the engine's lock would stop this reader and the engine for
                # ever: it is ahead in the queue, and the engine waits for these rows.
                wait_ms = self.properties.snapshot_lock_timeout_ms
                transaction.session.execute(f"SET LOCAL lock_timeout = {wait_ms}")
                name = self.relation.name
                later = partial(overtaken, name, f"{name} was changed while its chunks were read")
                chosen = {} if self.statement is None else {name: self.statement}
                reader = TablesReader(transaction, self.point, later, statements=chosen)
                parts = () if self.part is None else (self.part,)
                for piece in reader.read(ReadTask([self.target], parts, visible=self.visible)):
                    piece.complete = piece.complete and self.count == 1
                    yield piece


# Position of the rows of a snapshot that is read beside an older slot.
#
# The position must not be after any change that the rows lack. waltap reads the end of the WAL
# before the snapshot exists: later commits are after it, and earlier commits are visible. There
# is one exception: a commit is in the WAL before it is visible. A commit that waits for a
# synchronous standby can stay in that state for long, and be streamed meanwhile.
#
# Source: PostgreSQL, `CommitTransaction` (`RecordTransactionCommit`, which waits in
# `SyncRepWaitForLSN`; only then `ProcArrayEndTransaction`).

# Transactions that have not begun their commit: they wait for their client or for a lock.
OPEN_SQL: Final = """
SELECT backend_xid::text::int8 FROM pg_stat_activity
 WHERE backend_xid IS NOT NULL
   AND (state IN ('idle in transaction', 'idle in transaction (aborted)') OR wait_event_type = 'Lock')
"""


@dataclass(frozen=True, slots=True)
class AskedBefore:
    """Hold the server's position before a snapshot."""

    # The end of the WAL.
    lsn: int
    # Transactions that may have committed before ``lsn`` and not be visible: 32 bits of their ids.
    committing: frozenset[int]

    @classmethod
    def ask(cls, now: PostgresCatalogue) -> Self | None:
        """Read the position before the snapshot, None without a position."""
        if now.standby() or (lsn := now.wal_end()) is None:
            return None
        text = now.snapshot()
        running = SnapshotVisibility.of_snapshot(text).in_progress if text else frozenset()
        ids = frozenset(xid % XID_RANGE for xid in running)
        return cls(lsn, ids - {xid for (xid,) in now.query(OPEN_SQL)} if ids else ids)

    def position(self, seen: str, begin: int) -> int:
        """Return the position of the rows of a snapshot.

        ``seen`` is its visibility (`Offset.visible_in`), ``begin`` the start of the stream.
        """
        then = SnapshotVisibility.parse(seen) if self.committing else None
        if then is not None:
            running = then.in_progress
            if not self.committing.isdisjoint(xid % XID_RANGE for xid in running):
                # A commit may be before ``lsn`` and not in the snapshot; the stream has nothing
                # from before ``begin``.
                return min(self.lsn, begin)
        return self.lsn


class SnapshotReader:
    """Read the tables of one connector's snapshots.

    Order of calls for an initial snapshot: `lock`, `delay`, `begin`, then `pieces` or `chunks`;
    `close` at any time. `requested` reads a blocking snapshot in a transaction of its own. ``now``
    is a catalogue of the present; ``terms`` are the rules for reading tables.
    """

    def __init__(
        self,
        context: ConnectorContext,
        now: PostgresCatalogue,
        captured: Callable[[PostgresCatalogue], list[CatalogTable]],
        watching: ServerWaits,
        reading: type[ReadingTransaction],
        planner: type[SnapshotPlanner],
        terms: SnapshotOptions,
    ) -> None:
        """Keep the parts; ``captured`` returns a catalogue's captured tables."""
        self._properties, self._context, self._now = now.properties, context, now
        self._captured, self._reading = captured, reading
        self._new = partial(reading, now, watching)
        self._planner, self._terms = planner, terms
        self._transaction: ReadingTransaction | None = None
        self._exported = self._delayed = False
        self._asked: AskedBefore | None = None
        self._seen, self._beside = "", False
        self._statements: dict[str, str] = {}
        # With the policy "string", types of limited range are text.
        textual = context.capture.arrow_misfit == "string"
        self._typed_columns = context.typed_columns and not textual
        # Name of the exported snapshot, for connections that read in parallel.
        self._given: str | None = None
        self._requested: RequestedTables | None = None
        # OID → the planner's row count.
        self.estimates: dict[int, int] = {}

    def targets(self, captured: list[CatalogTable]) -> list[SnapshotTable]:
        """Return the captured tables that a snapshot reads, in order."""
        debezium, root = self._context.debezium, self._properties.publish_via_partition_root
        signals = self._context.capture.signal_table
        tables = [t for t in captured if t.relation.table_id != signals]
        if root:
            tables = [t for t in tables if not t.partition]
        elif not debezium:
            tables = [t for t in tables if not t.partitioned]
        # Debezium reads the rows of child tables with their parent too; the stream sends them under
        # the child's name alone.
        patterns = self._context.capture.table_include
        chosen = snapshot_tables(tables, self._properties, patterns)
        read = [table for table in chosen if self._terms.reads(table.relation)]
        return self._terms.targets(read, deep=debezium)

    def delay(self, pause: Callable[[float], object]) -> None:
        # Only once: the engine asks for pieces after it could not get chunks.
        if not self._delayed:
            pause(self._properties.snapshot_delay_ms / 1000)
            self._delayed = True

    def lock(self, captured: list[CatalogTable], *, exported: bool) -> None:
        """Lock the tables if the terms say so.

        Called before the snapshot exists; the locks last until it has been read. Raises:
        SourceError, SnapshotError.
        """
        targets = self.targets(captured)
        statements = self._terms.locks(targets)
        if statements:
            self._ask(exported=exported)
            self._opened().lock(statements, self._isolation(exported=exported), targets)

    def release_blocking_locks(self) -> None:
        # The slot waits for all open transactions, and one of them waits for these locks.
        if self._transaction is None or not self._transaction.blocks(self._now):
            return
        log.warning(
            "the slot waits for a transaction that waits for the snapshot's locks: they are given up",
            extra={"property": "snapshot.locking.mode"},
        )
        self.close()

    def continue_from(self, captured: list[CatalogTable], progress: SnapshotProgress | None) -> str:
        """Begin to read the parts that ``progress`` lacks.

        The exported snapshot no longer exists, so this locks and begins again. Return a message
        about the progress. Raises: SourceError.
        """
        assert progress is not None
        self.lock(captured, exported=True)
        self.begin(None, resumes=True)
        complete = sum(table.complete for table in progress.tables.values())
        begun = len(progress.tables) - complete
        return f"the snapshot resumes: {complete} of its tables are complete, {begun} have begun"

    def begin(self, exported: str | None, *, resumes: bool = False, beside: bool = False) -> None:
        """Begin in the exported snapshot, or in a new one.

        ``resumes``: continue a snapshot that broke off. ``beside``: the stream of an older slot
        also sends changes that the snapshot sees. Raises: SourceError.
        """
        self._exported, self._beside = exported is not None or resumes, beside
        self._ask(exported=self._exported)
        transaction = self._opened()
        transaction.begin(exported, self._isolation(exported=self._exported))
        if self._properties.snapshot_max_threads > 1:
            self._given = transaction.export() if self.steady else None
            if self._given is None:
                self._log_single_reader()
        self._seen = transaction.seen()

    def _ask(self, *, exported: bool) -> None:
        """Read the server's position before the snapshot exists."""
        if not exported and self._asked is None:
            self._asked = AskedBefore.ask(self._now)

    @property
    def steady(self) -> bool:
        return self._exported or self._terms.steady

    def _log_single_reader(self) -> None:
        """Log why only one connection can read the snapshot."""
        server = "a server that exports no snapshot"
        log.warning(
            "one connection reads the snapshot: %s leaves nothing for several to share",
            server if self.steady else "snapshot.isolation.mode",
            extra={"property": "snapshot.max.threads"},
        )

    def _opened(self) -> ReadingTransaction:
        if self._transaction is None:
            self._transaction = self._new()
        return self._transaction

    def _isolation(self, *, exported: bool) -> str:
        return ONE_SNAPSHOT if exported else self._terms.isolation

    def pieces(
        self, captured: list[CatalogTable], published_as: Sequence[str], start: StartPosition
    ) -> Iterator[SnapshotRows]:
        """Read the tables.

        ``captured`` are the tables before the publications ``published_as`` were created. Raises:
        SnapshotError, ConnectionLost.
        """
        transaction, point, works = self._prepared(captured, published_as, start)
        begun = start.offset.snapshot if start.resumes else None
        yield from set_markers(
            self._read(transaction, point, works),
            # If no chunk is durable, the sink gets every row, as in a new snapshot.
            every_row=begun is None
            or not any(each.done or each.complete for each in begun.tables.values()),
            continued={t.oid for work in works if work.resumed for t in work.targets},
        )
        self.close()

    def chunks(
        self, captured: list[CatalogTable], published_as: Sequence[str], start: StartPosition
    ) -> list[PostgresChunk]:
        """Return the work of `pieces` as chunks for other processes.

        Locks keep the tables unchanged until `close`. Raises: SnapshotError, SourceError;
        SourceLacks if the server exports no snapshot.
        """
        if self._given is None and self.steady:
            self._given = self._opened().export()
        if self._given is None:
            raise SourceLacks(
                "there is no snapshot to share: snapshot.isolation.mode, or the server, has none"
            )
        leader, point, works = self._prepared(captured, published_as, start, shared=True)
        held = leader.hold([target for work in works for target in work.targets])
        seen = leader.catalogue.snapshot()
        for target in (target for work in works for target in work.targets):
            shape = held.get(target.oid)
            if shape is None or not leader.unchanged(target, shape):
                name = target.table.relation.name
                overtaken(name, f"{name} was rewritten before it was read")
        return [
            PostgresChunk(
                properties=self._properties,
                catalogue=type(self._now),
                reading=self._reading,
                given=self._given,
                seen=seen,
                point=point,
                target=target,
                shape=leader.then[target.oid],
                part=part,
                visible=work.visible,
                count=max(1, len(work.parts)),
                statement=self._statements.get(target.table.relation.name),
            )
            for work in works
            for target in work.targets
            for part in work.parts or (None,)
        ]

    def _prepared(
        self,
        captured: list[CatalogTable],
        published_as: Sequence[str],
        start: StartPosition,
        *,
        shared: bool = False,
    ) -> tuple[ReadingTransaction, SnapshotPoint, list[ReadTask]]:
        transaction = self._opened()
        point = self._point(transaction, start)
        targets = self.targets(self._in_snapshot(transaction.catalogue, captured, published_as))
        self.estimates = {target.oid: target.table.estimate for target in targets}
        transaction.expect(targets)
        self._terms.before(targets)
        self._statements = self._terms.statements(targets)
        return transaction, point, self._works(transaction, targets, start, shared=shared)

    def _works(
        self,
        transaction: ReadingTransaction,
        targets: list[SnapshotTable],
        start: StartPosition,
        *,
        shared: bool,
    ) -> list[ReadTask]:
        """Return the tasks, first the tasks of an earlier run."""
        planner = self._planner(self._now)
        lasting = self._context.resumes_snapshot and start.stream and self.steady
        basis = self._seen if lasting else ""
        snapshot = start.offset.snapshot
        if not start.resumes or snapshot is None:
            return planner.plan(
                transaction,
                targets,
                basis=basis,
                visible=self._seen if self._beside else "",
                chosen=self._statements,
                shared=shared,
            )
        works, again = resume(
            transaction,
            self._now,
            targets,
            snapshot.tables,
            seen=self._seen,
            chosen=self._statements,
            restarts=self._context.restarts_tables,
        )
        fresh = [t for t in targets if str(t.oid) not in snapshot.tables]
        for some, restarts in ((again, True), (fresh, False)):
            works += planner.plan(
                transaction,
                some,
                basis=self._seen,
                visible=self._seen,
                chosen=self._statements,
                restarts=restarts,
            )
        return works

    def _read(
        self, leader: ReadingTransaction, point: SnapshotPoint, works: Sequence[ReadTask]
    ) -> Iterator[SnapshotRows]:
        """Yield the rows of the tasks, read by one or more connections."""
        threads = self._properties.snapshot_max_threads
        if self._given is not None and threads > 1:
            opened = partial(self._follower, leader, point, threads)
            reading = ParallelReading(works, threads, opened, self._context.stopping)
            with closing(reading.pieces()) as pieces:
                yield from pieces
            return
        reader = TablesReader(
            leader, point, self._new, statements=self._statements, typed_columns=self._typed_columns
        )
        for work in works:
            for piece in reader.read(work):
                work.arrived(piece)
                yield piece

    @contextmanager
    def _follower(
        self,
        leader: ReadingTransaction,
        point: SnapshotPoint,
        threads: int,
        ends: Callable[[], bool],
    ) -> Iterator[TablesReader]:
        assert self._given is not None
        new = partial(self._reading, self._now, watch(self._properties, ends))
        transaction = new()
        try:
            transaction.join(self._given, leader.catalogue.snapshot(), leader.then)
            yield TablesReader(
                transaction,
                point,
                new,
                connections=threads,
                statements=self._statements,
                typed_columns=self._typed_columns,
            )
        finally:
            transaction.close()

    def _in_snapshot(
        self, then: PostgresCatalogue, captured: list[CatalogTable], published_as: Sequence[str]
    ) -> list[CatalogTable]:
        """Return the captured tables as the snapshot has them."""
        # A table created after the publication is included only if the publication covers it: no
        # other source has its first rows.
        known = {table.relation.oid for table in captured}
        tables = self._captured(then)
        if not published_as or all(table.relation.oid in known for table in tables):
            return tables
        covered = published_by_any(self._now, published_as)
        return [t for t in tables if t.relation.oid in known or t.relation.table_id in covered]

    def _point(self, transaction: ReadingTransaction, start: StartPosition) -> SnapshotPoint:
        """Return the position of the snapshot's rows.

        It is not after any change that the rows lack. A standby has no transaction id.
        """
        lsn = start.offset.sole.position.end_lsn
        # The id belongs to the catalogue's connection and ends at once. An id of the reading
        # transaction would hold back every slot on the server until the snapshot is over.
        xid = None if self._now.standby() else self._now.transaction_id()
        if self._asked is not None:
            lsn = self._asked.position(self._seen, lsn) if start.stream else self._asked.lsn
        return SnapshotPoint(ts=transaction.timestamp(), xid=xid, lsn=lsn)

    # --- blocking snapshots ---------------------------------------------------------------------

    def requested(
        self, requests: Sequence[SnapshotRequest], refused: Refused
    ) -> RequestedTables | None:
        """Open a snapshot of a signal's tables.

        Return and raise as `TableReadingSource.read_tables`.
        """
        asked = {(request.schema, request.table): request for request in requests}
        if self._requested is not None:
            self._requested.close()
        tables = self._requested = RequestedTables(
            self._new(), asked, refused, self._now, self._terms
        )
        begun = False
        try:
            begun = tables.begin(partial(self._requested_targets, asked, refused))
        finally:
            if not begun:
                tables.close()
        return tables if begun else None

    def _requested_targets(
        self, asked: dict[TableId, SnapshotRequest], refused: Refused, catalogue: PostgresCatalogue
    ) -> list[SnapshotTable]:
        """Return the catalogue's tables in the order of an initial snapshot."""
        found: list[CatalogTable] = []
        for table_id, request in asked.items():
            table = catalogue.table(*table_id)
            if table is None:
                refused(request, "no such table is captured")
            else:
                found.append(table)
        ordered = in_order(found, self._context.capture.table_include)
        return self._terms.targets(ordered, deep=self._context.debezium)

    def close(self) -> None:
        self._delayed, self._asked = False, None
        if self._requested is not None:
            self._requested.close()
            self._requested = None
        if self._transaction is not None:
            self._transaction.close()
            self._transaction = self._given = None
