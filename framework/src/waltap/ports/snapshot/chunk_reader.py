"""Reading of chunks for the head of an incremental snapshot's queue.

A chunk is valid only if it saw every transaction that had streamed before its query. Otherwise it must
be read again a little later. Sans-IO.
"""

from collections import deque
from collections.abc import Callable

from waltap.changes.decode.relation import Relation
from waltap.ports.signals.signal import SnapshotRequest
from waltap.ports.snapshot.chunk_source import ChunkSize, ChunkSource, ReadChunk
from waltap.ports.snapshot.incremental_state import IncrementalState
from waltap.ports.snapshot.moved_rows import MovedRows

# Number of the last transactions whose visibility is checked.
RECENT = 4096


class ChunkReader:
    """Read the next chunk after the one in ``state``.

    ``keys`` and ``clock`` are those of `IncrementalSnapshots`.
    """

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
        # Transactions that have streamed and that no chunk has seen. `IncrementalSnapshots` adds them.
        self.recent: deque[int] = deque(state.recent, maxlen=RECENT)
        # Whether the last chunk was not valid.
        self.waiting = False

    def restart(self) -> None:
        """Begin with another table."""
        self._size.restart()

    def key(self, request: SnapshotRequest, relation: Relation) -> tuple[int, ...]:
        """Return the columns that order the chunks, () for no key."""
        places = {column.name: index for index, column in enumerate(relation.columns)}
        if request.surrogate_key:
            return (places[request.surrogate_key],) if request.surrogate_key in places else ()
        return tuple(places[name] for name in relation.primary_key or ()) or self._keys(relation)

    def next(
        self, request: SnapshotRequest, relation: Relation, key: tuple[int, ...]
    ) -> ReadChunk | None:
        """Return the next chunk, without rows at the table's end.

        None means an empty table, or a chunk that is not valid yet (`waiting`).
        """
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
        # Only the query of a chunk counts, not the queries for moved rows and the greatest key.
        self._size.took(self._clock() - started)
        if self._counted(chunk) is None:
            return None
        if not chunk.rows:
            chunk = self._read_moved(request, relation, exhausted=True) or chunk
        return None if self.waiting else chunk

    def _read_moved(
        self, request: SnapshotRequest, relation: Relation, *, exhausted: bool
    ) -> ReadChunk | None:
        """Return moved rows, None for no rows or none yet."""
        identity = self._moved.identifying(relation)
        while keys := self._moved.next(exhausted=exhausted):
            # The replica identity may have changed since a key was recorded; such a key finds no row.
            fit = [tuple(key) for key in keys if len(key) == len(identity)]
            chunk = self._source.rows(request, relation, identity, fit) if fit else None
            if chunk is not None and (self._counted(chunk) is None or chunk.rows):
                return None if self.waiting else chunk
            self._moved.missed()
        return None

    def _counted(self, chunk: ReadChunk) -> ReadChunk | None:
        """Return ``chunk`` if it saw everything that has streamed.

        Otherwise the engine must read it again later.
        """
        saw = chunk.saw
        self.waiting = chunk.locked or (saw is not None and not all(map(saw, self.recent)))
        if saw is not None and not self.waiting:
            self.recent.clear()  # a visible transaction stays visible
        return None if self.waiting else chunk

    def _bounded(self, request: SnapshotRequest, relation: Relation, key: tuple[int, ...]) -> bool:
        """Query the greatest key, and return whether there is a valid one."""
        # After an outdated maximum, a row that moved beyond it would be in no chunk and not be recorded.
        found = self._counted(self._source.maximum(request, relation, key))
        if found is None or not found.rows:
            return False
        self._state.bounded([text_of(found.rows[0][index]) for index in key], found.order)
        return True


def text_of(value: object) -> str | None:
    """Return the stored form of a key's value."""
    return None if value is None else str(value)
