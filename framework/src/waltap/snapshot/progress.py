"""How far an initial snapshot has come: what a start after a kill goes on from. Part of the offset."""

import msgspec

__all__ = ["SnapshotProgress", "TableChunks"]


class TableChunks(msgspec.Struct, frozen=True, kw_only=True):
    """One table whose reading has begun: some of its rows may be at the destination.

    ``plan`` is the connector's own text: how the table is cut, and in which snapshot it was read first.
    ``count``: into how many chunks; ``done``: the indexes of those that are durable. ``complete``: all of
    the table is.
    """

    plan: str = ""
    count: int = 1
    done: tuple[int, ...] = ()
    complete: bool = False

    def ended(self, chunk: int, *, complete: bool) -> "TableChunks":
        """Return what is so once the end of ``chunk`` is durable."""
        if complete:
            return TableChunks(count=self.count, complete=True)
        known = 0 <= chunk < self.count and chunk not in self.done
        done = tuple(sorted((*self.done, chunk))) if known else self.done
        return msgspec.structs.replace(self, done=done)


class SnapshotProgress(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot that has begun and not ended.

    ``lsn`` is where the stream begins behind it. ``tables``: those whose reading has begun, by the
    identifier that `Connector.captured_tables` gives them; without any, a start takes it anew.
    """

    kind: str
    lsn: int
    tables: dict[str, TableChunks] = {}
