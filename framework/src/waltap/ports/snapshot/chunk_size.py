"""Size of an incremental snapshot's chunks. Sans-IO."""

__all__ = ["ChunkSize"]

# Smallest chunk that the time of reading causes: each chunk costs a pair of watermarks.
LEAST = 100


class ChunkSize:
    """Adapt the number of rows to the time of reading them.

    ``rows`` begins at ``most``, its maximum. A ``target_s`` of 0 keeps it there.
    """

    def __init__(self, most: int, target_s: float) -> None:
        self._most, self._least, self._target_s = most, min(most, LEAST), target_s
        self.rows = most

    def took(self, seconds: float) -> None:
        """Record the time that the last chunk took."""
        target = self._target_s
        if not target:
            return
        if seconds > target:
            # In proportion to the excess, but never by more than to a quarter or by less than a quarter.
            share = min(0.75, max(0.25, target / seconds))
            self.rows = max(self._least, int(self.rows * share))
        # Only a chunk well below the target grows: otherwise the size would swing around it.
        elif seconds < target / 2:
            self.rows = min(self._most, self.rows * 2)

    def restart(self) -> None:
        """Begin with another table, whose rows may have another width."""
        self.rows = self._most
