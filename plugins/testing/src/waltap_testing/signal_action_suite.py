"""What every signal action promises. Subclass `SignalActionSuite` and define ``rig``.

class TestMyAction(SignalActionSuite):
@pytest.fixture
def rig(self):
return SignalActionRig(MY_SPEC, arguments={"label": "x"})
"""

import json
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field

import pytest

from waltap.signals import Signal, SignalCall, SignalUnusable
from waltap.signals.signal import KNOWN
from waltap.specs import SignalActionSpec
from waltap_testing.limits import soon
from waltap_testing.spec_promises import assert_well_formed

__all__ = ["SignalActionRig", "SignalActionSuite"]

LONGEST_SECONDS = 1.0
POSITION = "0/10"
ODD: tuple[Mapping[str, object], ...] = (
    {},
    {"": None},
    {"data-collections": 3, "message": ["a"]},
    {"a": {"b": {"c": [1, 2.5, True, None, "naïve 漢字 🐘\n"]}}},
    {"label": "x" * 100_000, "n": -(1 << 70)},
    {"'; DROP TABLE t; --": "'; DROP TABLE t; --"},
)
"""Data that anybody may send."""


@dataclass(slots=True)
class SignalActionRig:
    """What the suite needs of an author: the spec, and ``arguments`` that it acts on.

    ``notified`` has what the action told, as (kind, members), ``stopped`` whether it asked for a stop.
    """

    spec: SignalActionSpec
    arguments: Mapping[str, object]
    _: KW_ONLY
    notified: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    stopped: bool = False

    def act(self, arguments: Mapping[str, object] | None = None) -> str:
        """Act as the engine does; return why the signal is left out, "" where it is not."""
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
            return str(unusable)
        return ""

    def _stop(self) -> None:
        self.stopped = True


class SignalActionSuite:
    """Promises every signal action keeps."""

    @pytest.fixture
    def rig(self) -> SignalActionRig:
        """Return the action to test. Subclasses define this."""
        pytest.fail(f"{type(self).__name__} must define the fixture 'rig' (a SignalActionRig)")

    def test_spec_is_well_formed(self, rig: SignalActionRig) -> None:
        """Name, summary and properties are fit for profiles and pages."""
        assert_well_formed(rig.spec)

    def test_the_type_is_its_own(self, rig: SignalActionRig) -> None:
        """A type that waltap acts on itself never reaches a plugin."""
        assert rig.spec.name not in KNOWN
        assert not rig.spec.name.startswith("snapshot-window-")

    def test_it_acts_at_once(self, rig: SignalActionRig) -> None:
        """It runs between batches: the pipeline stands meanwhile."""

        def act() -> None:
            assert rig.act() == ""

        assert soon(act, LONGEST_SECONDS), f"takes longer than {LONGEST_SECONDS} s"

    def test_it_may_be_asked_again(self, rig: SignalActionRig) -> None:
        """A signal may come twice: after a crash it is read again."""
        assert rig.act() == ""
        assert rig.act() == ""

    @pytest.mark.parametrize("arguments", ODD, ids=range(len(ODD)))
    def test_odd_data_is_acted_on_or_left_out_with_a_reason(
        self, rig: SignalActionRig, arguments: Mapping[str, object]
    ) -> None:
        """SignalUnusable and nothing else: data comes from outside."""
        why = rig.act(arguments)
        assert why == "" or why.strip()

    def test_members_of_notifications_are_text(self, rig: SignalActionRig) -> None:
        """As the records of notifications have them."""
        rig.act()
        for kind, members in rig.notified:
            assert kind
            assert all(isinstance(value, str) for value in members.values())
