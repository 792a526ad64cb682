"""Define optional roles of a sink, each a protocol of the methods that it needs.

A sink has a role if it has its methods: it inherits nothing and declares nothing. The engine asks
with `isinstance`.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol, runtime_checkable

from waltap.ports.sink.downstream import DownstreamProgress
from waltap.ports.snapshot.chunk_source import SnapshotChunk


@runtime_checkable
class GapAwareSink(Protocol):
    """A sink that records where capture was interrupted."""

    def missed(self, table: str) -> None:
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

    def onward(self) -> Sequence[DownstreamProgress]:
        """Return the progress of the consumers that read the flushed data.

        Such a consumer is a process that applies the data to tables. Any thread may call it for the
        status: it only reads, and does not wait for the engine's thread. Raises nothing.
        """


@runtime_checkable
class SnapshotChoosingSink(Protocol):
    """A sink that is asked who reads the rows of an initial snapshot."""

    def wants_chunks(self) -> bool:
        """Return whether an initial snapshot should arrive as chunks (`hand_over`).

        A sink wants that if other processes can read the source for it. Called after `open`, before the
        first rows.
        """


@runtime_checkable
class SplitReadingSink(SnapshotChoosingSink, Protocol):
    """A sink whose other processes read the rows of an initial snapshot."""

    def hand_over(self, chunks: Sequence[SnapshotChunk]) -> str:
        """Take the chunks of a complete snapshot for other readers; return a name.

        The engine then writes a piece without rows for each table, complete and with that name
        (`SnapshotRows.elsewhere`), and flushes. It calls `handed_over` until the rows are durable, and
        keeps the snapshot open until then. If that fails, the chunks are discarded: a later start takes
        another snapshot. Raises: SinkError.
        """

    def handed_over(self) -> Mapping[str, int] | None:
        """Return the row count of each chunked table (``schema.table``).

        None until all rows are durable. Raises: SinkError if they cannot become durable.
        """
