"""Define the contract of a sink.

Life cycle: check, open, (write*, flush)*, close. Single-threaded. A sink that can do more has the
methods of a protocol in `waltap.ports.sink.roles`.
"""

import abc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from waltap.changes.events import EventContext
from waltap.changes.transactions.position import Position, Positions
from waltap.changes.transactions.snapshot_progress import SnapshotProgress
from waltap.changes.transactions.transaction import Batch
from waltap.errors import SinkError
from waltap.ports.source.connector import PublicationCompleteness

if TYPE_CHECKING:
    from waltap.changes.capture.capture import CaptureRules
    from waltap.changes.decode.relation import Relation
    from waltap.changes.decode.replica_identity import ReplicaIdentity
    from waltap.changes.mapping.type_mapping import TypeMapper
    from waltap.ports.source.connector import PreflightCheck


# The engine then stops as if it had been asked to. Accepted batches count as delivered; the next
# run delivers the rest.
ReaderGone = SinkError.define(
    "ReaderGone",
    "WT-5801",
    "The reader of the sink's output has closed it (``jsonl:- | head``).",
    "Keep the reading end of {output} open, or write to a file: --sink jsonl:PATH.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkCapabilities:
    """The inputs and guarantees of a sink; the kit tests them.

    Every sink accepts new versions of a relation while it is open.
    """

    # Takes rendered records (`Batch.records`). Otherwise it takes changes (`Batch.parts`) and
    # renders them with the type mapper of its context.
    records: bool = True
    # Data and position become durable together, `Sink.open` returns that position, and a batch
    # that is written again after a crash leaves no duplicate.
    exactly_once: bool = False
    # Applies truncates. Otherwise a start warns, unless the pipeline skips truncates.
    truncate: bool = True
    # Stores the position of each partition. Otherwise a source with several is refused.
    partitions: bool = False
    # Wants flushes at transaction ends. The engine holds back up to a batch of an unfinished
    # transaction; only a larger one is split.
    whole_transactions: bool = False
    # Needs JSON keys and values; other formats are refused (WT-3302).
    json_only: bool = False
    # An interrupted initial snapshot may resume, also in a new instance, without a piece that
    # opens it. Durable rows count, and some of them may arrive again (`SnapshotRows`).
    resumes_snapshots: bool = False
    # A resumed snapshot may read an incomplete table again (`SnapshotRows.restarts`).
    restarts_tables: bool = False
    # Other processes acknowledge batches later. `flush` does not wait for them; `Sink.promised`
    # returns their progress.
    acknowledged: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkContext:
    """The state and callbacks that the engine gives to a new sink."""

    # The pipeline's name, and a folder for the sink's own state.
    pipeline: str
    state_dir: Path
    types: "TypeMapper | None" = None
    describe: "Callable[[Relation], Relation] | None" = None
    """Completes a relation from the catalogue (types, nullability, key); call it once per version."""
    renew: "Callable[[Relation], Relation] | None" = None
    """Returns a described relation with its present data types; the same object if unchanged."""
    identity: "Callable[[Relation], ReplicaIdentity] | None" = None
    """Returns the replica identity of a relation; call it once per version."""
    capture: "CaptureRules | None" = None
    """The captured and masked columns."""
    resumes: bool = False
    """Whether a stored offset exists: a sink may then cut torn tails but must not start over."""
    snapshot: SnapshotProgress | None = None
    """Progress of the unfinished initial snapshot in the stored offset."""
    stopping: Callable[[], bool] = lambda: False
    """Returns whether the run must end. A sink that waits without a timeout asks it, and raises
    `waltap.ports.source.connector.StopRequested`: unconfirmed batches are delivered again."""
    takes_over: bool = False
    """Whether this process has the pipeline's lease. Another process of the pipeline that holds a lock at
    the destination has lost the lease: take its lock over."""
    may_write: Callable[[], None] = lambda: None
    """Raises if another process may run the pipeline by now. The engine calls it before each `write` and
    `flush`. A sink calls it again immediately before data becomes visible, because the process may have
    been paused in between. The sink must pass the error on."""
    whole: bool = False
    """Whether this sink receives every streamed change of the captured tables, with its key. If so, the
    engine calls `Sink.begins` with the coverage of the stream."""
    repairs: bool = False
    """Whether the run reads lost tables again: the sink then recreates missing tables."""
    tolerant: bool = False
    """Whether the pipeline continues without the records in `RecordsRefused`. The sink then finds every
    refused record, even if that takes several attempts."""

    @property
    def events(self) -> EventContext:
        """Return the context of event plans, for a sink that takes changes."""
        return EventContext(
            describe=self.describe or (lambda relation: relation),
            identity=self.identity,
            capture=self.capture,
            mapper=self.types,
        )


class Sink(abc.ABC):
    """Takes batches in order; only the result of `flush` is durable.

    The contract of an initial snapshot is in `SnapshotRows`.

    Failures. A `write` that raises a SinkError has not taken its batch. With ``Retry.SAME_BATCH`` the sink
    keeps the earlier batches, and the engine may write the same batch again. After `RecordsRefused` the
    batch has fewer records. With another verdict no write follows, but a flush may, which confirms the
    kept batches.

    Any other exception of `write`, and every exception of `flush`, ends the instance. The system may have
    dropped pages that it could not write, and would report success for a second attempt. From then on
    `write` and `flush` raise SinkError (use `FailStop`), and only `close` follows. The engine stores and
    confirms nothing further. It resumes with a new instance only, from the last stored position or the one
    that `open` returns.
    """

    capabilities: SinkCapabilities = SinkCapabilities()

    def check(self) -> list["PreflightCheck"]:
        """Check whether `open` would succeed, without any change.

        Called before `open`, also on a sink that is never opened. Raises: SinkError for one problem.
        """
        return []

    @abc.abstractmethod
    def open(self) -> Position | Positions | None:
        """Connect and repair the unfinished work of a crash.

        An exactly-once sink returns the last durable position, which it stores with the data, in the form
        of `flush`; others return None. Raises: SinkError.
        """

    def begins(self, coverage: PublicationCompleteness) -> None:
        """Accept that the following changes are complete as ``coverage`` says.

        Called only if `SinkContext.whole`, after each connection to the source: after `open` and before
        any change of that connection. Raises: SinkError.
        """

    @abc.abstractmethod
    def write(self, batch: Batch) -> None:
        """Take ``batch``, which need not be durable at return.

        Raises: SinkError.
        """

    @abc.abstractmethod
    def flush(self) -> Position | Positions | None:
        """Make all accepted batches durable; return the last one's position.

        None: no batch yet. A sink with several partitions (`SinkCapabilities.partitions`) returns the last
        position of each, by `Batch.partition`. A single position belongs to the only partition.

        Before it returns, the sink checks that readers still find the data: a file may have been moved or
        deleted meanwhile. Raises: SinkError; the batches since the last flush are then in doubt, and every
        later `write` and `flush` raises too.
        """

    def forget(self, oid: int) -> None:
        """Drop the state of a dropped relation whose rows were all written.

        Called between writes.
        """

    def held(self) -> Position | Positions | None:
        """Return the position that `open` would return now.

        Called after `flush` and at the end of a snapshot. The engine stores it with the offset. If a later
        `open` returns less than was stored, or None, the run ends with `DestinationBehind`: the
        destination was restored from a backup, emptied or recreated. None: the engine compares nothing.

        A sink whose tables can be lost beside an unchanged position raises that error itself, in `open`
        and before it commits, unless `SinkContext.repairs`.
        """
        return None

    def promised(self) -> int:
        """Return `Batch.number` of the last durable batch, 0 for none.

        All earlier batches are durable too. Called after `flush` and in place of its result where
        `SinkCapabilities.acknowledged`.
        """
        return 0

    def drain(self) -> None:
        """Wait for pending acknowledgements, before the last `flush` of a run.

        Called before a clean end only.
        """

    def identity(self) -> str:
        """Return an identity of the data that survives a move of the data.

        "", the default: the sink has no identity or no data yet. Also called before `open`. Raises:
        SinkError.
        """
        return ""

    def holds_back(self) -> bool:
        """Return whether the next flush may wait longer, to make larger pieces.

        Called about once per batch after ``offset.flush.interval.ms``. A `flush` that is called
        nevertheless (a snapshot's end, a stop) makes everything durable.
        """
        return False

    def maintain(self) -> None:
        """Run periodic work while no change arrives.

        Called between two batches, about every ``status.update.interval.ms`` and at least every ten
        seconds. Raises: SinkError, as `flush` does.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Release everything without making anything durable.

        May be called twice.
        """
