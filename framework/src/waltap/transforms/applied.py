"""A transform of batches, applied: what it leaves out keeps its number in its transaction. Sans-IO."""

from collections.abc import Callable
from copy import copy

from waltap.transactions.transaction import Batch, TransactionPart

__all__ = ["transformed"]


def transformed(transform: Callable[[Batch], Batch], batch: Batch) -> Batch:
    """Return what ``transform`` makes of ``batch``; the changes that stay have the numbers that they had.

    A transform need not say what it left out (`TransactionPart.gaps`): it is found by comparing. It may
    change the batch that it got, and its parts and lists: what came is noted before.
    """
    events, came = batch.events, [_as_it_is(part) for part in batch.parts]
    made = transform(batch)
    if made.events != events and len(made.parts) == len(came):
        for before, after in zip(came, made.parts, strict=True):
            if (
                before is not None
                and type(after) is TransactionPart
                and len(after.changes) != len(before.changes)
                and after.wire_count != before.wire_count
            ):
                _number(before, after)
    return made


def _as_it_is(part: object) -> TransactionPart | None:
    """Return a transaction's part that stays as it is now, whatever becomes of ``part``."""
    if type(part) is not TransactionPart:
        return None
    noted = copy(part)
    noted.changes = part.changes.copy()
    return noted


def _number(before: TransactionPart, after: TransactionPart) -> None:
    """Note in ``after``, which has some of the changes of ``before`` in their order, what it lacks."""
    numbers: list[int] = []
    given = zip(before.numbers(), before.changes, strict=True)
    for change in after.changes:
        for number, each in given:
            if each is change:
                numbers.append(number)
                break
        else:
            numbers = _numbers_by_place(before, after)
            break
    if len(numbers) == len(after.changes):
        after.gaps = before.gaps_around(numbers)


def _numbers_by_place(before: TransactionPart, after: TransactionPart) -> list[int]:
    """Return the numbers where other changes stand for some: those at the same place in the log. Fewer
    where one is of no change before: nobody knows its number."""
    numbers, changes = before.numbers(), before.changes
    places = {id(change): place for place, change in enumerate(changes)}
    found: list[int] = []
    at = 0
    for change in after.changes:
        place = places.get(id(change), -1)
        if place < at:
            place = next((n for n in range(at, len(changes)) if changes[n].lsn >= change.lsn), -1)
            if place < 0:
                break
        found.append(numbers[place])
        at = place + 1
    return found
