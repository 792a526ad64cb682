"""How long until the WAL that a slot keeps is too much, from the mean rates of a window. Sans-IO.

What is kept grows by what the server writes and shrinks by what the slot lets go of. Three things may be
full first: what ``max_slot_wal_keep_size`` leaves the slot, the budget of the profile, and the disk.
"""

from collections.abc import Sequence
from dataclasses import dataclass

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
    """``growth`` and ``written`` are bytes a second, in the mean of the window: by how much more is kept,
    and what the server writes. ``seconds``: until the limit, as things go; None: never, or no limit is
    known. ``stalled_seconds``: were nothing let go of from now on."""

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
    first = next(each for each in readings if last.at_s - each.at_s <= WINDOW_S)
    written = max(0.0, _rate(last.server_lsn - first.server_lsn, last.at_s - first.at_s))
    growth = _rate(last.retained_bytes - first.retained_bytes, last.at_s - first.at_s)
    # What is kept seems to grow faster than what is written where a slot was made anew in the window.
    growth = min(growth, written)
    limit = tightest(last, budget)
    return WalForecast(
        growth=growth,
        written=written,
        limit=limit,
        seconds=_until(limit, growth),
        stalled_seconds=_until(limit, written),
    )


def _rate(octets: int, seconds: float) -> float:
    return octets / seconds if seconds > 0 else 0.0


def _until(limit: WalLimit | None, rate: float) -> float | None:
    if limit is None or (limit.left and rate <= 0):
        return None
    return limit.left / rate if limit.left else 0.0
