"""Tasks of an initial snapshot that several connections can share.

Small tables form one task together, so that one query serves many. A large table is split into
ranges of blocks (ctid), which the server reads like the whole table. Before PostgreSQL 14, with
other storage, or with partitions and children together, it is split into ranges of its key. A table
with its own SELECT is one task.
"""

import itertools
import logging
import threading
from collections.abc import Collection, Mapping, Sequence

import msgspec

from waltap.base.text import sql_name
from waltap.changes.transactions.position import TableChunks
from waltap.changes.transactions.transaction import SnapshotRows
from waltap.errors import RetryVerdict, SourceError
from waltap_postgres.catalog.bounds import RangeColumn, after_sql, bounded, up_to_sql
from waltap_postgres.catalog.catalogue import PostgresCatalogue
from waltap_postgres.snapshot.transaction import CatalogShape, ReadingTransaction, SnapshotTable

log = logging.getLogger(__name__)

MOST_TOGETHER = 100
# A range of fewer blocks is not worth a query.
LEAST_BLOCKS = 4
# A larger range is split further: after a kill, an unfinished range is read again.
RANGE_BLOCKS = 2048
MOST_RANGES = 4096
# Up to this size a table's rows are counted, not estimated, if their number decides the order.
COUNTED_BLOCKS = 1024
# The bounds of key ranges come from a sample of about this size.
SAMPLED_BLOCKS, SAMPLED_ROWS = 2048, 400_000
LOCK_WAIT_MS = 2000

# ``pg_relation_size`` waits for a session that rewrites the table, hence the lock timeout.
SIZES_SQL = """
SELECT c.oid::int8, a.amname::text, greatest(c.relpages, 0)::int8,
       (pg_relation_size(c.oid) / current_setting('block_size')::int8)::int8
  FROM (SELECT set_config('lock_timeout', %s, true) AS done OFFSET 0) s, pg_class c
  LEFT JOIN pg_am a ON a.oid = c.relam
 WHERE s.done IS NOT NULL AND c.oid = ANY(%s::oid[])
"""
PAGES_SQL = SIZES_SQL.replace(
    "(pg_relation_size(c.oid) / current_setting('block_size')::int8)::int8",
    "greatest(c.relpages, 0)::int8",
)
# From this version on the server reads a range of ctid without reading the rest.
TID_RANGES = 140000


class BlockRange(msgspec.Struct, frozen=True, tag="blocks"):
    """Select the rows of some blocks."""

    first: int
    # The block after the last one; None: up to the table's end.
    end: int | None

    def where(self, _shape: CatalogShape) -> str:
        terms = [f"ctid >= '({self.first},0)'::tid"]
        if self.end is not None:
            terms.append(f"ctid < '({self.end},0)'::tid")
        return " AND ".join(terms)


class KeyRange(msgspec.Struct, frozen=True, tag="key"):
    """Select the rows with keys in a range."""

    # The key's column numbers; none of the columns has NULL.
    columns: tuple[int, ...]
    # The key before the range; None: from the first key.
    after: tuple[str, ...] | None
    # The last key of the range; None: to the last key.
    up_to: tuple[str, ...] | None

    def where(self, shape: CatalogShape) -> str:
        """Return the range's condition with the columns' present names."""
        names = [RangeColumn(sql_name(shape.columns[number][0])) for number in self.columns]
        terms = []
        if self.after is not None:
            terms.append(after_sql(names, self.after))
        if self.up_to is not None:
            terms.append(up_to_sql(names, self.up_to))
        return " AND ".join(terms) or "true"


Range = BlockRange | KeyRange


class TableSplits(msgspec.Struct, frozen=True, kw_only=True):
    """Hold a table's part of `TableChunks.plan`."""

    # Transactions that the table's first snapshot saw, as in `Offset.visible_in`.
    basis: str
    # Files that held the table's rows at that time.
    files: tuple[str, ...]
    # The table's chunks; none if it is one chunk.
    ranges: tuple[Range, ...] = ()
    # Its files had changed when it was begun, so it is read whole until that succeeds.
    all_rows: bool = False

    def chunks(self) -> TableChunks:
        """Return the progress of a table without any finished chunk."""
        return TableChunks(plan=msgspec.json.encode(self).decode(), count=max(1, len(self.ranges)))


class TableSplit(msgspec.Struct, frozen=True):
    """Describe the part of a table that one query reads."""

    # Number of the chunk.
    index: int
    # The chunk's range, None for the whole table.
    rows: Range | None
    # Condition on the range's rows, "" for all of them.
    condition: str = ""

    def where(self, shape: CatalogShape) -> str:
        terms = [self.rows.where(shape)] if self.rows is not None else []
        if self.condition:
            terms.append(self.condition)
        return f" WHERE {' AND '.join(terms)}" if terms else ""


