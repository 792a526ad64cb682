"""A clock that jumps to the end of each wait."""

import heapq
import threading
from collections.abc import Callable

from waltap.errors import StopRequested

# 2026-01-01 00:00 UTC: a fixed start, so that timestamps in records repeat.
START_NS = 1_767_225_600_000_000_000
# Readings of the clock without a wait between them. A run never needs as many: the code polls in a
# loop that would never end.
READS_MAX = 100_000
NS = 1_000_000_000


class TimeStopped(AssertionError):
    """The code polls the clock without ever waiting."""


class VirtualClock:
    """A `waltap.clock.Clock` that only its own thread moves.

    Time passes only in `wait` and `pass_until`. They run the actions scheduled with `at`, each at
    its time.
    """

    def __init__(self) -> None:
        self._now_ns = 0
        # A heap of (time, serial number, action). The serial number keeps the order of actions
        # that have the same time.
        self._appointed: list[tuple[int, int, Callable[[], object]]] = []
        self._serial = self._reads = 0
        self._owner = threading.get_ident()

    def monotonic(self) -> float:
        self._count_read()
        return self._now_ns / NS

    def time_ns(self) -> int:
        self._count_read()
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
        """Return seconds since the start, as `monotonic` does.

        Readings here do not count towards `TimeStopped`: a script may ask as often as it
        likes.
        """
        return self._now_ns / NS

    def at(self, seconds: float, action: Callable[[], object]) -> None:
        """Run ``action`` at ``seconds`` since the start.

        If that time has passed, the action runs when time passes next. An action may schedule
        others.
        """
        self._serial += 1
        due = max(self._now_ns, round(seconds * NS))
        heapq.heappush(self._appointed, (due, self._serial, action))

    def pass_until(
        self, seconds: float, met: Callable[[], object], stopping: Callable[[], bool] | None = None
    ) -> bool:
        """Pass time until ``met``, at most ``seconds``; return whether met.

        The simulated server waits with it.

        Raises: StopRequested when ``stopping`` returns True.
        """
        end_ns = self._now_ns + round(seconds * NS)
        while not met():
            if stopping is not None and stopping():
                raise StopRequested
            if not self._pass_to(end_ns):
                return bool(met())
        return True

    def _pass_to(self, end_ns: int) -> bool:
        """Run the next action, or move to ``end_ns`` and return False."""
        if self._appointed and self._appointed[0][0] <= end_ns:
            due, _, action = heapq.heappop(self._appointed)
            # An action scheduled for the past runs now: the clock never goes back.
            self._now_ns, self._reads = max(self._now_ns, due), 0
            action()
            return True
        if end_ns > self._now_ns:
            self._now_ns, self._reads = end_ns, 0
        return False

    def _count_read(self) -> None:
        if threading.get_ident() != self._owner:
            return  # a thread that asks for the status reads as often as it likes
        self._reads += 1
        if self._reads > READS_MAX:
            raise TimeStopped(f"at {self._now_ns / NS:g} s")
