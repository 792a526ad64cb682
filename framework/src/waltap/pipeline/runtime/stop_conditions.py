"""Decide when a run ends by itself."""

from dataclasses import dataclass


class StopFlag:
    """Hold the request to stop a run.

    It has no lock, unlike `threading.Event`: a signal handler interrupts its own thread, and would wait
    forever for a lock that this thread holds. A waiter polls the flag (`Clock.wait`).
    """

    __slots__ = ("_set",)

    def __init__(self) -> None:
        self._set = False

    def set(self) -> None:
        """Request the end."""
        self._set = True

    def is_set(self) -> bool:
        """Return whether the end was requested."""
        return self._set


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limit a run; None is no limit."""

    # Seconds without a change while streaming, after everything that was there at the start.
    until_idle: float | None = None
    # Everything up to this LSN is delivered.
    until_lsn: int | None = None
    # Delivered records, or changes for sinks that take changes.
    max_records: int | None = None
    # Seconds since the start.
    max_seconds: float | None = None
    # ``max_records`` ends with a transaction, after a few more.
    whole_transactions: bool = False


class IdleDetector:
    """Decide when a silent stream is idle. Sans-IO.

    A server that still works through old WAL is silent, too. Until it has read up to ``target``, its
    progress ends the silence, and only a much longer one (PATIENCE_S more) is idle: the server may be in
    the middle of something that it does not report.
    """

    PATIENCE_S = 30.0

    def __init__(self, seconds: float, target: int, *, now: float) -> None:
        """Start now; ``target`` is the WAL's end, 0 if unknown."""
        self._seconds, self._target = seconds, target
        self._since, self._read = now, 0
        self.caught_up = not target

    def broken(self, now: float) -> None:
        """Record a change."""
        self._since = now

    def lasted(self, now: float, read: int) -> bool:
        """Return whether the silence is long enough; ``read`` is the server's position."""
        if not self.caught_up:
            if read > self._read:
                self._read, self._since = read, now
            self.caught_up = read >= self._target
        wanted = self._seconds if self.caught_up else self._seconds + self.PATIENCE_S
        return now - self._since >= wanted
