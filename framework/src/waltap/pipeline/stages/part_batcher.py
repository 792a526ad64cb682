"""Gather parts of transactions for batches, and merge partitions. Sans-IO.

A sink with costly writes gets fewer, larger ones (``waltap.linger.ms``), and a sink that wants it gets
whole transactions.
"""

from collections import deque

from waltap.changes.transactions.transaction import TransactionPart

__all__ = [
    "PartBatcher",
    "PartitionMerge",
]


# To merge partitions, their positions must be comparable: times of one clock. A partition that has
# sent nothing for a while counts as empty, since its server does not report how far it has come.


class PartitionMerge:
    """Hold parts until no other partition can send an earlier commit.

    A partition that is silent for ``quiet_s`` is not waited for; a later transaction of it is delivered
    late, never lost. A partition with ``most`` held changes should receive no others.
    """

    def __init__(self, partitions: list[str], quiet_s: float, most: int, now: float) -> None:
        self._held: dict[str, deque[TransactionPart]] = {name: deque() for name in partitions}
        self._heard = dict.fromkeys(partitions, now)
        self._inside: str | None = None  # the partition whose transaction has begun and not ended
        self._quiet_s, self._most = quiet_s, most

    def __bool__(self) -> bool:
        return any(self._held.values())

    def full(self, partition: str) -> bool:
        """Return whether enough of this partition is held."""
        return sum(len(part.changes) for part in self._held[partition]) >= self._most

    def add(self, partition: str, parts: list[TransactionPart], now: float) -> None:
        """Take the received parts of a partition, perhaps none."""
        if parts:
            self._held[partition] += parts
            self._heard[partition] = now

    def take(self, now: float) -> list[tuple[str, list[TransactionPart]]]:
        """Return the deliverable parts in order, in runs of one partition.

        Parts that remain at an end were not delivered, and come again.
        """
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
    """Hold parts until they are written.

    Without linger every `add` is due immediately. With ``whole``, parts of an unfinished transaction wait
    for its end, up to ``most`` changes: then the result ends with a transaction, unless that is larger.
    """

    def __init__(self, seconds: float, most: int, *, whole: bool = False) -> None:
        """Make parts due after ``seconds``, or with ``most`` changes."""
        self._seconds, self._most, self._whole = seconds, most, whole
        self._parts: list[TransactionPart] = []
        self._changes, self._due_at = 0, 0.0
        self._ready = 0
        """The number of parts that may be taken."""

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
        """Return the parts to write now, mostly none or all; keep the rest."""
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
