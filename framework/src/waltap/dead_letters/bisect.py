"""A batch in pieces: which of its events cannot be delivered, found by trying fewer of them. Sans-IO.

An event is a change of a transaction or a row of a snapshot. `BatchLocation` says which, by its
part and its place there; events are tried in their order, always.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

import msgspec

from waltap.errors import RecordError
from waltap.transactions.transaction import Heartbeat, SnapshotRows, TransactionPart, events_in

__all__ = ["BatchLocation", "Part", "alone", "every_event", "failing", "less", "without"]

Part = TransactionPart | SnapshotRows | Heartbeat


class BatchLocation(NamedTuple):
    """The part of a batch that an event is in, and its place among the changes, or rows, of it."""

    part: int
    at: int


def every_event(parts: Sequence[Part]) -> Iterator[BatchLocation]:
    """Give the place of each event, in order."""
    for number, part in enumerate(parts):
        for at in range(events_in([part])):
            yield BatchLocation(number, at)


def less(part: Part, gone: Collection[int]) -> Part:
    """Return ``part`` without the events at these places; its positions stay what they were."""
    if not gone:
        return part
    if isinstance(part, SnapshotRows):
        rows = [row for at, row in enumerate(part.rows) if at not in gone]
        return msgspec.structs.replace(part, rows=rows)
    assert isinstance(part, TransactionPart), "a heartbeat has no events"
    stay = [at for at in range(len(part.changes)) if at not in gone]
    numbers = part.numbers()
    return part.with_only([part.changes[at] for at in stay], [numbers[at] for at in stay])


def without(parts: Sequence[Part], gone: Collection[BatchLocation]) -> list[Part]:
    """Return ``parts`` without these events."""
    return [
        less(part, {where.at for where in gone if where.part == number})
        for number, part in enumerate(parts)
    ]


def alone(part: Part, first: int, end: int) -> Part:
    """Return a part that has the events from ``first`` up to ``end`` and nothing else: no begin or end of
    a transaction, no mark of a snapshot."""
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
    """Return the events that ``attempt`` raises a RecordError for when it gets them alone, in order.

    It gets a part, then its halves where it raised, and so on, each from left to right; never fewer than
    one event, and nothing at all of heartbeats. ``first_only``: the search ends with the first.
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
                waiting += [(middle, end), (first, middle)]  # the left one is taken first
    return found
