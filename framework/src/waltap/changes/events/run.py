"""Split changes into runs of one kind and relation.

The neighbours in a run become events in one way.
"""

from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from waltap.changes.decode.message import (
    Change,
    Delete,
    Insert,
    InsertBlock,
    LogicalMessage,
    OldTuple,
    Truncate,
    Update,
)
from waltap.changes.decode.relation import Relation

INSERTS: Final = "inserts"
# Only the new row was sent: there is no before, and the key did not change.
UPDATES: Final = "updates"
CHANGED: Final = "updates with an old tuple"
DELETES: Final = "deletes"
TRUNCATES: Final = "truncates"
MESSAGES: Final = "logical messages"

# Kind of run → the operation of its events. A changed key makes d and c of an update.
OPERATIONS: Final[dict[str, str]] = {
    INSERTS: "c",
    UPDATES: "u",
    CHANGED: "u",
    DELETES: "d",
    TRUNCATES: "t",
    MESSAGES: "m",
}

# Type → (kind, whether it has one relation).
_KINDS: Final = {
    Insert: (INSERTS, True),
    Update: (CHANGED, True),
    Delete: (DELETES, True),
    Truncate: (TRUNCATES, False),
    LogicalMessage: (MESSAGES, False),
}
_relation_of = attrgetter("relation")

# From this number of changes on, it is quicker to ask first whether all are inserts into one
# table.
WORTH_A_LOOK: Final = 16


Run = tuple[str, Relation | None, Sequence[Change]]


def runs(changes: Sequence[Change]) -> list[Run]:
    """Return ``changes`` as (kind, relation, neighbours), in order.

    Nothing is left out. The relation is None for truncates, which have several, and for messages,
    which have none.
    """
    if not changes:
        return []
    if isinstance(changes, InsertBlock):
        return [(INSERTS, changes.relation, changes)]
    if (
        # Bulk loads: two passes in C instead of a loop in Python.
        len(changes) >= WORTH_A_LOOK
        and set(map(type, changes)) == {Insert}
        and len(set(map(_relation_of, changes))) == 1
    ):
        return [(INSERTS, changes[0].relation, changes)]  # type: ignore[union-attr]
    found: list[Run] = []
    start, kinds, none = 0, _KINDS, OldTuple.NONE
    kind, relation = "", None
    for index, change in enumerate(changes):
        of_kind, has_one = kinds[type(change)]
        # There is no old tuple to compare, so no plan needs to look at the update.
        if of_kind is CHANGED and change.old_kind is none:  # type: ignore[union-attr]
            of_kind = UPDATES
        of = change.relation if has_one else None  # type: ignore[union-attr]
        if of_kind is not kind or of is not relation:
            if index:
                found.append((kind, relation, changes[start:index]))
            start, kind, relation = index, of_kind, of
    found.append((kind, relation, changes[start:] if start else changes))
    return found
