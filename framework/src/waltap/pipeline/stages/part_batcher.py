"""Gathers changes for ``waltap.linger.ms``, so that a sink with costly writes gets fewer; and transactions
until they are whole, for a sink that wants that. Sans-IO."""

from collections import deque

from waltap.changes.transactions.transaction import TransactionPart

__all__ = [
    "PartBatcher",
    "PartitionMerge",
]


# Partitions whose transactions are to be delivered in the order of their commits. Sans-IO.
#
# Their positions must be comparable: times of one clock. A partition that has sent nothing for a
# while is taken to have nothing: its server says no more than what it sends.


class PartitionMerge:
    """Holds parts back until no earlier commit can come of another partition.

    ``quiet_s``: so long a partition may be silent before the others go on without it; a transaction of it
    that comes later still is delivered late, and never lost. ``most``: with so many changes held of a
    partition nothing more of it should be received.
    """

    def __init__(self, partitions: list[str], quiet_s: float, most: int, now: float) -> None:
        self._held: dict[str, deque[TransactionPart]] = {name: deque() for name in partitions}
        self._heard = dict.fromkeys(partitions, now)
        self._inside: str | None = None  # the partition whose transaction has begun and not ended
        self._quiet_s, self._most = quiet_s, most

    def __bool__(self) -> bool:
        return any(self._held.values())

    def full(self, partition: str) -> bool:
        """Tell whether enough of this partition is held."""
        return sum(len(part.changes) for part in self._held[partition]) >= self._most

    def add(self, partition: str, parts: list[TransactionPart], now: float) -> None:
        """Take what has come of a partition, which may be nothing."""
        if parts:
            self._held[partition] += parts
            self._heard[partition] = now

    def take(self, now: float) -> list[tuple[str, list[TransactionPart]]]:
        """Return what may be delivered, in order: runs of parts, each of one partition. What stays behind
        at an end was not delivered, and comes again."""
        out: list[tuple[str, list[TransactionPart]]] = []
        while (name := self._next(now)) is not None:
            part = self._held[name].popleft()
            self._inside = None if part.complete else name
            if out and out[-1][0] == name:
                out[-1][1].append(part)
            else:
                out.append((name, [part]))
        return out

    def _next(self, now: float) -> str | None:
        if self._inside is not None:
            return self._inside if self._held[self._inside] else None
        filled = [name for name, held in self._held.items() if held]
        waits = any(
            not held and now - self._heard[name] < self._quiet_s
            for name, held in self._held.items()
        )
        if not filled or waits:
            return None
        return min(filled, key=lambda name: self._held[name][0].commit_lsn)


class PartBatcher:
    """Parts that wait to be written. Without linger every `add` is due at once.

    ``whole``: what was received of a transaction whose end has not come waits for it, up to ``most``
    changes; so what is taken ends where a transaction does, unless that is larger.
    """

    def __init__(self, seconds: float, most: int, *, whole: bool = False) -> None:
        """``seconds`` after the first part, or with ``most`` changes, it is due."""
        self._seconds, self._most, self._whole = seconds, most, whole
        self._parts: list[TransactionPart] = []
        self._changes, self._due_at = 0, 0.0
        self._ready = 0
        """How many parts may be taken."""

    @property
    def changes(self) -> int:
        """Return how many changes wait, 0 without linger."""
        return self._changes

    def __bool__(self) -> bool:
        return bool(self._parts)

    def add(self, parts: list[TransactionPart], now: float) -> None:
        """Take ``parts``."""
        if not self._ready:
            self._due_at = now + self._seconds
        before = len(self._parts)
        self._parts += parts
        if self._seconds or self._whole:
            self._changes += sum(len(part.changes) for part in parts)
        if not self._whole:
            self._ready = len(self._parts)
            return
        for index in range(len(self._parts), before, -1):
            if self._parts[index - 1].complete:
                self._ready = index
                break
        waiting = self._parts[self._ready :]
        if sum(len(part.changes) for part in waiting) >= self._most:
            self._ready = len(self._parts)

    def take_due(self, now: float) -> list[TransactionPart]:
        """Return the parts to write now, mostly none or all, and begin again with the rest."""
        if not self._ready or (now < self._due_at and self._changes < self._most):
            return []
        taken, self._parts = self._parts[: self._ready], self._parts[self._ready :]
        self._ready = 0
        if self._changes:
            self._changes -= sum(len(part.changes) for part in taken)
        return taken

    def wait(self, longest: float, now: float) -> float:
        """Return how long to wait for more, at most ``longest``, in seconds."""
        return min(longest, max(0.0, self._due_at - now)) if self._ready else longest

    def take_all(self) -> list[TransactionPart]:
        """Return everything, and begin again."""
        taken, self._parts = self._parts, []
        self._ready = self._changes = 0
        return taken
