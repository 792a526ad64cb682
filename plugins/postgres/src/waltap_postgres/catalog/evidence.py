"""Evidence whether the catalogue's answer is newer than a change.

The catalogue shows the present, and the stream may lag behind it. Four kinds of evidence decide:

- the order of transactions, by their ids and the server's commit timestamps (`CatalogVersion`);
- the work of a transaction that rows and announced relations show (`shown_writers`);
- the snapshot of an answer, which is valid for every transaction that the snapshot saw
  (`TablesAhead`);
- the catalogue's rows for a name, for plugins that announce no tables (`NameResolutionCache`).
"""

import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from waltap.changes.decode.relation import Column, Relation
from waltap_postgres.catalog.catalogue import CatalogTable, PostgresCatalogue
from waltap_postgres.identity import IdentityEvidence, identity_evidence
from waltap_postgres.visibility import SnapshotVisibility

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
    # Rows written up to this id are not newer. It is the transaction's own id, or the id of a
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
        stated = self.later.get(changed)
        if stated is not None:
            return stated
        later = 0 < (changed - (self.reach or self.xid)) % WRAP < _HALF
        # An id ahead of the horizon is an old one, from before the last wrap-around.
        return later and (self.horizon - changed) % WRAP < _HALF

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


# Evidence in rows and announced relations about the catalogue's writers.
#
# DDL under a savepoint, or in a block with EXCEPTION, writes the catalogue with the id of a
# subtransaction. That id is higher than its transaction's, as a later transaction's id is. No
# query returns the parent of an id. But if the wire shows the work of an id, that work was done
# before.


def shown_writers(wire: Relation, present: CatalogTable, then: Relation) -> Iterator[int]:
    """Yield the transactions whose work an announced relation shows.

    Their work is in ``wire`` and ``present``, and was not in ``then``, the relation's last
    description.
    """
    # A catalogue row names only its last writer, for whatever change. So a column is evidence if no
    # other change of it can be later.
    yield from shown_by_columns(wire.columns, present, then)
    now = present.relation
    # Replica identity and flags are evidence only if the table shows nothing newer.
    if wire.name != now.name or wire.identity != now.identity or _differ(wire, now):
        return
    if wire.identity != then.identity:
        yield present.row_changed
    flags = _flagged(wire)
    if (
        identity_evidence(wire.identity) is IdentityEvidence.KEY
        and flags
        and flags == _flagged(now) != _flagged(then)
    ):
        yield present.key_changed


def shown_by_columns(
    columns: Sequence[Column], present: CatalogTable, then: Relation
) -> Iterator[int]:
    """Yield the transactions that wrote the columns that rows show."""
    now = {column.name: column for column in present.relation.columns}
    names = {column.name: column for column in then.columns}
    numbers = {column.number: column for column in then.columns if column.number is not None}
    order = [now[column.name].number or 0 for column in columns if column.name in now]
    # Otherwise a name is another column's by now, and shows nothing of that one.
    in_order = order == sorted(order)
    before = [names[column.name].number or 0 for column in columns if column.name in names]
    # Names went from column to column: the wire lists columns by their number.
    if in_order and before != sorted(before):
        names = {}
    for column in columns:
        found = now.get(column.name)
        if found is None or found.number is None or found.type_oid != column.type_oid:
            continue
        if column.nullable is not None and column.nullable != found.nullable:
            continue
        writers = present.changed.get(found.number, ())
        former = names.get(found.name) or numbers.get(found.number)
        if not in_order:
            continue
        if former is None:
            if _made_at_once(found, writers):
                yield writers[0]
        elif (
            writers
            and former.nullable == found.nullable
            and (former.name, former.type_oid) != (found.name, found.type_oid)
        ):
            yield writers[0]


def fits(columns: Iterable[Column], relation: Relation) -> bool:
    """Return whether all of ``columns`` can belong to ``relation``."""
    types = {column.name: column.type_oid for column in relation.columns}
    return all(types.get(column.name) == column.type_oid for column in columns)


def _made_at_once(column: Column, writers: Sequence[int]) -> bool:
    """Return whether a new column's last writer also created it."""
    # The column and its default have the same writer.
    if len(writers) > 1:
        return len(set(writers)) == 1
    # Without a default, ADD COLUMN cannot make a column of existing rows NOT NULL: a later
    # statement did.
    return bool(writers) and bool(column.nullable)


