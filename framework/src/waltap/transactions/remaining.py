"""What of a batch is still to come for one of several destinations. Sans-IO."""

from bisect import bisect_left
from collections.abc import Iterable

from waltap.source.position import Position
from waltap.transactions.transaction import Heartbeat, SnapshotRows, TransactionPart

__all__ = ["remaining"]

Part = TransactionPart | SnapshotRows | Heartbeat


def remaining(parts: Iterable[Part], reached: Position) -> list[Part]:
    """Return what of ``parts`` a destination lacks that has everything up to ``reached``: the transactions
    behind it, and the rest of one that it lies within.

    Rows of snapshots stay: an incremental one is read again after a restart, and its rows then stand in
    the stream behind everything that any destination had.
    """
    left: list[Part] = []
    for part in parts:
        if not isinstance(part, TransactionPart):
            left.append(part)
        elif reached.index and part.commit_lsn == reached.commit_lsn:
            rest = _behind(part, reached.index)
            if rest is not None:
                left.append(rest)
        elif (
            part.end_lsn > reached.end_lsn if part.complete else part.commit_lsn >= reached.end_lsn
        ):
            left.append(part)
    return left


def _behind(part: TransactionPart, index: int) -> TransactionPart | None:
    """Return ``part`` without changes that have a number below ``index``, None where nothing is left."""
    if index <= part.first_index:
        return part
    if index >= part.first_index + part.wire_count and not part.complete:
        return None
    return part.split(bisect_left(part.numbers(), index))[1]
