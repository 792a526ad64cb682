"""How much one commit takes: as much as can be applied within a given time, as the commits before showed.

A backlog is then worked off in commits of some seconds, each of which counts; a quiet log is followed as
it grows. Commits end where manifests do, and so between transactions.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from waltap_sinks.changelog import Manifest

__all__ = ["Pace"]

START: Final = 500_000
LEAST: Final = 20_000
ENTRY: Final = 500
"""A manifest costs as much as its rows, and as so many more for each table it has rows of."""

SMALL_S: Final = 0.05
"""What takes less says nothing of how much could be taken."""


class Pace:
    """Learns how much fits into ``target_s`` seconds; never more than ``most_rows`` without need.

    >>> for part in pace.portions(manifests):
    ...     apply(part)
    ...     pace.took(seconds)
    """

    def __init__(self, target_s: float, most_rows: int) -> None:
        self._target, self._most_rows = target_s, most_rows
        self.limit: float = START
        """Rows, with `ENTRY` for each table of each manifest, that one commit takes."""
        self._weight = 0

    def portions(self, manifests: Iterable[Manifest]) -> Iterator[list[Manifest]]:
        """Cut ``manifests`` into what one commit takes each; one that is larger stands alone."""
        part: list[Manifest] = []
        rows = weight = 0
        for manifest in manifests:
            more = manifest.rows + ENTRY * len(manifest.tables)
            if part and (weight + more > self.limit or rows + manifest.rows > self._most_rows):
                self._weight = weight
                yield part
                part, rows, weight = [], 0, 0
            part.append(manifest)
            rows += manifest.rows
            weight += more
        if part:
            self._weight = weight
            yield part

    def took(self, seconds: float) -> None:
        """Learn how long the portion that was given out last took."""
        if not self._weight or seconds < SMALL_S:
            return
        fits = self._weight * self._target / seconds
        if fits < self.limit:  # slower than thought: at once
            self.limit = max(LEAST, fits)
        elif self._weight * 2 > self.limit:  # a full commit had time left: by and by
            self.limit = min(fits, self.limit * 2)
