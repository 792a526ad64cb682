"""What an initial snapshot reads, cut into pieces of work that several connections can share.

Small tables are one piece of work together, so that a question to the server is one for many. A large
table is cut into ranges: of blocks (ctid), which the server reads as it would the whole table; where it
cannot (before PostgreSQL 14, other storage, partitions and children together), of its key. A table with a
SELECT of its own is one piece.
"""

import itertools
import logging
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec

from waltap.errors import RetryVerdict, SourceError
from waltap.snapshot.progress import TableChunks
from waltap.transactions.transaction import SnapshotRows
from waltap_postgres.catalog.catalogue import PostgresCatalogue
from waltap_postgres.properties import PostgresProperties
from waltap_postgres.replication.publication import identifier
from waltap_postgres.snapshot.bounds import RangeColumn, after_sql, bounded, up_to_sql
from waltap_postgres.snapshot.transaction import CatalogShape, ReadingTransaction, SnapshotTable

__all__ = [
    "BlockRange",
    "KeyRange",
    "Range",
    "ReadTask",
    "SnapshotPlanner",
    "TableSize",
    "TableSplit",
    "TableSplits",
]

log = logging.getLogger(__name__)

MOST_TOGETHER = 100
LEAST_BLOCKS = 4
"""A range of fewer blocks is not worth a query."""
RANGE_BLOCKS = 2048
"""A range of more is cut further: what a kill leaves unfinished is read again."""
MOST_RANGES = 4096
COUNTED_BLOCKS = 1024
"""Up to this size a table's rows are counted where their number decides the order, not estimated."""
SAMPLED_BLOCKS, SAMPLED_ROWS = 2048, 400_000
"""Of so many, about, the keys are looked at that bound ranges."""
LOCK_WAIT_MS = 2000

SIZES_SQL = """
SELECT c.oid::int8, a.amname::text, greatest(c.relpages, 0)::int8,
       (pg_relation_size(c.oid) / current_setting('block_size')::int8)::int8
  FROM (SELECT set_config('lock_timeout', %s, true) AS done OFFSET 0) s, pg_class c
  LEFT JOIN pg_am a ON a.oid = c.relam
 WHERE s.done IS NOT NULL AND c.oid = ANY(%s::oid[])
"""
"""``pg_relation_size`` waits for whoever rewrites the table."""
PAGES_SQL = SIZES_SQL.replace(
    "(pg_relation_size(c.oid) / current_setting('block_size')::int8)::int8",
    "greatest(c.relpages, 0)::int8",
)
TID_RANGES = 140000
"""The version of the server from which it reads a range of ctid without reading the rest."""


class BlockRange(msgspec.Struct, frozen=True, tag="blocks"):
    """Rows that lie in the blocks from ``first`` up to, not with, ``end``; None: to the last one."""

    first: int
    end: int | None

    def where(self, _shape: CatalogShape) -> str:
        """Return the condition."""
        terms = [f"ctid >= '({self.first},0)'::tid"]
        if self.end is not None:
            terms.append(f"ctid < '({self.end},0)'::tid")
        return " AND ".join(terms)


class KeyRange(msgspec.Struct, frozen=True, tag="key"):
    """Rows whose key comes after one and no later than another; None: from the first, to the last.
    ``columns`` are the key's column numbers; none of them has NULL."""

    columns: tuple[int, ...]
    after: tuple[str, ...] | None
    up_to: tuple[str, ...] | None

    def where(self, shape: CatalogShape) -> str:
        """Return the condition, with the names that columns have now."""
        names = [RangeColumn(identifier(shape.columns[number][0])) for number in self.columns]
        terms = []
        if self.after is not None:
            terms.append(after_sql(names, self.after))
        if self.up_to is not None:
            terms.append(up_to_sql(names, self.up_to))
        return " AND ".join(terms) or "true"


Range = BlockRange | KeyRange


class TableSplits(msgspec.Struct, frozen=True, kw_only=True):
    """What `TableChunks.plan` holds of a table.

    ``basis`` is what the snapshot saw that it was read in first, as `Offset.visible_in` has it; ``files``
    held its rows then; ``ranges`` are its chunks, none where it is one. ``all_rows``: its files were
    others when it was begun, so that it is read whole until that succeeds.
    """

    basis: str
    files: tuple[str, ...]
    ranges: tuple[Range, ...] = ()
    all_rows: bool = False

    def chunks(self) -> TableChunks:
        """Return a table of which no chunk is done."""
        return TableChunks(plan=msgspec.json.encode(self).decode(), count=max(1, len(self.ranges)))


