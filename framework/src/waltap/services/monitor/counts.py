"""Counters of a run; the engine's thread writes, any thread reads."""

from collections import Counter as Tally
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count, repeat
from operator import attrgetter
from typing import Final, NamedTuple

import msgspec

from waltap.changes.decode.message import (
    Change,
    Delete,
    Insert,
    InsertBlock,
    LogicalMessage,
    Truncate,
    Update,
)
from waltap.changes.decode.relation import Relation
from waltap.changes.transactions.position import TableChunks
from waltap.changes.transactions.transaction import (
    Heartbeat,
    Part,
    SnapshotRows,
    TransactionPart,
    TransactionRun,
)
from waltap.clock import Clock, SystemClock
from waltap.errors import SinkError
from waltap.ports.offsets.offset import Offset

# Each ALTER TABLE makes a new relation version. Above this number the versions are summed up by
# name, so that a run of months does not grow with the schema changes.
MAX_RELATIONS: Final = 4096
"""Relation versions that are counted by themselves."""

_ROWS: Final = frozenset({Insert, Update, Delete})
# The sums of a table, in the order of the fields of `TableStatus`.
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


@dataclass(frozen=True, slots=True)
class TableStatus:
    """One table: its events that the sink took in this run, by operation."""

    table: str
    creates: int
    updates: int
    deletes: int
    truncates: int
    reads: int
    # Of the last transaction that changed the table, 0 before any; ms since 1970 UTC.
    commit_lsn: int
    committed_ms: int

    @property
    def events(self) -> int:
        return self.creates + self.updates + self.deletes + self.truncates + self.reads


@dataclass(frozen=True, slots=True, kw_only=True)
class LastEvent:
    """The last event that the sink took."""

    op: str
    # "" for a logical message.
    table: str
    # None for a row of a snapshot (``op`` r).
    xid: int | None
    commit_lsn: int
    # The time when the sink took it, ms since 1970 UTC.
    at_ms: int


class _RelationCounts:
    """Counts by relation version, and sums of forgotten versions by name."""

    __slots__ = ("events", "named", "positions", "reads")

    def __init__(self, named: dict[str, list[int]]) -> None:
        self.named = named
        self.events: Tally[tuple[type, Relation]] = Tally()
        self.reads: Tally[Relation] = Tally()
        self.positions: dict[Relation, tuple[int, int]] = {}

    def sums(self) -> dict[str, list[int]]:
        found = {name: list(sums) for name, sums in self.named.items()}
        for relation, rows in list(self.reads.items()):
            found.setdefault(relation.name, [0] * _WIDTH)[_READS] += rows
        for (kind, relation), events in list(self.events.items()):
            found.setdefault(relation.name, [0] * _WIDTH)[_OF[kind]] += events
        for relation, (lsn, committed) in list(self.positions.items()):
            sums = found.setdefault(relation.name, [0] * _WIDTH)
            if lsn >= sums[_LSN]:
                sums[_LSN], sums[_COMMITTED] = lsn, committed // 1000
        return found


