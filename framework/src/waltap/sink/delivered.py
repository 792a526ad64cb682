"""What comes again at a sink that keeps the position with the data."""

from collections.abc import Mapping

from waltap.source.position import Position
from waltap.transactions.transaction import Batch, SnapshotRows, TransactionPart

__all__ = ["begins_snapshot", "was_delivered"]


def was_delivered(batch: Batch, held: Mapping[str, Position]) -> bool:
    """Tell whether ``batch`` is of transactions that ``held``, what `Sink.open` returned, says are here.

    A dead letter that is replayed, and messages of no transaction, come at a position that was passed.
    """
    position = held.get(batch.partition)
    return (
        position is not None
        and batch.position <= position
        and not (batch.snapshot or batch.replays)
        and any(isinstance(part, TransactionPart) for part in batch.parts)
        and all(isinstance(part, TransactionPart) and part.xid is not None for part in batch.parts)
    )


def begins_snapshot(batch: Batch) -> bool:
    """Tell whether a snapshot begins with ``batch``, or goes on: what is not flushed comes again."""
    pieces = [part for part in batch.parts if isinstance(part, SnapshotRows)]
    return any(piece.opens or piece.goes_on for piece in pieces)
