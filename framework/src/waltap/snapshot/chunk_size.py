"""How many rows the next chunk of an incremental snapshot has. Sans-IO."""

__all__ = ["ChunkSize"]

LEAST = 100
"""Chunks get no smaller than this by themselves: each costs a pair of watermarks."""


class ChunkSize:
    """A number of rows that follows the time which reading them takes.

    ``rows`` begins at ``most``, and never gets larger. A chunk that took longer than ``target_s`` makes
    the next one smaller in proportion, by a quarter at least and to a quarter at most; one that took less
    than half of it lets the next one have twice as many. ``target_s`` 0: all have ``most``.
    """

    def __init__(self, most: int, target_s: float) -> None:
        self._most, self._least, self._target_s = most, min(most, LEAST), target_s
        self.rows = most

    def took(self, seconds: float) -> None:
        """Take note of how long the last chunk took to read."""
        target = self._target_s
        if not target:
            return
        if seconds > target:
            share = min(0.75, max(0.25, target / seconds))
            self.rows = max(self._least, int(self.rows * share))
        elif seconds < target / 2:
            self.rows = min(self._most, self.rows * 2)

    def restart(self) -> None:
        """Another table is read: its rows may be of another width."""
        self.rows = self._most