class TableCounts:
    """Counts events by table. The engine's thread writes, any thread reads.

    Loops over changes run in C (`Counter.update`); names are made when a status is requested.
    """

    __slots__ = ("_recent", "last")

    def __init__(self) -> None:
        self._recent = _RelationCounts({})
        # None before any.
        self.last: LastEvent | None = None

    def count(
        self, parts: Iterable[TransactionPart | SnapshotRows | Heartbeat], now_ms: int
    ) -> None:
        recent = self._recent
        last: TransactionPart | SnapshotRows | None = None
        if isinstance(parts, TransactionRun):
            inserts, last = parts.block.inserts, parts.last
            recent.events[Insert, inserts.relation] += len(inserts)
            recent.positions[inserts.relation] = last.commit_lsn, last.commit_ts
            last.changes, parts = inserts, ()
        for part in parts:
            if isinstance(part, TransactionPart):
                if part.changes:
                    self._count(recent, part, part.changes)
                    last = part
            elif isinstance(part, SnapshotRows) and part.rows:
                recent.reads[part.relation] += len(part.rows)
                last = part
        if last is not None:
            self.last = _event(last, now_ms)
        if len(recent.positions) + len(recent.reads) > MAX_RELATIONS:
            self._recent = _RelationCounts(recent.sums())

    def forget(self, oids: Collection[int]) -> None:
        """Forget dropped relations; their counts stay, by name."""
        recent, gone = self._recent, set(oids)
        if any(relation.oid in gone for relation in recent.positions.keys() | recent.reads.keys()):
            self._recent = _RelationCounts(recent.sums())

    def _count(
        self, recent: _RelationCounts, part: TransactionPart, changes: Sequence[Change]
    ) -> None:
        position = part.commit_lsn, part.commit_ts
        if isinstance(changes, InsertBlock):
            recent.events[Insert, changes.relation] += len(changes)
            recent.positions[changes.relation] = position
            return
        # Most transactions of an application change one row: skip the loops for them.
        if len(changes) == 1 and type(changes[0]) in _ROWS:
            change = changes[0]
            recent.events[type(change), change.relation] += 1  # type: ignore[union-attr]
            recent.positions[change.relation] = position  # type: ignore[union-attr]
            return
        if not _ROWS.issuperset(map(type, changes)):
            for change in changes:
                if isinstance(change, Truncate):  # counts for each of its tables
                    recent.events.update((Truncate, table) for table in change.relations)
                    recent.positions.update(dict.fromkeys(change.relations, position))
            changes = [change for change in changes if type(change) in _ROWS]
        recent.events.update(zip(map(type, changes), map(_relation_of, changes), strict=True))
        recent.positions.update(zip(map(_relation_of, changes), repeat(position), strict=False))

    def status(self) -> tuple[TableStatus, ...]:
        return tuple(TableStatus(name, *sums) for name, sums in self._recent.sums().items())


def _event(part: TransactionPart | SnapshotRows, now_ms: int) -> LastEvent:
    if isinstance(part, SnapshotRows):
        return LastEvent(op="r", table=part.relation.name, xid=None, commit_lsn=0, at_ms=now_ms)
    changes = part.changes
    if isinstance(changes, InsertBlock):  # only its relation is asked, not its last row
        kind: type = Insert
        table = changes.relation.name
    else:
        change = changes[-1]
        kind, table = type(change), ""
        if isinstance(change, Truncate):
            table = change.relations[-1].name
        elif not isinstance(change, LogicalMessage):
            table = change.relation.name
    op = _LETTERS[kind]
    return LastEvent(op=op, table=table, xid=part.xid, commit_lsn=part.commit_lsn, at_ms=now_ms)


# The limit is `waltap.stop.timeout.ms`.
SinkUnresponsive = SinkError.define("SinkUnresponsive", "WT-5004")


class SinkCalls:
    """Times of the sink's present call. The engine's thread writes, any thread reads.

    ``unacknowledged_since``: since when an acknowledgement is missing (monotonic seconds).
    ``oldest_commit_ms``: commit time of the oldest change that is not durable.
    ``current_ms``: the last time when everything that the server had sent was durable.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._now: tuple[str, float] | None = None
        # Another server than the sink's for which the present call waits, such as a schema registry.
        self.awaited: str | None = None
        self.unacknowledged_since: float | None = None
        self.oldest_commit_ms: int | None = None
        self.current_ms: int | None = None

    def caught_up(self, now_ms: int) -> None:
        """Record that everything the server had sent is durable."""
        self.current_ms = now_ms

    @contextmanager
    def call(self, what: str) -> Iterator[None]:
        """Record a call of the sink while the block lasts; ``what`` names it for people."""
        before, self._now = self._now, (what, self._clock.monotonic())
        try:
            yield
        finally:
            self._now = before

    @contextmanager
    def wait_for(self, name: str) -> Iterator[None]:
        """Record that the sink waits for the server ``name`` while the block lasts."""
        self.awaited = name
        try:
            yield
        finally:
            self.awaited = None

    def at_hand(self) -> tuple[str, float] | None:
        """Return the present call and its seconds, None without one."""
        now = self._now
        return None if now is None else (now[0], max(0.0, self._clock.monotonic() - now[1]))

    def in_flight(self) -> tuple[str, float] | None:
        """Return the longest unfinished work of the sink and its seconds.

        It is the present call, or batches that the sink has not acknowledged.
        """
        call, unacknowledged = self.at_hand(), self.unacknowledged_since
        if unacknowledged is None:
            return call
        age = max(0.0, self._clock.monotonic() - unacknowledged)
        return call if call is not None and call[1] >= age else ("an acknowledgement", age)


ChunkEnd = tuple[str, int, bool]
"""A table's identifier, its completed chunk, and whether the table is complete."""


