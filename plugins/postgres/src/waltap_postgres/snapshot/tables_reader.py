"""Read tables in one snapshot by COPY, with Debezium's order and markers."""

import logging
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import NoReturn

from waltap.base.text import sql_name
from waltap.changes.capture.java_regex import java_pattern
from waltap.changes.decode.relation import Relation
from waltap.changes.decode.tuple_image import Tuple
from waltap.changes.transactions.transaction import SnapshotRows
from waltap.errors import RetryVerdict, SnapshotError, SourceError
from waltap.ports.source.session import PINNED_AGAIN, USERS_PATH
from waltap_postgres.catalog.catalogue import CatalogTable
from waltap_postgres.connection import PostgresSession
from waltap_postgres.errors import (
    SnapshotReadFailed,
    SnapshotSelectNarrow,
    SnapshotTooOld,
    TableOvertaken,
)
from waltap_postgres.properties import PostgresProperties
from waltap_postgres.snapshot.binary_copy import field_readers
from waltap_postgres.snapshot.copy_pieces import LOADING_ROWS, copy_pieces, reordered
from waltap_postgres.snapshot.plan import ReadTask, TableSplit, TableSplits
from waltap_postgres.snapshot.transaction import (
    ONE_SNAPSHOT,
    CatalogShape,
    ReadingTransaction,
    SnapshotTable,
)

log = logging.getLogger(__name__)


MOST_TRIES = 20
# SQLSTATEs: lock timeout; snapshot too old; undefined column.
LOCKED = "55P03"
TOO_OLD = "72000"
NO_COLUMN = "42703"


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotPoint:
    """Hold a snapshot's position in the server's history."""

    lsn: int
    xid: int | None
    # µs since 1970 UTC.
    ts: int


def snapshot_tables(
    captured: list[CatalogTable], properties: PostgresProperties, patterns: tuple[str, ...]
) -> list[CatalogTable]:
    """Return the tables that a snapshot reads, in order.

    ``patterns`` is ``table.include.list``.
    """
    wanted = [java_pattern(p) for p in properties.snapshot_include_collection_list]
    chosen = [
        t for t in captured if not wanted or any(w.fullmatch(t.relation.name) for w in wanted)
    ]
    return in_order(chosen, patterns)


def in_order(tables: list[CatalogTable], patterns: tuple[str, ...]) -> list[CatalogTable]:
    """Sort by the first matching include pattern, then name."""
    compiled = [java_pattern(p) for p in patterns]

    def rank(table: CatalogTable) -> tuple[int, str]:
        name = table.relation.name
        indexes = (n for n, pattern in enumerate(compiled) if pattern.fullmatch(name))
        return next(indexes, len(compiled)), name

    return sorted(tables, key=rank)


# Rows that several connections together prepare: it bounds memory whatever their number.
ROWS_AHEAD = 16_384


