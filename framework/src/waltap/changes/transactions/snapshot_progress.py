"""Progress of an initial snapshot, as part of the offset.

A start after a kill resumes from it.
"""

import msgspec


class TableChunks(msgspec.Struct, frozen=True, kw_only=True):
    """Record the progress in one table whose reading has begun.

    Some of its rows may be at the destination.
    """

    # Text of the connector: the division into chunks, and the snapshot of the first reading.
    plan: str = ""
    count: int = 1
    # Indexes of the durable chunks.
    done: tuple[int, ...] = ()
    # The whole table is durable.
    complete: bool = False

    def ended(self, chunk: int, *, complete: bool) -> "TableChunks":
        """Return the progress after the end of ``chunk`` is durable."""
        if complete:
            return TableChunks(count=self.count, complete=True)
        known = 0 <= chunk < self.count and chunk not in self.done
        done = tuple(sorted((*self.done, chunk))) if known else self.done
        return msgspec.structs.replace(self, done=done)


class SnapshotProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Record a snapshot that has begun and not ended."""

    kind: str
    # The stream begins here after the snapshot.
    lsn: int
    # Identifier from `TableListingSource.captured_tables` → progress, for tables whose reading has
    # begun. If it is empty, a start takes a new snapshot.
    tables: dict[str, TableChunks] = {}
