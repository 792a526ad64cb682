"""Changes of one transaction, by the relation that they are of."""

from waltap.decode.message import Change, Truncate
from waltap.decode.relation import Relation
from waltap.transactions.transaction import TransactionPart

__all__ = ["Collected", "by_relation"]

Collected = tuple[Relation, list[Change], list[int]]
"""Changes of one relation, and their numbers."""


def by_relation(part: TransactionPart) -> list[Collected]:
    """Return the changes of ``part``, with their numbers; a truncate is one of each table it empties.

    Changes of one table stay in order: where it got other columns and then its first ones again, what
    came before and what came behind are entries of their own.
    """
    found: list[Collected] = []
    current: dict[Relation, Collected] = {}
    last: dict[tuple[str, str], Relation] = {}

    def begun(relation: Relation) -> Collected:
        place = relation.schema, relation.table
        if place in last:
            del current[last[place]]
        last[place] = relation
        made = current[relation] = (relation, [], [])
        found.append(made)
        return made

    for index, change in zip(part.numbers(), part.changes, strict=True):
        relation = getattr(change, "relation", None)
        if relation is not None:
            entry = current.get(relation) or begun(relation)
            entry[1].append(change)
            entry[2].append(index)
        elif type(change) is Truncate:
            for emptied in change.relations:
                entry = current.get(emptied) or begun(emptied)
                entry[1].append(change)
                entry[2].append(index)
    return found
