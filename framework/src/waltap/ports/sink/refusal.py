"""Report single records or changes that a destination refuses."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from waltap.changes.decode.message import Change
from waltap.changes.transactions.transaction import (
    Batch,
    Part,
    SnapshotRows,
    TransactionPart,
    events_in,
)
from waltap.errors import RecordError, SinkError, WaltapError

# Find the undeliverable events of a batch by bisection. Sans-IO.
#
# An event is a change of a transaction or a row of a snapshot. `BatchLocation` identifies it by its
# part and its index in the part. Events are always tried in their order.


class BatchLocation(NamedTuple):
    """The location of an event in a batch."""

    # index of the part in the batch
    part: int
    # index of the change, or row, in the part
    at: int


def every_event(parts: Sequence[Part]) -> Iterator[BatchLocation]:
    """Yield the location of each event, in order."""
    for number, part in enumerate(parts):
        for at in range(events_in([part])):
            yield BatchLocation(number, at)


def less(part: Part, gone: Collection[int]) -> Part:
    """Return a part without the events at some locations.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedEvent:
    """One refused event of a batch, with its own error."""

    error: WaltapError
    # The record's index in `Batch.records`, or the row's in ``rows``.
    index: int = -1
    # The refused object of a part, from a sink that takes changes.
    change: Change | None = None
    # The part of a refused snapshot row.
    rows: SnapshotRows | None = None


class RecordsRefused(SinkError, RecordError):
    """The destination refuses single records or changes of a batch.

    It would accept the others. `Sink.write` raises this with at least one of them, and with all that it
    knows (one is enough where `SinkContext.tolerant` is false). The batch was not taken; earlier batches
    stay. Depending on the pipeline's policy, the engine stops with the first error. Otherwise it stores
    the refused events elsewhere, removes them from the batch, and writes *the same batch object* again.
    Then ``records``, or the changes and rows of ``parts``, are fewer; ``position`` is the same. The sink
    may refuse a part again. So

    * a sink that commits the batch as one transaction rolls back, raises, and commits the rest in the next
      `write`: it never commits the position of an event that is stored nowhere;
    * a sink that has already sent the other events remembers the batch object, and the next `write` of
    that object only takes its position.

    Never raise it for a problem that another try or a repair of the destination solves: a lost connection,
    another instance that took over, a missing table or topic, a refused login, a full disk.
    """

    code = "WT-5804"
    remedy = (
        "See the destination's message. errors.tolerance decides about such records: stop, "
        "leave them out, or write them to the dead letters."
    )

    def __init__(self, refused: Sequence[RefusedEvent]) -> None:
        self.refused = tuple(refused)
        first = self.refused[0].error
        count = len(self.refused)
        super().__init__(first.problem if count == 1 else f"{count} records; {first.problem}")


def leave_out(batch: Batch, refused: Sequence[RefusedEvent]) -> None:
    """Remove the refused events from ``batch`` before its next write."""
    if batch.records is not None:
        gone = {each.index for each in refused}
        batch.records = [each for at, each in enumerate(batch.records) if at not in gone]
        return
    locations = locations_of(batch.parts, refused)
    batch.parts = without(batch.parts, locations)
    batch.events -= len(locations)


def locations_of(
    parts: Sequence[Part], refused: Sequence[RefusedEvent]
) -> dict[BatchLocation, RefusedEvent]:
    """Return the locations of the refused changes and rows, in order."""
    # Equal changes may occur twice in a batch: compare the objects.
    changes = {id(each.change): each for each in refused if each.change is not None}
    rows = {(id(each.rows), each.index): each for each in refused if each.rows is not None}
    found: dict[BatchLocation, RefusedEvent] = {}
    for where in every_event(parts):
        part = parts[where.part]
        if isinstance(part, TransactionPart):
            each = changes.get(id(part.changes[where.at]))
        else:
            each = rows.get((id(part), where.at))
        if each is not None:
            found[where] = each
    return found


class FailStop:
    """Keeps the first failure of a guarded block and refuses later ones.

    An operating system reports a failed write-back once and then drops the pages: the next fsync of the
    same file succeeds without them. So a sink guards its `flush` with ``with self._fail_stop:`` and calls
    `check` in `write` and `reset` in `open`. ``what`` names the destination.
    """

    __slots__ = ("_failure", "_what")

    def __init__(self, what: str) -> None:
        self._what = what
        self._failure: BaseException | None = None

    @property
    def failed(self) -> bool:
        """Return whether a guarded block has failed since `reset`."""
        return self._failure is not None

    def check(self) -> None:
        """Raise SinkError if a guarded block has failed since `reset`."""
        failure = self._failure
        if failure is not None:
            why = failure.problem if isinstance(failure, SinkError) else repr(failure)
            raise SinkError(
                f"{self._what} takes and promises nothing more: it failed before ({why})"
            ) from failure

    def fail(self, failure: BaseException) -> None:
        """Record a failure outside a guarded block; the first one stays."""
        self._failure = self._failure or failure

    def reset(self) -> None:
        """Forget the failure: the engine redelivers unconfirmed batches."""
        self._failure = None

    def __enter__(self) -> None:
        self.check()

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is not None:
            self.fail(error)
