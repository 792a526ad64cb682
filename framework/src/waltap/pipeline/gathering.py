"""Gathers changes for ``waltap.linger.ms``, so that a sink with costly writes gets fewer. Sans-IO."""

from waltap.transactions.transaction import TransactionPart

__all__ = ["Gathering"]


class Gathering:
    """Parts that wait to be written. Without linger every `add` is due at once."""

    def __init__(self, seconds: float, most: int) -> None:
        """``seconds`` after the first part, or with ``most`` changes, it is due."""
        self._seconds, self._most = seconds, most
        self._parts: list[TransactionPart] = []
        self._changes, self._due_at = 0, 0.0

    @property
    def changes(self) -> int:
        """Return how many changes wait, 0 without linger."""
        return self._changes

    def __bool__(self) -> bool:
        return bool(self._parts)

    def add(self, parts: list[TransactionPart], now: float) -> None:
        """Take ``parts``."""
        if not self._parts:
            self._due_at = now + self._seconds
        self._parts += parts
        if self._seconds:
            self._changes += sum(len(part.changes) for part in parts)

    def due(self, now: float) -> bool:
        """Tell whether there is something to write now."""
        return bool(self._parts) and (now >= self._due_at or self._changes >= self._most)

    def wait(self, longest: float, now: float) -> float:
        """Return how long to wait for more, at most ``longest``, in seconds."""
        return min(longest, max(0.0, self._due_at - now)) if self._parts else longest

    def take(self) -> list[TransactionPart]:
        """Return everything, and begin anew."""
        parts, self._parts, self._changes = self._parts, [], 0
        return parts
