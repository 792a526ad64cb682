"""Checks that a table name still means the same table.

Rows of wal2json and decoderbufs name tables and announce nothing. They do not show a table that was
dropped and created again with the same columns, a dropped key, or a materialized view in a table's
place. The catalogue shows it.

One answer is valid for every transaction that its snapshot saw. So a stream that lags asks once for
many transactions. A query names only the tables used since the query before, so its cost grows with
the rows and not with the number of tables.
"""

import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice

from waltap_postgres.catalog.catalogue import PostgresCatalogue
from waltap_postgres.visibility import SnapshotVisibility

__all__ = [
    "WRAP",
    "CatalogVersion",
    "NameResolutionCache",
]


# The order of transactions, by their ids, the server and the wire.

# Transaction ids have 32 bits; of two ids, the later is at most half of them ahead.
WRAP, _HALF = 1 << 32, 1 << 31

# Ids of savepoints of one transaction are assumed to be at most so far apart: other transactions
# take ids in between.
NEAR = 16


@dataclass(frozen=True, slots=True)
class CatalogVersion:
    """Compare a transaction with the writers of the catalogue's rows."""

    # The transaction.
    xid: int = 0
    # The first id that no transaction had when the catalogue was read.
    horizon: int = 0
    # Id → whether it committed after this transaction, as the server's commit timestamps say.
    later: Mapping[int, bool] = field(default_factory=dict)
    # Rows written up to this id are not newer. It is the transaction's own id, or that of a
    # subtransaction whose work the wire shows.
    reach: int = 0

    def precedes(self, changed: int) -> bool:
        """Return whether a catalogue row that ``changed`` wrote is newer.

        DDL takes a lock that excludes writers of the table. So of two such transactions, one ended
        before the other touched the table. The order of ids can be wrong if one began long before
        that, or if the later id is a subtransaction of this transaction.
        """
        if not self.xid or not changed:
            return False
        told = self.later.get(changed)
        if told is not None:
            return told
        later = 0 < (changed - (self.reach or self.xid)) % WRAP < _HALF
        # An id ahead of the horizon is an old one, from before the last wrap-around.
        return later and 0 < (self.horizon - changed) % WRAP < _HALF

    def is_before(self, xid: int) -> bool:
        """Return whether ``xid`` is later than the transaction's own id."""
        return 0 < (xid - self.xid) % WRAP < _HALF

    def reaching(self, shown: Iterable[int], written: Iterable[int] = ()) -> "CatalogVersion":
        """Return the version extended by ids whose work the wire shows.

        A later id among ``shown`` means that the transaction does DDL under savepoints. Then ids of
        ``written`` that are close by belong to it as well.
        """
        ahead = [(xid - self.xid) % WRAP for xid in shown if self.precedes(xid)]
        if not ahead:
            return self
        reach = max(ahead)
        for further in sorted((xid - self.xid) % WRAP for xid in written if self.precedes(xid)):
            if reach < further <= reach + NEAR:
                reach = further
        return replace(self, reach=(self.xid + reach) % WRAP)


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

# Rate and burst of the checks whether a transaction with rows also did DDL.
CHECKS_PER_S, BURST = 20.0, 50.0

_Name = tuple[str, str]


@dataclass(frozen=True, slots=True)
class _CatalogAnswer:
    """Hold the catalogue's answer for one name."""

    # The catalogue's columns for the name, compared as they are.
    text: tuple[object, ...]
    # Transactions that wrote those columns' rows.
    writers: frozenset[int]
    # The first id that no transaction had at that moment.
    horizon: int

    def for_transaction(self, xid: int) -> tuple[Hashable, ...]:
        """Return a value that identifies the name's meaning for ``xid``.

        It differs before and after each later transaction that wrote a part of the answer.
        """
        moment = CatalogVersion(xid, self.horizon)
        later = frozenset(writer for writer in self.writers if moment.precedes(writer))
        # The next id may belong to a savepoint of ``xid`` itself.
        return self.text, later, (xid + 1) % WRAP in later


class NameResolutionCache:
    """Answer for one stream as `waltap.changes.decode.decoder.NameResolution`.

    ``when_visible`` waits until the catalogue shows the work of a transaction.
    """

    def __init__(
        self,
        catalogue: PostgresCatalogue,
        when_visible: Callable[[int], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._catalogue, self._when_visible, self._clock = catalogue, when_visible, clock
        self._answers: dict[_Name, _CatalogAnswer] = {}
        # Names that exist, in the order of their first use.
        self._known: dict[_Name, None] = {}
        # Names used since the last query.
        self._used: set[_Name] = set()
        # Transactions that the answers saw.
        self._seen: SnapshotVisibility | None = None
        # Whether an answer has work of a later transaction than the one it was asked for.
        self._ahead = False
        # Token bucket of the checks, and its last update.
        self._checks, self._counted = BURST, clock()

    def due(self, xid: int) -> bool:
        """Return whether the caller must check names for ``xid``."""
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
        """Return a value that identifies the name's meaning for ``xid``.

        Raises: SourceError.
        """
        name = schema, table
        if not self._catalogue.tells_transactions:
            return name
        if not self._covers(xid):
            names, self._used = self._used | {name}, set()
            self._answers.clear()
            self._ahead = False
            self._seen = self._ask(names, xid)
            # A backend writes its commit record before its transaction becomes visible.
            if xid and not self._covers(xid):
                self._when_visible(xid)
                self._seen = self._ask(names, xid)
        elif name not in self._answers:
            # Each query doubles the answered names, so that many names need few queries.
            unanswered = (known for known in self._known if known not in self._answers)
            self._ask({name, *islice(unanswered, len(self._answers))}, xid)
        self._used.add(name)
        return self._answers[name].for_transaction(xid)

    def _covers(self, xid: int) -> bool:
        return self._seen is not None and bool(xid) and self._seen.saw(xid)

    def _ask(self, names: Iterable[_Name], xid: int) -> SnapshotVisibility | None:
        """Query the names and return the answer's visibility."""
        names = list(names)
        seen: SnapshotVisibility | None = None
        rows = self._catalogue.query(STANDING_SQL, ([n[0] for n in names], [n[1] for n in names]))
        for schema, table, snapshot, *told in rows:
            if seen is None:
                seen = SnapshotVisibility.parse(f"{snapshot}@0/0")
                assert seen is not None
            name = schema, table
            # The texts after OID and kind are transaction ids; an ``i`` marks a replica identity.
            texts = " ".join(text for text in told[3:] if text).replace("i", "").split()
            answer = _CatalogAnswer(tuple(told), frozenset(map(int, texts)), seen.xmax % WRAP)
            self._answers[name] = answer
            self._ahead = self._ahead or bool(answer.for_transaction(xid)[1])
            if told[0] is None:
                self._known.pop(name, None)
            else:
                self._known[name] = None
        return seen
