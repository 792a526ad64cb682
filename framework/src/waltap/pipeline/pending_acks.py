"""What a sink was given and has not promised, batch by batch; for sinks that others acknowledge to."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from waltap.pipeline.tables_read import ChunkEnd
from waltap.source.position import Position, Positions

__all__ = ["AckedPosition", "PendingAcks", "WrittenBatch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenBatch:
    """One batch as the offset is to know it: where it ends, with what state of signals it was written,
    which chunks of the snapshot end in it, and whether the snapshot does. ``at``: when the sink took it,
    by a clock that never goes back; ``commit_ms``: when its first change committed."""

    number: int
    partition: str
    position: Position
    signals: Mapping[str, object]
    chunk_ends: tuple[ChunkEnd, ...] = ()
    ends_snapshot: bool = False
    at: float = 0.0
    commit_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AckedPosition:
    """What a flush has promised anew. ``signals``: None where nothing was, or nothing is left to promise;
    then they are what they were, or what they are now."""

    positions: Positions
    signals: Mapping[str, object] | None
    chunk_ends: tuple[ChunkEnd, ...]
    ends_snapshot: bool


class PendingAcks:
    """Batches in the order in which they were written."""

    def __init__(self) -> None:
        self._waiting: deque[WrittenBatch] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def oldest(self) -> WrittenBatch | None:
        """Return the first batch that is not promised."""
        return self._waiting[0] if self._waiting else None

    def add(self, written: WrittenBatch) -> None:
        """Take note of a batch that the sink took."""
        self._waiting.append(written)

    def take(self, number: int) -> AckedPosition:
        """Return what the promise of all batches up to ``number`` comes to, and let go of them."""
        positions, chunk_ends, ends_snapshot = Positions(), list[ChunkEnd](), False
        signals: Mapping[str, object] | None = None
        while self._waiting and self._waiting[0].number <= number:
            batch = self._waiting.popleft()
            positions = positions.moved(batch.partition, batch.position)
            chunk_ends += batch.chunk_ends
            ends_snapshot = ends_snapshot or batch.ends_snapshot
            signals = batch.signals
        return AckedPosition(
            positions=positions,
            signals=signals if self._waiting else None,
            chunk_ends=tuple(chunk_ends),
            ends_snapshot=ends_snapshot,
        )
