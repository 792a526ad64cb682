"""Check that a destination still has the sink's durable data."""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from waltap.changes.transactions.position import Position, Positions, lsn_text
from waltap.changes.transactions.transaction import Batch, SnapshotRows
from waltap.errors import SinkError
from waltap.ports.source.slot_status import SlotStatus


def delivered_changes(
    commit_lsn: int, numbers: Sequence[int], stored_position: Position | None
) -> int:
    """Count the first changes of a transaction that ``stored_position`` covers.

    ``numbers`` are their numbers in the transaction, in order.
    """
    if stored_position is None:
        return 0
    if commit_lsn < stored_position.end_lsn:
        return len(numbers)
    if commit_lsn == stored_position.commit_lsn:
        return bisect_left(numbers, stored_position.index)
    return 0


def begins_snapshot(batch: Batch) -> bool:
    """Return whether a snapshot begins or resumes with ``batch``.

    Rows that were not flushed are then delivered again.
    """
    pieces = [part for part in batch.parts if isinstance(part, SnapshotRows)]
    return any(piece.opens or piece.resumed for piece in pieces)


REREAD: Final = " read the captured tables again by `waltap repair FILE`; or"
"""Part of the remedy outside a snapshot."""


class DestinationBehind(SinkError):
    """The destination ends before the sink's durable position: changes are missing.

    ``has`` is the position at the end of the destination, by partition; None if unknown.
    """

    code = "WT-5003"
    loses = True
    remedy = (
        "It was restored from a backup, emptied or created again. Restore its former state; or "
        "read the captured tables again by `waltap repair FILE`, or from the beginning by "
        "`waltap offsets clear FILE` and a start{replay}."
    )

    def __init__(self, problem: str, *, has: Positions | None = None, **fields: object) -> None:
        super().__init__(problem, **fields)
        self.has = has


def require_stored(
    sink: str,
    recorded: Mapping[str, Position],
    found: Mapping[str, Position],
    slot: Callable[[], SlotStatus | None] = lambda: None,
) -> None:
    """Check that a sink still has its recorded position in each partition.

    ``recorded`` is the result of `PositionKeepingSink.stored_position` when the offset was stored,
    ``found`` the result of `Sink.open`. If ``slot`` has not confirmed more than ``found``, the
    error names the way to stream the rest again. Raises: DestinationBehind.
    """
    for partition, had in recorded.items():
        has = found.get(partition)
        if has is not None and has >= had:
            continue
        ends, replay = "has no position of this pipeline", ""  # no slot still has the first change
        if has is not None:
            ends, status = f"ends at {has}", slot()
            if status is not None and status.confirmed_lsn <= has.end_lsn:
                replay = (
                    f"; or stream the changes again by `waltap offsets set FILE {lsn_text(has.end_lsn)}` "
                    "and a start: the slot still has the WAL"
                )
        raise DestinationBehind(
            f"the destination of the sink {sink} {ends}, and had everything up to {had}",
            has=Positions(found),
            replay=replay,
        )
