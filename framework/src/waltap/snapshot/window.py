"""The watermark window of an incremental snapshot: rows of one chunk while changes pass by. Sans-IO.

A chunk is read while changes stream, in a snapshot of its own. Changes of transactions that the
snapshot saw are in the chunk; every other change that streams by is newer, and drops its row. What is
left when the high watermark streams by is true at that point. DBLog tells the two kinds of changes
apart by a low watermark, which a commit can stand before in the WAL and yet be invisible to who reads.
Source: "DBLog: A Watermark Based Change-Data-Capture Framework", section 3.

An update that leaves out a large value which it did not touch does not tell all. The row then stays,
with what the update says and the untouched values that were read.
"""

from collections.abc import Callable

from waltap.decode.message import Change, Delete, Insert, Truncate, Update
from waltap.decode.relation import Column, Relation
from waltap.decode.tuple_image import UNCHANGED, MissingValue, Tuple, Value

__all__ = ["SnapshotWindow", "TextOf"]

TextOf = Callable[[Column], "Callable[[Value], Value] | None"]


class SnapshotWindow:
    """Rows of one chunk. ``identifier`` is in both watermarks."""

    def __init__(
        self,
        identifier: str,
        relation: Relation,
        rows: list[Tuple],
        key: tuple[int, ...],
        text_of: TextOf = lambda _column: None,
    ) -> None:
        """``key``: the columns by which images of a row are known (`ReplicaIdentity.identifying`).
        ``text_of`` gives, for a column of the stream, what turns its values into text where they
        are not: rows of a chunk are text."""
        self.identifier, self.relation = identifier, relation
        self._keyed = bool(key)
        self._key = key or tuple(range(len(relation.columns)))
        self._text_of = text_of
        # Several of a key only where whole rows are the key.
        self._rows: dict[Tuple, list[Tuple]] = {}
        for row in rows:
            self._rows.setdefault(self._key_of(row), []).append(row)
        self._aligners: dict[Relation, Callable[[Tuple], Tuple]] = {}

    def see(self, change: Change) -> None:
        """Take note of a change that is newer than the chunk."""
        name = self.relation.name
        if isinstance(change, Truncate):
            if any(relation.name == name for relation in change.relations):
                self._rows.clear()
        elif isinstance(change, Insert | Update | Delete) and change.relation.name == name:
            align = self._aligners.get(change.relation)
            if align is None:
                align = self._aligners[change.relation] = self._aligner(change.relation)
            if isinstance(change, Insert):
                if self._keyed:  # an equal row without a key is another row
                    self._take(align(change.new))
            elif isinstance(change, Delete):
                self._take(align(change.old))
            else:
                self._updated(align(change.new), align(change.old) if change.old else ())

    def rows(self) -> list[Tuple]:
        """Return the rows that no change has overtaken, in the order read."""
        return [row for rows in self._rows.values() for row in rows]

    def _updated(self, new: Tuple, old: Tuple) -> None:
        row = self._take(old or new)
        if row is None or UNCHANGED not in new:
            return
        merged = tuple(
            known if isinstance(value, MissingValue) else value
            for value, known in zip(new, row, strict=True)
        )
        self._rows.setdefault(self._key_of(merged), []).append(merged)

    def _take(self, image: Tuple) -> Tuple | None:
        """Remove and return a row that ``image`` is of."""
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
        """The same for an image that lacks part of the key: what it has must be equal."""
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

    def _aligner(self, relation: Relation) -> Callable[[Tuple], Tuple]:
        """Return what brings images of another version of the table into the order of the chunk."""
        places = {column.name: index for index, column in enumerate(relation.columns)}
        steps = [
            (places[column.name], self._text_of(relation.columns[places[column.name]]))
            if column.name in places
            else None
            for column in self.relation.columns
        ]

        def align(image: Tuple) -> Tuple:
            values: list[Value] = []
            for step in steps:
                if step is None:
                    values.append(MissingValue.ABSENT)
                    continue
                value = image[step[0]]
                values.append(step[1](value) if step[1] and isinstance(value, bytes) else value)
            return tuple(values)

        return align
