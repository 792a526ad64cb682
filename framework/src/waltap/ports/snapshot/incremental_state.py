"""State of incremental snapshots in the offset (`Offset.signals`)."""

from collections.abc import Collection, Mapping, Sequence

import msgspec

from waltap.changes.decode.relation import Relation
from waltap.ports.signals.signal import SnapshotRequest
from waltap.ports.snapshot.requests import accepted_of

Key = list[str | None]


class ChunkState(msgspec.Struct, frozen=True):
    """Record the progress in the chunks of one table."""

    # Key of the last delivered row, None before the first chunk.
    last_key: Key | None = None
    # Greatest key when the reading began.
    maximum: Key | None = None
    # Keys of moved rows, as JSON (`MovedRows`); True after a query for the row.
    moved: dict[str, bool] = {}
    # Only moved rows remain.
    exhausted: bool = False
    # The end of the table was reported.
    end_reported: bool = msgspec.field(name="told", default=False)
    # As for `ChunkSource.chunk`.
    order: list[int] = []
    # The table, and the columns of its keys; 0 and none in older states.
    oid: int = 0
    columns: list[str] = []


class IncrementalState(msgspec.Struct):
    """Hold the tables to read, and the progress of each."""

    # Tables to read, in order.
    queue: list[SnapshotRequest] = []
    # schema.table → progress, for every table whose reading has begun.
    chunks: dict[str, ChunkState] = {}
    paused: bool = False
    # Tables of unfinished blocking snapshots, each with its signal.
    blocking: list[SnapshotRequest] = []
    # Delivered transactions that no reading has seen; kept while a table must still be read.
    recent: list[int] = []
    # Tables that must leave the queue before the next chunk is read.
    stopping: list[SnapshotRequest] = []
    # `Signal.fingerprint` of signals that a channel may repeat after a crash.
    acted: list[str] = []
    # Tables that were read to their end, while changes that this reading saw have yet to stream.
    awaiting_stream: list[SnapshotRequest] = msgspec.field(name="settling", default_factory=list)

    @classmethod
    def restored(cls, stored: Mapping[str, object]) -> "IncrementalState":
        return msgspec.convert(stored, cls)

    @property
    def blocking_next(self) -> list[SnapshotRequest]:
        """Return the requests of the next blocking snapshot: the first one of each table."""
        first: dict[str, SnapshotRequest] = {}
        for request in self.blocking:
            first.setdefault(request.name, request)
        return list(first.values())

    @property
    def head(self) -> ChunkState:
        return self.chunks.get(self.queue[0].name, ChunkState()) if self.queue else ChunkState()

    def advance_to(self, last_key: Key | None) -> None:
        """Record that the head's rows up to ``last_key`` were delivered."""
        self._update_head(last_key=last_key)

    def bounded(
        self, maximum: Key, order: Sequence[int] = (), *, oid: int = 0, columns: Sequence[str] = ()
    ) -> None:
        """Record the greatest key of the head, its columns, and the order of rows."""
        self._update_head(maximum=maximum, order=list(order), oid=oid, columns=list(columns))

    @property
    def unbegun(self) -> list[SnapshotRequest]:
        """Return the queued requests whose table will be read from its start."""
        begun, found = set(self.chunks), list[SnapshotRequest]()
        for request in self.queue:
            if request.name in begun:
                begun.discard(request.name)
            else:
                found.append(request)
        return found

    def add(
        self, wanted: list[SnapshotRequest], known: set[tuple[str, str]]
    ) -> list[SnapshotRequest]:
        """Add requests for ``known`` tables to the queue, and return those that were new."""
        # A table that is partly read is read again after that: something may have happened to it
        # since, such as a gap, or another table may have its name.
        unbegun, stopping = self.unbegun, set(self.stopping)
        accepted = accepted_of(wanted, [r for r in unbegun if r not in stopping], known)
        again = stopping.intersection(accepted)
        self.stopping = [request for request in self.stopping if request not in again]
        self.begin_again({request.name for request in accepted})
        waiting = again.intersection(unbegun)
        self.queue = self.queue + [request for request in accepted if request not in waiting]
        return accepted

    def drop(self, requests: Collection[SnapshotRequest]) -> None:
        """Remove requests, and the progress of those whose reading has begun."""
        requests = set(requests)  # thousands may leave a queue of thousands
        begun: dict[str, SnapshotRequest] = {}
        for request in [*self.queue, *self.awaiting_stream]:
            begun.setdefault(request.name, request)
        gone = {name for name, request in begun.items() if request in requests}
        self.chunks = {name: chunk for name, chunk in self.chunks.items() if name not in gone}
        self.queue = [r for r in self.queue if r not in requests]
        self.awaiting_stream = [r for r in self.awaiting_stream if r not in requests]

    def forget_head(self) -> None:
        if self.queue:
            self.chunks = {n: c for n, c in self.chunks.items() if n != self.queue[0].name}

    def rename_head(self, schema: str, table: str) -> SnapshotRequest:
        """Return the head under the new name of its table."""
        before = self.queue[0]
        request = msgspec.structs.replace(before, schema=schema, table=table)
        # A table that had the name before is read again, from its start.
        others = [each for each in self.awaiting_stream if each.name == request.name]
        self.begin_again({request.name})
        self.chunks = {
            request.name if name == before.name else name: chunk
            for name, chunk in self.chunks.items()
            if name != request.name
        }
        self.queue = [request, *self.queue[1:], *others]
        return request

    def chunk_of(self, relation: Relation) -> ChunkState | None:
        """Return the progress in a table that may have been renamed."""
        for chunk in self.chunks.values():
            if chunk.oid and chunk.oid == relation.oid:
                return chunk
        chunk_of_name = self.chunks.get(relation.name)
        unknown = chunk_of_name is not None and not (chunk_of_name.oid and relation.oid)
        return chunk_of_name if unknown else None

    def finish_head(self, *, waits: bool) -> SnapshotRequest:
        """Remove the head from the queue, and return it.

        ``waits`` keeps its progress until `all_streamed`.
        """
        done, rest = self.queue[0], self.queue[1:]
        if waits and done.name not in {request.name for request in rest}:
            self._update_head(end_reported=True)
            self.awaiting_stream = [*self.awaiting_stream, done]
        else:
            self.forget_head()
        self.queue = rest
        return done

    def all_streamed(self) -> None:
        """End the wait: everything that its reading saw has streamed.

        Tables with moved rows return to the queue, and the others are forgotten.
        """
        self.read_on([r for r in self.awaiting_stream if self._moved_of(r.name)])

    def read_on(self, tables: list[SnapshotRequest]) -> None:
        """Return ``tables`` to the queue, and forget other waiting tables."""
        self.queue, self.awaiting_stream = [*tables, *self.queue], []
        queued = {request.name for request in self.queue}
        self.chunks = {name: chunk for name, chunk in self.chunks.items() if name in queued}

    def begin_again(self, names: set[str]) -> None:
        """Forget the last reading of tables that a new signal requests."""
        again = {request.name for request in self.awaiting_stream} & names
        self.awaiting_stream = [
            request for request in self.awaiting_stream if request.name not in again
        ]
        self.chunks = {name: chunk for name, chunk in self.chunks.items() if name not in again}

    def _moved_of(self, name: str) -> dict[str, bool]:
        """Return the rows of a table that moved since their query."""
        chunk = self.chunks[name]
        moved = {key: False for key, asked in chunk.moved.items() if not asked}
        advanced = msgspec.structs.replace(chunk, moved=moved, exhausted=True)
        self.chunks = {**self.chunks, name: advanced}
        return moved

    def _update_head(self, **changes: object) -> None:
        chunk = msgspec.structs.replace(self.head, **changes)
        self.chunks = {**self.chunks, self.queue[0].name: chunk}


class StreamPoint(msgspec.Struct, frozen=True):
    """Locate a signal in the stream."""

    # LSN of the signal's row; the other fields are from its part.
    lsn: int
    xid: int | None
    previous_end_lsn: int | None
