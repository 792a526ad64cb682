"""The wish to stop, set from a signal handler or another thread."""

__all__ = ["StopFlag"]


class StopFlag:
    """As `threading.Event`, without a lock: a signal handler runs inside whatever its own thread was
    doing, and would wait for ever for a lock that this thread holds. Who waits asks it now and then
    (`Clock.wait`)."""

    __slots__ = ("_set",)

    def __init__(self) -> None:
        self._set = False

    def set(self) -> None:
        """Ask for the end."""
        self._set = True

    def is_set(self) -> bool:
        """Tell whether the end was asked for."""
        return self._set
