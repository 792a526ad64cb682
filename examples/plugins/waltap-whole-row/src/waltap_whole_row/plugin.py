"""What this distribution contributes to waltap."""

from collections.abc import Iterable

from waltap.plugins.hookspecs import hookimpl
from waltap.ports.specs import ReplicaIdentitySpec
from waltap_whole_row.identity import WholeRow

WALTAP_API = 1


@hookimpl
def register_replica_identities() -> Iterable[ReplicaIdentitySpec]:
    """Contribute the identity. ``letter`` is what the server has in ``pg_class.relreplident``."""
    yield ReplicaIdentitySpec(
        name="whole-row",
        summary="Old tuples hold the whole row.",
        letter="x",
        factory=WholeRow,
    )