def chunk_ends(parts: Iterable[Part]) -> tuple[ChunkEnd, ...]:
    """Return the chunks of an initial snapshot that end in ``parts``."""
    return tuple(
        (str(part.relation.oid), part.chunk, part.complete)
        for part in parts
        if isinstance(part, SnapshotRows) and part.ends_chunk
    )


class TablesRead:
    """Records begun tables and their durable chunks.

    A table counts as begun before its first row is delivered, so the destination has no row of other
    tables, whatever fails. A chunk counts as done after the flush that follows its last row.
    """

    def __init__(self, offset: Offset) -> None:
        """Start from the stored ``offset``, whose snapshot may be incomplete."""
        self._unfinished = offset.snapshot is not None
        self._tables = {} if offset.snapshot is None else dict(offset.snapshot.tables)
        first = next(iter(offset.partitions.values()))
        self._visible_in = dict(first.visible_in) if self._unfinished else {}
        self._written: list[ChunkEnd] = []

    def begin(self, parts: Iterable[Part]) -> bool:
        """Record tables that begin with ``parts``.

        Return True if the offset must be stored first.
        """
        begins: dict[str, TableChunks] = {}
        for part in parts:
            if isinstance(part, SnapshotRows):
                begins |= part.begins
                if part.visible:
                    # wal2json and decoderbufs name tables in the stream, pgoutput sends OIDs.
                    for name in (str(part.relation.oid), part.relation.name):
                        self._visible_in[name] = part.visible
        self._tables |= begins
        return bool(begins) and self._unfinished

    def delivered(self, ends: Iterable[ChunkEnd]) -> None:
        self._written += ends

    def flushed(self) -> bool:
        """Mark written chunks as durable; True if the offset must be stored."""
        written, self._written = self._written, []
        for table, chunk, complete in written:
            if (known := self._tables.get(table)) is not None:
                self._tables[table] = known.ended(chunk, complete=complete)
        return bool(written) and self._unfinished

    def stored(self, offset: Offset, partition: str) -> Offset:
        """Return ``offset`` with the durable part of the snapshot."""
        assert offset.snapshot is not None
        snapshot = msgspec.structs.replace(offset.snapshot, tables=dict(self._tables))
        return msgspec.structs.replace(self._with_visible(offset, partition), snapshot=snapshot)

    def ended(self, offset: Offset, partition: str) -> Offset:
        """Return ``offset`` after the end of the snapshot."""
        self._unfinished, self._tables, self._written = False, {}, []
        return msgspec.structs.replace(self._with_visible(offset, partition), snapshot=None)

    def _with_visible(self, offset: Offset, partition: str) -> Offset:
        partitions = dict(offset.partitions)
        partitions[partition] = msgspec.structs.replace(
            partitions[partition], visible_in=dict(self._visible_in)
        )
        return msgspec.structs.replace(offset, partitions=partitions)


