"""Installed types and replica identities, as engines use them."""

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from waltap.changes.capture.capture import CaptureRules
from waltap.changes.capture.properties import CaptureProperties
from waltap.changes.decode.relation import Relation
from waltap.changes.decode.replica_identity import ReplicaIdentity
from waltap.changes.events import ReplicaIdentities
from waltap.changes.mapping.type_mapping import TypeMapper, TypeOptions
from waltap.changes.mapping.type_registry import TypeRegistry
from waltap.encoders.format.format import FormatContext
from waltap.plugins.hookspecs import hookimpl
from waltap.ports.specs import ReplicaIdentitySpec, TypeSpec

if TYPE_CHECKING:
    from waltap.plugins.host import Host


@lru_cache(maxsize=1)
def _host() -> "Host":
    # Host() loads every installed plugin, so it is made on first use only.
    from waltap.plugins.host import Host

    return Host()


@lru_cache(maxsize=1)
def _identities() -> ReplicaIdentities:
    host = _host()
    return ReplicaIdentities(
        host.replica_identities.values(),
        lambda relation: host.choose("choose_replica_identity", relation=relation),
    )


def installed_types() -> tuple[TypeSpec, ...]:
    """Return the installed types in the order of asking."""
    return _host().types


def mapper(options: TypeOptions | None = None) -> TypeMapper:
    """Return the type mapper of all installed types."""
    return TypeRegistry(installed_types(), options)


def identity(relation: Relation) -> ReplicaIdentity:
    """Return the replica identity of ``relation``.

    Raises: IdentityUnknown when no installed plugin supports it (waltap-postgres does).
    """
    return _identities().of(relation)


def identity_as_sent() -> Callable[[Relation], ReplicaIdentity]:
    """Return `identity` with a cache per relation, as in engines."""
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


class InstalledMappings:
    """A plugin with the installed types and replica identities."""

    @hookimpl
    def register_types(self) -> Iterable[TypeSpec]:
        return installed_types()

    @hookimpl
    def register_replica_identities(self) -> Iterable[ReplicaIdentitySpec]:
        return _host().replica_identities.values()