class TableSplit(msgspec.Struct, frozen=True):
    """What one query reads of a table: rows of the chunk ``index``, None for all rows there are, and which
    of them, "" for all."""

    index: int
    rows: Range | None
    condition: str = ""

    def where(self, shape: CatalogShape) -> str:
        """Return what stands behind the table's name."""
        terms = [self.rows.where(shape)] if self.rows is not None else []
        if self.condition:
            terms.append(self.condition)
        return f" WHERE {' AND '.join(terms)}" if terms else ""


class ReadTask:
    """Some tables that one connection reads whole, or one table whose ``parts`` several share.

    Whoever shares it holds a lock on the table from before it takes its first range until none is left to
    take: so nobody changes the table between two ranges.
    """

    def __init__(
        self,
        targets: Sequence[SnapshotTable],
        parts: Sequence[TableSplit] = (),
        *,
        begins: Mapping[str, TableChunks] | None = None,
        visible: str = "",
        begun: bool = False,
        goes_on: bool = False,
        resumable: bool = False,
        restarts: bool = False,
    ) -> None:
        """``begins`` goes with the first piece that is handed over. ``visible`` goes with each
        (`SnapshotRows.visible`): of tables that were begun before it is their basis. ``begun``: rows of
        the table may be at the destination already. ``goes_on``: some chunks of it are, and are not read.
        ``resumable``: a later start goes on with what this one leaves. ``restarts``: what came of the
        tables counts for nothing."""
        self.targets, self.parts = tuple(targets), tuple(parts)
        self.visible, self.begun, self.goes_on = visible, begun, goes_on
        self.resumable = resumable
        self._begins = dict(begins or {})
        self._restarts = {target.oid for target in targets} if restarts else set()
        self._free = list(self.parts)
        self._arrived = 0
        self._lock = threading.Lock()

    def take(self) -> TableSplit | None:
        """Return the next part that nobody reads, None without any."""
        with self._lock:
            return self._free.pop(0) if self._free else None

    def take_all(self) -> bool:
        """Take every part; False when others have taken some, or all."""
        with self._lock:
            whole, self._free = len(self._free) == len(self.parts), []
            return whole

    def arrived(self, piece: SnapshotRows) -> None:
        """Take note of a piece that is handed over: say of the first one what begins, of the last one that
        the table is complete. Called by whoever hands over, in that order."""
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
    def left(self) -> bool:
        """Tell whether there are parts to take."""
        return bool(self._free)


class TableSize(msgspec.Struct, frozen=True):
    """How large a table is, and whether its rows lie in PostgreSQL's own storage."""

    blocks: int
    heap: bool


