"""What has come of each table in this run: events by operation, and the last place. Counted per batch."""

from collections import Counter as Tally
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from operator import attrgetter
from typing import Final

from waltap.decode.message import Change, Delete, Insert, LogicalMessage, Truncate, Update
from waltap.decode.relation import Relation
from waltap.transactions.transaction import Heartbeat, SnapshotRows, TransactionPart

__all__ = ["LastEvent", "TableCounts", "TableStatus"]

KEPT: Final = 4096
"""Relations that are counted by themselves: tables, and versions of them."""

_ROWS: Final = frozenset({Insert, Update, Delete})
_CREATES, _UPDATES, _DELETES, _TRUNCATES, _READS, _LSN, _COMMITTED, _WIDTH = range(8)
_OF: Final[dict[type, int]] = {
    Insert: _CREATES,
    Update: _UPDATES,
    Delete: _DELETES,
    Truncate: _TRUNCATES,
}
_LETTERS: Final[dict[type, str]] = {
    Insert: "c",
    Update: "u",
    Delete: "d",
    Truncate: "t",
    LogicalMessage: "m",
}
_relation_of = attrgetter("relation")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStatus:
    """One table: events that the sink took in this run, by operation; ``commit_lsn`` and ``committed_ms``,
    since 1970 UTC, are of the last transaction that changed it, 0 where none did."""

    table: str
    creates: int
    updates: int
    deletes: int
    truncates: int
    reads: int
    commit_lsn: int
    committed_ms: int

    @property
    def events(self) -> int:
        """Return how many events there were of all kinds."""
        return self.creates + self.updates + self.deletes + self.truncates + self.reads


@dataclass(frozen=True, slots=True, kw_only=True)
class LastEvent:
    """The last event that the sink took; ``at_ms``: when, since 1970 UTC. A message has no table, a row
    of a snapshot (``op`` r) no transaction."""

    op: str
    table: str
    xid: int | None
    commit_lsn: int
    at_ms: int


class _RelationCounts:
    """Counts by relation, and ``named``: those of relations that were let go, by name."""

    __slots__ = ("events", "named", "placed", "reads")

    def __init__(self, named: dict[str, list[int]]) -> None:
        self.named = named
        self.events: Tally[tuple[type, Relation]] = Tally()
        self.reads: Tally[Relation] = Tally()
        self.placed: dict[Relation, tuple[int, int]] = {}

    def sums(self) -> dict[str, list[int]]:
        found = {name: list(sums) for name, sums in self.named.items()}
        for relation, rows in list(self.reads.items()):
            found.setdefault(relation.name, [0] * _WIDTH)[_READS] += rows
        for (kind, relation), events in list(self.events.items()):
            found.setdefault(relation.name, [0] * _WIDTH)[_OF[kind]] += events
        for relation, (lsn, committed) in list(self.placed.items()):
            sums = found.setdefault(relation.name, [0] * _WIDTH)
            if lsn >= sums[_LSN]:
                sums[_LSN], sums[_COMMITTED] = lsn, committed // 1000
        return found


class TableCounts:
    """Written by the engine's thread, read by any. What is per change is in loops of C; names are made
    when somebody asks."""

    __slots__ = ("_kept", "_last", "_messages")

    def __init__(self) -> None:
        self._kept = _RelationCounts({})
        self._messages = 0
        self._last: LastEvent | None = None

    def count(
        self, parts: Iterable[TransactionPart | SnapshotRows | Heartbeat], now_ms: int
    ) -> None:
        """Take note of what a batch held."""
        kept = self._kept
        last: TransactionPart | SnapshotRows | None = None
        for part in parts:
            if isinstance(part, TransactionPart):
                if part.changes:
                    self._count(kept, part, part.changes)
                    last = part
            elif isinstance(part, SnapshotRows) and part.rows:
                kept.reads[part.relation] += len(part.rows)
                last = part
        if last is not None:
            self._last = _event(last, now_ms)
        if len(kept.placed) + len(kept.reads) > KEPT:
            self._kept = _RelationCounts(kept.sums())

    def forget(self, oids: Collection[int]) -> None:
        """Let go of relations that are gone; their counts stay, by name."""
        kept, gone = self._kept, set(oids)
        if any(relation.oid in gone for relation in kept.placed.keys() | kept.reads.keys()):
            self._kept = _RelationCounts(kept.sums())

    def _count(
        self, kept: _RelationCounts, part: TransactionPart, changes: Sequence[Change]
    ) -> None:
        place = part.commit_lsn, part.commit_ts
        if len(changes) == 1 and type(changes[0]) in _ROWS:
            change = changes[0]
            kept.events[type(change), change.relation] += 1  # type: ignore[union-attr]
            kept.placed[change.relation] = place  # type: ignore[union-attr]
            return
        if not _ROWS.issuperset(map(type, changes)):
            for change in changes:
                if isinstance(change, Truncate):  # counts for each of its tables
                    kept.events.update((Truncate, table) for table in change.relations)
                    kept.placed.update(dict.fromkeys(change.relations, place))
                elif isinstance(change, LogicalMessage):
                    self._messages += 1
            changes = [change for change in changes if type(change) in _ROWS]
        kept.events.update(zip(map(type, changes), map(_relation_of, changes), strict=True))
        kept.placed.update(zip(map(_relation_of, changes), repeat(place), strict=False))

    @property
    def messages(self) -> int:
        """Return how many logical messages came."""
        return self._messages

    @property
    def last(self) -> LastEvent | None:
        """Return the last event, None before any."""
        return self._last

    def status(self) -> tuple[TableStatus, ...]:
        """Return the tables of which something came."""
        return tuple(
            TableStatus(
                table=name,
                creates=sums[_CREATES],
                updates=sums[_UPDATES],
                deletes=sums[_DELETES],
                truncates=sums[_TRUNCATES],
                reads=sums[_READS],
                commit_lsn=sums[_LSN],
                committed_ms=sums[_COMMITTED],
            )
            for name, sums in self._kept.sums().items()
        )


def _event(part: TransactionPart | SnapshotRows, now_ms: int) -> LastEvent:
    if isinstance(part, SnapshotRows):
        return LastEvent(op="r", table=part.relation.name, xid=None, commit_lsn=0, at_ms=now_ms)
    change, table = part.changes[-1], ""
    if isinstance(change, Truncate):
        table = change.relations[-1].name
    elif not isinstance(change, LogicalMessage):
        table = change.relation.name
    op = _LETTERS[type(change)]
    return LastEvent(op=op, table=table, xid=part.xid, commit_lsn=part.commit_lsn, at_ms=now_ms)
