"""Sample the status for the charts of the page."""

import threading
from collections import deque
from collections.abc import Callable

import msgspec

from waltap.services.monitor.status import PipelineStatus

EVERY_S = 5.0
# samples of one hour
KEPT = 720


class StatusSample(msgspec.Struct, frozen=True, rename="camel"):
    """One sample of the status; None is an unknown value."""

    # ms since 1970 UTC
    at_ms: int
    # events per second
    rate: float
    # the largest lag of all partitions
    lag_bytes: int | None
    lag_ms: int | None
    # WAL that the slot retains
    kept_bytes: int | None
    # how far the slowest stage after the sink is behind the sink
    onward_bytes: int | None


class StatusHistory:
    """Sample the status every five seconds in a thread."""

    def __init__(self, status: Callable[[], PipelineStatus]) -> None:
        self._status = status
        self._points: deque[StatusSample] = deque(maxlen=KEPT)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="waltap-history", daemon=True)
        self._before: tuple[int, int] | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread."""
        self._end.set()
        if self._thread.is_alive():
            self._thread.join(1)

    def points(self, since_ms: int = 0) -> list[StatusSample]:
        """Return the samples after ``since_ms``, the oldest first."""
        # a copy, because the thread adds samples while a request reads them
        return [point for point in self._points.copy() if point.at_ms > since_ms]

    def _run(self) -> None:
        self._sample()
        while not self._end.wait(EVERY_S):
            self._sample()

    def _sample(self) -> None:
        status = self._status()
        # the first sample has no predecessor: its rate is 0
        at, events = self._before or (status.at_ms, status.events)
        seconds = (status.at_ms - at) / 1000
        rate = (status.events - events) / seconds if seconds > 0 else 0.0
        self._before = status.at_ms, status.events
        lags = [p.lag_bytes for p in status.partitions if p.lag_bytes is not None]
        times = [p.lag_ms for p in status.partitions if p.lag_ms is not None]
        self._points.append(
            StatusSample(
                at_ms=status.at_ms,
                rate=round(rate, 1),
                lag_bytes=max(lags, default=None),
                lag_ms=max(times, default=None),
                kept_bytes=None if status.slot is None else status.slot.retained_bytes,
                onward_bytes=max(
                    (each.lag_bytes for each in status.onward if each.lag_bytes is not None),
                    default=None,
                ),
            )
        )
