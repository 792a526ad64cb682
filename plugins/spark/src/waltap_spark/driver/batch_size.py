"""Adapt the size of a commit to its measured cost.

A commit takes as many changes as Spark applies within a given time. The driver then works off a
backlog in commits of some seconds, each of which saves progress. A quiet log is followed as it
grows. A commit ends where a manifest ends, so it ends between transactions.

A commit has a fixed cost for its tables and a cost for each row. When the fixed cost alone takes
the whole target time, smaller commits would fall behind. So the fixed cost may use at most half
of the time.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from waltap_sinks.changelog import Manifest

# Weight of a driver's first commit.
# A driver that just started is slow. A driver that is killed often must still make progress. A
# smaller commit is no faster, because its fixed cost is then paid more often.
LEAST: Final = 100_000

# Weight in rows that each table adds to a manifest.
ENTRY: Final = 100

# Weight in rows of a change of a table's schema within a commit.
SCHEMA: Final = 10_000

# Commits shorter than this say nothing about larger ones.
SMALL_S: Final = 0.05

# Largest growth of the limit from one commit to the next.
GROWTH: Final = 4
# Weight of a commit relative to the next newer one.
MEMORY: Final = 0.7


class AdaptiveBatchSize:
    """Learns how many changes fit into ``target_s`` seconds.

    A commit exceeds ``most_rows`` only when one manifest alone does.

    >>> for part in pace.portions(manifests):
    ...     apply(part)
    ...     pace.took(seconds)
    """

    def __init__(self, target_s: float, most_rows: int) -> None:
        self._target, self._most_rows = target_s, most_rows
        # Weight that one commit may have: rows, plus `ENTRY` and `SCHEMA` for their tables.
        self.limit: float = LEAST
        self._weight = 0
        self._line = _CostLine()

    def portions(self, manifests: Iterable[Manifest]) -> Iterator[list[Manifest]]:
        """Split ``manifests`` into the portions of single commits.

        A manifest above the limit is a portion of its own. So is one whose rows Spark tasks read
        from the source.
        """
        part: list[Manifest] = []
        schemas: dict[str, str] = {}
        rows = weight = 0
        for manifest in manifests:
            # the new portion pays again for every schema of its tables
            more = _weight(manifest, schemas)
            alone = bool(manifest.external_snapshots or (part and part[-1].external_snapshots))
            if part and (
                alone or weight + more > self.limit or rows + manifest.rows > self._most_rows
            ):
                # the database decides how long such a read takes: learn nothing from it
                self._weight = 0 if part[-1].external_snapshots else weight
                yield part
                part, rows, weight = [], 0, 0
                schemas.clear()
                more = _weight(manifest, schemas)
            part.append(manifest)
            rows += manifest.rows
            weight += more
        if part:
            self._weight = 0 if part[-1].external_snapshots else weight
            yield part

    def took(self, seconds: float) -> None:
        """Learn how long the last portion took."""
        if not self._weight or seconds < SMALL_S:
            return
        self._line.learn(self._weight, seconds)
        fixed, each = self._line.costs()
        # the fixed cost may use at most half of a commit
        target = max(self._target, 2 * fixed)
        fits = (target - fixed) / each if each else self.limit * GROWTH
        if seconds > target and not fixed:
            # too slow for an unknown reason: try smaller commits; at the smallest, larger ones
            self.limit = max(LEAST, fits, self.limit / 2 if self.limit > LEAST else LEAST * 2)
        elif seconds > target:
            self.limit = max(LEAST, min(self.limit, fits))
        elif self._weight * 2 > self.limit:  # a full commit had time left: grow step by step
            self.limit = max(LEAST, self.limit, min(fits, self.limit * GROWTH))


class _CostLine:
    """Fits a line through weights and durations; newer ones count more."""

    def __init__(self) -> None:
        self._sums = [0.0] * 5

    def learn(self, weight: float, seconds: float) -> None:
        new = 1, weight, seconds, weight * weight, weight * seconds
        self._sums = [had * MEMORY + each for had, each in zip(self._sums, new, strict=True)]

    def costs(self) -> tuple[float, float]:
        """Return a commit's fixed seconds, and seconds per weight."""
        weight, seconds, squares, products = (each / self._sums[0] for each in self._sums[1:])
        spread = squares - weight * weight
        # commits of nearly equal weight cannot separate the two costs
        if spread < (weight / 5) ** 2:
            return 0.0, seconds / weight
        slope = (products - weight * seconds) / spread
        each = min(max(slope, 0.0), seconds / weight)
        return seconds - each * weight, each


def _weight(manifest: Manifest, schemas: dict[str, str]) -> int:
    """Return the weight of ``manifest`` in its portion.

    ``schemas`` has the schema that each table had last in the portion, and is updated.
    """
    changes = 0
    for entry in manifest.tables:
        changes += schemas.get(entry.name, entry.fingerprint) != entry.fingerprint
        schemas[entry.name] = entry.fingerprint
    return manifest.rows + ENTRY * len(manifest.tables) + SCHEMA * changes
