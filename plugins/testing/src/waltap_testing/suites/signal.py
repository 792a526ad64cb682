"""Conformance tests for signal channels and signal actions.

Subclass `SignalChannelSuite` or `SignalActionSuite` and define the fixture ``rig``:

    class TestMyChannel(SignalChannelSuite):
        @pytest.fixture
        def rig(self, tmp_path):
            return SignalChannelRig(MY_SPEC, MyProperties(…), send=my_way_to_send)

    class TestMyAction(SignalActionSuite):
        @pytest.fixture
        def rig(self):
            return SignalActionRig(MY_SPEC, arguments={"label": "x"})
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field

import msgspec
import pytest

from waltap.ports.signals import Signal, SignalCall, SignalUnusable
from waltap.ports.signals.signal import KNOWN, ConfirmedChannel, SignalChannel
from waltap.ports.specs import SignalActionSpec, SignalChannelSpec
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
        """A polled signal does not return, even from a later channel."""
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
        first = [_plain(signal) for signal in _confirmed(channel)]
        channel.close()
        later = rig.build()
        assert first + _drained(later) == [_plain(signal) for signal in SIGNALS]
        later.close()

    def test_a_signal_that_was_not_confirmed_comes_again(self, rig: SignalChannelRig) -> None:
        """A crash before the engine has stored a signal loses nothing."""
        channel = rig.build()
        if not isinstance(channel, ConfirmedChannel):
            pytest.skip("the channel forgets a signal when it was polled")
        rig.send(SIGNALS[0])
        assert [_plain(signal) for signal in channel.poll() or ()] == [_plain(SIGNALS[0])]
        channel.close()
        later = rig.build()
        assert _drained(later) == [_plain(SIGNALS[0])]
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
    while signals := _confirmed(channel):
        found += [_plain(signal) for signal in signals]
    return found


def _confirmed(channel: SignalChannel) -> list[Signal]:
    signals = channel.poll() or []
    if signals and isinstance(channel, ConfirmedChannel):
        channel.confirm()
    return signals


def _plain(signal: Signal) -> object:
    """Return a signal for comparison, with its data parsed.

    Whitespace in JSON makes no difference.
    """
    return signal.identifier, signal.kind, signal.arguments(LARGEST)


LONGEST_ACTION_SECONDS = 1.0
POSITION = "0/10"
# Data of signals that any writer of the channel may send.
ODD: tuple[Mapping[str, object], ...] = (
    {},
    {"": None},
    {"data-collections": 3, "message": ["a"]},
    {"a": {"b": {"c": [1, 2.5, True, None, "naïve 漢字 🐘\n"]}}},
    {"label": "x" * 100_000, "n": -(1 << 70)},
    {"'; DROP TABLE t; --": "'; DROP TABLE t; --"},
)


@dataclass(slots=True)
class SignalActionRig:
    """The signal action under test."""

    spec: SignalActionSpec
    # Data that the action accepts.
    arguments: Mapping[str, object]
    _: KW_ONLY
    # The action's notifications, as (kind, members).
    notified: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    # Whether the action requested a stop.
    stopped: bool = False

    def act(self, arguments: Mapping[str, object] | None = None) -> str:
        """Act as the engine; return why it ignores the signal."""
        given = dict(self.arguments if arguments is None else arguments)
        signal = Signal("suite-1", self.spec.name, json.dumps(given))
        call = SignalCall(
            pipeline="suite",
            signal=signal,
            arguments=given,
            position=POSITION,
            notify=lambda kind, **members: self.notified.append((kind, members)),
            stop=self._stop,
        )
        try:
            self.spec.factory(call)
        except SignalUnusable as unusable:
            why = str(unusable).strip()
            assert why, "a signal is left out without a reason: the log would say nothing"
            return why
        return ""

    def _stop(self) -> None:
        self.stopped = True


class SignalActionSuite(RigSuite):
    """Rules for every signal action."""

    needs = "a SignalActionRig"

    def test_the_type_is_its_own(self, rig: SignalActionRig) -> None:
        """The type is none of waltap's, which never reach a plugin."""
        assert rig.spec.name not in KNOWN
        assert not rig.spec.name.startswith("snapshot-window-")

    def test_it_acts_at_once(self, rig: SignalActionRig) -> None:
        """The action returns soon, since the engine waits for it."""
        assert set(_acted_soon(rig)) == {""}

    def test_it_may_be_asked_again(self, rig: SignalActionRig) -> None:
        """A signal may arrive twice, the second time after a crash."""
        assert rig.act() == ""
        assert rig.act() == ""

    @pytest.mark.parametrize("arguments", ODD, ids=range(len(ODD)))
    def test_odd_data_is_acted_on_or_left_out_with_a_reason(
        self, rig: SignalActionRig, arguments: Mapping[str, object]
    ) -> None:
        """Invalid data raises only SignalUnusable, soon and with a reason."""
        _acted_soon(rig, arguments)
        _assert_text(rig)

    def test_members_of_notifications_are_text(self, rig: SignalActionRig) -> None:
        rig.act()
        _assert_text(rig)


def _acted_soon(rig: SignalActionRig, arguments: Mapping[str, object] | None = None) -> list[str]:
    """Act within the limit; return the reasons of all tries."""
    found: list[str] = []
    at_once = soon(lambda: found.append(rig.act(arguments)), LONGEST_ACTION_SECONDS)
    assert at_once, f"takes longer than {LONGEST_ACTION_SECONDS} s"
    return found


def _assert_text(rig: SignalActionRig) -> None:
    for kind, members in rig.notified:
        assert kind
        assert all(isinstance(value, str) for value in members.values()), members
