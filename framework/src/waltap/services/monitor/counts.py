"""What a run counts, over its reconnects. Written by the engine's thread, read by any."""

from collections import Counter as Tally
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count, repeat
from operator import attrgetter
from typing import Final, Protocol

import msgspec

from waltap.changes.decode.message import Change, Delete, Insert, LogicalMessage, Truncate, Update
from waltap.changes.decode.relation import Relation
from waltap.changes.transactions.snapshot_progress import TableChunks
from waltap.changes.transactions.transaction import Heartbeat, SnapshotRows, TransactionPart
from waltap.clock import Clock, SystemClock
from waltap.errors import SinkError
from waltap.ports.offsets.offset import Offset

__all__ = [
    "RATE_WINDOWS_S",
    "ChunkEnd",
    "EventRate",
    "LastEvent",
    "RunCounters",
    "SinkCalls",
    "SinkHeld",
    "SnapshotStatus",
    "SnapshotTableProgress",
    "SnapshotTimes",
    "StreamGauges",
    "TableCounts",
    "TableStatus",
    "TablesRead",
    "chunk_ends",
]


# What has come of each table in this run: events by operation, and the last place. Counted per
# batch.

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


# The call that the sink is at, and what it has not acknowledged, for any thread that looks on.


class SinkHeld(SinkError):
    """The sink did not return from a call within `waltap.stop.timeout.ms` of a stop; the process ends."""

    code = "WT-5004"
    remedy = (
        "Nothing is lost: the next start repeats what was not durable. Find out why the "
        "destination does not answer (its process may be stopped, its disk full, or a lock "
        "held), then start again with `waltap run FILE`."
    )


class SinkCalls:
    """Since when the sink is at a call, or owes the acknowledgement of a batch; when the oldest change
    committed that is not durable; and when, last, all that the server had sent was (``current_ms``). The
    engine's thread writes, any reads."""

    __slots__ = ("_clock", "_now", "awaited", "current_ms", "oldest_commit_ms", "owed_since")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._now: tuple[str, float] | None = None
        # Another server than the sink's that the call at hand waits for.
        self.awaited: str | None = None
        self.owed_since: float | None = None
        self.oldest_commit_ms: int | None = None
        self.current_ms: int | None = None

    def caught_up(self, now_ms: int) -> None:
        """Note that everything the server had sent is durable."""
        self.current_ms = now_ms

    @contextmanager
    def call(self, what: str) -> Iterator[None]:
        """Be at a call of the sink while the block lasts; ``what`` names it for people."""
        before, self._now = self._now, (what, self._clock.monotonic())
        try:
            yield
        finally:
            self._now = before

    @contextmanager
    def wait_for(self, name: str) -> Iterator[None]:
        """Wait for the server ``name`` while the block lasts."""
        self.awaited = name
        try:
            yield
        finally:
            self.awaited = None

    def at_hand(self, since: float | None = None) -> tuple[str, float] | None:
        """Return the call at hand, and for how many seconds it lasts, counted from ``since`` at the
        earliest; None where there is none."""
        found = self._now
        if found is None:
            return None
        began = found[1] if since is None else max(since, found[1])
        return found[0], max(0.0, self._clock.monotonic() - began)

    def in_flight(self) -> tuple[str, float] | None:
        """Return what the sink has not come to an end with, and for how many seconds: the call at hand, or
        batches that it took and has not acknowledged."""
        call, owed = self.at_hand(), self.owed_since
        if owed is None:
            return call
        age = max(0.0, self._clock.monotonic() - owed)
        return call if call is not None and call[1] >= age else ("an acknowledgement", age)


# What of an initial snapshot is at the destination, as the offset keeps it.

Part = TransactionPart | SnapshotRows | Heartbeat
ChunkEnd = tuple[str, int, bool]
"""A table's identifier, a chunk of it that has ended, and whether the table has."""


