"""Replica identity: the meaning of an old tuple. Sans-IO.

The identities of PostgreSQL and of other servers differ only in the answers given here. All
stages ask these classes, through `waltap.changes.events.ReplicaIdentities`; no stage reads the identity's
letter.
"""

import abc
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from waltap.base.plugin_errors import part_of
from waltap.changes.decode.message import Delete, Update
from waltap.changes.decode.relation import Relation
from waltap.changes.decode.tuple_image import Tuple
from waltap.errors import PluginError


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
        indexes = {column.name: index for index, column in enumerate(self.relation.columns)}
        return tuple(indexes[name] for name in self.relation.primary_key or () if name in indexes)

    @abc.abstractmethod
    def update(self, message: Update) -> RowImages:
        """Return the images of an update.

        ``after`` has values of ``before`` for UNCHANGED columns wherever the identity carries
        them. Callers need not ask about an update without an old tuple: under every identity it
        is its new row and nothing else.
        """

    @abc.abstractmethod
    def delete(self, message: Delete) -> RowImages | None:
        """Return a delete's images, None when it identifies no row.

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


# Choose the replica identity that a relation is read with.
#
# Only this module looks at the letter that the server sends.


class IdentitySpec(Protocol):
    """Require these fields of a `waltap.ports.specs.ReplicaIdentitySpec`."""

    @property
    def name(self) -> str: ...

    @property
    def letter(self) -> str: ...

    @property
    def factory(self) -> Callable[[Relation], ReplicaIdentity]: ...


IdentityUnknown = PluginError.define("IdentityUnknown", "WT-1110")
IdentityAmbiguous = PluginError.define("IdentityAmbiguous", "WT-1111")


class ReplicaIdentities:
    """Provide the replica identities that plugins contribute.

    All other code asks the `ReplicaIdentity` that this returns.
    """

    __slots__ = ("_by_letter", "_by_name", "_choose", "_chooser")

    def __init__(
        self,
        specs: Iterable[IdentitySpec],
        choose: Callable[[Relation], str | None] = lambda _relation: None,
        chooser: Callable[[], str] = lambda: "a plugin",
    ) -> None:
        """Take the plugins' specs.

        ``choose`` may name the identity of a relation; without an answer its letter decides. ``chooser``
        names who answers.
        """
        self._choose, self._chooser = choose, chooser
        self._by_name = {spec.name: spec for spec in specs}
        self._by_letter: dict[str, list[IdentitySpec]] = {}
        for spec in self._by_name.values():
            self._by_letter.setdefault(spec.letter, []).append(spec)

    def of(self, relation: Relation) -> ReplicaIdentity:
        """Return a new identity to read ``relation`` with.

        ``relation`` is described. Raises IdentityUnknown and IdentityAmbiguous.
        """
        if chosen := self._choose(relation):
            spec = self._by_name.get(chosen)
            if spec is None:
                raise IdentityUnknown(
                    f"replica identity {chosen!r}, which {self._chooser()} chooses for {relation.name}, "
                    "is unknown"
                )
        else:
            claiming = self._by_letter.get(relation.identity, [])
            if len(claiming) > 1:
                names = " and ".join(sorted(each.name for each in claiming))
                raise IdentityAmbiguous(
                    f"replica identity {relation.identity!r} is claimed by {names}"
                )
            if not claiming:
                raise IdentityUnknown(f"replica identity {relation.identity!r} is unknown")
            spec = claiming[0]
        made: ReplicaIdentity = part_of(spec.factory, ReplicaIdentity, relation)
        return made
