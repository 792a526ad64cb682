"""Application of a transform to a batch.

Changes that stay keep their numbers within the transaction. Sans-IO.
"""

from collections.abc import Callable
from copy import copy

import msgspec

from waltap.base.plugin_errors import usable
from waltap.changes.transactions.transaction import (
    Batch,
    Part,
    SnapshotRows,
    TransactionPart,
    events_in,
)


def transformed(transform: Callable[[Batch], Batch], batch: Batch) -> Batch:
    """Apply ``transform`` to a copy of ``batch``, and keep the numbers of changes.

    A transform need not set `TransactionPart.gaps`: a comparison finds the dropped changes. Nor need
    it count `Batch.events`.
    """
    # A transform may change the batch in place: its parts and their lists are its own. Other sinks
    # get the given ones, as does a second rendering without a refused event.
    events, came = batch.events, batch.parts
    own = msgspec.structs.replace(batch, parts=[_copied(part) for part in came])
    made = usable(transform(own), Batch, transform)
    if came:  # records of a dead letter come without parts
        made.events = events_in(made.parts)
    if made.events != events and len(made.parts) == len(came):
        # If no change was dropped, every number is right already, and the comparison is saved.
        for before, after in zip(came, made.parts, strict=True):
            if (
                type(before) is TransactionPart
                and type(after) is TransactionPart
                and len(after.changes) != len(before.changes)
                and after.wire_count != before.wire_count
            ):
                _number(before, after)
    return made


def _copied(part: Part) -> Part:
    """Copy a part and its list of changes or rows; changes as columns become a list."""
    own = copy(part)
    if isinstance(own, TransactionPart):
        own.changes = list(own.changes)
    elif isinstance(own, SnapshotRows) and isinstance(own.rows, list):
        own.rows = list(own.rows)
    return own


def _number(before: TransactionPart, after: TransactionPart) -> None:
    """Set the gaps of ``after``, which has some changes of ``before``."""
    numbers: list[int] = []
    # One iterator for all changes: both lists have the same order, so the search is linear.
    given = zip(before.numbers(), before.changes, strict=True)
    for change in after.changes:
        for number, each in given:
            if each is change:
                numbers.append(number)
                break
        else:
            # The transform replaced a change by a new object.
            numbers = _numbers_by_lsn(before, after)
            break
    # Without a number for every change no gap is certain.
    if len(numbers) == len(after.changes):
        after.gaps = before.gaps_around(numbers)


def _numbers_by_lsn(before: TransactionPart, after: TransactionPart) -> list[int]:
    """Return the numbers of changes by their LSN.

    The result is shorter if a change has no counterpart in ``before``: its number is unknown.
    """
    numbers, changes = before.numbers(), before.changes
    indexes = {id(change): index for index, change in enumerate(changes)}
    found: list[int] = []
    at = 0
    for change in after.changes:
        index = indexes.get(id(change), -1)
        # A new object gets the number of the next old change that is not before it in the log.
        if index < at:
            index = next((n for n in range(at, len(changes)) if changes[n].lsn >= change.lsn), -1)
            if index < 0:
                break
        found.append(numbers[index])
        at = index + 1
    return found
