"""Streamed changes that an open blocking snapshot does not contain.

Theory of operation. The source opens a snapshot of the tables, and the stream continues until it has
delivered every transaction in the snapshot. The rows follow there, after every change that they contain.
A transaction may have streamed in between that the snapshot does not contain: its commit was in the WAL
first and visible later. Such changes are few. The rows that they concern are taken out of the snapshot,
changed as in the stream, and added to the end of the table.

So the rows are the table at their place in the stream. Sans-IO.
"""

from collections.abc import Callable, Sequence

import msgspec

from waltap.changes.decode.message import Change, Delete, Insert, Truncate, Update
from waltap.changes.decode.relation import Relation
from waltap.changes.decode.tuple_image import UNCHANGED, MissingValue, Tuple
from waltap.changes.transactions.transaction import SnapshotRows, TransactionPart
from waltap.ports.signals.signal import SnapshotRequest
from waltap.ports.snapshot.chunk_source import TableReading
from waltap.ports.snapshot.window import SnapshotWindow, aligner, renames

# Number of changes to keep in memory. A transaction with more of them is visible soon, so the engine opens
# another snapshot instead.
MANY = 10_000


class _TableChanges:
    """Hold the later changes of one table, and the rows that they concern."""

    def __init__(self, relation: Relation, key: tuple[int, ...], *, whole: bool) -> None:
        self._relation, self._key, self._whole = relation, key, whole
        self._names = {column.name for column in relation.columns}
        self.changes: list[Insert | Update | Delete] = []
        self._keys: set[Tuple] = set()
        self._rows: list[Tuple] = []
        self._aligners: dict[Relation, Callable[[Tuple], Tuple] | None] = {}

    def add(self, change: Insert | Update | Delete, *, certain: bool) -> bool:
        """Keep ``change``, and return whether `apply` can find its row.

        It cannot after a column was dropped or renamed. Without a key it can add rows only.
        """
        align = self._aligner(change.relation)
        if align is None:
            return False
        if not self._key:
            self.changes.append(change)
            return certain and isinstance(change, Insert)
        keys = [
            self._key_of(align(image))
            for image in (
                None if isinstance(change, Delete) else change.new,
                None if isinstance(change, Insert) else change.old,
            )
            if image
        ]
        self._keys.update(keys)
        self.changes.append(change)
        if any(isinstance(value, MissingValue) for key in keys for value in key):
            return False
        # A change that the snapshot contains may be applied twice, as all changes after it are. But the
        # snapshot may have another row under the former key.
        lacks = isinstance(change, Update) and UNCHANGED in change.new and keys[0] != keys[-1]
        return certain or not lacks

    def _aligner(self, relation: Relation) -> Callable[[Tuple], Tuple] | None:
        """Return the aligner of ``relation``, None if a column was dropped or renamed."""
        if relation not in self._aligners:
            names = (column.name for column in relation.columns)
            other = not self._names.issuperset(names) or renames(relation, self._relation)
            self._aligners[relation] = None if other else aligner(relation, self._relation)
        return self._aligners[relation]

    def apply(self, piece: SnapshotRows) -> SnapshotRows:
        rows: list[Tuple] = []
        for row in piece.rows:
            (self._rows if self._keys and self._key_of(row) in self._keys else rows).append(row)
        if piece.complete:
            window = SnapshotWindow(
                "", piece.relation, self._rows, self._key, keeps_changed=self._whole
            )
            for change in self.changes:
                window.see(change)
            # The stream sends no generated columns: a consumer has null in a new row, too.
            rows += [
                tuple(None if value is MissingValue.ABSENT else value for value in row)
                for row in window.rows()
            ]
        return msgspec.structs.replace(piece, rows=rows)

    def _key_of(self, row: Tuple) -> Tuple:
        return tuple(row[index] for index in self._key)


class LaterChanges:
    """Keep the streamed changes that the snapshot of ``reading`` does not contain.

    ``requests`` ask for the snapshot. ``identifying`` is as for `IncrementalSnapshots`.
    """

    def __init__(
        self,
        reading: TableReading,
        requests: Sequence[SnapshotRequest],
        identifying: Callable[[Relation], tuple[int, ...]],
    ) -> None:
        self.reading, self.requests = reading, list(requests)
        # The tables that are read without a condition, as schema.table.
        self.whole = frozenset(request.name for request in requests if not request.condition)
        self._tables = {
            name: _TableChanges(relation, identifying(relation), whole=name in self.whole)
            for name, relation in reading.relations.items()
        }
        self._oids = {each.oid for each in reading.relations.values()} - {0}
        self._count = 0
        # The stream has delivered what the snapshot contains; without such an LSN it is due at once.
        self.due = reading.until is None
        # Whether `apply` can give the rows of this place in the stream; otherwise another snapshot must
        # be opened.
        self.usable = True

    def split(
        self, parts: Sequence[TransactionPart]
    ) -> tuple[Sequence[TransactionPart], Sequence[TransactionPart]]:
        """Return the next parts of the stream before and behind the place of the rows."""
        until = self.reading.until
        if until is None:
            return parts, []
        for at, part in enumerate(parts):
            if part.commit_lsn >= until:
                self.due = True
                return parts[:at], parts[at:]
            saw = part.xid is None or self.reading.saw(part.xid, part.commit_lsn)
            if not saw and not all(
                self._add(change, certain=saw is False) for change in part.changes
            ):
                self.usable = False
                break
        return parts, []

    def _add(self, change: Change, *, certain: bool) -> bool:
        """Keep a change of the tables; return whether the snapshot is still usable.

        It is not after a truncate or a rename, after too many changes, or if the row cannot be found.
        ``certain``: the snapshot does not contain the change; else it may.
        """
        if isinstance(change, Truncate):
            return not any(
                relation.name in self._tables or self._is_moved(relation)
                for relation in change.relations
            )
        if not isinstance(change, Insert | Update | Delete):
            return True
        if self._is_moved(change.relation):
            return False
        table = self._tables.get(change.relation.name)
        if table is None:
            return True
        self._count += 1
        return self._count <= MANY and table.add(change, certain=certain)

    def _is_moved(self, relation: Relation) -> bool:
        """Return whether a table was renamed, or another one has its name."""
        known = self.reading.relations.get(relation.name)
        return relation.oid in self._oids if known is None else not known.is_same_table(relation)

    def apply(self, piece: SnapshotRows) -> SnapshotRows:
        """Return a piece of the snapshot with the changes of its rows.

        The last piece of a table has the changed rows at its end. If only some rows of the table are
        read, the changed rows are left out, unless a change lacks some of their values.
        """
        table = self._tables.get(piece.relation.name)
        return piece if table is None or not table.changes else table.apply(piece)
