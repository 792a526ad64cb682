"""Conformance tests for signal channels.

Subclass `SignalChannelSuite` and define the fixture ``rig``:

    class TestMyChannel(SignalChannelSuite):
        @pytest.fixture
        def rig(self, tmp_path):
            return SignalChannelRig(MY_SPEC, MyProperties(…), send=my_way_to_send)
"""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass

import msgspec
import pytest

from waltap.ports.signals.signal import Signal, SignalChannel
from waltap.ports.specs import SignalChannelSpec
from waltap_testing.limits import soon
from waltap_testing.suite import RigSuite

SIGNALS = [
    Signal("ad-hoc-1", "execute-snapshot", '{"data-collections":["public.items"]}'),
    Signal("2", "log", '{"message":"naïve \\"Ω\\" 漢字 🐘"}'),
    Signal("3", "stop-snapshot", "{}"),
    Signal("4", "something-of-tomorrow", '{"a":[1,null,true]}'),
]
# A channel that waits for signals takes longer each time.
LONGEST_POLL_SECONDS = 1.0
# The most bytes of data in a signal of the suite.
LARGEST = 1 << 20


@dataclass(frozen=True, slots=True)
class SignalChannelRig:
    """The signal channel under test."""

    spec: SignalChannelSpec
    properties: object
    # Send one signal to the channel by other means than the plugin.
    send: Callable[[Signal], None]
    _: KW_ONLY
    # Send data that is no signal; None if the channel cannot hold any.
    spoil: Callable[[], None] | None = None

    def build(self) -> SignalChannel:
        return self.spec.factory(self.properties)


class SignalChannelSuite(RigSuite):
    """Rules for every signal channel."""

    needs = "a SignalChannelRig"

    def test_no_signal_is_an_empty_list_at_once(self, rig: SignalChannelRig) -> None:
        """`poll` does not wait, since the engine calls it between batches."""
        channel = rig.build()

        def poll() -> None:
            assert channel.poll() == []

        at_once = soon(poll, LONGEST_POLL_SECONDS)
        if at_once:
            rig.send(SIGNALS[0])
            assert _drained(channel) == [_plain(SIGNALS[0])]
            at_once = soon(poll, LONGEST_POLL_SECONDS)
        channel.close()
        assert at_once, f"waits for longer than {LONGEST_POLL_SECONDS} s"

    def test_signals_arrive_whole_and_in_order(self, rig: SignalChannelRig) -> None:
        """Id, type and data arrive as they were sent, in order."""
        channel = rig.build()
        for signal in SIGNALS:
            rig.send(signal)
        assert _drained(channel) == [_plain(signal) for signal in SIGNALS]
        channel.close()

    def test_a_signal_arrives_once(self, rig: SignalChannelRig) -> None:
        """A polled signal does not return, not even from a later channel."""
        channel = rig.build()
        rig.send(SIGNALS[0])
        assert len(_drained(channel)) == 1
        assert channel.poll() == []
        rig.send(SIGNALS[1])
        assert _drained(channel) == [_plain(SIGNALS[1])]
        channel.close()
        later = rig.build()
        assert later.poll() == []
        later.close()

    def test_a_signal_sent_before_the_start_is_not_lost(self, rig: SignalChannelRig) -> None:
        rig.send(SIGNALS[0])
        channel = rig.build()
        assert _drained(channel) == [_plain(SIGNALS[0])]
        channel.close()

    def test_signals_with_one_id_all_arrive(self, rig: SignalChannelRig) -> None:
        """The id of a signal need not be unique."""
        channel, sent = rig.build(), [SIGNALS[0], SIGNALS[2], SIGNALS[0]]
        alike = [msgspec.structs.replace(signal, identifier="1") for signal in sent]
        for signal in alike[:2]:
            rig.send(signal)
        assert _drained(channel) == [_plain(signal) for signal in alike[:2]]
        rig.send(alike[2])
        assert _drained(channel) == [_plain(alike[2])]
        channel.close()

    def test_the_rest_comes_in_the_next_run(self, rig: SignalChannelRig) -> None:
        """A channel of few signals keeps the others."""
        channel = rig.build()
        for signal in SIGNALS:
            rig.send(signal)
        first = [_plain(signal) for signal in channel.poll()]
        channel.close()
        later = rig.build()
        assert first + _drained(later) == [_plain(signal) for signal in SIGNALS]
        later.close()

    def test_many_signals_arrive(self, rig: SignalChannelRig) -> None:
        """A hundred signals arrive; the data grows with each."""
        channel = rig.build()
        sent = [Signal(str(n), "log", '{"message":"%s"}' % ("x" * 50 * n)) for n in range(100)]
        for signal in sent:
            rig.send(signal)
        assert _drained(channel) == [_plain(signal) for signal in sent]
        channel.close()

    def test_what_is_no_signal_is_left_out(self, rig: SignalChannelRig) -> None:
        """Invalid data does not stop the signals before and after it."""
        if rig.spoil is None:
            pytest.skip("nothing else than signals can be in it")
        channel = rig.build()
        rig.send(SIGNALS[0])
        rig.spoil()
        rig.send(SIGNALS[1])
        assert _drained(channel) == [_plain(signal) for signal in SIGNALS[:2]]
        channel.close()

    def test_close_may_be_called_twice(self, rig: SignalChannelRig) -> None:
        channel = rig.build()
        channel.close()
        channel.close()


def _drained(channel: SignalChannel) -> list[object]:
    """Poll in portions until the channel is empty."""
    found: list[object] = []
    while signals := channel.poll():
        found += [_plain(signal) for signal in signals]
    return found


def _plain(signal: Signal) -> object:
    """Return a signal for comparison, with its data parsed.

    Whitespace in JSON makes no difference.
    """
    return signal.identifier, signal.kind, signal.arguments(LARGEST)
