"""A transform of batches, applied: what it leaves out keeps its number in its transaction. Sans-IO."""

from collections.abc import Callable

import msgspec

from waltap.transactions.transaction import Batch, TransactionPart

__all__ = ["transformed"]


def transformed(transform: Callable[[Batch], Batch], batch: Batch) -> Batch:
    """Return what ``transform`` makes of ``batch``; the changes that stay have the numbers that they had.

    A transform need not say what it left out (`TransactionPart.gaps`): it is found by comparing.
    """
    made = transform(batch)
    if made.events == batch.events or made is batch or len(made.parts) != len(batch.parts):
        return made
    parts = [
        _numbered(before, after)
        if isinstance(before, TransactionPart) and isinstance(after, TransactionPart)
        else after
        for before, after in zip(batch.parts, made.parts, strict=True)
    ]
    return msgspec.structs.replace(made, parts=parts)


def _numbered(before: TransactionPart, after: TransactionPart) -> TransactionPart:
    """Return ``after``, which has some of the changes of ``before`` in their order, with their numbers."""
    if len(after.changes) == len(before.changes) or after.wire_count == before.wire_count:
        return after
    numbers, changes = before.numbers(), before.changes
    places = {id(change): place for place, change in enumerate(changes)}
    kept: list[int] = []
    at = 0
    for change in after.changes:
        place = places.get(id(change), -1)
        if place < at:  # another that stands for it: at its place in the log
            place = next((n for n in range(at, len(changes)) if changes[n].lsn >= change.lsn), -1)
            if place < 0:
                return after  # it is of no change before: nobody knows its number
        kept.append(numbers[place])
        at = place + 1
    return msgspec.structs.replace(after, gaps=before.with_only(after.changes, kept).gaps)
