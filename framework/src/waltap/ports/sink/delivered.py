"""Recognize redelivered batches, for sinks that store the position."""

from collections.abc import Mapping

from waltap.changes.transactions.position import Position
from waltap.changes.transactions.transaction import Batch, SnapshotRows, TransactionPart

__all__ = ["begins_snapshot", "was_delivered"]


def was_delivered(batch: Batch, held: Mapping[str, Position]) -> bool:
    """Return whether ``held`` already covers the transactions of ``batch``.

    ``held`` is the result of `Sink.open`.
    """
    position = held.get(batch.partition)
    return (
        position is not None
        and batch.position <= position
        # Replayed dead letters and messages outside a transaction have a position that was passed,
        # and are new.
        and not (batch.snapshot or batch.replays)
        and any(isinstance(part, TransactionPart) for part in batch.parts)
        and all(isinstance(part, TransactionPart) and part.xid is not None for part in batch.parts)
    )


def begins_snapshot(batch: Batch) -> bool:
    """Return whether a snapshot begins or resumes with ``batch``.

    Rows that were not flushed are then delivered again.
    """
    pieces = [part for part in batch.parts if isinstance(part, SnapshotRows)]
    return any(piece.opens or piece.goes_on for piece in pieces)
