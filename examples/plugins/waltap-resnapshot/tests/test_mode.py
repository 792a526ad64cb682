"""The conformance suite of waltap: the truth table of the mode."""

import pytest

from waltap_testing import SnapshotterRig, SnapshotterSuite
from waltap_resnapshot.plugin import register_snapshotters

(SPEC,) = register_snapshotters()


class TestResnapshot(SnapshotterSuite):
    @pytest.fixture
    def rig(self):
        return SnapshotterRig(
            SPEC,
            """
            offset  incomplete  available   snapshot  stream
            no      no          no          yes       yes
            no      no          yes         yes       yes
            no      yes         no          yes       yes
            no      yes         yes         yes       yes
            yes     no          no          yes       yes
            yes     no          yes         no        yes
            yes     yes         no          yes       yes
            yes     yes         yes         yes       yes
            """,
        )
