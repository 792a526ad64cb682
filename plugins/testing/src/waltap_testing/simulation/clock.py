"""A clock that stands still until somebody waits, and then jumps."""

import heapq
from collections.abc import Callable

from waltap.source.connector import StopRequested

__all__ = ["TimeStandsStill", "VirtualClock"]

START_NS = 1_767_225_600_000_000_000
"""2026-01-01."""
LOOKS_MAX = 100_000
NS = 1_000_000_000


class TimeStandsStill(AssertionError):
    """Somebody asks for the time again and again, and waits for nothing: it would never end."""


class VirtualClock:
    """A `waltap.clock.Clock`. Only `wait` and `pass_until` let time pass, and on its way happens what was
    appointed with `at`, at its instant. Single-threaded."""

    def __init__(self) -> None:
        self._now_ns = 0
        self._appointed: list[tuple[int, int, Callable[[], object]]] = []
        self._serial = self._looks = 0

    def monotonic(self) -> float:
        self._look()
        return self._now_ns / NS

    def time_ns(self) -> int:
        self._look()
        return START_NS + self._now_ns

    def wait(self, seconds: float, stopping: Callable[[], bool]) -> bool:
        end_ns = self._now_ns + round(seconds * NS)
        while not stopping():
            if not self._pass_to(end_ns):
                return stopping()
        return True

    # --- for scripts --------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """Return seconds since the start, as `monotonic`; asking again is no fault."""
        return self._now_ns / NS

    def at(self, seconds: float, action: Callable[[], object]) -> None:
        """Let ``action`` happen at an instant, seconds since the start; one that has passed happens when
        time passes next. It may appoint more."""
        self._serial += 1
        due = max(self._now_ns, round(seconds * NS))
        heapq.heappush(self._appointed, (due, self._serial, action))

    def pass_until(
        self, seconds: float, met: Callable[[], object], stopping: Callable[[], bool] | None = None
    ) -> bool:
        """Let time pass until ``met``, at most ``seconds``; tell whether it is. A server's wait.

        Raises: StopRequested when ``stopping`` says so.
        """
        end_ns = self._now_ns + round(seconds * NS)
        while not met():
            if stopping is not None and stopping():
                raise StopRequested
            if not self._pass_to(end_ns):
                return bool(met())
        return True

    def _pass_to(self, end_ns: int) -> bool:
        """Go to the next thing that is appointed, and do it; False when ``end_ns`` comes first."""
        if self._appointed and self._appointed[0][0] <= end_ns:
            due, _, action = heapq.heappop(self._appointed)
            self._now_ns, self._looks = max(self._now_ns, due), 0
            action()
            return True
        if end_ns > self._now_ns:
            self._now_ns, self._looks = end_ns, 0
        return False

    def _look(self) -> None:
        self._looks += 1
        if self._looks > LOOKS_MAX:
            raise TimeStandsStill(f"at {self._now_ns / NS:g} s")