class ReadTask:
    """Describe tables for one connection, or one table for several.

    Several connections share the ``parts`` of one table. Each locks the table before it takes its
    first part, until no part is left. So no DDL changes the table between two parts.
    """

    def __init__(
        self,
        targets: Sequence[SnapshotTable],
        parts: Sequence[TableSplit] = (),
        *,
        begins: Mapping[str, TableChunks] | None = None,
        visible: str = "",
        begun: bool = False,
        resumed: bool = False,
        resumable: bool = False,
        restarts: bool = False,
    ) -> None:
        """Keep the tables and the flags of their pieces.

        ``begins`` is set on the first piece, ``visible`` on each (`SnapshotRows.visible`).
        """
        self.targets, self.parts = tuple(targets), tuple(parts)
        # ``visible`` of a table from an earlier run is its basis. ``begun``: the sink may already
        # have rows of the table. ``resumed``: it has some chunks, which are not read again.
        self.visible, self.begun, self.resumed = visible, begun, resumed
        # A later start can continue this task.
        self.resumable = resumable
        self._begins = dict(begins or {})
        # Tables whose rows of earlier runs are discarded.
        self._restarts = {target.oid for target in targets} if restarts else set()
        self._free = list(self.parts)
        self._arrived = 0
        self._lock = threading.Lock()

    def take(self) -> TableSplit | None:
        """Return the next free part, None without any."""
        with self._lock:
            return self._free.pop(0) if self._free else None

    def take_all(self) -> bool:
        """Take every free part; return whether all were free."""
        with self._lock:
            untouched, self._free = len(self._free) == len(self.parts), []
            return untouched

    def arrived(self, piece: SnapshotRows) -> None:
        """Mark a piece that the engine gets next.

        The first piece gets ``begins``; the last one completes the table. The thread that passes
        pieces to the engine calls this in their order.
        """
        if self._begins:
            piece.begins, self._begins = {**self._begins, **piece.begins}, {}
        if piece.relation.oid in self._restarts:
            piece.restarts = True
            self._restarts.discard(piece.relation.oid)
        if piece.complete or not (self.parts and piece.ends_chunk):
            return
        self._arrived += 1
        piece.complete = self._arrived == len(self.parts)

    @property
    def has_free_parts(self) -> bool:
        return bool(self._free)


class TableSize(msgspec.Struct, frozen=True):
    """Hold a table's size."""

    blocks: int
    # Whether PostgreSQL's own storage has the rows.
    heap: bool


