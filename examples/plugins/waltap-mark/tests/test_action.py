"""The conformance suite of waltap, and what the action does."""

import pytest

from waltap_testing import SignalActionRig, SignalActionSuite
from waltap_mark.plugin import register_signal_actions

(SPEC,) = register_signal_actions()


class TestMark(SignalActionSuite):
    @pytest.fixture
    def rig(self):
        return SignalActionRig(SPEC, arguments={"label": "here"})


def test_the_label_and_the_position_are_told():
    rig = SignalActionRig(SPEC, arguments={"label": "here"})
    assert rig.act() == ""
    assert rig.notified == [("MARKED", {"label": "here", "position": "0/10"})]
