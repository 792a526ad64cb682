"""The watermark window of an incremental snapshot.

The window holds the rows of one chunk while changes stream. The chunk has its own snapshot, which contains
the changes of all transactions that it saw. Every other change is newer and drops its row. The rows that
remain at the high watermark are correct at that point.

DBLog separates the two kinds of changes by a low watermark. But a commit can be before it in the WAL and
still be invisible to a reader. Source:
"DBLog: A Watermark Based Change-Data-Capture Framework", section 3.

An update may leave out a large value that it did not touch. Then the row stays, with the values of the
update and the untouched values of the chunk. Sans-IO.
"""

from collections.abc import Callable

import msgspec

from waltap.changes.decode.message import Change, Delete, Insert, Truncate, Update
from waltap.changes.decode.relation import Relation, column_id
from waltap.changes.decode.tuple_image import UNCHANGED, MissingValue, Tuple
from waltap.changes.transactions.transaction import SnapshotRows
from waltap.ports.snapshot.incremental_state import IncrementalState, Key


class SnapshotWindow:
    """Hold the rows of one chunk.

    ``identifier`` is in both watermarks.
    """

    def __init__(
        self,
        identifier: str,
        relation: Relation,
        rows: list[Tuple],
        key: tuple[int, ...],
        *,
        keeps_changed: bool = False,
    ) -> None:
        """Index ``rows`` by their key.

        ``key`` has the columns that identify images of a row (`ReplicaIdentity.identifying`). With
        ``keeps_changed`` the window has the newest version of each row instead of dropping changed ones.
        """
        self.identifier, self.relation = identifier, relation
        # Whether a change shows that the table or a column has another name by now, or another table
        # has its name.
        self.renamed = False
        self._keeps_changed = keeps_changed
        self._keyed = bool(key)
        self._key = key or tuple(range(len(relation.columns)))
        # A key has several rows only if whole rows are the key.
        self._rows: dict[Tuple, list[Tuple]] = {}
        for row in rows:
            self._rows.setdefault(self._key_of(row), []).append(row)
        self._aligners: dict[Relation, Callable[[Tuple], Tuple]] = {}

    def see(self, change: Change) -> None:
        """Apply a change that is newer than the chunk."""
        if isinstance(change, Truncate):
            if any(map(self._is_of, change.relations)):
                self._rows.clear()
        elif isinstance(change, Insert | Update | Delete) and self._is_of(change.relation):
            align = self._aligners.get(change.relation)
            if align is None:
                align = self._aligners[change.relation] = aligner(change.relation, self.relation)
                self.renamed = self.renamed or renames(change.relation, self.relation)
            if isinstance(change, Insert):
                new = align(change.new)
                if self._keeps_changed:
                    self._put(new)
                elif self._keyed:  # an equal row without a key is another row
                    self._take(new)
            elif isinstance(change, Delete):
                self._take(align(change.old))
            else:
                self._updated(align(change.new), align(change.old) if change.old else ())

    def _is_of(self, relation: Relation) -> bool:
        """Return whether a change of ``relation`` concerns the rows."""
        same = relation.is_same_table(self.relation)
        if same == (relation.name == self.relation.name):
            return same
        # The chunk must be read again: its rows belong under the new name, or to no table.
        self.renamed = True
        return False

    def pieces(self, lsn: int, previous_end_lsn: int | None, now: int) -> list[SnapshotRows]:
        """Return the remaining rows, if any, as a piece of the stream before ``lsn``."""
        piece = SnapshotRows(
            relation=self.relation,
            rows=self.rows(),
            ts=now,
            lsn=lsn,
            xid=None,
            previous_end_lsn=previous_end_lsn,
            first_marker="incremental",
            last_marker="incremental",
            kind="incremental",
        )
        return [piece] if piece.rows else []

    def rows(self) -> list[Tuple]:
        """Return the rows without newer changes, in the order read."""
        return [] if self.renamed else [row for rows in self._rows.values() for row in rows]

    def _updated(self, new: Tuple, old: Tuple) -> None:
        row = self._take(old or new)
        if row is None or not (self._keeps_changed or UNCHANGED in new):
            return
        self._put(
            tuple(
                known if isinstance(value, MissingValue) else value
                for value, known in zip(new, row, strict=True)
            )
        )

    def _put(self, row: Tuple) -> None:
        key = self._key_of(row)
        if self._keyed:
            self._rows[key] = [row]
        else:
            self._rows.setdefault(key, []).append(row)

    def _take(self, image: Tuple) -> Tuple | None:
        key = self._key_of(image)
        if any(isinstance(value, MissingValue) for value in key):
            return self._search(image)
        rows = self._rows.get(key)
        if rows is None:
            return None
        row = rows.pop()
        if not rows:
            del self._rows[key]
        return row

    def _search(self, image: Tuple) -> Tuple | None:
        """Remove and return the row of an image without a complete key.

        The values that it has must be equal.
        """
        given = [(i, value) for i, value in enumerate(image) if not isinstance(value, MissingValue)]
        for key, rows in self._rows.items() if given else ():
            for row in rows:
                if all(row[index] == value for index, value in given):
                    rows.remove(row)
                    if not rows:
                        del self._rows[key]
                    return row
        return None

    def _key_of(self, row: Tuple) -> Tuple:
        return tuple(row[index] for index in self._key)


