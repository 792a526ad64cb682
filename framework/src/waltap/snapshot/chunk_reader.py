"""Reads the chunks of the table at the head of an incremental snapshot's queue. Sans-IO.

A chunk counts only if it saw every transaction that had streamed before it was read; else it is to be
read again a little later.
"""

from collections import deque
from collections.abc import Callable

from waltap.decode.relation import Relation
from waltap.signals.signal import SnapshotRequest
from waltap.snapshot.chunk_size import ChunkSize
from waltap.snapshot.chunk_source import ChunkSource, ReadChunk
from waltap.snapshot.incremental_state import IncrementalState
from waltap.snapshot.moved_rows import MovedRows

__all__ = ["ChunkReader", "text_of"]

RECENT = 4096
"""So many of the last transactions are looked after until they are visible."""


class ChunkReader:
    """Knows from ``state`` what comes next. ``recent`` are transactions that have streamed and that no
    chunk has seen; whoever sees them stream adds them. ``waiting``: the last chunk did not count.
    ``keys`` and ``clock`` as for `IncrementalSnapshots`."""

    def __init__(
        self,
        source: ChunkSource,
        state: IncrementalState,
        moved: MovedRows,
        size: ChunkSize,
        keys: Callable[[Relation], tuple[int, ...]],
        clock: Callable[[], float],
    ) -> None:
        self._source, self._state, self._moved, self._size = source, state, moved, size
        self._keys, self._clock = keys, clock
        self.recent: deque[int] = deque(state.recent, maxlen=RECENT)
        self.waiting = False

    def restart(self) -> None:
        """Another table is read."""
        self._size.restart()

    def key(self, request: SnapshotRequest, relation: Relation) -> tuple[int, ...]:
        """Return the indexes of the columns to order and cut by; () when there is no key."""
        places = {column.name: index for index, column in enumerate(relation.columns)}
        if request.surrogate_key:
            return (places[request.surrogate_key],) if request.surrogate_key in places else ()
        return tuple(places[name] for name in relation.primary_key or ()) or self._keys(relation)

    def next(
        self, request: SnapshotRequest, relation: Relation, key: tuple[int, ...]
    ) -> ReadChunk | None:
        """Return the next rows to read, none of them at the table's end; None for an empty table, and
        where the chunk does not count yet (`waiting`)."""
        begun, self.waiting = self._state.head, False
        self._moved.columns[relation.name] = frozenset(relation.columns[i].name for i in key)
        if begun.maximum is None and not self._bounded(request, relation, key):
            return None
        found = self._read_moved(request, relation, exhausted=False)
        if self.waiting or found is not None:
            return found
        started = self._clock()
        chunk = self._source.chunk(
            request, relation, key,
            after=None if begun.last_key is None else tuple(begun.last_key),
            maximum=tuple(self._state.head.maximum or ()),
            limit=self._size.rows,
            order=self._state.head.order,
        )  # fmt: skip
        self._size.took(self._clock() - started)
        if self._counted(chunk) is None:
            return None
        if not chunk.rows:
            chunk = self._read_moved(request, relation, exhausted=True) or chunk
        return None if self.waiting else chunk

    def _read_moved(
        self, request: SnapshotRequest, relation: Relation, *, exhausted: bool
    ) -> ReadChunk | None:
        """Return rows that moved out of the way of the chunks, None where there are none, or none yet."""
        identity = self._moved.identifying(relation)
        while keys := self._moved.next(exhausted=exhausted):
            fit = [tuple(key) for key in keys if len(key) == len(identity)]
            chunk = self._source.rows(request, relation, identity, fit) if fit else None
            if chunk is not None and (self._counted(chunk) is None or chunk.rows):
                return None if self.waiting else chunk
            self._moved.missed()
        return None

    def _counted(self, chunk: ReadChunk) -> ReadChunk | None:
        """Return ``chunk`` where it saw all that has streamed; else it is to be read again later."""
        saw = chunk.saw
        self.waiting = chunk.locked or (saw is not None and not all(map(saw, self.recent)))
        if saw is not None and not self.waiting:
            self.recent.clear()  # what is visible stays so
        return None if self.waiting else chunk

    def _bounded(self, request: SnapshotRequest, relation: Relation, key: tuple[int, ...]) -> bool:
        """Ask for the greatest key; tell whether there is any, and whether the answer counts: a row that
        has moved behind it would be in no chunk, and not be looked for."""
        found = self._counted(self._source.maximum(request, relation, key))
        if found is None or not found.rows:
            return False
        self._state.bounded([text_of(found.rows[0][index]) for index in key], found.order)
        return True


def text_of(value: object) -> str | None:
    """Return a value of a key as it is stored."""
    return None if value is None else str(value)
