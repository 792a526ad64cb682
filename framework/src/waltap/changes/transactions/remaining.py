"""Select a batch's remaining parts for one destination. Sans-IO."""

from bisect import bisect_left
from collections.abc import Iterable

from waltap.changes.transactions.position import Position
from waltap.changes.transactions.transaction import Heartbeat, SnapshotRows, TransactionPart

__all__ = ["remaining"]

Part = TransactionPart | SnapshotRows | Heartbeat


def remaining(parts: Iterable[Part], reached: Position) -> list[Part]:
    """Return the parts that a destination at position ``reached`` lacks.

    They are the transactions after the position, and the rest of the transaction that the
    position is within.
    """
    left: list[Part] = []
    for part in parts:
        # Rows of snapshots stay: an incremental snapshot is read again after a restart, and its
        # rows then come after everything that any destination has.
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
    """Return ``part`` without the changes numbered below ``index``.

    None means that no change remains.
    """
    if index <= part.first_index:
        return part
    if index >= part.first_index + part.wire_count and not part.complete:
        return None
    return part.split(bisect_left(part.numbers(), index))[1]
