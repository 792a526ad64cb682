"""Choose the replica identity that a relation is read with.

Only this module looks at the letter that the server sends.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

from waltap.changes.decode.relation import Relation
from waltap.changes.decode.replica_identity import ReplicaIdentity
from waltap.errors import PluginError


class IdentitySpec(Protocol):
    """Require these fields of a `waltap.ports.specs.ReplicaIdentitySpec`."""

    @property
    def name(self) -> str: ...

    @property
    def letter(self) -> str: ...

    @property
    def factory(self) -> Callable[[Relation], ReplicaIdentity]: ...


IdentityUnknown = PluginError.define(
    "IdentityUnknown",
    "WT-1110",
    "No plugin knows the replica identity that the server names.",
    "Install the plugin package of this database (for PostgreSQL waltap-postgres); `waltap "
    "plugins` lists the installed plugins.",
)
IdentityAmbiguous = PluginError.define(
    "IdentityAmbiguous",
    "WT-1111",
    "Two plugins claim the replica identity of one letter, and none is chosen.",
    "Leave one of the plugins out (WALTAP_PLUGINS=NAME,NAME names those to load; `waltap plugins` "
    "shows their contributions), or let a plugin's choose_replica_identity name one.",
)


def _no_choice(_relation: Relation) -> None:
    return None


class ReplicaIdentities:
    """Provide the replica identities that plugins contribute.

    All other code asks the `ReplicaIdentity` that this returns.
    """

    __slots__ = ("_by_letter", "_by_name", "_choose")

    def __init__(
        self,
        specs: Iterable[IdentitySpec],
        choose: Callable[[Relation], str | None] = _no_choice,
    ) -> None:
        """Take the plugins' specs.

        ``choose`` may name the identity of a relation; without an answer its letter decides.
        """
        self._choose = choose
        self._by_name = {spec.name: spec for spec in specs}
        self._by_letter: dict[str, list[IdentitySpec]] = {}
        for spec in self._by_name.values():
            self._by_letter.setdefault(spec.letter, []).append(spec)

    def of(self, relation: Relation) -> ReplicaIdentity:
        """Return a new identity to read ``relation`` with.

        ``relation`` is described. Raises IdentityUnknown and IdentityAmbiguous.
        """
        spec = self._by_name.get(self._choose(relation) or "")
        if spec is not None:
            return spec.factory(relation)
        claiming = self._by_letter.get(relation.identity, [])
        if len(claiming) > 1:
            names = " and ".join(sorted(each.name for each in claiming))
            raise IdentityAmbiguous(f"replica identity {relation.identity!r} is claimed by {names}")
        if not claiming:
            raise IdentityUnknown(f"replica identity {relation.identity!r} is unknown")
        return claiming[0].factory(relation)
