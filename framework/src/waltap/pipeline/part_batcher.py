"""Gathers changes for ``waltap.linger.ms``, so that a sink with costly writes gets fewer; and transactions
until they are whole, for a sink that wants that. Sans-IO."""

from waltap.transactions.transaction import TransactionPart

__all__ = ["PartBatcher"]


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

    def due(self, now: float) -> bool:
        """Tell whether there is something to write now."""
        return bool(self._ready) and (now >= self._due_at or self._changes >= self._most)

    def wait(self, longest: float, now: float) -> float:
        """Return how long to wait for more, at most ``longest``, in seconds."""
        return min(longest, max(0.0, self._due_at - now)) if self._ready else longest

    def take(self) -> list[TransactionPart]:
        """Return what is due, and begin anew with the rest."""
        taken, self._parts = self._parts[: self._ready], self._parts[self._ready :]
        return self._taken(taken)

    def take_all(self) -> list[TransactionPart]:
        """Return everything, and begin anew."""
        taken, self._parts = self._parts, []
        return self._taken(taken)

    def _taken(self, parts: list[TransactionPart]) -> list[TransactionPart]:
        self._ready = 0
        if self._changes:
            self._changes -= sum(len(part.changes) for part in parts)
        return parts
