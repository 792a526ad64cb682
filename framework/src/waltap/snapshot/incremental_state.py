"""What of incremental snapshots survives a restart: part of the offset (`Offset.signals`)."""

from collections.abc import Mapping, Sequence

import msgspec

from waltap.signals.signal import SnapshotRequest

__all__ = ["ChunkState", "IncrementalState", "Key"]

Key = list[str | None]


class ChunkState(msgspec.Struct, frozen=True):
    """How far the chunks of one table have come: the key of the last row that was delivered, None before
    the first chunk, and the greatest key that there was when it began.

    ``moved`` has the keys, as JSON, of rows that are to be read by them (moved_rows.py), True once they
    were asked for. ``exhausted``: nothing else is to be read. ``told``: the table's end was told.
    ``order`` as for `ChunkSource.chunk`; what earlier versions stored goes by the key alone."""

    last_key: Key | None = None
    maximum: Key | None = None
    moved: dict[str, bool] = {}
    exhausted: bool = False
    told: bool = False
    order: list[int] = []


class IncrementalState(msgspec.Struct):
    """Tables to read, the head first; ``chunks`` has those, by schema.table, whose reading has begun.
    ``blocking``: tables of blocking snapshots that have not come to their end, each with its signal.
    ``recent``: transactions that were delivered and that no chunk has seen; kept while tables wait.
    ``stopping``: tables of the queue that are to leave it before the next chunk is read.
    ``settling``: tables that were read to their end; not all that this reading saw has streamed by."""

    queue: list[SnapshotRequest] = []
    chunks: dict[str, ChunkState] = {}
    paused: bool = False
    blocking: list[SnapshotRequest] = []
    recent: list[int] = []
    stopping: list[SnapshotRequest] = []
    settling: list[SnapshotRequest] = []

    @classmethod
    def restored(cls, stored: Mapping[str, object]) -> "IncrementalState":
        """Return what an offset holds. Until 0.1 it knew the chunk of the head only, without its name."""
        state = msgspec.convert(stored, cls)
        if "chunks" not in stored and state.queue:
            head = msgspec.convert(stored, ChunkState)
            state.chunks = {state.queue[0].name: head} if head.maximum else {}
        return state

    @property
    def head(self) -> ChunkState:
        """Return the state of the table at the head of the queue."""
        return self.chunks.get(self.queue[0].name, ChunkState()) if self.queue else ChunkState()

    def reached(self, last_key: Key | None) -> None:
        """The head's rows up to ``last_key`` were delivered."""
        self._keep(msgspec.structs.replace(self.head, last_key=last_key))

    def bounded(self, maximum: Key, order: Sequence[int] = ()) -> None:
        """The head is read up to ``maximum``, in this order."""
        self._keep(msgspec.structs.replace(self.head, maximum=maximum, order=list(order)))

    def forget_head(self) -> None:
        """The head is read, or will not be: the next one begins anew."""
        if self.queue:
            self.chunks = {n: c for n, c in self.chunks.items() if n != self.queue[0].name}

    def finish_head(self, *, settles: bool) -> SnapshotRequest:
        """Take the head out of the queue; return it. ``settles``: it is kept in mind until `settle`."""
        done, rest = self.queue[0], self.queue[1:]
        if settles and done.name not in {request.name for request in rest}:
            self._keep(msgspec.structs.replace(self.head, told=True))
            self.settling = [*self.settling, done]
        else:
            self.forget_head()
        self.queue = rest
        return done

    def settle(self) -> None:
        """All that the reading of ``settling`` saw has streamed by: tables of which rows have moved
        meanwhile are read on, the others are forgotten."""
        self.read_on([r for r in self.settling if self._moved_of(r.name)])

    def read_on(self, tables: list[SnapshotRequest]) -> None:
        """Put these of the tables that settle back into the queue, and forget the others."""
        done = {request.name for request in self.settling} - {request.name for request in tables}
        self.chunks = {name: chunk for name, chunk in self.chunks.items() if name not in done}
        self.queue, self.settling = [*tables, *self.queue], []

    def begin_anew(self, names: set[str]) -> None:
        """These tables are asked for again: what is known of their last reading does not matter."""
        again = {request.name for request in self.settling} & names
        self.settling = [request for request in self.settling if request.name not in again]
        self.chunks = {name: chunk for name, chunk in self.chunks.items() if name not in again}

    def _moved_of(self, name: str) -> dict[str, bool]:
        """Return the rows of a table that have moved since they were asked for."""
        chunk = self.chunks[name]
        moved = {key: False for key, asked in chunk.moved.items() if not asked}
        kept = msgspec.structs.replace(chunk, moved=moved, exhausted=True)
        self.chunks = {**self.chunks, name: kept}
        return moved

    def _keep(self, chunk: ChunkState) -> None:
        self.chunks = {**self.chunks, self.queue[0].name: chunk}
