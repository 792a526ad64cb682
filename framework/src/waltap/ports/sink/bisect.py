"""Find the undeliverable events of a batch by bisection. Sans-IO.

An event is a change of a transaction or a row of a snapshot. `BatchLocation` identifies it by its
part and its place in the part. Events are always tried in their order.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

import msgspec

from waltap.changes.transactions.transaction import (
    Heartbeat,
    SnapshotRows,
    TransactionPart,
    events_in,
)
from waltap.errors import RecordError

Part = TransactionPart | SnapshotRows | Heartbeat


class BatchLocation(NamedTuple):
    """The place of an event in a batch."""

    # index of the part in the batch
    part: int
    # index of the change, or row, in the part
    at: int


def every_event(parts: Sequence[Part]) -> Iterator[BatchLocation]:
    """Yield the place of each event, in order."""
    for number, part in enumerate(parts):
        for at in range(events_in([part])):
            yield BatchLocation(number, at)


def less(part: Part, gone: Collection[int]) -> Part:
    """Return a part without the events at some places.

    Its positions do not change.
    """
    if not gone:
        return part
    if isinstance(part, SnapshotRows):
        rows = [row for at, row in enumerate(part.rows) if at not in gone]
        return msgspec.structs.replace(part, rows=rows)
    assert isinstance(part, TransactionPart), "a heartbeat has no events"
    stay = [at for at in range(len(part.changes)) if at not in gone]
    # the kept changes keep their numbers, because positions count by them
    numbers = part.numbers()
    return part.with_only([part.changes[at] for at in stay], [numbers[at] for at in stay])


def without(parts: Sequence[Part], gone: Collection[BatchLocation]) -> list[Part]:
    """Return the parts without some events."""
    return [
        less(part, {where.at for where in gone if where.part == number})
        for number, part in enumerate(parts)
    ]


def alone(part: Part, first: int, end: int) -> Part:
    """Return a part with only the events from ``first`` to ``end``."""
    # without begin and end of the transaction or snapshot: a piece must not write their records
    if isinstance(part, SnapshotRows):
        return msgspec.structs.replace(
            part,
            rows=part.rows[first:end],
            opens=False,
            complete=False,
            ends_chunk=False,
            begins={},
        )
    assert isinstance(part, TransactionPart), "a heartbeat has no events"
    return msgspec.structs.replace(
        part,
        changes=part.changes[first:end],
        first_index=part.numbers()[first],
        gaps=[(at - first, count) for at, count in part.gaps if first < at < end],
        starts=False,
        complete=False,
        end_lsn=0,
    )


def failing(
    parts: Sequence[Part],
    attempt: Callable[[Part], object],
    *,
    first_only: bool = False,
) -> dict[BatchLocation, RecordError]:
    """Return the events for which ``attempt`` raises RecordError.

    ``attempt`` gets a part, then the halves of each part that failed, from left to right, down to
    single events. It never gets heartbeats. ``first_only`` ends the search at the first failure.
    """
    found: dict[BatchLocation, RecordError] = {}
    for number, part in enumerate(parts):
        waiting = [(0, events_in([part]))] if events_in([part]) else []
        while waiting:
            first, end = waiting.pop()
            try:
                attempt(alone(part, first, end))
            except RecordError as error:
                if end - first == 1:
                    found[BatchLocation(number, first)] = error
                    if first_only:
                        return found
                    continue
                middle = (first + end) // 2
                # a stack: the left half is tried first, so that events stay in order
                waiting += [(middle, end), (first, middle)]
    return found
