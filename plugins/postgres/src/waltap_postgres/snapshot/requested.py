"""Read the tables of a blocking snapshot."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from waltap.changes.decode.relation import Relation
from waltap.changes.transactions.transaction import SnapshotRows
from waltap.errors import RetryVerdict, SnapshotError, SourceError
from waltap.ports.signals.signal import SnapshotRequest
from waltap_postgres.catalog.catalogue import LOCK_MS, PostgresCatalogue, TableId
from waltap_postgres.errors import QueryCancelled, SnapshotLockRefused, TableLocked
from waltap_postgres.snapshot.condition import ConditionCheck, take_role
from waltap_postgres.snapshot.options import SnapshotOptions
from waltap_postgres.snapshot.plan import ReadTask
from waltap_postgres.snapshot.tables_reader import (
    SnapshotPoint,
    TablesReader,
    failed,
    overtaken,
    set_markers,
)
from waltap_postgres.snapshot.transaction import ONE_SNAPSHOT, ReadingTransaction, SnapshotTable
from waltap_postgres.visibility import SnapshotVisibility, standby_saw

Refused = Callable[[SnapshotRequest, str], None]


class RequestedTables:
    """Tables of a signal in a transaction of their own, as `TableReading`.

    ``asked`` has the requests by schema and table. ``now`` is a catalogue of the present; ``terms`` are
    the rules for reading tables.
    """

    def __init__(
        self,
        transaction: ReadingTransaction,
        asked: Mapping[TableId, SnapshotRequest],
        refused: Refused,
        now: PostgresCatalogue,
        terms: SnapshotOptions,
    ) -> None:
        self._transaction, self._asked, self._refused = transaction, asked, refused
        self._now, self._terms = now, terms
        self._targets: list[SnapshotTable] = []
        self._point = SnapshotPoint(lsn=0, xid=None, ts=0)
        self._seen: SnapshotVisibility | None = None
        self.relations: Mapping[str, Relation] = {}
        self.until: int | None = None

    def begin(self, targets_in: Callable[[PostgresCatalogue], list[SnapshotTable]]) -> bool:
        """Open the snapshot and lock its tables.

        ``targets_in`` returns the requested tables of a catalogue. Return False if another session locks
        one of them, or has rewritten it in between: the snapshot would find it empty. Raises: SourceError,
        SnapshotError.
        """
        try:
            return self._begin(targets_in)
        except TableLocked:
            return False
        except SnapshotLockRefused as error:
            if isinstance(error.__cause__, TableLocked):
                return False
            raise

    def _begin(self, targets_in: Callable[[PostgresCatalogue], list[SnapshotTable]]) -> bool:
        """Begin as `begin`. Raises: TableLocked, also as the cause of SnapshotLockRefused."""
        transaction = self._transaction
        # `until` is of one snapshot, so the rows must be, too.
        isolation = self._terms.isolation if self._terms.steady else ONE_SNAPSHOT
        with self._now.brief_locks():  # row filters are read there
            present = targets_in(self._now)
        if locks := self._terms.locks(present):
            transaction.lock(locks, isolation, present, timeout_ms=LOCK_MS)
        transaction.begin(None, isolation)
        self._point = SnapshotPoint(lsn=0, xid=None, ts=transaction.timestamp())
        text, until = transaction.catalogue.snapshot(), transaction.catalogue.visible_until()
        if text is not None and until is not None:
            self.until = until[0]
            self._seen = None if transaction.replayed else SnapshotVisibility.of_snapshot(text)
        transaction.session.execute(f"SET LOCAL lock_timeout = {LOCK_MS}")
        # A column may have come or gone since.
        with self._now.brief_locks():
            targets = targets_in(transaction.catalogue)
        for target in targets:
            try:
                transaction.expect([target])
                shape = transaction.hold([target]).get(target.oid)
            except SourceError as error:
                if error.retry is not RetryVerdict.NEVER or isinstance(error, TableLocked):
                    raise
                transaction.release_tables()
                request = self._asked[target.table.relation.table_id]
                self._refused(request, failed(target, error).problem)
                continue
            if shape is None or not transaction.unchanged(target, shape):
                return False
            self._targets.append(target)
        self.relations = {t.table.relation.name: t.table.relation for t in self._targets}
        transaction.session.execute("SET LOCAL lock_timeout TO DEFAULT")
        return True

    def saw(self, xid: int, commit_lsn: int) -> bool | None:
        """Return whether the snapshot contains a transaction, as `TableReading.saw`."""
        if self._seen is None:
            return standby_saw(commit_lsn, self._transaction.replayed)
        return self._seen.saw(xid)

    def pieces(self) -> Iterator[SnapshotRows]:
        """Yield the rows; report and skip unreadable tables."""
        for piece in set_markers(self._read()):
            piece.visible = ""  # nothing is left out of the stream
            yield piece

    def _read(self) -> Iterator[SnapshotRows]:
        transaction = self._transaction
        session = transaction.session
        for target in self._targets:
            relation = target.table.relation
            request = self._asked[relation.table_id]
            statement = (request.condition or "").strip().rstrip(";")
            limit_ms = self._now.properties.condition_timeout_ms if statement else 0
            # The savepoint keeps an error of one table from ending the transaction.
            session.execute("SAVEPOINT waltap_asked")
            try:
                if statement:
                    session.execute(f"SET LOCAL statement_timeout = {limit_ms}")
                    ConditionCheck(relation, session.parsed, self._now.query).statement(statement)
                    statement = target.selected(statement)
                    take_role(session)
                chosen = statement or self._terms.chosen(target)
                # Readers' locks do not stop ATTACH PARTITION. The next connection takes the
                # snapshot again.
                changed = f"a partition of {relation.name} came or went before it was read"
                reader = TablesReader(
                    transaction,
                    self._point,
                    partial(overtaken, relation.name, changed),
                    statements={relation.name: chosen} if chosen else {},
                    users_path=not statement,
                )
                yield from reader.read(ReadTask([target]))
            except QueryCancelled as error:
                if not statement:
                    raise
                why = f"{error.problem}; waltap.signal.condition.timeout.ms is {limit_ms}"
                self._refused(request, why)
            except (SourceError, SnapshotError) as error:
                if error.retry is not RetryVerdict.NEVER:
                    raise
                self._refused(request, error.problem)
            session.execute("ROLLBACK TO SAVEPOINT waltap_asked")

    def close(self) -> None:
        self._transaction.close()