def _differ(wire: Relation, now: Relation) -> bool:
    """Return whether the columns differ, apart from generated ones."""
    # Not every wire sends generated columns.
    generated = {column.name for column in now.columns if column.generated}
    sent, present = (
        {c.name: c.type_oid for c in relation.columns if c.name not in generated}
        for relation in (wire, now)
    )
    return sent != present


def _flagged(relation: Relation) -> set[str]:
    return {column.name for column in relation.columns if column.in_identity}


def came_later(
    now: CatalogTable, then: Relation, moment: CatalogVersion, columns: Sequence[Column]
) -> bool:
    """Return whether ``now`` took its name from ``then`` after ``moment``."""
    if not moment.precedes(now.named):
        return False
    if now.named in moment.later:
        return True
    # The later id may be a subtransaction of this transaction. Columns that only one of the two
    # tables can have decide.
    of_now, of_then = fits(columns, now.relation), fits(columns, then)
    if of_now != of_then:
        return of_then
    # No transaction below the frozen horizon ran when the table was created, so none of them
    # created it. Other running transactions hold the horizon back. But a transaction whose first
    # command created the table under a savepoint got both ids at once, and another transaction had
    # to free the name before that.
    if now.named == now.made and now.frozen:
        apart = (now.made - moment.xid) % WRAP
        return (now.made_first and apart > 1) or moment.is_before(now.frozen)
    return True


# Prefetch of tables when a stream announces many relations at once.
#
# An answer is valid for transactions that were visible to it; for a later one the catalogue is
# queried again. So a prefetched answer is never less true than one on demand. The same rule
# serves a table that is altered repeatedly: a stream that lags asks once for all transactions
# that had committed.

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
            self._by_name.pop(known.relation.table_id, None)

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
            self._by_name[table.relation.table_id] = table
        self._expected.clear()


# Checks that a table name still means the same table.
#
# Rows of wal2json and decoderbufs name tables and announce nothing. They do not show a table that
# was dropped and created again with the same columns, a dropped key, or a materialized view in a
# table's place. The catalogue shows it.
#
# One answer is valid for every transaction that its snapshot saw. So a stream that lags asks once
# for many transactions. A query names only the tables used since the query before, so its cost grows
# with the rows and not with the number of tables.

EVIDENCE_SQL = """
SELECT o.schema, o.name, s.snapshot, c.oid::int8, c.relkind::text, c.relreplident::text, c.xmin::text,
       (SELECT string_agg(i.xmin::text || CASE WHEN i.indisreplident THEN 'i' ELSE '' END, ' '
                          ORDER BY i.indexrelid)
          FROM pg_index i WHERE i.indrelid = c.oid AND i.indisunique AND i.indisvalid),
       (SELECT string_agg(a.xmin::text, ' ' ORDER BY a.attnum)
          FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
       n.xmin::text
  FROM (SELECT txid_current_snapshot()::text AS snapshot OFFSET 0) s
 CROSS JOIN unnest(%s::text[], %s::text[]) o(schema, name)
  LEFT JOIN pg_namespace n ON n.nspname = o.schema::name
  LEFT JOIN pg_class c ON c.relname = o.name::name AND c.relnamespace = n.oid
"""

# Rate and burst of the checks whether a transaction with rows also did DDL.
CHECKS_PER_S, CHECKS_BURST = 20.0, 50.0

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
        self._checks, self._counted = CHECKS_BURST, clock()

    def due(self, xid: int) -> bool:
        """Return whether the caller must check names for ``xid``."""
        if self._covers(xid) or not self._catalogue.shows_transactions:
            return self._ahead
        now = self._clock()
        self._checks = min(CHECKS_BURST, self._checks + (now - self._counted) * CHECKS_PER_S)
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
        if not self._catalogue.shows_transactions:
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
        rows = self._catalogue.query(EVIDENCE_SQL, ([n[0] for n in names], [n[1] for n in names]))
        for schema, table, snapshot, *stated in rows:
            if seen is None:
                seen = SnapshotVisibility.of_snapshot(snapshot)
            name = schema, table
            # The texts after OID and kind are transaction ids; an ``i`` marks a replica identity.
            texts = " ".join(text for text in stated[3:] if text).replace("i", "").split()
            answer = _CatalogAnswer(tuple(stated), frozenset(map(int, texts)), seen.xmax % WRAP)
            self._answers[name] = answer
            self._ahead = self._ahead or bool(answer.for_transaction(xid)[1])
            if stated[0] is None:
                self._known.pop(name, None)
            else:
                self._known[name] = None
        return seen