class TablesReader:
    """Read tables in one transaction, or in later ones if it cannot.

    ``later`` opens a transaction that has not begun. Rows of a later transaction contain changes
    that the stream sends as well; their pieces say which (`SnapshotRows.visible`).
    """

    def __init__(
        self,
        transaction: ReadingTransaction,
        point: SnapshotPoint,
        later: Callable[[], ReadingTransaction],
        *,
        connections: int = 1,
        statements: Mapping[str, str] | None = None,
        users_path: bool = True,
        typed_columns: bool = False,
    ) -> None:
        """Keep the transaction and the rules for reading.

        ``connections`` read at the same time. ``statements`` are SELECTs by schema.table; with
        ``users_path`` their names resolve as in a session of the user, else in ``pg_catalog``
        alone.
        ``typed_columns``: the caller reads columns as values of their Arrow types.
        """
        self._transaction, self._point, self._later = transaction, point, later
        self._connections = connections
        self._rows_together = transaction.properties.snapshot_fetch_size
        if connections > 1:
            self._rows_together = max(1, min(self._rows_together, ROWS_AHEAD // connections))
        self._statements, self._users_path = statements or {}, users_path
        self._typed_columns = typed_columns

    def read(self, work: ReadTask) -> Generator[SnapshotRows]:
        """Yield the rows of a task without markers.

        Raises: SnapshotReadFailed, TableOvertaken, ConnectionLost.
        """
        yield from self._parts(work) if work.parts else self._group(work, work.targets)

    def _parts(self, work: ReadTask) -> Iterator[SnapshotRows]:
        (target,) = work.targets
        transaction = self._transaction
        with explained(target):
            shape = transaction.hold([target]).get(target.oid)
        if shape is not None and transaction.unchanged(target, shape):
            while (part := work.take()) is not None:
                yield from self._rows(transaction, target, shape, work.visible, part)
            transaction.release_tables()
            return
        transaction.release_tables()
        # The table has changed since the snapshot: one reader reads it whole in a later snapshot.
        if work.take_all():
            yield from self._read_again(target, work)

    def _group(self, work: ReadTask, group: Sequence[SnapshotTable]) -> Iterator[SnapshotRows]:
        transaction = self._transaction
        try:
            held = transaction.hold(group)
        except SourceError as error:
            if error.retry is not RetryVerdict.NEVER:
                raise
            if len(group) == 1:
                raise failed(group[0], error) from error
            # The error does not name its table, so try each one alone.
            transaction.release_tables()
            for target in group:
                yield from self._group(work, [target])
            return
        changed = []
        for target in group:
            shape = held.get(target.oid)
            if shape is None or not transaction.unchanged(target, shape):
                changed.append(target)
            else:
                yield from self._rows(transaction, target, shape, work.visible)
        # Release the lock first: a session that waits for it would block the next transaction.
        transaction.release_tables()
        for target in changed:
            yield from self._read_again(target, work)

    def _read_again(self, target: SnapshotTable, work: ReadTask) -> Iterator[SnapshotRows]:
        """Read a changed table in a later snapshot."""
        name = target.table.relation.name
        for _ in range(MOST_TRIES):
            with closing(self._later()) as transaction, explained(target):
                transaction.begin(None, ONE_SNAPSHOT)
                visible = transaction.seen()
                table = transaction.catalogue.table_of(target.oid)
                if table is None:
                    log.warning(
                        "table %s was dropped before the snapshot came to it: its rows are not read",
                        name,
                        extra={"table": name, "error_code": TableOvertaken.code},
                    )
                    yield self._piece(target.table.relation, [], complete=True)
                    return
                if table.relation.name != name:
                    now = table.relation.name
                    overtaken(name, f"{name} was rewritten and became {now} before it was read")
                target = SnapshotTable.of(table, target.published, deep=target.deep)
                transaction.expect([target])
                shape = transaction.hold([target]).get(target.oid)
                if shape is None or not transaction.unchanged(target, shape):
                    continue  # it was changed again
                log.warning(
                    "table %s was rewritten before the snapshot came to it: it is read as of now, and"
                    " changes up to now that its rows contain are left out of the stream",
                    name,
                    extra={"table": name, "error_code": TableOvertaken.code},
                )
                # The stream of a table from an earlier run leaves out only the same changes as
                # before: the sink may have rows that no longer exist.
                pieces = self._rows(
                    transaction, target, shape, work.visible if work.begun else visible
                )
                for number, piece in enumerate(pieces):
                    if not number and work.resumable:  # the table's new beginning
                        plan = TableSplits(basis=visible, files=shape.files, all_rows=work.begun)
                        piece.begins = {str(target.oid): plan.chunks()}
                    yield piece
            return
        overtaken(name, f"{name} is rewritten again and again")

    def _rows(
        self,
        transaction: ReadingTransaction,
        target: SnapshotTable,
        shape: CatalogShape,
        visible: str = "",
        part: TableSplit | None = None,
    ) -> Iterator[SnapshotRows]:
        chunk = 0 if part is None else part.index
        relation, size = target.table.relation, self._rows_together
        session = transaction.session
        own_path = self._users_path and relation.name in self._statements
        with explained(target):
            if own_path:
                session.execute(USERS_PATH)
            width, sql, indexes = _select(session, target, shape, self._statements)
            clause = "" if part is None else part.where(shape)
            sql += target.published.where(clause) if indexes is None else clause
            # One piece is held back, because the last one completes the table.
            held: Sequence[Tuple] | None = None
            # A statement of the user's may return other types than the table has.
            large = self._typed_columns and target.table.estimate >= LOADING_ROWS
            readers = field_readers(relation) if large and indexes is None else None
            for rows in copy_pieces(
                session, sql, width, size, connections=self._connections, readers=readers
            ):
                if held is not None:
                    yield self._piece(relation, held, visible, chunk)
                held = rows if indexes is None else reordered(rows, indexes)
            if own_path:
                session.execute(PINNED_AGAIN)
            last = self._piece(relation, held or [], visible, chunk, complete=part is None)
            last.ends_chunk = True
            yield last

    def _piece(
        self,
        relation: Relation,
        rows: Sequence[Tuple],
        visible: str = "",
        chunk: int = 0,
        *,
        complete: bool = False,
    ) -> SnapshotRows:
        point = self._point
        return SnapshotRows(
            relation=relation,
            rows=rows,
            ts=point.ts,
            lsn=point.lsn,
            xid=point.xid,
            visible=visible,
            complete=complete,
            chunk=chunk,
            ends_chunk=complete,
        )


def overtaken(name: str, problem: str) -> NoReturn:
    """Raise the error for a table that changed before it was read."""
    raise TableOvertaken(problem, table=name)


@contextmanager
def explained(target: SnapshotTable) -> Iterator[None]:
    """Raise `failed` for a server's refusal in the block."""
    try:
        yield
    except SourceError as error:
        if error.retry is not RetryVerdict.NEVER:
            raise
        raise failed(target, error) from error


def failed(target: SnapshotTable, error: SourceError) -> SnapshotError:
    """Return the error for a server's refusal to read a table."""
    name = target.table.relation.name
    if error.fields.get("sqlstate") == NO_COLUMN and target.published.rows:
        return SnapshotSelectNarrow(
            f"{name} is read by a SELECT that lacks columns of the publication's row filter: "
            f"{error.problem}",
            table=name,
            rows=target.published.rows,
        )
    if error.fields.get("sqlstate") == LOCKED:
        return TableOvertaken(f"DDL of {name} waits for the snapshot to end", table=name)
    if error.fields.get("sqlstate") == TOO_OLD:
        return SnapshotTooOld(f"{name} could not be read to its end: {error.problem}")
    return SnapshotReadFailed(f"{name} could not be read: {error.problem}", table=name)


def _select(
    session: PostgresSession,
    target: SnapshotTable,
    shape: CatalogShape,
    statements: Mapping[str, str],
) -> tuple[int, str, list[int | None] | None]:
    """Return the query's number of columns, the query, and the indexes.

    The indexes are the relation's columns in the query's rows; None: in the relation's order.
    """
    relation = target.table.relation
    override = statements.get(relation.name)
    names = [
        shape.columns[c.number][0] if c.number is not None else c.name for c in relation.columns
    ]
    if override is None:
        columns = ", ".join(map(sql_name, names))
        return len(names), f"SELECT {columns} FROM {shape.source(deep=target.deep)}", None
    # A cursor without a fetched row returns the names without running the query.
    session.execute(f"DECLARE waltap_columns NO SCROLL CURSOR FOR {override}")
    result = session.result("FETCH 0 FROM waltap_columns")
    found = [(result.fname(n) or b"").decode() for n in range(result.nfields)]
    session.execute("CLOSE waltap_columns")
    # Names are the present ones, except where the statement itself gives the snapshot's.
    indexes = [
        next((found.index(name) for name in (now, c.name) if name in found), None)
        for now, c in zip(names, relation.columns, strict=True)
    ]
    return len(found), override, indexes


def set_markers(
    pieces: Iterator[SnapshotRows],
    *,
    every_row: bool = True,
    continued: Collection[int | None] = (),
) -> Iterator[SnapshotRows]:
    """Set Debezium's markers on the pieces.

    The very last row of the snapshot is "last". The first row of the first table is "first"; no row
    is, if that table is empty. A table's last row is "last_in_data_collection", its first row
    "first_in_data_collection". A row with two markers gets the earlier one of this list. Pieces
    without rows keep their place and have no marker.

    ``every_row``: the sink gets every row. In a continued snapshot no row is "first". ``continued`` are
    the OIDs of tables with valid rows of earlier runs; their first row is "true".
    """
    # Markers follow the order of the pieces, not the plan: a table may be read later than planned. One
    # piece is held back until it is known whether another follows.
    held: SnapshotRows | None = None
    first: Relation | None = None
    empty: list[SnapshotRows] = []
    for piece in pieces:
        first = first or piece.relation
        if not piece.rows:
            empty.append(piece)
            continue
        opens = held is None or held.relation is not piece.relation
        if held is not None:
            yield _finish(held, "last_in_data_collection" if opens else "true")
        yield from empty
        empty.clear()
        if opens:
            if every_row and piece.relation is first:
                piece.first_marker = "first"
            elif piece.relation.oid not in continued:
                piece.first_marker = "first_in_data_collection"
        held = piece
    if held is not None:
        yield _finish(held, "last")
    yield from empty


def _finish(piece: SnapshotRows, last: str) -> SnapshotRows:
    """Set the last row's marker; a single row keeps the stronger one."""
    single = len(piece.rows) == 1
    if single and last != "last" and (piece.first_marker == "first" or last == "true"):
        last = piece.first_marker
    piece.last_marker = last
    if single:
        piece.first_marker = last
    return piece