# 3 s shows a stop immediately, 60 s is steady enough to compare runs.
RATE_WINDOWS_S = (3, 10, 60)
"""Windows of reported rates, in seconds."""
# The longest window and the second that is being counted, rounded up to a power of two.
RING = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotTableProgress:
    """One table of a snapshot: rows that the sink took, and an estimate of all."""

    table: str
    rows: int
    # None: unknown.
    estimate: int | None
    complete: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotStatus:
    """The present snapshot, or the last one of this run."""

    # initial, blocking or incremental
    kind: str
    # running, paused, completed or aborted
    state: str
    # Duration so far, pauses included.
    seconds: float
    paused_seconds: float


class SnapshotTimes:
    """Times of snapshots; ``now`` is a monotonic clock in seconds."""

    __slots__ = ("_began", "_ended", "_kind", "_now", "_paused", "_paused_at", "_state")

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._kind = self._state = ""
        self._began = self._ended = self._paused = 0.0
        self._paused_at: float | None = None

    def notified(self, kind: str, event: str) -> None:
        """Record ``event``: started, in_progress, paused, resumed, completed or aborted."""
        now = self._now()
        # A resumed snapshot reports no start in this run: its first progress counts as one.
        resumed = event == "in_progress" and self._state not in {"running", "paused"}
        if event == "started" or resumed:
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
        """Return the present snapshot, None before any."""
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


class StreamGauges(NamedTuple):
    """Sizes of a stream's buffers."""

    # Changes that wait for a batch.
    queued_events: int = 0
    open_transactions: int = 0
    # Bytes of their buffered changes, and the part of them in files.
    held_bytes: int = 0
    spilled_bytes: int = 0


class EventRate:
    """Counts events in each of the last seconds."""

    __slots__ = ("_began", "_seconds")

    def __init__(self) -> None:
        self._began: float | None = None
        self._seconds: list[tuple[int, int]] = [(-1, 0)] * RING

    def add(self, now: float, events: int) -> None:
        """Count ``events`` at ``now``, seconds of a monotonic clock."""
        if self._began is None:
            self._began = now
        second = int(now)
        known, so_far = self._seconds[second % RING]
        self._seconds[second % RING] = (second, so_far + events if known == second else events)

    def per_second(self, now: float, window_s: int) -> float:
        """Return the events per second of the last ``window_s`` whole seconds.

        At most a minute, and fewer seconds in a younger run.
        """
        if self._began is None:
            return 0.0
        end = int(now)  # without the present second, which is incomplete
        first = max(end - window_s, int(self._began))
        events = sum(events for second, events in list(self._seconds) if first <= second < end)
        return events / (end - first) if end > first else 0.0


TOTALS: Final = (
    "events", "records", "snapshot_rows", "transactions", "batches", "reconnects",
    "batch_retries", "left_out", "dead_letters", "lag_least_ms", "lag_most_ms",
)  # fmt: skip
"""Counters that a status has under the same names."""


@dataclass(slots=True)
class RunCounters:
    """Totals of one run."""

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
    # Events left out by each transform of changes.
    filtered: list[int] = field(default_factory=list)
    # The snapshot's tables by name.
    tables: dict[str, SnapshotTableProgress] = field(default_factory=dict)
    meter: EventRate = field(default_factory=EventRate)
    snapshot: SnapshotTimes = field(default_factory=lambda: SnapshotTimes(lambda: 0.0))
    # None unless an observer asked (`Engine.watch`), since it costs 0.1 to 0.4 µs per change.
    by_table: TableCounts | None = None
    # Numbers of batches, by which they are acknowledged.
    numbers: Iterator[int] = field(default_factory=lambda: count(1))
    calls: SinkCalls = field(default_factory=lambda: SinkCalls(SystemClock()))

    def watch_tables(self) -> None:
        self.by_table = self.by_table or TableCounts()

    def lag(self, lag_ms: int) -> None:
        """Record the age of a batch's last change when the sink took it."""
        self.lag_ms = lag_ms
        self.lag_least_ms = lag_ms if self.lag_least_ms is None else min(self.lag_least_ms, lag_ms)
        self.lag_most_ms = lag_ms if self.lag_most_ms is None else max(self.lag_most_ms, lag_ms)
