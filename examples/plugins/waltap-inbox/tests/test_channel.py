"""The conformance suite of waltap."""

import json

import pytest

from waltap_testing import SignalChannelRig, SignalChannelSuite
from waltap_inbox.channel import InboxProperties
from waltap_inbox.plugin import register_signal_channels

(SPEC,) = register_signal_channels()


class TestInboxChannel(SignalChannelSuite):
    @pytest.fixture
    def rig(self, tmp_path):
        path = tmp_path / "signals"

        def put(line):
            with path.open("a") as file:
                file.write(line + "\n")

        def send(signal):
            data = json.loads(signal.data)
            put(json.dumps({"id": signal.identifier, "type": signal.kind, "data": data}))

        return SignalChannelRig(
            SPEC, InboxProperties(path=path), send, spoil=lambda: put('{"id": "1", ')
        )
