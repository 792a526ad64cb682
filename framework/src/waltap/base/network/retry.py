"""Wait between tries: the one policy of sources, sinks, clients and stores."""

from collections.abc import Callable
from email.utils import parsedate_to_datetime
from typing import Final

from waltap.clock import RandomSource, SystemClock, system_chance

FIRST_WAIT_S: Final = 0.2
# Parallel clients that failed together must not come again together.
JITTER: Final = (0.8, 1.2)

# Statuses of HTTP after which the same request may be sent again.
TRIES_AGAIN: Final = frozenset({408, 425, 429, 500, 502, 503, 504})


class RetryBackoff:
    """Waits that double up to a ceiling, with jitter.

    ``wait`` gets the seconds and returns False if a stop interrupted it. ``retries`` bounds the waits
    in a row; below 0 they have no bound.
    """

    def __init__(
        self,
        wait: Callable[[float], bool],
        *,
        ceiling_s: float,
        retries: int = -1,
        first_s: float = FIRST_WAIT_S,
        chance: RandomSource | None = None,
    ) -> None:
        self._wait, self._retries = wait, retries
        self._first_s, self._ceiling_s = first_s, ceiling_s
        self._chance = chance or system_chance()
        self._tried = 0

    @property
    def spent(self) -> bool:
        """Return whether no try is left."""
        return 0 <= self._retries <= self._tried

    def wait(self, least_s: float = 0.0) -> bool:
        """Wait for the next try, for ``least_s`` or longer.

        Return False if no try is left or a stop came.
        """
        if self.spent:
            return False
        # The exponent is bounded: a float overflows after a thousand doublings.
        seconds = min(self._ceiling_s, self._first_s * 2.0 ** min(self._tried, 30))
        self._tried += 1
        return self._wait(max(least_s, seconds * self._chance.uniform(*JITTER)))

    def succeeded(self) -> None:
        """Begin again with the shortest wait."""
        self._tried = 0


def waiting(
    stopping: Callable[[], bool] = lambda: False, until: float = float("inf")
) -> Callable[[float], bool]:
    """Return a ``wait`` by the machine's clock.

    It returns False when ``stopping`` ends it. No wait goes beyond ``until`` (`Clock.monotonic`).
    """
    clock = SystemClock()
    return lambda seconds: not clock.wait(min(seconds, until - clock.monotonic()), stopping)


def retry_after(text: str, date: str) -> float:
    """Return the seconds that a ``Retry-After`` header requests.

    An unreadable header gives 0. A header with a time means the server's clock, which its ``date``
    header shows: this machine's may be wrong.
    """
    text = text.strip()
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        wait = parsedate_to_datetime(text) - parsedate_to_datetime(date)
        return max(0.0, wait.total_seconds())
    except (ValueError, TypeError, OverflowError):
        return 0.0
