"""Replica identity as semantics: what an old tuple means. Sans-IO.

PostgreSQL's identities and those of other servers differ only in the answers given here; everybody asks
(`waltap.events.Identities` gives whom), nobody looks at the identity's letter.
"""

import abc
from dataclasses import dataclass

from waltap.decode.message import Delete, Update
from waltap.decode.relation import Relation
from waltap.decode.tuple_image import Tuple

__all__ = ["IdentityWarning", "ReplicaIdentity", "RowImages"]


@dataclass(frozen=True, slots=True)
class IdentityWarning:
    """Something a user should know of one table before streaming starts, and the SQL to fix it."""

    relation: str
    what: str
    remedy: str


@dataclass(slots=True)
class RowImages:
    """What an update or delete says of a row, all tuples in relation order.

    ``before`` is None where the event has none. Columns that an image does not have are ABSENT,
    values that the server left out are UNCHANGED. ``old_key`` is the tuple to take the old key from,
    None when the key is known not to have changed (or cannot be seen to have).
    """

    before: Tuple | None
    after: Tuple | None
    old_key: Tuple | None


class ReplicaIdentity(abc.ABC):
    """The meaning of one replica identity for one relation version; made once per version."""

    name: str
    before: str = ""
    """What events of updates and deletes tell of the row as it was, in a clause: for whoever plans."""
    partial: bool = False
    """Updates may lack any column but the key's, also one that is never NULL."""

    def __init__(self, relation: Relation) -> None:
        self.relation = relation

    @property
    def identifying(self) -> tuple[int, ...]:
        """Return the indexes of the columns by which old and new images of a row are known, the primary
        key unless the identity holds others; () when only a whole row is."""
        places = {column.name: index for index, column in enumerate(self.relation.columns)}
        return tuple(places[name] for name in self.relation.primary_key or () if name in places)

    @abc.abstractmethod
    def update(self, message: Update) -> RowImages:
        """Return the images of an update. ``after`` has values of ``before`` for UNCHANGED columns
        wherever the identity carries them.

        An update without an old tuple is its new row and no more, whatever the identity: nobody need
        ask about those.
        """

    @abc.abstractmethod
    def delete(self, message: Delete) -> RowImages | None:
        """Return the images of a delete; None when it identifies no row (the event is dropped)."""

    @classmethod
    def warnings(cls, relation: Relation) -> list[IdentityWarning]:
        """Return what its owner should know of ``relation`` under this identity.

        Asked when a start captures the table, and when the server announces it in another shape;
        `waltap doctor` and the log tell each warning once. ``relation`` is described. ``what`` is a
        clause that follows the table's name; what the publication makes of it is told beside it.
        """
        return []
