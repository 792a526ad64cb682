"""Rows that change places under the chunks of an incremental snapshot. Sans-IO.

Chunks go up through the keys of a table, or hashes of them. An update that takes a row from the part that
is not read yet into the part that is, or behind the greatest key, takes it out of their way. Most updates
tell the whole row; one that leaves out a large value which it did not touch does not, and nobody would
ever tell the value. Such rows are noted, and read by their keys when the chunks have come to their end.

The end is where a chunk has no rows. What its snapshot saw may not have streamed by, and the move of a row
may be of that: the table settles until it has, and is read on where rows have moved.
"""

from collections.abc import Callable

import msgspec

from waltap.decode.message import Change, Update
from waltap.decode.relation import Relation
from waltap.decode.tuple_image import UNCHANGED, MissingValue, Tuple
from waltap.snapshot.incremental_state import IncrementalState, Key
from waltap.snapshot.window import TextOf

__all__ = ["MovedRows"]

MANY = 1000
"""So many are read before the chunks have come to their end."""


class MovedRows:
    """Notes rows of tables whose chunks have begun, in their `ChunkState`.

    ``identifying`` and ``text_of`` as for `IncrementalSnapshots`. ``columns`` has, by schema.table, the
    names of the columns that chunks are cut by, where that is known.
    """

    def __init__(
        self,
        state: IncrementalState,
        identifying: Callable[[Relation], tuple[int, ...]],
        text_of: TextOf,
    ) -> None:
        self._state, self.identifying, self._text_of = state, identifying, text_of
        self.columns: dict[str, frozenset[str]] = {}
        self._reading: list[str] = []
        self._turn = False

    @property
    def watching(self) -> bool:
        """Tell whether the chunks of a table have begun, so that its updates matter."""
        return bool(self._state.chunks)

    @property
    def reading(self) -> bool:
        """Tell whether what is read are rows that moved."""
        return bool(self._reading)

    def see(self, change: Change) -> None:
        """Look at any change that streams by."""
        if not isinstance(change, Update) or UNCHANGED not in change.new:
            return
        relation = change.relation
        chunk = self._state.chunks.get(relation.name)
        if chunk is None or chunk.maximum is None:
            return
        key = self.identifying(relation)
        new, old = self._key(relation, change.new, key), self._key(relation, change.old, key)
        if new is None or not _left_out(change.new, change.old):
            return
        columns = self.columns.get(relation.name)
        names = {relation.columns[index].name for index in key}
        if columns is not None and columns <= names and old in {None, new}:
            return  # it is where it was
        if chunk.exhausted and old not in chunk.moved:
            return  # it has been delivered
        chunk.moved[new] = False

    def next(self, *, exhausted: bool) -> list[Key]:
        """Return the keys of rows to read now. ``exhausted``: no chunk is left."""
        waiting = [key for key, asked in self._state.head.moved.items() if not asked]
        self._turn = not self._turn and len(waiting) >= MANY
        self._reading = waiting[:MANY] if exhausted or self._turn else []
        return [msgspec.json.decode(text, type=Key) for text in self._reading]

    def missed(self) -> None:
        """None of the rows that `next` gave is there: they are gone, or have moved on, as the stream will
        tell."""
        for text in self._reading:
            self._state.head.moved[text] = True
        self._reading = []

    def read(self) -> None:
        """The rows that `next` gave were delivered, and all that their reading saw has streamed by."""
        for text in self._reading:
            self._state.head.moved.pop(text, None)
        self._reading = []

    def _key(self, relation: Relation, image: Tuple, key: tuple[int, ...]) -> str | None:
        """Return the key of an image as JSON, None where it lacks part of it."""
        if not image or not key or any(isinstance(image[index], MissingValue) for index in key):
            return None
        values = []
        for index in key:
            value = image[index]
            text = self._text_of(relation.columns[index]) if isinstance(value, bytes) else None
            values.append(text(value) if text else value)
        return msgspec.json.encode(values).decode()


def _left_out(new: Tuple, old: Tuple) -> bool:
    """Tell whether neither image has a value that the update did not touch."""
    return not old or any(
        value is UNCHANGED and isinstance(known, MissingValue)
        for value, known in zip(new, old, strict=True)
    )
