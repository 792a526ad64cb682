"""What a sink says of the single records, or changes, that its destination refuses."""

from collections.abc import Sequence
from dataclasses import dataclass

from waltap.decode.message import Change
from waltap.errors import RecordError, SinkError, WaltapError
from waltap.transactions.transaction import SnapshotRows

__all__ = ["RecordsRefused", "Refused"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
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

    def __init__(self, refused: Sequence[Refused]) -> None:
        self.refused = tuple(refused)
        first = self.refused[0].error
        count = len(self.refused)
        super().__init__(first.problem if count == 1 else f"{count} records; {first.problem}")
