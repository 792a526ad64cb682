"""What every snapshot mode promises. Subclass `SnapshotterSuite` and define the fixture ``rig``.

class TestMyMode(SnapshotterSuite):
@pytest.fixture
def rig(self):
return SnapshotterRig(MY_SPEC, table=\"\"\"
offset  incomplete  available   snapshot  stream
no      no          yes         yes       yes
…
\"\"\")
"""

from dataclasses import dataclass
from itertools import product

import pytest

from waltap.errors import SnapshotError
from waltap.snapshot.snapshotter import Known, Snapshotter
from waltap.specs import SnapshotterSpec
from waltap_testing.spec_promises import assert_well_formed

__all__ = ["SnapshotterRig", "SnapshotterSuite"]

EVERYTHING = tuple(
    Known(offset=offset, snapshot_incomplete=incomplete, position_available=available)
    for offset, incomplete, available in product((False, True), repeat=3)
)
WORDS = {"yes": True, "no": False}


@dataclass(frozen=True, slots=True)
class SnapshotterRig:
    """What the suite needs of an author.

    ``table`` is the truth table: a heading, then one line for each of the eight states of `Known`
    (offset, incomplete, available: yes or no), with what the mode does: snapshot and stream, yes or
    no, or "refused" in place of snapshot where it raises SnapshotError.
    """

    spec: SnapshotterSpec
    table: str
    properties: object = None

    def build(self) -> Snapshotter:
        """Return a new snapshotter."""
        return self.spec.factory(self.properties)

    def rows(self) -> dict[Known, tuple[str, str]]:
        """Return the table, parsed."""
        found: dict[Known, tuple[str, str]] = {}
        for line in self.table.strip().splitlines()[1:]:
            offset, incomplete, available, snapshot, stream = line.split()
            known = Known(
                offset=WORDS[offset],
                snapshot_incomplete=WORDS[incomplete],
                position_available=WORDS[available],
            )
            found[known] = (snapshot, stream)
        return found


class SnapshotterSuite:
    """Promises every snapshot mode keeps."""

    @pytest.fixture
    def rig(self) -> SnapshotterRig:
        """Return the mode to test. Subclasses define this."""
        pytest.fail(f"{type(self).__name__} must define the fixture 'rig' (a SnapshotterRig)")

    def test_spec_is_well_formed(self, rig: SnapshotterRig) -> None:
        """Name, summary and properties are fit for profiles and pages."""
        assert_well_formed(rig.spec)

    def test_the_truth_table_is_total(self, rig: SnapshotterRig) -> None:
        """Each of the eight states has its line, once."""
        assert set(rig.rows()) == set(EVERYTHING)
        assert len(rig.table.strip().splitlines()) == 1 + len(EVERYTHING)

    def test_it_does_what_its_table_says(self, rig: SnapshotterRig) -> None:
        """Snapshot, stream or refusal, for every state."""
        for known, (snapshot, stream) in rig.rows().items():
            found = _answer(rig.build(), known)
            if snapshot == "refused":
                assert found == "refused", known
            else:
                assert found == (WORDS[snapshot], WORDS[stream]), known

    def test_every_answer_is_a_bool_or_a_snapshot_error(self, rig: SnapshotterRig) -> None:
        """Predicates are total: no other error, no other answer."""
        for known in EVERYTHING:
            answer = _answer(rig.build(), known)
            assert answer == "refused" or all(isinstance(part, bool) for part in answer), known
        assert isinstance(rig.build().recovers_lost_position(), bool)

    def test_answers_do_not_depend_on_what_was_asked_before(self, rig: SnapshotterRig) -> None:
        """The same state has the same answer, in any order, from any object."""
        one = rig.build()
        first = [_answer(one, known) for known in EVERYTHING]
        again = [_answer(one, known) for known in reversed(EVERYTHING)]
        assert list(reversed(again)) == first
        assert [_answer(rig.build(), known) for known in EVERYTHING] == first

    def test_recovery_of_a_lost_position_is_a_snapshot(self, rig: SnapshotterRig) -> None:
        """A mode that says it recovers a lost position takes a snapshot when it is lost."""
        if not rig.build().recovers_lost_position():
            pytest.skip("leaves a lost position an error")
        lost = Known(offset=True, snapshot_incomplete=False, position_available=False)
        assert rig.build().takes_snapshot(lost)

    def test_an_interrupted_snapshot_is_not_passed_over(self, rig: SnapshotterRig) -> None:
        """Rows that were never read must not be missing silently: again, or an error."""
        for available in (False, True):
            known = Known(offset=True, snapshot_incomplete=True, position_available=available)
            answer = _answer(rig.build(), known)
            assert answer == "refused" or answer[0] is True, known


def _answer(snapshotter: Snapshotter, known: Known) -> tuple[bool, bool] | str:
    try:
        return snapshotter.takes_snapshot(known), snapshotter.streams(known)
    except SnapshotError:
        return "refused"
