"""Chunks of a table in key order, for incremental snapshots.

Nulls come last, as in an index. A signal's filter is checked first (condition.py), and then runs
read-only and with a time limit.
"""

import logging
import time
from collections.abc import Mapping, Sequence

import psycopg
from psycopg import sql

from waltap.base.text import sql_name
from waltap.changes.decode.relation import Column, Relation
from waltap.changes.decode.tuple_image import Tuple
from waltap.errors import ConnectionLost, RetryVerdict, SourceError
from waltap.ports.signals.signal import SnapshotRequest
from waltap.ports.snapshot.chunk_source import NamedTable, ReadChunk
from waltap.ports.source.connector import ConnectorContext
from waltap.ports.source.published import EVERYTHING, PublishedSubset
from waltap_postgres.catalog.bounds import after_sql, bounded, one_of_sql, up_to_sql
from waltap_postgres.catalog.catalogue import LOCK_MS, CatalogTable, PostgresCatalogue, TableId
from waltap_postgres.connection import PostgresSession, driver_error
from waltap_postgres.errors import ConditionRefused, QueryCancelled, TableLocked
from waltap_postgres.replication.publications import PublicationSet
from waltap_postgres.replication.transport import copy_out
from waltap_postgres.snapshot.condition import ConditionCheck, take_role
from waltap_postgres.snapshot.copy_pieces import copy_rows
from waltap_postgres.snapshot.transaction import ONE_SNAPSHOT, CatalogShape, shapes
from waltap_postgres.visibility import SnapshotVisibility
from waltap_postgres.waiting import ServerWaits

log = logging.getLogger(__name__)

# The first server with FETCH FIRST … WITH TIES.
WITH_TIES = 130000

# Seconds without a try after a lock.
LOCK_REST_S = 1.0


