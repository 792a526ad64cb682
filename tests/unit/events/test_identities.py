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


ALL = [*REPLICA_IDENTITIES, MINE]
CASES = {
    "the server's letter decides": (REPLICA_IDENTITIES, "", FullIdentity, ""),
    # whichever plugin was found last would have decided what old rows mean
    "a letter that two claim is nobody's": (ALL, "", IdentityAmbiguous, "'f' is claimed by full and mine"),
    "in either order": ([MINE, *REPLICA_IDENTITIES], "", IdentityAmbiguous, "'f' is claimed by full and mine"),
    "a plugin's choice decides among them": (ALL, "mine", DefaultIdentity, ""),
    "a letter that nobody claims is unknown": ([], "", IdentityUnknown, "identity 'f' is unknown"),
    "an unknown choice names who chose": (
        [], "mine", IdentityUnknown, "'mine', which acme 1.0 chooses for public.t, is unknown",
    ),
}  # fmt: skip
"""The identities that there are, what a plugin chooses, and what is found or raised."""


@pytest.mark.parametrize("case", CASES)
def test_a_relation_has_one_identity(case):
    specs, chosen, found, words = CASES[case]
    identities = ReplicaIdentities(specs, lambda _relation: chosen or None, lambda: "acme 1.0")
    if issubclass(found, Exception):
        with pytest.raises(found, match=words):
            identities.of(TABLE)
    else:
        assert isinstance(identities.of(TABLE), found)
