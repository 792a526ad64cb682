"""Changes of one transaction, by the relation that they are of."""

from waltap.decode.message import Change, Truncate
from waltap.decode.relation import Relation
from waltap.transactions.transaction import TransactionPart

__all__ = ["by_relation"]


def by_relation(part: TransactionPart) -> dict[Relation, tuple[list[Change], list[int]]]:
    """Return the changes of ``part``, with their numbers; a truncate is one of each table it empties."""
    collected: dict[Relation, tuple[list[Change], list[int]]] = {}
    for index, change in zip(part.numbers(), part.changes, strict=True):
        relation = getattr(change, "relation", None)
        if relation is not None:
            lists = collected.get(relation)
            if lists is None:
                lists = collected[relation] = ([], [])
            lists[0].append(change)
            lists[1].append(index)
        elif type(change) is Truncate:
            for emptied in change.relations:
                truncated = collected.setdefault(emptied, ([], []))
                truncated[0].append(change)
                truncated[1].append(index)
    return collected
