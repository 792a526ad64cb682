"""Prefetch of tables when a stream announces many relations at once.

An answer is valid for transactions that were visible to it; for a later one the catalogue is queried
again. So a prefetched answer is never less true than one on demand. The same rule serves a table
that is altered repeatedly: a stream that lags asks once for all transactions that had committed.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable

from waltap_postgres.catalog.catalogue import CatalogTable, PostgresCatalogue
from waltap_postgres.visibility import SnapshotVisibility

__all__ = ["TablesAhead"]

# So many queries within so many seconds mean that many more will follow.
BURST, BURST_S = 16, 2.0
# A prefetch of fewer expected tables is not worth its query.
WORTH_IT = 32
# Seconds between two prefetches at least.
PAUSE_S = 10.0

# Number of kept answers about tables that were announced again.
ALTERED_MOST = 64


class TablesAhead:
    """Find tables by OID or name for one stream's transactions."""

    def __init__(
        self, catalogue: PostgresCatalogue, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._catalogue, self._clock = catalogue, clock
        # OIDs that the stream may announce, in the order in which they became known.
        self._expected: dict[int, None] = {}
        # Times of the last queries.
        self._asked: deque[float] = deque(maxlen=BURST)
        self._next_load = 0.0
        self._seen: SnapshotVisibility | None = None
        self._by_oid: dict[int, CatalogTable] = {}
        self._by_name: dict[tuple[str, str], CatalogTable] = {}
        self._altered: dict[int, tuple[SnapshotVisibility, CatalogTable | None]] = {}

    def expect(self, oids: Iterable[int]) -> None:
        """Add tables that the stream may announce."""
        self._expected.update(dict.fromkeys(oids))

    def table_of(self, oid: int, xid: int) -> CatalogTable | None:
        """Return a table by OID after ``xid``, None if gone."""
        self._prepare(xid)
        found = self._by_oid.get(oid)
        self._forget(oid)
        return found or self._catalogue.table_of(oid)

    def again(self, oid: int, xid: int) -> tuple[CatalogTable | None, int] | None:
        """Return the table of a relation that ``xid`` announces again.

        The second value is the first id that no transaction had at the answer's moment. None means
        that ``xid`` is not visible yet.
        """
        known = self._altered.pop(oid, None)
        if known is None or not known[0].saw(xid):
            found, text = self._catalogue.table_seen(oid)
            known = SnapshotVisibility.of_snapshot(text), found
        self._altered[oid] = known
        if len(self._altered) > ALTERED_MOST:
            # The first entry is the least recently used: `pop` and assignment reorder.
            del self._altered[next(iter(self._altered))]
        seen, found = known
        return (found, seen.xmax) if seen.saw(xid) else None

    def table(self, schema: str, table: str, xid: int) -> CatalogTable | None:
        """Return a table by name after ``xid``, None if gone."""
        self._prepare(xid)
        found = self._by_name.get((schema, table)) or self._catalogue.table(schema, table)
        if found is not None:
            self._forget(found.relation.oid)
        return found

    def _forget(self, oid: int) -> None:
        """Remove an announced relation from the prefetch."""
        # A stream rarely announces a relation twice.
        self._expected.pop(oid, None)
        known = self._by_oid.pop(oid, None)
        if known is not None:
            self._by_name.pop((known.relation.schema, known.relation.table), None)

    def _prepare(self, xid: int) -> None:
        """Keep or load answers that are valid for ``xid``, or drop them."""
        if self._by_oid and self._seen is not None:
            if xid and self._seen.saw(xid):
                return
            # The answers are older than ``xid``; their tables are expected again.
            self._expected.update(dict.fromkeys(self._by_oid))
            self._by_oid.clear()
            self._by_name.clear()
        now = self._clock()
        self._asked.append(now)
        burst = len(self._asked) == BURST and now - self._asked[0] <= BURST_S
        if not (xid and burst and len(self._expected) >= WORTH_IT and now >= self._next_load):
            return
        self._next_load = now + PAUSE_S
        # The snapshot is older than the tables' query, so the answers see at least its commits.
        text = self._catalogue.snapshot()
        seen = SnapshotVisibility.of_snapshot(text) if text is not None else None
        if seen is None or not seen.saw(xid):
            return
        self._seen = seen
        for table in self._catalogue.tables_of(self._expected):
            self._by_oid[table.relation.oid] = table
            self._by_name[table.relation.schema, table.relation.table] = table
        self._expected.clear()
