"""The wish to stop, set from a signal handler or another thread."""

import time

__all__ = ["StopFlag"]

LOOK_S = 0.05


class StopFlag:
    """As `threading.Event`, without a lock: a signal handler runs inside whatever its own thread was
    doing, and would wait for ever for a lock that this thread holds."""

    __slots__ = ("_set",)

    def __init__(self) -> None:
        self._set = False

    def set(self) -> None:
        """Ask for the end."""
        self._set = True

    def is_set(self) -> bool:
        """Tell whether the end was asked for."""
        return self._set

    def wait(self, seconds: float) -> bool:
        """Wait for it, at most ``seconds``; tell whether it was asked for."""
        deadline = time.monotonic() + seconds
        while not self._set:
            left = deadline - time.monotonic()
            if left <= 0:
                break
            time.sleep(min(left, LOOK_S))
        return self._set