def chunk_ends(parts: Iterable[Part]) -> tuple[ChunkEnd, ...]:
    """Return the chunks of an initial snapshot that end in ``parts``."""
    return tuple(
        (str(part.relation.oid), part.chunk, part.complete)
        for part in parts
        if isinstance(part, SnapshotRows) and part.ends_chunk
    )


class TablesRead:
    """Keeps which tables have begun, and which of their chunks are durable.

    A table counts as begun before the first of its rows is delivered: of what does not count as begun
    nothing is at the destination, whatever happens. A chunk counts as done after the flush behind its end.
    """

    def __init__(self, offset: Offset) -> None:
        """``offset``: the stored one, of a snapshot that goes on too."""
        self._goes_on = offset.snapshot is not None
        self._tables = {} if offset.snapshot is None else dict(offset.snapshot.tables)
        first = next(iter(offset.partitions.values()))
        self._visible_in = dict(first.visible_in) if self._goes_on else {}
        self._written: list[ChunkEnd] = []

    def begin(self, parts: Iterable[Part]) -> bool:
        """Take note of the tables that begin with ``parts``; True when that is to be stored first."""
        begins: dict[str, TableChunks] = {}
        for part in parts:
            if isinstance(part, SnapshotRows):
                begins |= part.begins
                if part.visible:
                    for name in (str(part.relation.oid), part.relation.name):
                        self._visible_in[name] = part.visible
        self._tables |= begins
        return bool(begins) and self._goes_on

    def took(self, ends: Iterable[ChunkEnd]) -> None:
        """Take note of chunks that the sink has taken to their end."""
        self._written += ends

    def flushed(self) -> bool:
        """What was taken is durable; True when there is something to store."""
        written, self._written = self._written, []
        for table, chunk, complete in written:
            if (known := self._tables.get(table)) is not None:
                self._tables[table] = known.ended(chunk, complete=complete)
        return bool(written) and self._goes_on

    def stored(self, offset: Offset, partition: str) -> Offset:
        """Return ``offset`` with the snapshot as far as it is durable."""
        assert offset.snapshot is not None
        snapshot = msgspec.structs.replace(offset.snapshot, tables=dict(self._tables))
        return msgspec.structs.replace(self._with_visible(offset, partition), snapshot=snapshot)

    def ended(self, offset: Offset, partition: str) -> Offset:
        """Return ``offset`` behind the end of the snapshot."""
        self._goes_on, self._tables, self._written = False, {}, []
        return msgspec.structs.replace(self._with_visible(offset, partition), snapshot=None)

    def _with_visible(self, offset: Offset, partition: str) -> Offset:
        partitions = dict(offset.partitions)
        partitions[partition] = msgspec.structs.replace(
            partitions[partition], visible_in=dict(self._visible_in)
        )
        return msgspec.structs.replace(offset, partitions=partitions)


RATE_WINDOWS_S = (3, 10, 60)
"""Rates are told over so many seconds."""
RING = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotTableProgress:
    """One table of a snapshot: rows that the sink took, the estimate of all (None: unknown)."""

    table: str
    rows: int
    estimate: int | None
    complete: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotStatus:
    """The snapshot that runs, or the last one of this run. ``kind``: initial, blocking or incremental;
    ``state``: running, paused, completed or aborted; ``seconds`` it took so far, ``paused_seconds`` of
    them it stood still."""

    kind: str
    state: str
    seconds: float
    paused_seconds: float


