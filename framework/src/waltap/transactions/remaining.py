"""What of a batch is still to come for one of several destinations. Sans-IO."""

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
            rest = _behind(part, reached.index - part.first_index)
            if rest is not None:
                left.append(rest)
        elif (
            part.end_lsn > reached.end_lsn if part.complete else part.commit_lsn >= reached.end_lsn
        ):
            left.append(part)
    return left


def _behind(part: TransactionPart, wire: int) -> TransactionPart | None:
    """Return ``part`` behind the first ``wire`` changes of the wire, None where nothing is there."""
    if wire <= 0:
        return part
    if wire >= part.wire_count and not part.complete:
        return None
    return part.split(_changes_among(part, wire))[1]


def _changes_among(part: TransactionPart, wire: int) -> int:
    """Return how many of the first ``wire`` changes of the wire are among ``part``'s."""
    left_out = 0
    for at, count in part.gaps:
        if at + left_out >= wire:
            break
        left_out += min(count, wire - at - left_out)
    return min(wire - left_out, len(part.changes))
