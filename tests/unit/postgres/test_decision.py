"""How a start goes on: the table of `decide`, and that it is all that counts."""

from itertools import product
from typing import Any

import msgspec
import pytest

from waltap.errors import RetryVerdict, WaltapError
from waltap.host import Host
from waltap.offsets.offset import Offset, PartitionOffset, SnapshotProgress
from waltap.source.position import Position
from waltap_postgres.errors import (
    PositionGap,
    SlotMissing,
    SlotNotOurs,
    SlotSynchronized,
    SlotUnfit,
)
from waltap_postgres.replication.slot import ReplicationSlot
from waltap_postgres.startup_plan import StartupPlan, StartupState, decide

SLOT = ReplicationSlot(
    name="s",
    plugin="pgoutput",
    database="shop",
    temporary=False,
    active_pid=None,
    restart_lsn=90,
    confirmed_flush_lsn=100,
    wal_status="reserved",
    two_phase=False,
)
INVALIDATED = msgspec.structs.replace(SLOT, wal_status="lost")
WHOLE = Offset.of(
    PartitionOffset(
        position=Position(100), slot="s", database="shop", system_id="7", timeline=1,
        decoder="pgoutput", slot_created_lsn=50, visible="",
    )
)  # fmt: skip
UNFINISHED = msgspec.structs.replace(WHOLE, snapshot=SnapshotProgress(kind="initial", lsn=50))
MODES = Host().snapshotters
GONE = SlotMissing("replication slot 's' does not exist any more", position="0/64")
GAP = PositionGap("slot 's' stands after the stored offset")


def decided(mode: str = "initial", **facts: Any) -> StartupPlan:
    snapshotter = MODES[mode].factory(None)
    chosen = {"offset": None, "slot": None, "plugin": "pgoutput", "database": "shop"} | facts
    return decide(StartupState(snapshotter=snapshotter, **chosen))


def test_nothing_yet_makes_a_slot_and_takes_a_snapshot() -> None:
    found = decided()
    assert (found.snapshot, found.stream, found.anew, found.slot) == (True, True, True, None)


def test_a_mode_without_rows_makes_a_slot_alone() -> None:
    found = decided("no_data")
    assert (found.snapshot, found.stream, found.anew) == (False, True, True)


def test_a_mode_that_streams_nothing_leaves_slots_alone() -> None:
    found = decided("initial_only", slot=SLOT)
    assert (found.snapshot, found.stream, found.anew, found.adopts) == (True, False, False, False)


def test_a_whole_offset_and_its_slot_go_on() -> None:
    found = decided(offset=WHOLE, slot=SLOT, of_database=True, made_slot=True)
    assert (found.snapshot, found.stream, found.anew, found.adopts) == (False, True, False, False)
    assert found.offset is WHOLE


def test_an_unfinished_snapshot_of_our_own_slot_begins_anew() -> None:
    found = decided(offset=UNFINISHED, slot=SLOT, of_database=True, made_slot=True)
    assert (found.snapshot, found.anew) == (True, True)


def test_an_unfinished_snapshot_beside_a_slot_that_was_there_keeps_it() -> None:
    found = decided(offset=UNFINISHED, slot=SLOT, of_database=True, made_slot=False)
    assert (found.snapshot, found.anew) == (True, False)


RESUMABLE = {"offset": UNFINISHED, "slot": SLOT, "of_database": True, "resumable": True}


@pytest.mark.parametrize("made", [True, False])
@pytest.mark.parametrize("mode", ["initial", "when_needed"])
def test_an_unfinished_snapshot_goes_on_where_it_can(mode: str, *, made: bool) -> None:
    found = decided(mode, made_slot=made, **RESUMABLE)
    assert (found.resumes, found.snapshot, found.anew) == (True, True, False)
    assert found.offset is UNFINISHED


@pytest.mark.parametrize(("reconnects", "resumes"), [(False, False), (True, True)])
def test_a_mode_that_reads_at_every_start_goes_on_within_a_run(reconnects, resumes) -> None:
    found = decided("always", made_slot=True, reconnects=reconnects, **RESUMABLE)
    assert (found.resumes, found.anew) == (resumes, not resumes)


@pytest.mark.parametrize("facts", [{"unreadable": GAP}, {"lost": GONE}, {"begun": True}])
def test_an_unfinished_snapshot_whose_slot_cannot_be_read_begins_anew(facts) -> None:
    found = decided(made_slot=True, **RESUMABLE, **facts)
    assert (found.resumes, found.snapshot, found.anew) == (False, True, True)


def test_a_slot_that_this_run_began_to_make_is_made_anew() -> None:
    found = decided(slot=SLOT, begun=True)
    assert (found.anew, found.adopts) == (True, False)


def test_somebody_elses_slot_needs_consent() -> None:
    with pytest.raises(SlotNotOurs):
        decided(slot=SLOT)
    assert decided(slot=SLOT, adopts=True).adopts
    assert not decided(slot=SLOT, known=True).adopts


@pytest.mark.parametrize("wrong", [{"plugin": "wal2json"}, {"database": "other"}])
def test_a_slot_of_another_plugin_or_database_is_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(SlotUnfit):
        decided(slot=SLOT, known=True, **wrong)


def test_a_slot_that_a_standby_copies_is_waited_for() -> None:
    copied = msgspec.structs.replace(SLOT, synchronized=True)
    with pytest.raises(SlotSynchronized) as waits:
        decided(slot=copied, offset=WHOLE, of_database=True)
    assert waits.value.retry is RetryVerdict.RECONNECT


@pytest.mark.parametrize(("lost", "slot"), [(GONE, None), (GAP, SLOT)])
def test_a_lost_position_is_an_error_unless_the_mode_recovers(lost, slot) -> None:
    facts = {"offset": WHOLE, "slot": slot, "lost": lost, "of_database": True}
    with pytest.raises(type(lost)):
        decided(**facts)
    found = decided("when_needed", **facts)
    assert (found.snapshot, found.recovers, found.anew) == (True, True, slot is None)


def test_every_situation_is_decided_or_refused_and_always_the_same() -> None:
    """No combination escapes with something else than a decision or an error of ours."""
    flags = ("of_database", "made_slot", "begun", "known", "adopts", "reconnects", "resumable")
    modes = ("initial", "always", "initial_only", "no_data", "when_needed")
    for mode, offset, slot, lost in product(
        modes, (None, WHOLE, UNFINISHED), (None, SLOT, INVALIDATED), (None, GAP)
    ):
        for chosen in product((False, True), repeat=len(flags)):
            facts = dict(zip(flags, chosen, strict=True)) | {
                "offset": offset, "slot": slot, "lost": lost,
            }  # fmt: skip
            outcomes = []
            for _ in range(2):
                try:
                    outcomes.append(decided(mode, **facts))
                except WaltapError as error:
                    outcomes.append(type(error))
            assert outcomes[0] == outcomes[1]
            found = outcomes[0]
            if isinstance(found, StartupPlan) and found.stream:
                assert found.anew or found.slot is not None  # there is something to stream from
                assert not (found.lost and not found.recovers and not found.anew)
