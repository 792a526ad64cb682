"""Whether what a name meant holds still, for wires that name tables and announce nothing.

A table that was dropped and made anew with the same columns, a key that was dropped, a materialized
view in a table's place: none of it shows in the rows of wal2json and decoderbufs. The catalogue tells.
One answer counts for every transaction that its snapshot saw, so that a stream that lags asks once for
many of them; a question names the tables that were in use since the one before, so that what is asked
for grows with the rows that come and not with the tables that are known.
"""

import time
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from itertools import islice

from waltap_postgres.catalog.catalog_version import WRAP, CatalogVersion
from waltap_postgres.catalog.catalogue import PostgresCatalogue
from waltap_postgres.visibility import SnapshotVisibility

__all__ = ["NameResolutionCache"]

STANDING_SQL = """
SELECT o.schema, o.name, s.snapshot, c.oid::int8, c.relkind::text, c.relreplident::text, c.xmin::text,
       (SELECT string_agg(i.xmin::text || CASE WHEN i.indisreplident THEN 'i' ELSE '' END, ' '
                          ORDER BY i.indexrelid)
          FROM pg_index i WHERE i.indrelid = c.oid AND i.indisunique AND i.indisvalid),
       (SELECT string_agg(a.xmin::text, ' ' ORDER BY a.attnum)
          FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped)
  FROM (SELECT txid_current_snapshot()::text AS snapshot OFFSET 0) s
 CROSS JOIN unnest(%s::text[], %s::text[]) o(schema, name)
  LEFT JOIN pg_namespace n ON n.nspname = o.schema::name
  LEFT JOIN pg_class c ON c.relname = o.name::name AND c.relnamespace = n.oid
"""

CHECKS_PER_S, BURST = 20.0, 50.0
"""So often, and so many times in a row, transactions with rows are looked into for DDL beside them."""

_Name = tuple[str, str]


@dataclass(frozen=True, slots=True)
class _CatalogAnswer:
    """What stood at one moment: a text, the transactions that wrote it, and the first id that no
    transaction had then."""

    text: tuple[object, ...]
    writers: frozenset[int]
    horizon: int

    def for_transaction(self, xid: int) -> tuple[Hashable, ...]:
        """Return what stands for ``xid``: another value before and after each later transaction that
        wrote something of it; and another one if the next id did, which may be of its savepoint."""
        moment = CatalogVersion(xid, self.horizon)
        later = frozenset(writer for writer in self.writers if moment.precedes(writer))
        return self.text, later, (xid + 1) % WRAP in later


class NameResolutionCache:
    """Answers for one stream: see `waltap.decode.decoder.NameResolution`.

    ``when_visible`` waits until the catalogue shows what a transaction did.
    """

    def __init__(
        self,
        catalogue: PostgresCatalogue,
        when_visible: Callable[[int], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._catalogue, self._when_visible, self._clock = catalogue, when_visible, clock
        self._answers: dict[_Name, _CatalogAnswer] = {}
        self._known: dict[_Name, None] = {}
        self._used: set[_Name] = set()
        self._seen: SnapshotVisibility | None = None
        self._ahead = False
        self._checks, self._counted = BURST, clock()

    def due(self, xid: int) -> bool:
        """Tell whether what stands is to be looked at for transaction ``xid``."""
        if self._covers(xid) or not self._catalogue.tells_transactions:
            return self._ahead
        now = self._clock()
        self._checks = min(BURST, self._checks + (now - self._counted) * CHECKS_PER_S)
        self._counted = now
        if self._checks < 1:
            return False
        self._checks -= 1
        return True

    def of(self, schema: str, table: str, xid: int) -> Hashable:
        """Return what stands for the name. Raises: SourceError."""
        name = schema, table
        if not self._catalogue.tells_transactions:
            return name
        if not self._covers(xid):
            names, self._used = self._used | {name}, set()
            self._answers.clear()
            self._ahead = False
            self._seen = self._ask(names, xid)
            if xid and not self._covers(xid):
                self._when_visible(xid)
                self._seen = self._ask(names, xid)
        elif name not in self._answers:
            unanswered = (known for known in self._known if known not in self._answers)
            self._ask({name, *islice(unanswered, len(self._answers))}, xid)
        self._used.add(name)
        return self._answers[name].for_transaction(xid)

    def _covers(self, xid: int) -> bool:
        return self._seen is not None and bool(xid) and self._seen.saw(xid)

    def _ask(self, names: Iterable[_Name], xid: int) -> SnapshotVisibility | None:
        """Ask for the names; return what the answer saw."""
        names = list(names)
        seen: SnapshotVisibility | None = None
        rows = self._catalogue.query(STANDING_SQL, ([n[0] for n in names], [n[1] for n in names]))
        for schema, table, snapshot, *told in rows:
            if seen is None:
                seen = SnapshotVisibility.parse(f"{snapshot}@0/0")
                assert seen is not None
            name = schema, table
            texts = " ".join(text for text in told[3:] if text).replace("i", "").split()
            answer = _CatalogAnswer(tuple(told), frozenset(map(int, texts)), seen.xmax % WRAP)
            self._answers[name] = answer
            self._ahead = self._ahead or bool(answer.for_transaction(xid)[1])
            if told[0] is None:
                self._known.pop(name, None)
            else:
                self._known[name] = None
        return seen
