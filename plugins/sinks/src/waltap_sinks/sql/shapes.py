"""The shapes of the relations that a pipeline has met."""

import logging

from waltap.decode.relation import Relation
from waltap.events import EventContext, EventPlan, Plans
from waltap_sinks.sql.properties import SqlProperties
from waltap_sinks.sql.shape import TableShape

__all__ = ["Shapes"]

log = logging.getLogger(__name__)


class Shapes(Plans[TableShape]):
    """The shape of each relation version; None for one that is not captured.

    What a snapshot reads has columns that the source computes (GENERATED); the stream has them where the
    decoder gets them. Read alone they would be out of date with the next change: they are left out.
    """

    def __init__(self, context: EventContext, properties: SqlProperties, *, schemas: bool) -> None:
        super().__init__(context, lambda plan: TableShape(plan, properties, schemas=schemas))
        self._told: set[str] = set()

    def build(self, relation: Relation, described: Relation) -> TableShape:
        """Return the shape of ``relation``, with the key that the replica identity knows rows by."""
        made = self._build(EventPlan(relation, described, self._context, by_row=True))
        computed = _computed(relation)
        left_out = [c.name for c in made.columns if c.index in computed and not c.key]
        if left_out:
            made.leave_out(computed)
            told = f"{', '.join(left_out)} of {made.source}"
            if told not in self._told:
                self._told.add(told)
                log.warning(
                    "%s: the source computes these columns, and need not stream them: what a snapshot "
                    "reads of them is left out (give the target's table such columns of its own)",
                    told,
                )
        return made

    def _alike(self, seen: Relation, relation: Relation) -> bool:
        return _computed(seen) == _computed(relation)


def _computed(relation: Relation) -> frozenset[int]:
    """Return the places of columns that are known to be computed before the catalogue was asked: only what
    a snapshot reads tells, a wire does not."""
    return frozenset(n for n, column in enumerate(relation.columns) if column.generated)
