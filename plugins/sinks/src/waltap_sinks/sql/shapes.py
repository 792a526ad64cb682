"""The shapes of the relations that a pipeline has met."""

from waltap.decode.relation import Relation
from waltap.events import EventContext, EventPlan, Plans
from waltap_sinks.sql.properties import SqlProperties
from waltap_sinks.sql.shape import TableShape

__all__ = ["Shapes"]


class Shapes(Plans[TableShape]):
    """The shape of each relation version; None for one that is not captured."""

    def __init__(self, context: EventContext, properties: SqlProperties, *, schemas: bool) -> None:
        super().__init__(context, lambda plan: TableShape(plan, properties, schemas=schemas))

    def build(self, relation: Relation, described: Relation) -> TableShape:
        """Return the shape of ``relation``, with the key that the replica identity knows rows by."""
        return self._build(EventPlan(relation, described, self._context, by_row=True))
