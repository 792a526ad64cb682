"""PostgreSQL's replica identities as semantics."""

from waltap.specs import ReplicaIdentitySpec
from waltap_postgres.identity.mark import IdentityEvidence, has_word, mark
from waltap_postgres.identity.old_tuple import (
    DefaultIdentity,
    FullIdentity,
    IndexIdentity,
    NothingIdentity,
)

__all__ = [
    "REPLICA_IDENTITIES",
    "DefaultIdentity",
    "FullIdentity",
    "IdentityEvidence",
    "IndexIdentity",
    "NothingIdentity",
    "has_word",
    "mark",
]

REPLICA_IDENTITIES = (
    ReplicaIdentitySpec(
        name="default",
        summary="Old tuples hold the primary key, and only when it changed or the row is deleted.",
        letter="d",
        factory=DefaultIdentity,
    ),
    ReplicaIdentitySpec(
        name="nothing",
        summary="No old tuples: updates without before, deletes identify no row.",
        letter="n",
        factory=NothingIdentity,
    ),
    ReplicaIdentitySpec(
        name="full",
        summary="Old tuples hold the whole row.",
        letter="f",
        factory=FullIdentity,
    ),
    ReplicaIdentitySpec(
        name="index",
        summary="Old tuples hold the columns of a unique index, when they changed or on delete.",
        letter="i",
        factory=IndexIdentity,
    ),
)
"""What ``register_replica_identities`` gives for PostgreSQL."""