class SnapshotPlanner:
    """Split tables into tasks; ``now`` is a catalogue of the present."""

    def __init__(self, now: PostgresCatalogue) -> None:
        self.properties, self.now = now.properties, now

    def plan(
        self,
        transaction: ReadingTransaction,
        targets: Sequence[SnapshotTable],
        *,
        basis: str = "",
        visible: str = "",
        chosen: Collection[str] = (),
        restarts: bool = False,
        shared: bool = False,
    ) -> list[ReadTask]:
        """Return the tasks in the order of delivery.

        ``basis`` is the transaction's visibility, if a later start can continue the tasks;
        ``visible`` and ``restarts`` are as in `ReadTask`. ``chosen`` are the tables with their own
        SELECT. ``shared``: other processes read, so large tables are always split. Raises:
        SourceError.
        """
        properties = self.properties
        ordered = properties.snapshot_order_by_row_count != "disabled"
        cut = shared or properties.snapshot_max_threads > 1 or bool(basis)
        sizes = self._sizes(targets) if ordered or cut else {}
        if ordered:
            targets = self._by_rows(transaction, targets, sizes)
        works: list[ReadTask] = []

        def add(some: Sequence[SnapshotTable], ranges: tuple[Range, ...] = ()) -> None:
            begins = {
                str(t.oid): TableSplits(
                    basis=basis, files=transaction.files(t.oid), ranges=ranges
                ).chunks()
                for t in some
                if basis
            }
            parts = [TableSplit(index, each) for index, each in enumerate(ranges)]
            works.append(
                ReadTask(
                    some,
                    parts,
                    begins=begins,
                    visible=visible,
                    resumable=bool(basis),
                    restarts=restarts,
                )
            )

        group: list[SnapshotTable] = []
        rows = 0
        for target in targets:
            size = None if target.table.relation.name in chosen else sizes.get(target.oid)
            ranges = self._cut(transaction, target, size) if size else ()
            if len(ranges) > 1:
                if group:
                    add(group)
                add([target], ranges)
                group, rows = [], 0
                continue
            group.append(target)
            rows += target.table.estimate
            if len(group) >= MOST_TOGETHER or rows >= self.properties.snapshot_fetch_size:
                add(group)
                group, rows = [], 0
        if group:
            add(group)
        return works

    def _sizes(self, targets: Sequence[SnapshotTable]) -> dict[int, TableSize]:
        oids = [target.oid for target in targets]
        try:
            found = self.now.query(SIZES_SQL, (str(LOCK_WAIT_MS), oids))
        except SourceError as error:
            if error.retry is not RetryVerdict.NEVER:
                raise
            found = self.now.query(PAGES_SQL, (str(LOCK_WAIT_MS), oids))
        return {
            oid: TableSize(size if size is not None else pages, method == "heap")
            for oid, method, pages, size in found
        }

    def _by_rows(
        self,
        transaction: ReadingTransaction,
        targets: Sequence[SnapshotTable],
        sizes: dict[int, TableSize],
    ) -> list[SnapshotTable]:
        """Return the targets ordered by their number of rows.

        Small tables, and tables that were never analysed, are counted; others are estimated.
        """
        rows: dict[int, int] = {}
        for target in targets:
            size, estimate = sizes.get(target.oid), target.table.estimate
            small = size is None or target.deep or size.blocks <= COUNTED_BLOCKS
            counted = self._count(transaction, target) if small or not estimate else None
            rows[target.oid] = estimate if counted is None else counted
        down = self.properties.snapshot_order_by_row_count == "descending"
        return sorted(targets, key=lambda t: -rows[t.oid] if down else rows[t.oid])

    def _count(self, transaction: ReadingTransaction, target: SnapshotTable) -> int | None:
        """Return a table's number of rows.

        None means that a lock or a missing privilege prevents the count.
        """
        query = f"SELECT count(*)::text FROM {transaction.source(target)}"
        rows = transaction.attempt(query, LOCK_WAIT_MS)
        return None if rows is None else int(rows[0][0] or 0)

    def _cut(
        self, transaction: ReadingTransaction, target: SnapshotTable, size: TableSize
    ) -> tuple[Range, ...]:
        properties = self.properties
        name = f"snapshot.max.threads.multiplier.{target.table.relation.name}"
        each = properties.snapshot_threads_multipliers.get(name)
        multiplier = properties.snapshot_threads_multiplier if each is None else int(each)
        threads = properties.snapshot_max_threads
        return self.ranges(transaction, target, size, threads * multiplier if threads > 1 else 1)

    def ranges(
        self, transaction: ReadingTransaction, target: SnapshotTable, size: TableSize, count: int
    ) -> tuple[Range, ...]:
        """Return about ``count`` ranges of a table.

        A table with fewer than two ranges is read whole.
        """
        if size.heap and not target.deep and self.now.version_num >= TID_RANGES:
            count = min(count, max(1, size.blocks // LEAST_BLOCKS))
            count = min(max(count, size.blocks // RANGE_BLOCKS), MOST_RANGES)
            starts: list[int | None] = [size.blocks * n // count for n in range(count)]
            return tuple(
                BlockRange(first or 0, end)
                for first, end in zip(starts, [*starts[1:], None], strict=True)
            )
        return self._key_ranges(transaction, target, size, min(count, MOST_RANGES))

    def _key_ranges(
        self, transaction: ReadingTransaction, target: SnapshotTable, size: TableSize, count: int
    ) -> tuple[Range, ...]:
        relation = target.table.relation
        columns = {column.name: column for column in relation.columns}
        key = [columns[name] for name in relation.primary_key or () if name in columns]
        numbers = tuple(column.number or 0 for column in key)
        if count < 2 or not key or any(column.nullable for column in key) or 0 in numbers:
            return ()
        if any(found.operators or found.composite for found in map(bounded, key)):
            return ()
        names = ", ".join(sql_name(column.name) for column in key)
        backwards = ", ".join(f"{sql_name(column.name)} DESC" for column in key)
        texts = ", ".join(f"{sql_name(column.name)}::text" for column in key)
        share = min(
            SAMPLED_BLOCKS / max(size.blocks, 1), SAMPLED_ROWS / max(target.table.estimate, 1)
        )
        sample = f" TABLESAMPLE SYSTEM ({100 * share:.6f})" if share < 1 else ""
        rows = transaction.attempt(
            f"SELECT {texts} FROM (SELECT DISTINCT ON (tile) {names}, tile FROM (SELECT {names},"
            f" ntile({count}) OVER (ORDER BY {names}) AS tile FROM {transaction.source(target)}{sample}) s"
            f" ORDER BY tile, {backwards}) b ORDER BY tile",
            LOCK_WAIT_MS,
        )
        ends = (rows or [])[:-1]
        bounds: list[tuple[str, ...] | None] = [None, *(tuple(map(str, end)) for end in ends), None]
        return tuple(KeyRange(numbers, after, up_to) for after, up_to in itertools.pairwise(bounds))
