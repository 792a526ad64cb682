"""The watermark window of an incremental snapshot: rows of one chunk while changes pass by.

A chunk is read between two watermarks that stand in the WAL themselves. A change that streams between
them and touches a row of the chunk is newer than what was read or already contained in it: the change
wins, the row is dropped. What is left when the high watermark streams by is true at that point.
Source: "DBLog: A Watermark Based Change-Data-Capture Framework", section 3.
"""

from waltap.decode.message import Change, Delete, Insert, Update
from waltap.decode.relation import Relation
from waltap.decode.tuple_image import Tuple, Value

__all__ = ["Window"]


class Window:
    """Rows of one chunk by key. ``identifier`` is in both watermarks; ``is_open`` between them."""

    def __init__(
        self, identifier: str, relation: Relation, key: tuple[int, ...], rows: list[Tuple]
    ) -> None:
        """``key`` holds indexes of the columns that tell rows apart; () when there are none: then
        every row stands for itself and no change can drop it."""
        self.identifier, self.relation = identifier, relation
        self.is_open = False
        self._names = tuple(relation.columns[index].name for index in key)
        self._rows: dict[object, Tuple] = {
            (tuple(row[index] for index in key) if key else number): row
            for number, row in enumerate(rows)
        }

    def see(self, change: Change) -> None:
        """Take note of a change that streams by."""
        if not self._names or not isinstance(change, Insert | Update | Delete):
            return
        relation = change.relation
        if relation.name != self.relation.name:
            return
        places = {column.name: index for index, column in enumerate(relation.columns)}
        if any(name not in places for name in self._names):
            return
        for image in (getattr(change, "new", ()), getattr(change, "old", ())):
            if image:
                key: tuple[Value, ...] = tuple(image[places[name]] for name in self._names)
                self._rows.pop(key, None)

    def rows(self) -> list[Tuple]:
        """Return the rows that no change has overtaken, in the order read."""
        return list(self._rows.values())
