"""When a run ends by itself."""

from collections.abc import Iterator
from dataclasses import dataclass

from waltap.changes.transactions.transaction import TransactionPart

__all__ = ["IdleDetector", "Limits", "StopFlag", "batches", "cut"]


class StopFlag:
    """Hold the request to stop, from a signal handler or another thread.

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
    """Ends of a run, each None when it does not apply.

    ``until_idle``: seconds without a change while streaming, once everything that was there at the
    start is delivered. ``until_lsn``: everything up to this
    LSN is delivered. ``max_records``: so many records (or changes, for sinks that take changes); with
    ``whole_transactions`` as many more as it takes to the end of the transaction. ``max_seconds``: since
    the start.
    """

    until_idle: float | None = None
    until_lsn: int | None = None
    max_records: int | None = None
    max_seconds: float | None = None
    whole_transactions: bool = False


class IdleDetector:
    """Tells when a stream has been silent long enough to count as idle. Sans-IO.

    A server that still works through old WAL is silent too. So, until it has read up to ``target``,
    its progress breaks the silence, and only a much longer one counts (PATIENCE_S more): it may be
    in the middle of something that it cannot tell of.
    """

    PATIENCE_S = 30.0

    def __init__(self, seconds: float, target: int, *, now: float) -> None:
        """``target`` is where the server's WAL ended at the start, 0 where nobody knows."""
        self._seconds, self._target = seconds, target
        self._since, self._read = now, 0
        self.caught_up = not target

    def broken(self, now: float) -> None:
        """Take note of a change."""
        self._since = now

    def lasted(self, now: float, read: int) -> bool:
        """Tell whether the silence is long enough. ``read``: up to where the server has read."""
        if not self.caught_up:
            if read > self._read:
                self._read, self._since = read, now
            self.caught_up = read >= self._target
        wanted = self._seconds if self.caught_up else self._seconds + self.PATIENCE_S
        return now - self._since >= wanted


def batches(parts: list[TransactionPart], most: int) -> Iterator[list[TransactionPart]]:
    """Yield ``parts`` in lists of at most ``most`` changes; one that is larger is split."""
    batch: list[TransactionPart] = []
    room = most
    for part in parts:
        rest = part
        while len(rest.changes) > room:
            if room:
                first, rest = rest.split(room)
                batch.append(first)
            yield batch
            batch, room = [], most
        batch.append(rest)
        room -= len(rest.changes)
    if batch:
        yield batch


def cut(
    parts: list[TransactionPart], events: int, *, whole: bool = False
) -> tuple[list[TransactionPart], bool]:
    """Return the first ``events`` changes of ``parts``, and whether anything was left out.

    The last part may then be incomplete. ``whole``: the rest of its transaction comes too.
    """
    if whole:
        for number, part in enumerate(parts, 1):
            events -= len(part.changes)
            if events <= 0 and part.complete:
                return parts[:number], number < len(parts)
        return parts, False
    kept: list[TransactionPart] = []
    for part in parts:
        if events <= 0:
            return kept, True
        if len(part.changes) > events:
            kept.append(part.split(events)[0])
            return kept, True
        events -= len(part.changes)
        kept.append(part)
    return kept, False