def aligner(relation: Relation, target: Relation) -> Callable[[Tuple], Tuple]:
    """Return the function that adapts images of another table version.

    The result has the columns of ``target`` in its order.
    """
    indexes = {column.name: index for index, column in enumerate(relation.columns)}
    found = [indexes.get(column.name) for column in target.columns]

    def align(image: Tuple) -> Tuple:
        return tuple(MissingValue.ABSENT if at is None else image[at] for at in found)

    return align


def renames(relation: Relation, target: Relation) -> bool:
    """Return whether a column of ``target`` has another name in ``relation``."""
    names = {column_id(column): column.name for column in relation.columns}
    return any(names.get(column_id(each), each.name) != each.name for each in target.columns)


# Rows whose key changes during an incremental snapshot.
#
# Chunks follow the keys of a table, or hashes of keys, in ascending order. An update may move a row from
# the part that is not read yet to the read part, or beyond the greatest key; then no chunk has it. Most
# updates contain the whole row. But an update may leave out a large value that it did not touch, and no
# later event would have the value. Such rows are recorded, and read by their keys after the last chunk.
#
# A chunk without rows is the last one. Its snapshot may have seen changes that have yet to stream, and one
# of them may move a row. So the table waits until they have streamed, and moved rows are read then.
# Sans-IO.


# Number of moved rows that are read without waiting for the last chunk.
MANY = 1000


class MovedRows:
    """Record moved rows of tables in their `ChunkState`.

    ``identifying`` is as for `IncrementalSnapshots`.
    """

    def __init__(
        self,
        state: IncrementalState,
        identifying: Callable[[Relation], tuple[int, ...]],
    ) -> None:
        self._state, self.identifying = state, identifying
        self._reading: list[str] = []
        self._reads_moved = False

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
        chunk = self._state.chunk_of(relation)
        if chunk is None or chunk.maximum is None:
            return
        key = self.identifying(relation)
        new, old = _key_text(change.new, key), _key_text(change.old, key)
        if new is None or not _left_out(change.new, change.old):
            return
        names = {relation.columns[index].name for index in key}
        if chunk.columns and names.issuperset(chunk.columns) and old in {None, new}:
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
        self._reads_moved = not self._reads_moved and len(waiting) >= MANY
        self._reading = waiting[:MANY] if exhausted or self._reads_moved else []
        return [msgspec.json.decode(text, type=Key) for text in self._reading]

    def mark_absent(self) -> None:
        """Record that none of the rows from `next` exists.

        They were deleted or moved again, and the stream will show it.
        """
        for text in self._reading:
            self._state.head.moved[text] = True
        self._reading = []

    def mark_delivered(self) -> None:
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
