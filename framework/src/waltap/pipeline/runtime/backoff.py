"""How long to wait before trying again, and when to stop trying."""

from collections.abc import Callable

from waltap.clock import RandomSource

__all__ = ["RetryBackoff"]

FIRST_WAIT_S = 0.2


class RetryBackoff:
    """Waits that double from 0.2 s to a ceiling, with jitter, a limited number of times in a row.

    ``wait`` is given the seconds and returns False when it was interrupted by a stop.
    """

    def __init__(
        self, wait: Callable[[float], bool], *, retries: int, ceiling_s: float, chance: RandomSource
    ) -> None:
        """``retries`` < 0: without end."""
        self._wait, self._retries, self._ceiling_s = wait, retries, ceiling_s
        self._chance = chance
        self._tried = 0

    @property
    def spent(self) -> bool:
        """Tell whether no try is left."""
        return 0 <= self._retries <= self._tried

    def wait(self) -> bool:
        """Wait for the next try; False when none is left or a stop came."""
        if self.spent:
            return False
        seconds = min(self._ceiling_s, FIRST_WAIT_S * 2 ** min(self._tried, 30))
        self._tried += 1
        return self._wait(seconds * self._chance.uniform(0.8, 1.2))

    def succeeded(self) -> None:
        """Begin anew with the shortest wait."""
        self._tried = 0