class SnapshotTimes:
    """When snapshots began and ended; ``now`` is a clock that never goes back, in seconds."""

    __slots__ = ("_began", "_ended", "_kind", "_now", "_paused", "_paused_at", "_state")

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._kind = self._state = ""
        self._began = self._ended = self._paused = 0.0
        self._paused_at: float | None = None

    def told(self, kind: str, event: str) -> None:
        """Take note of ``event``: started, paused, resumed, completed or aborted."""
        now = self._now()
        goes_on = event == "in_progress" and self._state not in {"running", "paused"}
        if event == "started" or goes_on:
            self._kind, self._state, self._began = kind, "running", now
            self._paused, self._paused_at = 0.0, None
        elif event == "paused" and self._state == "running":
            self._state, self._paused_at = "paused", now
        elif event in {"resumed", "completed", "aborted"} and self._state in {"running", "paused"}:
            if self._paused_at is not None:
                self._paused, self._paused_at = self._paused + now - self._paused_at, None
            self._state = "running" if event == "resumed" else event
            self._ended = now

    def status(self) -> SnapshotStatus | None:
        """Return it as it is now; None where none was begun."""
        if not self._state:
            return None
        now, paused_at = self._now(), self._paused_at
        end = now if self._state in {"running", "paused"} else self._ended
        return SnapshotStatus(
            kind=self._kind,
            state=self._state,
            seconds=max(0.0, end - self._began),
            paused_seconds=self._paused + (0.0 if paused_at is None else max(0.0, now - paused_at)),
        )


class StreamGauges(Protocol):
    """What a stream has in hand now; any thread may ask."""

    @property
    def queued_events(self) -> int:
        """Return how many changes are gathered and not written."""

    @property
    def open_transactions(self) -> int:
        """Return how many transactions have begun and not ended."""

    @property
    def held_bytes(self) -> int:
        """Return the size of what is kept of them."""

    @property
    def spilled_bytes(self) -> int:
        """Return how much of that is in files."""


class EventRate:
    """How many events came in each of the last seconds."""

    __slots__ = ("_began", "_seconds")

    def __init__(self) -> None:
        self._began: float | None = None
        self._seconds: list[tuple[int, int]] = [(-1, 0)] * RING

    def add(self, now: float, events: int) -> None:
        """Take note of ``events`` at ``now``, seconds of a clock that never goes back."""
        if self._began is None:
            self._began = now
        second = int(now)
        known, so_far = self._seconds[second % RING]
        self._seconds[second % RING] = (second, so_far + events if known == second else events)

    def per_second(self, now: float, window_s: int) -> float:
        """Return the events a second of the last ``window_s`` whole seconds, at most a minute; of fewer
        where it has not run so long."""
        if self._began is None:
            return 0.0
        end = int(now)
        first = max(end - window_s, int(self._began))
        events = sum(events for second, events in list(self._seconds) if first <= second < end)
        return events / (end - first) if end > first else 0.0


@dataclass(slots=True)
class RunCounters:
    """Totals of one run. ``filtered`` has a number for each transform of changes, ``tables`` the snapshot
    by name. ``by_table`` is there where somebody wants to know it (`Engine.watch`). ``numbers`` gives
    each batch its own. ``calls`` has what the sink is at."""

    events: int = 0
    records: int = 0
    snapshot_rows: int = 0
    transactions: int = 0
    batches: int = 0
    reconnects: int = 0
    batch_retries: int = 0
    left_out: int = 0
    dead_letters: int = 0
    lag_ms: int | None = None
    lag_least_ms: int | None = None
    lag_most_ms: int | None = None
    last_xid: int | None = None
    filtered: list[int] = field(default_factory=list)
    tables: dict[str, SnapshotTableProgress] = field(default_factory=dict)
    meter: EventRate = field(default_factory=EventRate)
    snapshot: SnapshotTimes = field(default_factory=lambda: SnapshotTimes(lambda: 0.0))
    by_table: TableCounts | None = None
    numbers: Iterator[int] = field(default_factory=lambda: count(1))
    calls: SinkCalls = field(default_factory=lambda: SinkCalls(SystemClock()))

    def watch_tables(self) -> None:
        """Count the events of each table from now on."""
        self.by_table = self.by_table or TableCounts()

    def lag(self, lag_ms: int) -> None:
        """The last change of a batch was so old when the sink took it."""
        self.lag_ms = lag_ms
        self.lag_least_ms = lag_ms if self.lag_least_ms is None else min(self.lag_least_ms, lag_ms)
        self.lag_most_ms = lag_ms if self.lag_most_ms is None else max(self.lag_most_ms, lag_ms)
