"""Which replica identity a relation is read with."""

from dataclasses import replace

import pytest

from waltap.changes.decode import Relation
from waltap.changes.decode.replica_identity import IdentityAmbiguous, IdentityUnknown
from waltap.changes.events import ReplicaIdentities
from waltap_postgres.identity import REPLICA_IDENTITIES, DefaultIdentity, FullIdentity

TABLE = Relation(oid=1, schema="public", table="t", columns=(), identity="f", primary_key=())
FULL = next(spec for spec in REPLICA_IDENTITIES if spec.letter == "f")
MINE = replace(FULL, name="mine", factory=DefaultIdentity)


def test_the_servers_letter_decides():
    assert isinstance(ReplicaIdentities(REPLICA_IDENTITIES).of(TABLE), FullIdentity)


def test_a_letter_that_two_claim_is_nobodys():
    """Whichever plugin was found last would have decided what old rows mean."""
    for specs in ([*REPLICA_IDENTITIES, MINE], [MINE, *REPLICA_IDENTITIES]):
        with pytest.raises(IdentityAmbiguous, match="'f' is claimed by full and mine"):
            ReplicaIdentities(specs).of(TABLE)


def test_a_plugins_choice_decides_among_them():
    found = ReplicaIdentities([*REPLICA_IDENTITIES, MINE], lambda _relation: "mine").of(TABLE)
    assert isinstance(found, DefaultIdentity)


def test_a_letter_that_nobody_claims_is_unknown():
    with pytest.raises(IdentityUnknown):
        ReplicaIdentities([]).of(TABLE)


def test_an_unknown_choice_names_who_chose():
    identities = ReplicaIdentities([], lambda _relation: "mine", lambda: "acme 1.0")
    with pytest.raises(
        IdentityUnknown, match="'mine', which acme 1.0 chooses for public.t, is unknown"
    ):
        identities.of(TABLE)