class SnapshotPlanner:
    """Cuts what is to be read into work. ``now`` is a catalogue that shows the present."""

    def __init__(
        self, properties: PostgresProperties, now: PostgresCatalogue, version_num: int
    ) -> None:
        self.properties, self.now, self._version_num = properties, now, version_num
        self._chosen: Collection[str] = ()

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
        """Return the work, in the order in which tables are delivered. ``basis`` is what the transaction
        sees, where a later start is to go on with what this one leaves; ``visible`` as `ReadTask` has it;
        ``chosen`` names tables that a SELECT of their own reads; ``restarts`` as `ReadTask` has it;
        ``shared``: other processes read it, so that large tables are cut in any case.
        Raises: SourceError."""
        properties, self._chosen = self.properties, chosen
        ordered = properties.snapshot_order_by_row_count != "disabled"
        cut = shared or properties.snapshot_max_threads > 1 or bool(basis)
        sizes = self._sizes(targets) if ordered or cut else {}
        if ordered:
            targets = self._by_rows(transaction, targets, sizes)
        return list(self._work(transaction, targets, sizes, basis, visible, restarts=restarts))

    def _work(
        self,
        transaction: ReadingTransaction,
        targets: Sequence[SnapshotTable],
        sizes: dict[int, TableSize],
        basis: str,
        visible: str,
        *,
        restarts: bool,
    ) -> Iterator[ReadTask]:
        def work(some: Sequence[SnapshotTable], ranges: tuple[Range, ...] = ()) -> ReadTask:
            begins = {
                str(t.oid): TableSplits(
                    basis=basis, files=transaction.files(t.oid), ranges=ranges
                ).chunks()
                for t in some
                if basis
            }
            parts = [TableSplit(index, each) for index, each in enumerate(ranges)]
            return ReadTask(
                some,
                parts,
                begins=begins,
                visible=visible,
                resumable=bool(basis),
                restarts=restarts,
            )

        group: list[SnapshotTable] = []
        rows = 0
        for target in targets:
            size = sizes.get(target.oid)
            ranges = self._cut(transaction, target, size) if size else ()
            if len(ranges) > 1:
                if group:
                    yield work(group)
                yield work([target], ranges)
                group, rows = [], 0
                continue
            group.append(target)
            rows += target.table.estimate
            if len(group) >= MOST_TOGETHER or rows >= self.properties.snapshot_fetch_size:
                yield work(group)
                group, rows = [], 0
        if group:
            yield work(group)

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
        """Return the targets by their number of rows: counted where the table is small, or was never
        analysed; else the planner's. Those with as many keep their order."""
        rows: dict[int, int] = {}
        for target in targets:
            size, estimate = sizes.get(target.oid), target.table.estimate
            small = size is None or target.deep or size.blocks <= COUNTED_BLOCKS
            counted = self._count(transaction, target) if small or not estimate else None
            rows[target.oid] = estimate if counted is None else counted
        down = self.properties.snapshot_order_by_row_count == "descending"
        return sorted(targets, key=lambda t: -rows[t.oid] if down else rows[t.oid])

    def _count(self, transaction: ReadingTransaction, target: SnapshotTable) -> int | None:
        """Return how many rows a table has; None where that cannot be had, by a lock or a privilege."""
        query = f"SELECT count(*)::text FROM {transaction.source(target)}"
        rows = transaction.attempt(query, LOCK_WAIT_MS)
        return None if rows is None else int(rows[0][0] or 0)

    def _cut(
        self, transaction: ReadingTransaction, target: SnapshotTable, size: TableSize
    ) -> tuple[Range, ...]:
        relation = target.table.relation
        properties = self.properties
        if relation.name in self._chosen:
            return ()
        name = f"snapshot.max.threads.multiplier.{relation.name}"
        each = properties.snapshot_threads_multipliers.get(name)
        multiplier = properties.snapshot_threads_multiplier if each is None else int(each)
        threads = properties.snapshot_max_threads
        return self.ranges(transaction, target, size, threads * multiplier if threads > 1 else 1)

    def ranges(
        self, transaction: ReadingTransaction, target: SnapshotTable, size: TableSize, count: int
    ) -> tuple[Range, ...]:
        """Return the ranges of a table that ``count`` are wanted of; fewer than two: it is read whole."""
        if size.heap and not target.deep and self._version_num >= TID_RANGES:
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
        if any(bounded(column).operators for column in key):
            return ()
        names = ", ".join(identifier(column.name) for column in key)
        texts = ", ".join(f"{identifier(column.name)}::text" for column in key)
        share = min(
            SAMPLED_BLOCKS / max(size.blocks, 1), SAMPLED_ROWS / max(target.table.estimate, 1)
        )
        sample = f" TABLESAMPLE SYSTEM ({100 * share:.6f})" if share < 1 else ""
        rows = transaction.attempt(
            f"SELECT {texts} FROM (SELECT DISTINCT ON (tile) {names}, tile FROM (SELECT {names},"
            f" ntile({count}) OVER (ORDER BY {names}) AS tile FROM {transaction.source(target)}{sample}) s"
            f" ORDER BY tile, {_descending(names)}) b ORDER BY tile",
            LOCK_WAIT_MS,
        )
        ends = (rows or [])[:-1]
        bounds: list[tuple[str, ...] | None] = [None, *(tuple(map(str, end)) for end in ends), None]
        return tuple(KeyRange(numbers, after, up_to) for after, up_to in itertools.pairwise(bounds))


def _descending(names: str) -> str:
    return ", ".join(f"{name} DESC" for name in names.split(", "))
