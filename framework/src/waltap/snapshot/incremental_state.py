"""What of incremental snapshots survives a restart: part of the offset (`Offset.signals`)."""

from collections.abc import Mapping

import msgspec

from waltap.signals.signal import SnapshotRequest

__all__ = ["ChunkState", "State"]

Key = list[str | None]


class ChunkState(msgspec.Struct, frozen=True):
    """How far the chunks of one table have come: the key of the last row that was delivered, None before
    the first chunk, and the greatest key that there was when it began."""

    last_key: Key | None = None
    maximum: Key | None = None


class State(msgspec.Struct):
    """Tables to read, the head first; ``chunks`` has those, by schema.table, whose reading has begun.
    ``blocking``: tables of blocking snapshots that have not come to their end, each with its signal.
    ``recent``: transactions that were delivered and that no chunk has seen; kept while tables wait."""

    queue: list[SnapshotRequest] = []
    chunks: dict[str, ChunkState] = {}
    paused: bool = False
    blocking: list[SnapshotRequest] = []
    recent: list[int] = []

    @classmethod
    def restored(cls, stored: Mapping[str, object]) -> "State":
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
        self._keep(ChunkState(last_key, self.head.maximum))

    def bounded(self, maximum: Key) -> None:
        """The head is read up to ``maximum``."""
        self._keep(ChunkState(self.head.last_key, maximum))

    def forget_head(self) -> None:
        """The head is read, or will not be: the next one begins anew."""
        if self.queue:
            self.chunks = {n: c for n, c in self.chunks.items() if n != self.queue[0].name}

    def _keep(self, chunk: ChunkState) -> None:
        self.chunks = {**self.chunks, self.queue[0].name: chunk}
