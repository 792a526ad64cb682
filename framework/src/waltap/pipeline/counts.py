"""What a run counts, over its reconnects. Written by the engine's thread, read by any."""

from dataclasses import dataclass, field
from typing import Protocol

__all__ = ["RATE_WINDOWS_S", "Counts", "Meter", "StreamGauges", "TableProgress"]

RATE_WINDOWS_S = (3, 10, 60)
"""Rates are told over so many seconds."""
RING = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class TableProgress:
    """One table of a snapshot: rows that the sink took, the estimate of all (None: unknown)."""

    table: str
    rows: int
    estimate: int | None
    complete: bool = False


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


class Meter:
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
class Counts:
    """Totals of one run. ``filtered`` has a number for each transform of changes, ``tables`` the snapshot
    by name."""

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
    filtered: list[int] = field(default_factory=list)
    tables: dict[str, TableProgress] = field(default_factory=dict)
    meter: Meter = field(default_factory=Meter)
