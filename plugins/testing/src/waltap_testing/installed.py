"""What the installed plugins give: types and replica identities, as an engine would use them."""

from collections.abc import Callable
from functools import lru_cache

from waltap.decode.relation import Relation
from waltap.decode.replica_identity import ReplicaIdentity
from waltap.mapping.type_mapping import TypeMapper, TypeOptions
from waltap.mapping.type_registry import TypeRegistry
from waltap.specs import ReplicaIdentitySpec, TypeSpec

__all__ = ["identity", "identity_kept", "mapper"]


@lru_cache(maxsize=1)
def _plugins() -> tuple[tuple[TypeSpec, ...], dict[str, ReplicaIdentitySpec]]:
    from waltap.host import Host

    host = Host()
    return host.types, {spec.letter: spec for spec in host.replica_identities.values()}


def mapper(options: TypeOptions | None = None) -> TypeMapper:
    """Return the type mapper of all installed types."""
    return TypeRegistry(_plugins()[0], options)


def identity(relation: Relation) -> ReplicaIdentity:
    """Return the replica identity to read ``relation`` with.

    Raises: LookupError when no installed plugin knows its letter (waltap-postgres does).
    """
    known = _plugins()[1]
    if relation.identity not in known:
        text = f"no plugin knows replica identity {relation.identity!r}: install waltap-postgres"
        raise LookupError(text)
    return known[relation.identity].factory(relation)


def identity_kept() -> Callable[[Relation], ReplicaIdentity]:
    """Return `identity` with one answer per relation object, as engines have it."""
    return lru_cache(maxsize=1024)(identity)
