"""Partitions whose transactions are to be delivered in the order of their commits. Sans-IO.

Their positions must be comparable: times of one clock. A partition that has sent nothing for a while is
taken to have nothing: its server says no more than what it sends.
"""

from collections import deque

from waltap.transactions.transaction import TransactionPart

__all__ = ["PartitionMerge"]


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
