"""Rows whose key changes during an incremental snapshot.

Chunks follow the keys of a table, or hashes of keys, in ascending order. An update may move a row from the
unread part to the read part, or beyond the greatest key; then no chunk has it. Most updates contain the
whole row. But an update may leave out a large value that it did not touch, and no later event would have
the value. Such rows are recorded, and read by their keys after the last chunk.

A chunk without rows is the last one. Its snapshot may have seen changes that have yet to stream, and one
of them may move a row. So the table waits until they have streamed, and moved rows are read then.
Sans-IO.
"""

from collections.abc import Callable

import msgspec

from waltap.changes.decode.message import Change, Update
from waltap.changes.decode.relation import Relation
from waltap.changes.decode.tuple_image import UNCHANGED, MissingValue, Tuple
from waltap.ports.snapshot.incremental_state import IncrementalState, Key

# Number of moved rows that are read without waiting for the last chunk.
MANY = 1000


class MovedRows:
    """Record moved rows of tables in their `ChunkState`.

    ``identifying`` is that of `IncrementalSnapshots`.
    """

    def __init__(
        self,
        state: IncrementalState,
        identifying: Callable[[Relation], tuple[int, ...]],
    ) -> None:
        self._state, self.identifying = state, identifying
        # schema.table → names of the columns that order its chunks, if known.
        self.columns: dict[str, frozenset[str]] = {}
        self._reading: list[str] = []
        self._turn = False

    @property
    def watching(self) -> bool:
        """Return whether the updates of any table matter."""
        return bool(self._state.chunks)

    @property
    def reading(self) -> bool:
        """Return whether the present chunk has moved rows."""
        return bool(self._reading)

    def see(self, change: Change) -> None:
        """Record the row of an update that may have moved."""
        if not isinstance(change, Update) or UNCHANGED not in change.new:
            return
        relation = change.relation
        chunk = self._state.chunks.get(relation.name)
        if chunk is None or chunk.maximum is None:
            return
        key = self.identifying(relation)
        new, old = _key_text(change.new, key), _key_text(change.old, key)
        if new is None or not _left_out(change.new, change.old):
            return
        columns = self.columns.get(relation.name)
        names = {relation.columns[index].name for index in key}
        if columns is not None and columns <= names and old in {None, new}:
            return  # the key is the same, so the row did not move
        if chunk.exhausted and old not in chunk.moved:
            return  # the row was delivered
        chunk.moved[new] = False

    def next(self, *, exhausted: bool) -> list[Key]:
        """Return the keys of rows to read now.

        ``exhausted`` means that no chunk is left.
        """
        waiting = [key for key, asked in self._state.head.moved.items() if not asked]
        # Large numbers of moved rows alternate with chunks, so that neither has to wait for the other.
        self._turn = not self._turn and len(waiting) >= MANY
        self._reading = waiting[:MANY] if exhausted or self._turn else []
        return [msgspec.json.decode(text, type=Key) for text in self._reading]

    def missed(self) -> None:
        """Record that none of the rows from `next` exists.

        They were deleted or moved again, and the stream will show it.
        """
        for text in self._reading:
            self._state.head.moved[text] = True
        self._reading = []

    def read(self) -> None:
        """Record the delivery of the rows from `next`.

        Everything that their reading saw has streamed.
        """
        for text in self._reading:
            self._state.head.moved.pop(text, None)
        self._reading = []


def _key_text(image: Tuple, key: tuple[int, ...]) -> str | None:
    """Return the key of an image as JSON, None if incomplete."""
    if not image or not key or any(isinstance(image[index], MissingValue) for index in key):
        return None
    return msgspec.json.encode([image[index] for index in key]).decode()


def _left_out(new: Tuple, old: Tuple) -> bool:
    """Return whether both images lack some untouched value."""
    return not old or any(
        value is UNCHANGED and isinstance(known, MissingValue)
        for value, known in zip(new, old, strict=True)
    )
