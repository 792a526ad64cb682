"""What a run counts, over its reconnects. Written by the engine's thread, read by any."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

from waltap.clock import SystemClock
from waltap.pipeline.sink_calls import SinkCalls
from waltap.pipeline.table_counts import TableCounts

__all__ = [
    "RATE_WINDOWS_S",
    "EventRate",
    "RunCounters",
    "SnapshotStatus",
    "SnapshotTableProgress",
    "SnapshotTimes",
    "StreamGauges",
]

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

    def lag(self, lag_ms: int) -> None:
        """The last change of a batch was so old when the sink took it."""
        self.lag_ms = lag_ms
        self.lag_least_ms = lag_ms if self.lag_least_ms is None else min(self.lag_least_ms, lag_ms)
        self.lag_most_ms = lag_ms if self.lag_most_ms is None else max(self.lag_most_ms, lag_ms)
