"""What the page draws: samples of the last hour."""

import threading
from collections import deque
from collections.abc import Callable

import msgspec

from waltap.pipeline.status import Status

__all__ = ["History", "Point"]

EVERY_S = 5.0
KEPT = 720
"""An hour."""


class Point(msgspec.Struct, frozen=True, rename="camel"):
    """One sample: ms since 1970 UTC, events a second, lag in bytes and ms (None: unknown)."""

    at_ms: int
    rate: float
    lag_bytes: int | None
    lag_ms: int | None


class History:
    """Asks for the status every five seconds, in a thread of its own, while its block lasts."""

    def __init__(self, status: Callable[[], Status]) -> None:
        self._status = status
        self._points: deque[Point] = deque(maxlen=KEPT)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="waltap-history", daemon=True)
        self._before: tuple[int, int] | None = None

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End."""
        self._end.set()
        if self._thread.is_alive():
            self._thread.join(1)

    def points(self) -> list[Point]:
        """Return the samples, the oldest first."""
        return list(self._points)

    def _run(self) -> None:
        self._sample()
        while not self._end.wait(EVERY_S):
            self._sample()

    def _sample(self) -> None:
        status = self._status()
        at, events = self._before or (status.at_ms, status.events)
        seconds = (status.at_ms - at) / 1000
        rate = (status.events - events) / seconds if seconds > 0 else 0.0
        self._before = status.at_ms, status.events
        lags = [p.lag_bytes for p in status.partitions if p.lag_bytes is not None]
        times = [p.lag_ms for p in status.partitions if p.lag_ms is not None]
        self._points.append(
            Point(status.at_ms, round(rate, 1), max(lags, default=None), max(times, default=None))
        )
