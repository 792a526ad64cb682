"""Hook implementations of this distribution, and nothing else."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from waltap.hookspecs import hookimpl

if TYPE_CHECKING:
    from waltap.specs import ReplicaIdentitySpec


@hookimpl
def register_replica_identities() -> "Iterable[ReplicaIdentitySpec]":
    """Contribute CHANGE: rows of which only what an update touched is sent."""
    from waltap_yugabyte.identity import REPLICA_IDENTITIES

    return REPLICA_IDENTITIES
