"""Conformance tests for signal actions.

Subclass `SignalActionSuite` and define the fixture ``rig``:

    class TestMyAction(SignalActionSuite):
        @pytest.fixture
        def rig(self):
            return SignalActionRig(MY_SPEC, arguments={"label": "x"})
"""

import json
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field

import pytest

from waltap.ports.signals import Signal, SignalCall, SignalUnusable
from waltap.ports.signals.signal import KNOWN
from waltap.ports.specs import SignalActionSpec
from waltap_testing.limits import soon
from waltap_testing.suite import RigSuite

LONGEST_SECONDS = 1.0
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
        """The type is none of waltap's own: those never reach a plugin."""
        assert rig.spec.name not in KNOWN
        assert not rig.spec.name.startswith("snapshot-window-")

    def test_it_acts_at_once(self, rig: SignalActionRig) -> None:
        """The action returns soon, since the engine waits for it."""
        assert set(_acted_soon(rig)) == {""}

    def test_it_may_be_asked_again(self, rig: SignalActionRig) -> None:
        """A signal may arrive twice: it is read again after a crash."""
        assert rig.act() == ""
        assert rig.act() == ""

    @pytest.mark.parametrize("arguments", ODD, ids=range(len(ODD)))
    def test_odd_data_is_acted_on_or_left_out_with_a_reason(
        self, rig: SignalActionRig, arguments: Mapping[str, object]
    ) -> None:
        """Invalid data soon raises SignalUnusable, with a reason, and no other error."""
        _acted_soon(rig, arguments)
        _assert_text(rig)

    def test_members_of_notifications_are_text(self, rig: SignalActionRig) -> None:
        rig.act()
        _assert_text(rig)


def _acted_soon(rig: SignalActionRig, arguments: Mapping[str, object] | None = None) -> list[str]:
    """Act within the limit; return the reasons of all tries."""
    found: list[str] = []
    at_once = soon(lambda: found.append(rig.act(arguments)), LONGEST_SECONDS)
    assert at_once, f"takes longer than {LONGEST_SECONDS} s"
    return found


def _assert_text(rig: SignalActionRig) -> None:
    for kind, members in rig.notified:
        assert kind
        assert all(isinstance(value, str) for value in members.values()), members
