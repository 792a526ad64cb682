"""Many relations announced in a short time: what the catalogue says of the rest is asked for at once.

An answer counts for a transaction that was visible when it was given; for a later one the catalogue is
asked anew. So an answer from ahead is never less true than one on demand would have been. The same goes
for a table that is altered again and again: a stream that lags asks once for all that committed before.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable

from waltap_postgres.catalog.catalogue import CatalogTable, PostgresCatalogue
from waltap_postgres.visibility import SnapshotVisibility

__all__ = ["TablesAhead"]

BURST, BURST_S = 16, 2.0
"""So many questions within so many seconds are taken for the beginning of many more."""
WORTH_IT = 32
PAUSE_S = 10.0

ALTERED_MOST = 64
"""Answers about so many tables that were announced again are kept."""


class TablesAhead:
    """Answers which table an OID or a name belongs to, for the transactions of one stream."""

    def __init__(
        self, catalogue: PostgresCatalogue, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._catalogue, self._clock = catalogue, clock
        self._expected: dict[int, None] = {}
        self._asked: deque[float] = deque(maxlen=BURST)
        self._next_load = 0.0
        self._seen: SnapshotVisibility | None = None
        self._by_oid: dict[int, CatalogTable] = {}
        self._by_name: dict[tuple[str, str], CatalogTable] = {}
        self._altered: dict[int, tuple[SnapshotVisibility, CatalogTable | None]] = {}

    def expect(self, oids: Iterable[int]) -> None:
        """Name tables that the stream may announce."""
        self._expected.update(dict.fromkeys(oids))

    def table_of(self, oid: int, xid: int) -> CatalogTable | None:
        """Return the table with that OID, as it is or was after ``xid``; None when it is gone."""
        self._prepare(xid)
        found = self._by_oid.get(oid)
        self._forget(oid)
        return found or self._catalogue.table_of(oid)

    def again(self, oid: int, xid: int) -> tuple[CatalogTable | None, int] | None:
        """Return the table with that OID, and the first id that no transaction had when the catalogue
        showed it, for a relation that ``xid`` announces anew; None where that is not visible yet."""
        known = self._altered.pop(oid, None)
        if known is None or not known[0].saw(xid):
            found, text = self._catalogue.table_seen(oid)
            known = SnapshotVisibility.of_snapshot(text), found
        self._altered[oid] = known
        if len(self._altered) > ALTERED_MOST:
            del self._altered[next(iter(self._altered))]
        seen, found = known
        return (found, seen.xmax) if seen.saw(xid) else None

    def table(self, schema: str, table: str, xid: int) -> CatalogTable | None:
        """The same by name."""
        self._prepare(xid)
        found = self._by_name.get((schema, table)) or self._catalogue.table(schema, table)
        if found is not None:
            self._forget(found.relation.oid)
        return found

    def _forget(self, oid: int) -> None:
        """An announced relation is hardly announced again."""
        self._expected.pop(oid, None)
        known = self._by_oid.pop(oid, None)
        if known is not None:
            self._by_name.pop((known.relation.schema, known.relation.table), None)

    def _prepare(self, xid: int) -> None:
        """Have answers ready that ``xid`` may use, or none."""
        if self._by_oid and self._seen is not None:
            if xid and self._seen.saw(xid):
                return
            self._expected.update(dict.fromkeys(self._by_oid))
            self._by_oid.clear()
            self._by_name.clear()
        now = self._clock()
        self._asked.append(now)
        burst = len(self._asked) == BURST and now - self._asked[0] <= BURST_S
        if not (xid and burst and len(self._expected) >= WORTH_IT and now >= self._next_load):
            return
        self._next_load = now + PAUSE_S
        text = self._catalogue.snapshot()
        seen = SnapshotVisibility.of_snapshot(text) if text is not None else None
        if seen is None or not seen.saw(xid):
            return
        self._seen = seen
        for table in self._catalogue.tables_of(self._expected):
            self._by_oid[table.relation.oid] = table
            self._by_name[table.relation.schema, table.relation.table] = table
        self._expected.clear()
