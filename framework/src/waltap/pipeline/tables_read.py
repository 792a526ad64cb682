"""What of an initial snapshot is at the destination, as the offset keeps it."""

from collections.abc import Iterable

import msgspec

from waltap.offsets.offset import Offset
from waltap.snapshot.progress import TableChunks
from waltap.transactions.transaction import Heartbeat, SnapshotRows, TransactionPart

__all__ = ["ChunkEnd", "TablesRead", "chunk_ends"]

Part = TransactionPart | SnapshotRows | Heartbeat
ChunkEnd = tuple[str, int, bool]
"""A table's identifier, a chunk of it that has ended, and whether the table has."""


def chunk_ends(parts: Iterable[Part]) -> tuple[ChunkEnd, ...]:
    """Return the chunks of an initial snapshot that end in ``parts``."""
    return tuple(
        (str(part.relation.oid), part.chunk, part.complete)
        for part in parts
        if isinstance(part, SnapshotRows) and part.ends_chunk
    )


class TablesRead:
    """Keeps which tables have begun, and which of their chunks are durable.

    A table counts as begun before the first of its rows is delivered: of what does not count as begun
    nothing is at the destination, whatever happens. A chunk counts as done after the flush behind its end.
    """

    def __init__(self, offset: Offset) -> None:
        """``offset``: the stored one, of a snapshot that goes on too."""
        self._goes_on = offset.snapshot is not None
        self._tables = {} if offset.snapshot is None else dict(offset.snapshot.tables)
        first = next(iter(offset.partitions.values()))
        self._visible_in = dict(first.visible_in) if self._goes_on else {}
        self._written: list[ChunkEnd] = []

    def begin(self, parts: Iterable[Part]) -> bool:
        """Take note of the tables that begin with ``parts``; True when that is to be stored first."""
        begins: dict[str, TableChunks] = {}
        for part in parts:
            if isinstance(part, SnapshotRows):
                begins |= part.begins
                if part.visible:
                    for name in (str(part.relation.oid), part.relation.name):
                        self._visible_in[name] = part.visible
        self._tables |= begins
        return bool(begins) and self._goes_on

    def took(self, ends: Iterable[ChunkEnd]) -> None:
        """Take note of chunks that the sink has taken to their end."""
        self._written += ends

    def flushed(self) -> bool:
        """What was taken is durable; True when there is something to store."""
        written, self._written = self._written, []
        for table, chunk, complete in written:
            if (known := self._tables.get(table)) is not None:
                self._tables[table] = known.ended(chunk, complete=complete)
        return bool(written) and self._goes_on

    def stored(self, offset: Offset, partition: str) -> Offset:
        """Return ``offset`` with the snapshot as far as it is durable."""
        assert offset.snapshot is not None
        snapshot = msgspec.structs.replace(offset.snapshot, tables=dict(self._tables))
        return msgspec.structs.replace(self._with_visible(offset, partition), snapshot=snapshot)

    def ended(self, offset: Offset, partition: str) -> Offset:
        """Return ``offset`` behind the end of the snapshot."""
        self._goes_on, self._tables, self._written = False, {}, []
        return msgspec.structs.replace(self._with_visible(offset, partition), snapshot=None)

    def _with_visible(self, offset: Offset, partition: str) -> Offset:
        partitions = dict(offset.partitions)
        partitions[partition] = msgspec.structs.replace(
            partitions[partition], visible_in=dict(self._visible_in)
        )
        return msgspec.structs.replace(offset, partitions=partitions)
