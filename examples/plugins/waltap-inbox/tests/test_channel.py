"""The conformance suite of waltap."""

import json

import pytest

from waltap_testing import SignalChannelRig, SignalChannelSuite
from waltap_inbox.channel import InboxChannel, InboxProperties
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


def test_a_file_that_a_run_left_is_read(tmp_path):
    (tmp_path / "signals.taken").write_text('{"id": "1", "type": "log"}\n')
    (signal,) = InboxChannel(InboxProperties(path=tmp_path / "signals")).poll()
    assert signal.identifier == "1"
