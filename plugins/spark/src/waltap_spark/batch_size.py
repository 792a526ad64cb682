"""How much one commit takes: as much as can be applied within a given time, as the commits before showed.

A backlog is then worked off in commits of some seconds, each of which counts; a quiet log is followed as
it grows. Commits end where manifests do, and so between transactions.

A commit costs something for its tables and something for their rows. Where the first alone takes as long
as a commit should, smaller commits would only fall behind: no more than half of the time goes into it.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from waltap_sinks.changelog import Manifest

__all__ = ["AdaptiveBatchSize"]

LEAST: Final = 100_000
"""What a driver begins with: one that just started is slow, and one that is killed again and again gets
somewhere. Less is no faster: what a commit costs as such is then paid more often."""

ENTRY: Final = 100
"""A manifest costs as much as its rows, and as so many more for each table it has rows of."""

SCHEMA: Final = 10_000
"""What it costs, in rows, that a table has rows of another schema than just before."""

SMALL_S: Final = 0.05
"""What takes less says nothing of how much could be taken."""

GROWTH: Final = 4
MEMORY: Final = 0.7
"""What a commit counts for beside the next one."""


class AdaptiveBatchSize:
    """Learns how much fits into ``target_s`` seconds; never more than ``most_rows`` without need.

    >>> for part in pace.portions(manifests):
    ...     apply(part)
    ...     pace.took(seconds)
    """

    def __init__(self, target_s: float, most_rows: int) -> None:
        self._target, self._most_rows = target_s, most_rows
        self.limit: float = LEAST
        """Rows, with `ENTRY` and `SCHEMA` for what they are of, that one commit takes."""
        self._weight = 0
        self._line = _CostLine()

    def portions(self, manifests: Iterable[Manifest]) -> Iterator[list[Manifest]]:
        """Cut ``manifests`` into what one commit takes each; one that is larger stands alone,
        and one of tables whose rows tasks read of the source, from which nothing is learnt."""
        part: list[Manifest] = []
        schemas: dict[str, str] = {}
        rows = weight = 0
        for manifest in manifests:
            more = _weight(manifest, schemas)
            alone = bool(manifest.elsewhere or (part and part[-1].elsewhere))
            if part and (
                alone or weight + more > self.limit or rows + manifest.rows > self._most_rows
            ):
                self._weight = 0 if part[-1].elsewhere else weight
                yield part
                part, rows, weight = [], 0, 0
                schemas.clear()
                more = _weight(manifest, schemas)
            part.append(manifest)
            rows += manifest.rows
            weight += more
        if part:
            self._weight = 0 if part[-1].elsewhere else weight
            yield part

    def took(self, seconds: float) -> None:
        """Learn how long the portion that was given out last took."""
        if not self._weight or seconds < SMALL_S:
            return
        self._line.learn(self._weight, seconds)
        fixed, each = self._line.costs()
        target = max(self._target, 2 * fixed)
        fits = (target - fixed) / each if each else self.limit * GROWTH
        if (
            seconds > target and not fixed
        ):  # slower than thought: do smaller ones fit, or larger ones pay?
            self.limit = max(LEAST, fits, self.limit / 2 if self.limit > LEAST else LEAST * 2)
        elif seconds > target:
            self.limit = max(LEAST, min(self.limit, fits))
        elif self._weight * 2 > self.limit:  # a full commit had time left: by and by
            self.limit = max(LEAST, self.limit, min(fits, self.limit * GROWTH))


class _CostLine:
    """The line through what commits of different weights took, of which the newest count most."""

    def __init__(self) -> None:
        self._count = self._weight = self._seconds = self._squares = self._products = 0.0

    def learn(self, weight: float, seconds: float) -> None:
        """Take a commit into account."""
        self._count = self._count * MEMORY + 1
        self._weight = self._weight * MEMORY + weight
        self._seconds = self._seconds * MEMORY + seconds
        self._squares = self._squares * MEMORY + weight * weight
        self._products = self._products * MEMORY + weight * seconds

    def costs(self) -> tuple[float, float]:
        """Return the seconds of a commit as such, and those of each unit of its weight; all is of the
        second kind as long as the commits were about alike."""
        weight, seconds = self._weight / self._count, self._seconds / self._count
        spread = self._squares / self._count - weight * weight
        if spread < (weight / 5) ** 2:
            return 0.0, seconds / weight
        slope = (self._products / self._count - weight * seconds) / spread
        each = min(max(slope, 0.0), seconds / weight)
        return seconds - each * weight, each


def _weight(manifest: Manifest, schemas: dict[str, str]) -> int:
    """Return what ``manifest`` counts after others of the same portion, whose tables had ``schemas``."""
    changes = 0
    for entry in manifest.tables:
        changes += schemas.get(entry.name, entry.fingerprint) != entry.fingerprint
        schemas[entry.name] = entry.fingerprint
    return manifest.rows + ENTRY * len(manifest.tables) + SCHEMA * changes
