"""Rows of a blocking snapshot, read while the stream waits."""

from collections.abc import Callable, Iterator, Sequence

from waltap.errors import RetryVerdict, SnapshotError, SourceError
from waltap.signals.signal import SnapshotRequest
from waltap.source.connector import ConnectorContext
from waltap.transactions.transaction import SnapshotRows
from waltap_postgres.catalog.catalogue import CatalogTable, PostgresCatalogue
from waltap_postgres.errors import QueryCancelled
from waltap_postgres.properties import PostgresProperties
from waltap_postgres.snapshot.condition import ConditionCheck, take_role
from waltap_postgres.snapshot.options import SnapshotOptions
from waltap_postgres.snapshot.plan import ReadTask
from waltap_postgres.snapshot.reader import SnapshotPoint, TablesReader, in_order, mark
from waltap_postgres.snapshot.transaction import ReadingTransaction, SnapshotTable
from waltap_postgres.waiting import ServerWaits

__all__ = ["BlockingRead"]

Refused = Callable[[SnapshotRequest, str], None]


class BlockingRead:
    """Read the tables of one signal in one transaction.

    A table that cannot be read is reported and skipped.
    """

    def __init__(
        self,
        properties: PostgresProperties,
        context: ConnectorContext,
        now: PostgresCatalogue,
        watch: ServerWaits,
        reading: type[ReadingTransaction],
        terms: SnapshotOptions,
    ) -> None:
        self._properties, self._context, self._now = properties, context, now
        self._watch, self._reading, self._terms = watch, reading, terms

    def pieces(
        self, requests: Sequence[SnapshotRequest], refused: Refused
    ) -> Iterator[SnapshotRows]:
        """Yield the rows with the markers of a snapshot.

        Raises: as `Connector.read_tables`.
        """
        asked = {(request.schema, request.table): request for request in requests}
        transaction = self._new()
        try:
            targets = self._targets(asked, refused)
            isolation = self._terms.isolation
            if locks := self._terms.locks(targets):
                transaction.lock(locks, isolation)
            transaction.begin(None, isolation)
            ((ts,),) = transaction.session.execute(
                "SELECT (extract(epoch FROM transaction_timestamp()) * 1000000)::int8::text"
            )
            point = SnapshotPoint(lsn=0, xid=None, ts=int(ts or 0))
            for piece in mark(self._read(transaction, targets, asked, point, refused)):
                piece.visible = ""  # nothing is left out of the stream
                yield piece
        finally:
            transaction.close()

    def _new(self) -> ReadingTransaction:
        return self._reading(self._properties, self._now, self._watch)

    def _targets(
        self, asked: dict[tuple[str, str], SnapshotRequest], refused: Refused
    ) -> list[SnapshotTable]:
        """Return the present tables in the order of an initial snapshot."""
        found: list[CatalogTable] = []
        for place, request in asked.items():
            table = self._now.table(*place)
            if table is None:
                refused(request, "no such table is captured")
            else:
                found.append(table)
        ordered = in_order(found, self._context.capture.table_include)
        return self._terms.targets(ordered, deep=self._context.debezium)

    def _read(
        self,
        transaction: ReadingTransaction,
        targets: list[SnapshotTable],
        asked: dict[tuple[str, str], SnapshotRequest],
        point: SnapshotPoint,
        refused: Refused,
    ) -> Iterator[SnapshotRows]:
        for target in targets:
            relation = target.table.relation
            request = asked[relation.schema, relation.table]
            statement = (request.condition or "").strip().rstrip(";")
            limit_ms = self._properties.condition_timeout_ms if statement else 0
            # The savepoint keeps an error of one table from ending the transaction.
            transaction.session.execute("SAVEPOINT waltap_asked")
            try:
                if statement:
                    transaction.session.execute(f"SET LOCAL statement_timeout = {limit_ms}")
                    session = transaction.session
                    ConditionCheck(
                        relation.schema,
                        relation.table,
                        relation.oid,
                        session.parsed,
                        self._now.query,
                    ).statement(statement)
                    statement = target.selected(statement)
                    take_role(session, self._properties)
                transaction.expect([target])
                chosen = statement or self._terms.chosen(target)
                reader = TablesReader(
                    transaction,
                    point,
                    self._properties,
                    self._new,
                    statements={relation.name: chosen} if chosen else {},
                    users_path=not statement,
                    before_stream=False,
                )
                yield from reader.read(ReadTask([target]))
            except QueryCancelled as error:
                if not statement:
                    raise
                why = f"{error.problem}; waltap.signal.condition.timeout.ms is {limit_ms}"
                refused(request, why)
            except (SourceError, SnapshotError) as error:
                if error.retry is not RetryVerdict.NEVER:
                    raise
                refused(request, error.problem)
            transaction.session.execute("ROLLBACK TO SAVEPOINT waltap_asked")
