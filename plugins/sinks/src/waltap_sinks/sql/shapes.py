"""The shapes of the relations that a pipeline has met."""

import logging

from waltap.decode.relation import Column, Relation
from waltap.events import EventContext, EventPlan, EventPlans
from waltap_sinks.sql.properties import SqlProperties
from waltap_sinks.sql.shape import TargetShape

__all__ = ["TargetShapes"]

log = logging.getLogger(__name__)


class TargetShapes(EventPlans[TargetShape]):
    """The shape of each relation version; None for one that is not captured. `of` is for relations of
    changes, `read` for those of rows that were read.

    What is read has columns that the source computes (GENERATED); the stream has them where the decoder
    gets them. Read alone they would be out of date with the next change: they are left out, until the
    stream shows them.
    """

    def __init__(self, context: EventContext, properties: SqlProperties, *, schemas: bool) -> None:
        super().__init__(context, lambda plan: TargetShape(plan, properties, schemas=schemas))
        self._streamed: dict[int, Relation] = {}
        """The relation of each OID that came with a change last: its columns are those of the wire."""
        self._narrow: dict[int, tuple[Relation, frozenset[int], TargetShape]] = {}
        """By OID the relation that was read last without some of its columns, which, and its shape."""
        self._told: set[str] = set()

    def of(self, relation: Relation) -> TargetShape | None:
        """Return the shape for changes of ``relation``: every column that they have is written."""
        if self._streamed.get(relation.oid) is not relation:
            self._streamed[relation.oid] = relation
        return super().of(relation)

    def read(self, relation: Relation) -> TargetShape | None:
        """Return the shape for rows of ``relation`` that were read, not changed."""
        shape = super().of(relation)
        if shape is None:
            return None
        unstreamed = self._unstreamed(relation)
        left_out = [c.name for c in shape.columns if c.index in unstreamed and not c.key]
        if not left_out:
            return shape
        seen, without, narrow = self._narrow.get(relation.oid, (None, None, None))
        if narrow is None or seen is not relation or without != unstreamed:
            described = self.described(relation) or relation
            narrow = self.build(relation, described)
            narrow.leave_out(unstreamed)
            self._narrow[relation.oid] = relation, unstreamed, narrow
            self._tell(f"{', '.join(left_out)} of {shape.source}")
        return narrow

    def build(self, relation: Relation, described: Relation) -> TargetShape:
        """Return the shape of ``relation``, with the key that the replica identity knows rows by."""
        return self._build(EventPlan(relation, described, self._context, by_row=True))

    def forget(self, oid: int) -> None:
        """Drop the versions of a relation that is gone."""
        super().forget(oid)
        self._streamed.pop(oid, None)
        self._narrow.pop(oid, None)

    def _unstreamed(self, relation: Relation) -> frozenset[int]:
        """Return the places of computed columns that changes do not have, as far as they showed."""
        computed = {n: column for n, column in enumerate(relation.columns) if column.generated}
        if not computed:
            return frozenset()
        streamed = self._streamed.get(relation.oid)
        shown = set() if streamed is None else set(map(_named, streamed.columns))
        return frozenset(n for n, column in computed.items() if _named(column) not in shown)

    def _tell(self, columns: str) -> None:
        if columns not in self._told:
            self._told.add(columns)
            log.warning(
                "%s: the source computes these columns, and no change has shown that it streams them: "
                "what a snapshot reads of them is left out (give the target's table such columns of its "
                "own; where the publication has them, have rows read again once one was streamed)",
                columns,
            )


def _named(column: Column) -> int | str:
    """Return what a column is known by: its number, which stays when it is renamed."""
    return column.name if column.number is None else column.number
