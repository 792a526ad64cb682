"""How long until the WAL that a slot keeps is too much: from measured rates. Sans-IO.

What is kept grows by what the server writes and shrinks by what the slot lets go of. Three things may be
full first: what ``max_slot_wal_keep_size`` leaves the slot, the budget of the profile, and the disk.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from waltap.slot_monitor.pace import WalGrowth, pace

__all__ = ["WINDOW_S", "SlotReading", "WalForecast", "WalLimit", "forecast", "tightest"]

WINDOW_S = 900.0
"""What is older counts for nothing. What is kept is a saw whose teeth are checkpoints: it has some."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotReading:
    """One look at a slot: seconds of a clock that never goes back, LSNs, and what the server says may be
    written before the slot is in danger (``safe_bytes``), or is free on its disk; None: unknown."""

    at_s: float
    server_lsn: int
    restart_lsn: int
    safe_bytes: int | None = None
    free_bytes: int | None = None

    @property
    def retained_bytes(self) -> int:
        """Return how much WAL the slot keeps."""
        return max(0, self.server_lsn - self.restart_lsn)


@dataclass(frozen=True, slots=True, kw_only=True)
class WalLimit:
    """What would be full: ``kind`` is slot, budget or disk, ``whole`` what the slot may keep, ``left``
    what it may keep beyond what it does, never below 0."""

    kind: str
    whole: int
    left: int

    @property
    def used(self) -> float:
        """Return the share that is used, 0 to 1."""
        return 1.0 if self.whole <= 0 else 1.0 - self.left / self.whole


@dataclass(frozen=True, slots=True, kw_only=True)
class WalForecast:
    """``growth`` and ``written`` are bytes a second, as they go now: by how much more is kept, and what
    the server writes. ``seconds``: until the limit, as things go; None: never, or no limit is known.
    ``stalled_seconds``: were nothing let go of from now on."""

    growth: float
    written: float
    limit: WalLimit | None
    seconds: float | None
    stalled_seconds: float | None


def tightest(reading: SlotReading, budget: int | None) -> WalLimit | None:
    """Return the limit of which the least is left, None where none is known."""
    kept = reading.retained_bytes
    found = []
    if reading.safe_bytes is not None:
        left = max(0, reading.safe_bytes)
        found.append(WalLimit(kind="slot", whole=kept + left, left=left))
    if budget is not None:
        found.append(WalLimit(kind="budget", whole=budget, left=max(0, budget - kept)))
    if reading.free_bytes is not None:
        left = max(0, reading.free_bytes)
        found.append(WalLimit(kind="disk", whole=kept + left, left=left))
    return min(found, key=lambda limit: limit.left, default=None)


def forecast(readings: Sequence[SlotReading], budget: int | None) -> WalForecast:
    """Return what is to come after ``readings``, the oldest first, at least one."""
    last = readings[-1]
    known = [each for each in readings if last.at_s - each.at_s <= WINDOW_S]
    at_s = [each.at_s for each in known]
    growth = pace(at_s, [each.retained_bytes for each in known])
    written = pace(at_s, [each.server_lsn for each in known])
    limit = tightest(last, budget)
    seconds, stalled = _until(limit, growth), _until(limit, written)
    if seconds is not None:
        # what is kept cannot grow faster than what is written, wherever a window or a trend ends
        seconds = seconds if stalled is None else max(seconds, stalled)
        stalled = seconds if stalled is None else stalled
    return WalForecast(
        growth=min(growth.rate, max(0.0, written.rate)),
        written=max(0.0, written.rate),
        limit=limit,
        seconds=seconds,
        stalled_seconds=stalled,
    )


def _until(limit: WalLimit | None, pace: WalGrowth) -> float | None:
    return None if limit is None else pace.seconds_until(limit.left)
