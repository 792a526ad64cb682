"""Replica identity: the meaning of an old tuple. Sans-IO.

The identities of PostgreSQL and of other servers differ only in the answers given here. All
stages ask these classes, through `waltap.changes.events.ReplicaIdentities`; no stage reads the identity's
letter.
"""

import abc
from dataclasses import dataclass

from waltap.changes.decode.message import Delete, Update
from waltap.changes.decode.relation import Relation
from waltap.changes.decode.tuple_image import Tuple


@dataclass(frozen=True, slots=True)
class IdentityWarning:
    """Warn a user about one table, with the SQL that fixes it."""

    relation: str
    what: str
    remedy: str


@dataclass(slots=True)
class RowImages:
    """Hold the row images of an update or delete, in relation order.

    Columns that an image does not have are ABSENT; values that the server left out are UNCHANGED.
    """

    # None where the event has no old row.
    before: Tuple | None
    after: Tuple | None
    # The tuple to take the old key from. None when the key did not change, or when a change of
    # the key cannot be seen.
    old_key: Tuple | None


class ReplicaIdentity(abc.ABC):
    """Interpret one replica identity for one relation version.

    There is one object per version.
    """

    name: str
    # A clause for `waltap plan`: the old values that updates and deletes carry.
    before: str = ""
    # Updates may lack any column except the key, also columns that are never NULL.
    partial: bool = False

    def __init__(self, relation: Relation) -> None:
        self.relation = relation

    @property
    def identifying(self) -> tuple[int, ...]:
        """Return the indexes of the columns that identify a row.

        They are the primary key, unless the identity holds other columns. () means that only the
        whole row identifies it.
        """
        places = {column.name: index for index, column in enumerate(self.relation.columns)}
        return tuple(places[name] for name in self.relation.primary_key or () if name in places)

    @abc.abstractmethod
    def update(self, message: Update) -> RowImages:
        """Return the images of an update.

        ``after`` has values of ``before`` for UNCHANGED columns wherever the identity carries
        them. Callers need not ask about an update without an old tuple: under every identity it
        is its new row and nothing else.
        """

    @abc.abstractmethod
    def delete(self, message: Delete) -> RowImages | None:
        """Return the images of a delete, or None when it identifies no row.

        The engine drops an event without a row.
        """

    @classmethod
    def warnings(cls, relation: Relation) -> list[IdentityWarning]:
        """Return the warnings for the owner of ``relation`` under this identity.

        The engine asks when a start captures the table, and when the server announces it in
        another shape. `waltap doctor` and the log show each warning once. ``relation`` is
        described. `IdentityWarning.what` is a clause that follows the table's name; the effect of
        the publication is shown next to it.
        """
        return []
