"""Define a sink's optional roles, each a small protocol.

A sink has a role if it has its methods: it inherits nothing and declares nothing. The engine asks
with `isinstance`.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from waltap.base.plugin_errors import UnusableResult, usable
from waltap.changes.transactions.position import Position, Positions
from waltap.ports.sink.sink import Sink
from waltap.ports.snapshot.chunk_source import SnapshotChunk
from waltap.ports.source.connector import PreflightCheck, PublicationCompleteness


@dataclass(frozen=True, slots=True, kw_only=True)
class DownstreamTable:
    """The progress of one table."""

    table: str
    # LSN up to which the table is complete.
    lsn: int
    # Why the table is suspended, "" if it is not.
    failed: str = ""
    # Rows of the last batch; these numbers are None if unknown.
    batch_rows: int | None = None
    # Rows that wait for the table.
    waiting_rows: int | None = None
    # Age of the first waiting row's commit.
    lag_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DownstreamProgress:
    """One stage after the engine, such as Spark, or one of several sinks."""

    stage: str
    # End of the last complete transaction, 0 for none.
    lsn: int
    # WAL between that transaction and the last one that waits for the stage.
    lag_bytes: int | None
    # Whether the stage has everything.
    current: bool
    # Commit time of its last transaction at the source, ms since 1970 UTC; None if unknown.
    committed_ms: int | None = None
    # When that transaction was applied here.
    applied_ms: int | None = None
    tables: tuple[DownstreamTable, ...] = ()
    # Why the stage receives nothing now, "" if it does.
    problem: str = ""

    def lag_ms(self, now_ms: int) -> int | None:
        """Return how long ago the last applied transaction was committed.

        Return 0 if the stage is current, None if the time is unknown.
        """
        if self.current:
            return 0
        since = self.committed_ms or self.applied_ms
        return None if since is None else max(0, now_ms - since)


@runtime_checkable
class CheckedSink(Protocol):
    """A sink that can be checked before a start."""

    def check(self) -> list[PreflightCheck]:
        """Check whether `open` would succeed, without any change.

        Called before `open`, also on a sink that is never opened. Raises: SinkError for one problem.
        """


@runtime_checkable
class RelationCachingSink(Protocol):
    """A sink with state for each relation."""

    def forget(self, oid: int) -> None:
        """Drop the state of a dropped relation whose rows were all written.

        Called between writes.
        """


@runtime_checkable
class PositionKeepingSink(Protocol):
    """A sink that stores its position with the data, exactly once."""

    def stored_position(self) -> Position | Positions | None:
        """Return the position that `open` would return now.

        Called after `flush` and at the end of a snapshot. The engine stores it with the offset. If a later
        `open` returns less than was stored, or None, the run ends with `DestinationBehind`: the
        destination was restored from a backup, emptied or recreated. None: the engine compares nothing.

        A sink whose tables can be lost beside an unchanged position raises that error itself, in `open`
        and before it commits, unless `SinkContext.repairs`.
        """


@runtime_checkable
class IdentifiedSink(Protocol):
    """A sink whose data can be moved and recognised."""

    def identity(self) -> str:
        """Return an identity of the data that survives a move.

        "": there is no data yet. Also called before `open`. Raises: SinkError.
        """


@runtime_checkable
class CompletenessSink(Protocol):
    """A sink that must know whether a change can be missing."""

    def begins(self, completeness: PublicationCompleteness) -> None:
        """Accept that the following changes are complete as ``completeness`` says.

        It counts only if `SinkContext.gets_every_change`. Called after each connection to the source:
        after `open` and before any change of that connection. Raises: SinkError.
        """


@runtime_checkable
class FlushDelayingSink(Protocol):
    """A sink that may wait longer, to make larger pieces."""

    def holds_back(self) -> bool:
        """Return whether the next flush may wait longer.

        Called about once per batch after ``offset.flush.interval.ms``. A `flush` that is called
        nevertheless (a snapshot's end, a stop) makes everything durable.
        """


@runtime_checkable
class MaintainedSink(Protocol):
    """A sink with periodic work."""

    def maintain(self) -> None:
        """Run periodic work while no change arrives.

        Called between two batches, about every ``status.update.interval.ms`` and at least every ten
        seconds. Raises: SinkError, as `flush` does.
        """


@runtime_checkable
class AcknowledgingSink(Protocol):
    """A sink whose batches other processes acknowledge later.

    `flush` does not wait for them, and its result does not count. Of several sinks, and for a dead
    letter, the engine waits for them at each flush.
    """

    def acknowledged(self) -> int:
        """Return `Batch.number` of the last durable batch, 0 for none.

        All earlier batches are durable too. Called after `flush`.
        """

    def drain(self) -> None:
        """Wait for pending acknowledgements, before the last `flush` of a run.

        A kill or an error calls nothing.
        """


@runtime_checkable
class GapAwareSink(Protocol):
    """A sink that records where capture was interrupted."""

    def record_gap(self, table: str) -> None:
        """Record durably that capture of ``table`` (``schema.table``) was interrupted.

        Called before the table's next change, perhaps twice, or while the sink is closed. Until an initial
        snapshot replaces them, the sink may hold rows that no longer exist in the source. Raises:
        SinkError.
        """


@runtime_checkable
class RedeliveryAwareSink(Protocol):
    """A sink that stores which dead letters it received."""

    def redelivered(self) -> Collection[str]:
        """Return `Batch.redelivers` of the last durable batch that had some.

        Called after `open`. A sink that stores it with the data gets no dead letter twice, even if a
        redelivery is killed before the engine records it. The position of such a batch may be before the
        sink's: the batch is new all the same.
        """


@runtime_checkable
class ProgressSink(Protocol):
    """A sink whose data other processes apply further."""

    def downstream_progress(self) -> Sequence[DownstreamProgress]:
        """Return the progress of the consumers that read the flushed data.

        Such a consumer is a process that applies the data to tables. Any thread may call it for the
        status: it only reads, and does not wait for the engine's thread. Raises nothing.
        """


@runtime_checkable
class SnapshotChoosingSink(Protocol):
    """A sink that chooses the reader of an initial snapshot."""

    def wants_chunks(self) -> bool:
        """Return whether an initial snapshot should arrive as chunks (`assign_splits`).

        A sink wants that if other processes can read the source for it. Called after `open`, before the
        first rows.
        """


@runtime_checkable
class SplitReadingSink(SnapshotChoosingSink, Protocol):
    """A sink whose other processes read the rows of an initial snapshot."""

    def assign_splits(self, chunks: Sequence[SnapshotChunk]) -> str:
        """Take the chunks of a complete snapshot for other readers; return a name.

        The engine then writes a piece without rows for each table, complete and with that name
        (`SnapshotRows.external_snapshot`), and flushes. It calls `split_rows` until the rows are durable,
        and keeps the snapshot open until then. If that fails, the chunks are discarded: a later
        start takes another snapshot. Raises: SinkError.
        """

    def split_rows(self) -> Mapping[str, int] | None:
        """Return the row count of each chunked table (``schema.table``).

        None until all rows are durable. Raises: SinkError if they cannot become durable.
        """


def checks_of(sink: Sink) -> list[PreflightCheck]:
    """Return the sink's checks before a start. Raises: as `CheckedSink.check`."""
    return usable(sink.check(), list, sink, "check") if isinstance(sink, CheckedSink) else []


def flush_acknowledged(sink: Sink, last: int, at: Positions) -> Position | Positions | None:
    """Flush the sink, and wait until batch ``last`` is acknowledged.

    Return the position, which is ``at`` for a sink that acknowledges. Raises: SinkError; UnusableResult
    of a sink that does not wait.
    """
    if not isinstance(sink, AcknowledgingSink):
        return sink.flush()
    sink.drain()
    sink.flush()
    if usable(sink.acknowledged(), int, sink, "acknowledged") < last:
        raise UnusableResult(sink, "drain", "returned before its batches were acknowledged")
    return at


def stored_position_of(sink: Sink) -> Position | Positions | None:
    """Return the position that the sink stores with the data, None without one."""
    given = sink.stored_position() if isinstance(sink, PositionKeepingSink) else None
    return usable(given, (Position, Positions, type(None)), sink, "stored_position")


def identity_of(sink: Sink) -> str:
    """Return the identity of the sink's data, "" without one. Raises: SinkError."""
    return (
        usable(sink.identity(), str, sink, "identity") if isinstance(sink, IdentifiedSink) else ""
    )