class PostgresChunks:
    """Read chunks over a separate connection, and write watermarks."""

    def __init__(
        self,
        catalogue: PostgresCatalogue,
        context: ConnectorContext,
        publications: PublicationSet,
        watch: ServerWaits,
        signal_table: TableId | None,
    ) -> None:
        self._publications, self._watch = publications, watch
        self._published: dict[TableId, PublishedSubset] = {}
        # Read a table with its children, and a partitioned table by its own name; the stream sends
        # such rows under the child's name.
        self._debezium = context.debezium
        # The stream knows tables by their names only.
        self._by_name = not context.decoder.capabilities.relation_messages
        self._described: dict[TableId, CatalogTable] = {}
        self._catalogue, self._properties = catalogue, catalogue.properties
        self._captures = context.captures
        self._checked: set[SnapshotRequest] = set()
        self._signal: str | None = None
        if signal_table is not None:
            self._signal = sql_name(*signal_table)
            found = catalogue.relation(*signal_table)
            self._signal_columns = (
                [sql_name(c.name) for c in found.columns[:3]] if found else ["id", "type", "data"]
            )
        self._session: PostgresSession | None = None
        # The table that the last read found locked, and whether it is too early for the next try.
        self._locked: Relation | None = None
        self._locked_until, self._rests = 0.0, False
        self._no_mark_until = 0.0

    def known_tables(self) -> dict[TableId, list[NamedTable]]:
        if self._debezium:
            names = self._catalogue.names()
            return {each.table_id: [each] for each in names if self._captures(*each.table_id)}
        via_root = self._properties.publish_via_partition_root
        return {
            name: [table for table in tables if self._captures(*table.table_id)]
            for name, tables in self._catalogue.streamed(via_root=via_root).items()
            if self._captures(*name)
        }

    def table(self, request: SnapshotRequest) -> Relation | None:
        named, locked = (request.schema, request.table), self._locked
        self._rests = time.monotonic() < self._locked_until
        if self._rests and locked is not None and named == locked.table_id:
            return locked  # describing it may wait for the lock, too
        found = self._catalogue.table_of(request.oid) if request.oid else None
        if found is None or not self._captures(*found.relation.table_id):
            found = self._catalogue.table(*named)
        if found is None or not self._captures(*found.relation.table_id):
            return None
        relation, table_id = found.relation, found.relation.table_id
        try:
            with self._catalogue.brief_locks():
                published = self._publications.narrowed().get(table_id, EVERYTHING)
            relation = published.of(relation)
            if request.condition and request not in self._checked:
                self._check(relation, request.condition)
                self._checked.add(request)
        except TableLocked:
            self._rest(relation)
            return relation
        self._described[table_id], self._published[table_id] = found, published
        return relation

    def maximum(
        self, request: SnapshotRequest, relation: Relation, key: tuple[int, ...]
    ) -> ReadChunk:
        if not self.readable(request):
            return ReadChunk([], None, locked=True)
        order = ", ".join(f"{sql_name(relation.columns[i].name)} DESC" for i in key)
        return self.read(request, relation, f"{where_sql([], request)} ORDER BY {order} LIMIT 1")

    def chunk(
        self,
        request: SnapshotRequest,
        relation: Relation,
        key: tuple[int, ...],
        *,
        after: Tuple | None,
        maximum: Tuple,
        limit: int,
        order: Sequence[int] = (),
    ) -> ReadChunk:
        assert not order, "maximum gives none"
        chosen = [relation.columns[i] for i in key]
        columns = [bounded(column) for column in chosen]
        terms = [up_to_sql(columns, maximum)]
        if after is not None:
            terms.insert(0, after_sql(columns, after))
        ordered = ", ".join(column.quoted for column in columns)
        cut = f"LIMIT {limit}"
        # The next chunk begins after the last key, so rows that share it must be in this chunk.
        if not self._unique(relation, chosen):
            if self._catalogue.version_num >= WITH_TIES:
                cut = f"FETCH FIRST {limit} ROWS WITH TIES"
            else:
                tail = f"{where_sql(terms, request)} ORDER BY {ordered} OFFSET {limit - 1} LIMIT 1"
                last = self.read(request, relation, tail)
                if last.locked:
                    return last
                terms += [up_to_sql(columns, tuple(row[i] for i in key)) for row in last.rows]
                cut = ""
        tail = f"{where_sql(terms, request)} ORDER BY {ordered} {cut}"
        return self.read(request, relation, tail)

    def _unique(self, relation: Relation, key: Sequence[Column]) -> bool:
        """Return whether no two rows can share the ``key``."""
        # The relation's key may be a partial index's, and children may repeat their parent's keys.
        table = self._described.get(relation.table_id)
        if table is None or (self._debezium and not table.partitioned):
            return False
        return tuple(column.name for column in key) == table.primary_key

    def rows(
        self,
        request: SnapshotRequest,
        relation: Relation,
        key: tuple[int, ...],
        keys: Sequence[Tuple],
    ) -> ReadChunk:
        columns = [bounded(relation.columns[i]) for i in key]
        return self.read(request, relation, where_sql([one_of_sql(columns, keys)], request))

    def watermark(self, identifier: str, kind: str, data: str) -> bool:
        if time.monotonic() < self._no_mark_until:
            return False
        columns = self._signal_columns
        if kind:
            values = ", ".join(map(sql.quote, (identifier, kind, data)))
            change = f"INSERT INTO {self._signal} ({', '.join(columns)}) VALUES ({values})"
        else:
            change = f"DELETE FROM {self._signal} WHERE {columns[0]} = {sql.quote(identifier)}"
        try:
            # One transaction, and one answer to wait for.
            self._catalogue.connection.execute(
                f"SET LOCAL lock_timeout = {LOCK_MS}; {change}".encode()
            )
        except psycopg.errors.LockNotAvailable:
            if not self._no_mark_until:
                log.warning(
                    "incremental snapshot: it waits, since another session locks %s", self._signal
                )
            self._no_mark_until = time.monotonic() + LOCK_REST_S
            return False
        except psycopg.Error as error:
            raise driver_error(error, self._properties) from error
        self._no_mark_until = 0.0
        return True

    def advance_wal(self) -> None:
        # The commit of a transaction that has an id and wrote nothing wakes the WAL writer. The
        # writer may sleep for seconds over WAL of a reading query, which prunes pages.
        if not self._catalogue.standby():
            self._catalogue.transaction_id()

    def _check(self, relation: Relation, condition: str) -> None:
        """Check a condition for a query. Raises: SourceError."""
        limit_ms = self._properties.condition_timeout_ms
        session = self._begun(limit_ms)
        try:
            self._check_condition(session, relation, condition)
        except QueryCancelled as error:
            raise self._took_too_long(error, limit_ms) from error
        finally:
            self.close()

    def _check_condition(
        self, session: PostgresSession, relation: Relation, condition: str
    ) -> None:
        ConditionCheck(relation, session.parsed, self._catalogue.query).condition(
            sql_name(relation.schema, relation.table), condition
        )

    @staticmethod
    def _took_too_long(error: ConnectionLost, limit_ms: int) -> SourceError:
        return ConditionRefused(
            f"{error.problem}; waltap.signal.condition.timeout.ms is {limit_ms}"
        )

    def readable(self, request: SnapshotRequest) -> bool:
        """Return whether a table may be read already. Raises: SourceError, OffsetError."""
        return not self._publications.wait_s((request.schema, request.table))

    def read(self, request: SnapshotRequest, relation: Relation, tail: str) -> ReadChunk:
        """Return a SELECT's rows, with ``tail``. Raises: SourceError."""
        if self._rests:
            return ReadChunk([], None, locked=True)
        try:
            chunk = self._read_at_once(request, relation, tail)
        except TableLocked:
            self._rest(relation)
            return ReadChunk([], None, locked=True)
        self._locked = None
        return chunk

    def _rest(self, locked: Relation) -> None:
        """Read nothing for `LOCK_REST_S`, since another session locks a table."""
        self._rests, self._locked_until = True, time.monotonic() + LOCK_REST_S
        if self._locked is None or self._locked.name != locked.name:
            log.warning(
                "incremental snapshot: another session locks %s; it is read after the lock",
                locked.name,
            )
        self._locked = locked

    def _read_at_once(self, request: SnapshotRequest, relation: Relation, tail: str) -> ReadChunk:
        names = ", ".join(sql_name(c.name) for c in relation.columns)
        table = sql_name(relation.schema, relation.table)
        alias = sql_name(relation.table)
        described = self._described.get(relation.table_id)
        deep = self._debezium or (described is not None and described.partitioned)
        published = self._published.get(relation.table_id, EVERYTHING)
        # The planner pulls the subquery up, and ``tail`` needs no change.
        if published.rows:
            table = f"(SELECT * FROM {'' if deep else 'ONLY '}{table}{published.where()}) {alias}"
            deep = True
        query = f"COPY (SELECT {names} FROM {'' if deep else 'ONLY '}{table}{tail}) TO STDOUT"
        limit_ms = self._properties.condition_timeout_ms if request.condition else 0
        try:
            session = self._begun(limit_ms)
            seen = self._catalogue.on(session.connection)
            text = seen.snapshot()
            until = None if self._signal is not None else seen.visible_until()
            if request.condition:  # check again: its columns may have other types by now
                self._check_condition(session, relation, request.condition)
                take_role(session)
            pieces = copy_rows(copy_out(session, query), len(relation.columns))
            rows = [row for rows in pieces for row in rows]
            # A table that was rewritten between the snapshot and the read looks empty. The read
            # locked it, so its files cannot change now.
            unchanged = self._is_described(relation, shapes(seen, {relation.oid: True}))
            named = seen.name_version(relation.oid) if self._by_name else None
            session.execute("COMMIT")
        except QueryCancelled as error:
            self.close()
            raise self._took_too_long(error, limit_ms) from error
        except SourceError as error:
            self.close()
            if error.retry is not RetryVerdict.NEVER or self._is_described(relation):
                raise
            unchanged = False
        if not unchanged:
            return ReadChunk([], None, locked=True)
        if until is not None and until[1]:
            text = None  # a standby does not know which transactions are in progress
        return ReadChunk(
            rows,
            None if text is None else SnapshotVisibility.of_snapshot(text).saw,
            None if until is None else until[0],
            keeps_name=None
            if named is None
            else lambda: self._catalogue.name_version(relation.oid) == named,
        )

    def _is_described(
        self, relation: Relation, then: Mapping[int, CatalogShape] | None = None
    ) -> bool:
        """Return whether ``relation`` and the files of ``then`` are up to date."""
        now = shapes(self._catalogue, {relation.oid: True}).get(relation.oid)
        if now is None or (now.schema, now.table) != relation.table_id:
            return False
        if any(
            now.columns.get(column.number or 0) != (column.name, column.type_oid)
            for column in relation.columns
        ):
            return False
        read = now if then is None else then.get(relation.oid)
        return read is not None and read.files == now.files

    def _begun(self, limit_ms: int) -> PostgresSession:
        """Return the reading session in a read-only transaction.

        A statement may take ``limit_ms``, 0 for no limit, and wait `LOCK_MS` for a lock.
        """
        if self._session is None:
            self._session = PostgresSession(
                self._properties, role="incremental snapshot", watch=self._watch
            )
            # A policy that hides rows must fail the read, not shorten it.
            self._session.execute("SET row_security = off")
        self._session.execute(
            f"BEGIN ISOLATION LEVEL {ONE_SNAPSHOT}; SET LOCAL statement_timeout = {limit_ms};"
            f" SET LOCAL lock_timeout = {LOCK_MS}"
        )
        return self._session

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None


def where_sql(terms: list[str], request: SnapshotRequest) -> str:
    """Return the WHERE of ``terms`` and the signal's condition."""
    # The line break ends a comment that the condition may end in.
    parts = [*terms, f"({request.condition}\n)"] if request.condition else terms
    return f" WHERE {' AND '.join(parts)}" if parts else ""
