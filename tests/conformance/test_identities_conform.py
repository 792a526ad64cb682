"""Every replica identity of ours keeps the kit's promises."""

import pytest

import waltap_postgres.plugin
import waltap_yugabyte.plugin
from waltap.changes.decode.message import OldTuple
from waltap_testing.suites.identity import IdentityRig, IdentitySuite

SPECS = {
    spec.name: spec
    for plugin in (waltap_postgres.plugin, waltap_yugabyte.plugin)
    for spec in plugin.register_replica_identities()
}
OLD_TUPLES = {
    "default": (OldTuple.NONE, OldTuple.KEY),
    "index": (OldTuple.NONE, OldTuple.KEY),
    "full": (OldTuple.FULL,),
    "nothing": (OldTuple.NONE,),
    "change": (OldTuple.NONE, OldTuple.KEY),
}


class TestIdentities(IdentitySuite):
    @pytest.fixture(params=list(OLD_TUPLES))
    def rig(self, request):
        name = request.param
        return IdentityRig(SPECS[name], OLD_TUPLES[name], sees_key_change=name != "change")


def test_every_registered_identity_is_here():
    assert set(SPECS) == set(OLD_TUPLES)
