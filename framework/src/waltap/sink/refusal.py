"""What a sink says of the single records, or changes, that its destination refuses."""

from collections.abc import Sequence
from dataclasses import dataclass

from waltap.dead_letters.bisect import BatchLocation, Part, every_event, without
from waltap.decode.message import Change
from waltap.errors import RecordError, SinkError, WaltapError
from waltap.transactions.transaction import Batch, SnapshotRows, TransactionPart

__all__ = ["RecordsRefused", "RefusedEvent", "leave_out", "places_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedEvent:
    """One of a batch that the destination refuses, and what is to be told of it alone.

    A sink that takes records says ``index``, the record's in `Batch.records`; one that takes changes says
    ``change``, the object that stands in a part of the batch, or, of a row that a snapshot read,
    ``rows``, the part, and ``index``, the row's.
    """

    error: WaltapError
    index: int = -1
    change: Change | None = None
    rows: SnapshotRows | None = None


class RecordsRefused(SinkError, RecordError):
    """The destination refuses single records, or changes, of a batch; it would take the others.

    `Sink.write` raises it, naming at least one, and all that it knows of (where `SinkContext.tolerant` is
    false, one is enough). The batch has not been taken, what was written before it has been kept. By the
    pipeline's policy the engine stops with the first one's own error; or it makes sure that what was
    refused is kept elsewhere, takes it out of the batch, and writes *the same batch object* again:
    ``records``, or the changes and rows of ``parts``, are fewer, ``position`` is the same. It may be
    refused in part again. So

    * a sink that commits the batch as one transaction undoes it, raises, and commits the rest at the next
      `write`: never the position of an event that is not kept anywhere;
    * a sink that has sent the others already remembers the batch object, and at the next `write` of it
      only takes its position.

    Never for what another try, or a repair of the destination as a whole, would mend: a lost connection,
    another instance that took over, a missing table or topic, a refused login, a full disk.
    """

    code = "WT-5804"
    remedy = (
        "See what the destination says of it. errors.tolerance says what becomes of such records: stop, "
        "leave them out, or write them to the dead letters and go on."
    )

    def __init__(self, refused: Sequence[RefusedEvent]) -> None:
        self.refused = tuple(refused)
        first = self.refused[0].error
        count = len(self.refused)
        super().__init__(first.problem if count == 1 else f"{count} records; {first.problem}")


def leave_out(batch: Batch, refused: Sequence[RefusedEvent]) -> None:
    """Take what was refused out of ``batch``, which goes to the sink again."""
    if batch.records is not None:
        gone = {each.index for each in refused}
        batch.records = [each for at, each in enumerate(batch.records) if at not in gone]
        return
    places = places_of(batch.parts, refused)
    batch.parts = without(batch.parts, places)
    batch.events -= len(places)


def places_of(
    parts: Sequence[Part], refused: Sequence[RefusedEvent]
) -> dict[BatchLocation, RefusedEvent]:
    """Return where the refused changes and rows stand, in order."""
    changes = {id(each.change): each for each in refused if each.change is not None}
    rows = {(id(each.rows), each.index): each for each in refused if each.rows is not None}
    found = {
        where: each for where in every_event(parts) if (each := _named(parts, where, changes, rows))
    }
    return dict(sorted(found.items()))


def _named(
    parts: Sequence[Part],
    where: BatchLocation,
    changes: dict[int, RefusedEvent],
    rows: dict[tuple[int, int], RefusedEvent],
) -> RefusedEvent | None:
    part = parts[where.part]
    if isinstance(part, TransactionPart):
        return changes.get(id(part.changes[where.at]))
    return rows.get((id(part), where.at))
