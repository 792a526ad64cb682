"""The conformance suite of waltap: all updates and deletes that such a server can send."""

import pytest

from waltap.changes.decode import OldTuple
from waltap_testing import IdentityRig, IdentitySuite
from waltap_whole_row.plugin import register_replica_identities

(SPEC,) = register_replica_identities()


class TestWholeRow(IdentitySuite):
    @pytest.fixture
    def rig(self):
        return IdentityRig(SPEC, old_tuples=(OldTuple.FULL,))
