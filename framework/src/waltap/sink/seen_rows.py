"""The last rows that the terminal has shown, by key."""

from collections import OrderedDict
from typing import Final

from waltap.decode.message import OldTuple, Update
from waltap.decode.per_relation import PerRelation
from waltap.decode.relation import Relation
from waltap.decode.tuple_image import ABSENT, UNCHANGED, Tuple
from waltap.sink.sink import SinkContext

__all__ = ["SeenRows"]

ROWS_KEPT: Final = 4096


class SeenRows:
    """The last rows that were shown, by key: what an update is compared with where the server does
    not send the row as it was. Bounded; rows of tables without a key are not kept."""

    def __init__(self, context: SinkContext) -> None:
        self._context = context
        self._keys = PerRelation(self._key)
        self._rows: OrderedDict[tuple[object, ...], Tuple] = OrderedDict()

    def add(self, relation: Relation, row: Tuple) -> None:
        """Keep ``row`` as the last state of its key."""
        place = self._place(relation, row)
        if place is not None:
            self._rows[place] = row
            self._rows.move_to_end(place)
            if len(self._rows) > ROWS_KEPT:
                self._rows.popitem(last=False)

    def drop(self, relation: Relation, row: Tuple) -> Tuple:
        """Forget the row with that key; return it, () when it is not known."""
        place = self._place(relation, row)
        return self._rows.pop(place, ()) if place is not None else ()

    def before(self, change: Update) -> Tuple:
        """Return the row that ``change`` changed as far as it is known, and keep what it is now.

        Values that are not known, or were not sent, count as unchanged.
        """
        relation, new = change.relation, change.new
        key = change.old if change.old_kind is OldTuple.KEY else new
        known = self.drop(relation, key)
        old = known if len(known) == len(new) else key if key is not new else ()
        if known:
            pairs = zip(new, known, strict=False)
            new = tuple(was if now is UNCHANGED else now for now, was in pairs)
        self.add(relation, new)
        return old

    def forget(self, oid: int) -> None:
        """Drop what is kept of a relation that is gone, but for its rows."""
        self._keys.forget(oid)

    def _key(self, relation: Relation) -> tuple[int, ...]:
        describe = self._context.describe
        named = (describe(relation) if describe else relation).primary_key or ()
        columns = [column.name for column in relation.columns]
        return tuple(columns.index(name) for name in named)

    def _place(self, relation: Relation, row: Tuple) -> tuple[object, ...] | None:
        key = self._keys.of(relation)
        if not key or len(row) <= max(key):
            return None
        values = tuple(row[index] for index in key)
        known = not any(value is ABSENT or value is UNCHANGED for value in values)
        return (relation.name, *values) if known else None
