"""Define the contract of a sink.

Life cycle: open, (write*, flush)*, close. Single-threaded. A sink that can do more has the methods of
a protocol in `waltap.ports.sink.roles`.
"""

import abc
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from waltap.changes.capture.capture import CaptureRules
from waltap.changes.decode.relation import Relation
from waltap.changes.decode.replica_identity import ReplicaIdentity
from waltap.changes.events import EventContext
from waltap.changes.mapping.type_mapping import TypeMapper
from waltap.changes.transactions.position import Position, Positions, SnapshotProgress
from waltap.changes.transactions.transaction import Batch
from waltap.encoders.format.record_block import RecordBlock, pieces_of
from waltap.errors import SinkError

# The engine then stops as if it had been asked to. Accepted batches count as delivered; the next
# run delivers the rest.
OutputClosed = SinkError.define("OutputClosed", "WT-5801")


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkCapabilities:
    """The inputs and guarantees of a sink; `waltap_testing.suites.sink` tests them.

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
    # Reads columns as they are (`RowBlock.arrays`). Otherwise values would become text first.
    typed_columns: bool = False
    # Knows columns by `Column.number`. The rows of a table whose numbers are ambiguous are read again.
    follows_numbers: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkContext:
    """The state and callbacks that the engine gives to a new sink."""

    # The pipeline's name, and a folder for the sink's own state.
    pipeline: str
    state_dir: Path
    types: TypeMapper | None = None
    describe: Callable[[Relation], Relation] | None = None
    """Completes a relation from the catalogue (types, nullability, key); call it once per version."""
    renew: Callable[[Relation], Relation] | None = None
    """Returns a described relation with its present data types; the same object if unchanged."""
    identity: Callable[[Relation], ReplicaIdentity] | None = None
    """Returns the replica identity of a relation; call it once per version."""
    capture: CaptureRules | None = None
    """The captured and masked columns."""
    has_offset: bool = False
    """Whether a stored offset exists: a sink may then cut torn tails but must not start over. Without one
    a position at the destination is of another history, and must not hide changes."""
    snapshot: SnapshotProgress | None = None
    """Progress of the unfinished initial snapshot in the stored offset."""
    stopping: Callable[[], bool] = lambda: False
    """Returns whether the run must end. A sink that waits without a timeout asks it, and raises
    `waltap.errors.StopRequested`: unconfirmed batches are delivered again."""
    time_left: Callable[[], float] = lambda: math.inf
    """Returns the seconds that the operator leaves a stop (``waltap.stop.timeout.ms``), infinity without
    a stop: then the process ends as if killed. A sink whose rest others can do returns before."""
    takes_over: bool = False
    """Whether this process has the pipeline's lease. Another process of the pipeline that holds a lock at
    the destination has lost the lease: take its lock over."""
    may_write: Callable[[], None] = lambda: None
    """Raises if another process may run the pipeline by now. The engine calls it before each `write` and
    `flush`. A sink calls it again immediately before data becomes visible, because the process may have
    been paused in between. The sink must pass the error on."""
    gets_every_change: bool = False
    """Whether this sink receives every streamed change of the captured tables, with its key. If so, the
    engine calls `CompletenessSink.begins` with the completeness of the stream."""
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

    Failures. A `write` that raises a SinkError has not accepted its batch. With
    `RetryVerdict.SAME_BATCH` the sink keeps the earlier batches, and the engine may write the same batch
    again; raised by `open`, it has the engine open a new instance later. After `RecordsRefused` the batch
    has fewer records. With another verdict no write follows, but a flush may, which confirms the kept
    batches.

    Any other exception of `write`, and every exception of `flush`, ends the instance. The system may have
    dropped pages that it could not write, and would report success for a second attempt. From then on
    `write` and `flush` raise SinkError (use `FailStop`), and only `close` follows. The engine stores and
    confirms nothing further. It resumes with a new instance only, from the last stored position or the one
    that `open` returns.
    """

    capabilities: SinkCapabilities = SinkCapabilities()

    @abc.abstractmethod
    def open(self) -> Position | Positions | None:
        """Connect and repair the unfinished work of a crash.

        An exactly-once sink returns the last durable position, which it stores with the data, in the form
        of `flush`; others return None, and so do all without `SinkContext.has_offset`. The position of
        before an initial snapshot ends with its first batch: the stream behind it may be another
        server's, with lower LSNs. Raises: SinkError.
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

    @abc.abstractmethod
    def close(self) -> None:
        """Release everything without making anything durable.

        May be called twice.
        """


class NullSink(Sink):
    """Counts records and bytes; rendered records are measured too."""

    capabilities = SinkCapabilities(records=True, partitions=True, resumes_snapshots=True)

    def __init__(self, properties: None, context: SinkContext) -> None:
        self.records = 0
        self.bytes = 0
        self._accepted = Positions()

    def open(self) -> None:
        """Return no position: the sink stores none."""

    def write(self, batch: Batch) -> None:
        records = batch.records or []
        self.records += len(records)
        for piece in pieces_of(records):
            if isinstance(piece, RecordBlock):
                self.bytes += sum(piece.value_bytes())
            else:
                self.bytes += sum([len(r.value) for r in piece if r.value is not None])
        self._accepted = self._accepted.advanced(batch.partition, batch.position)

    def flush(self) -> Positions | None:
        """Return the last position of each partition."""
        return self._accepted or None

    def close(self) -> None:
        """Do nothing: the sink holds no resource."""
