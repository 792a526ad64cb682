"""Types and replica identities of the installed plugins, as engines use them."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from waltap.changes.capture.capture import CaptureRules
from waltap.changes.capture.properties import CaptureProperties
from waltap.changes.decode.relation import Relation
from waltap.changes.decode.replica_identity import ReplicaIdentity
from waltap.changes.events import ReplicaIdentities
from waltap.changes.mapping.type_mapping import TypeMapper, TypeOptions
from waltap.changes.mapping.type_registry import TypeRegistry
from waltap.encoders.format.format import FormatContext
from waltap.ports.specs import TypeSpec


@lru_cache(maxsize=1)
def _plugins() -> tuple[tuple[TypeSpec, ...], ReplicaIdentities]:
    # Host() loads every installed plugin, so it is made on first use only.
    from waltap.plugins.host import Host

    host = Host()
    identities = ReplicaIdentities(
        host.replica_identities.values(),
        lambda relation: host.choose("choose_replica_identity", relation=relation),
    )
    return host.types, identities


def installed_types() -> tuple[TypeSpec, ...]:
    """Return the installed types in the order in which they are asked."""
    return _plugins()[0]


def mapper(options: TypeOptions | None = None) -> TypeMapper:
    """Return the type mapper of all installed types."""
    return TypeRegistry(_plugins()[0], options)


def identity(relation: Relation) -> ReplicaIdentity:
    """Return the replica identity of ``relation``.

    Raises: IdentityUnknown when no installed plugin supports it (waltap-postgres does).
    """
    return _plugins()[1].of(relation)


def identity_as_sent() -> Callable[[Relation], ReplicaIdentity]:
    """Return `identity` with a cache per relation object, as engines use it."""
    return lru_cache(maxsize=8)(identity)


def format_context(capture: CaptureProperties, **more: Any) -> FormatContext:
    """Return the context of a format beside the installed plugins."""
    return FormatContext(
        describe=lambda relation: relation,
        identity=identity_as_sent(),
        capture=CaptureRules(capture),
        database="shop",
        run_id="00000000-0000-4000-8000-000000000000",
        mapper=mapper,
        **more,
    )
