"""Store the position of each of several sinks, beside the offset.

The offset itself has the position of the slowest sink.
"""

from pathlib import Path

import msgspec

from waltap.base.files.durable_file import StateDocument
from waltap.changes.transactions.order import TransactionCounts
from waltap.changes.transactions.position import Position, Positions
from waltap.errors import OffsetError


class SinkProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The durable position of one sink, by partition."""

    positions: dict[str, Position]
    # ``counted`` and ``held`` are as in `PartitionOffset`.
    counted: TransactionCounts | None = None
    held: dict[str, Position] = {}


class _StoredPositions(msgspec.Struct, frozen=True, kw_only=True):
    """The stored form of the file."""

    # The file keeps the name that this field had first.
    branches: dict[str, SinkProgress] = msgspec.field(name="outlets")
    # The pipeline's position at that time: a lower offset was set by hand.
    slowest: dict[str, Position] = {}
    version: int = 1


BranchPositionsUnreadable = OffsetError.define(
    "BranchPositionsUnreadable",
    "WT-6203",
    "The file with the positions of a pipeline's sinks cannot be read or written.",
    "Restore {path} from a backup, or remove it: every sink then continues from the stored "
    "offset, the slowest sink's, and the others get some changes twice.",
)


class BranchPositions:
    """The sink positions of one pipeline."""

    def __init__(self, path: Path) -> None:
        self._document = StateDocument(path, _StoredPositions, BranchPositionsUnreadable)
        self._stored: _StoredPositions | None = None

    def load(self, stored: Positions) -> dict[str, SinkProgress]:
        """Return each sink's progress at the pipeline's position ``stored``.

        Return nothing without an offset, or after the operator moved the offset back: all sinks then
        need the changes after it again.

        Raises: BranchPositionsUnreadable.
        """
        found = self._document.load()
        if found is None or not stored:
            return {}
        if any(stored.get(n, p) < p for n, p in found.slowest.items()):
            return {}
        self._stored = found
        return dict(found.branches)

    def store(self, branches: dict[str, SinkProgress], slowest: Positions) -> None:
        """Store changed positions durably. Raises: BranchPositionsUnreadable."""
        new = _StoredPositions(branches=dict(branches), slowest=dict(slowest))
        # Most flushes change nothing here: skip the fsync.
        if new != self._stored:
            self._document.save(new)
            self._stored = new
