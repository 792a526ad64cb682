"""How a start continues: the table of `decide`, and that it is all that counts."""

from typing import Any

import msgspec
import pytest

from waltap.changes.transactions.position import Position, SnapshotProgress
from waltap.errors import RetryVerdict
from waltap.plugins.host import Host
from waltap.ports.offsets.offset import Offset, PartitionOffset
from waltap_postgres.errors import (
    PositionGap,
    SlotMissing,
    SlotNotOurs,
    SlotSynchronized,
    SlotUnfit,
)
from waltap_postgres.replication.slot import ReplicationSlot
from waltap_postgres.start.startup_plan import StartupPlan, StartupState, decide

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
WHOLE = Offset.of(
    PartitionOffset(
        position=Position(100), slot="s", database="shop", system_id="7", timeline=1,
        decoder="pgoutput", slot_created_lsn=50,
    )
)  # fmt: skip
UNFINISHED = msgspec.structs.replace(WHOLE, snapshot=SnapshotProgress(kind="initial", lsn=50))
MODES = Host().snapshotters
GONE = SlotMissing("replication slot 's' no longer exists", position="0/64")
GAP = PositionGap("slot 's' stands after the stored offset")


def decided(mode: str = "initial", **facts: Any) -> StartupPlan:
    snapshotter = MODES[mode].factory(None)
    chosen = {"offset": None, "slot": None, "plugin": "pgoutput", "database": "shop"} | facts
    return decide(StartupState(snapshotter=snapshotter, **chosen))


OURS = {"offset": WHOLE, "slot": SLOT, "of_database": True, "made_slot": True}
MADE = {**OURS, "offset": UNFINISHED}
FOUND = {**MADE, "made_slot": False}
ONGOING = {**MADE, "resumable": True}
WITHIN = {**ONGOING, "reconnects": True}
PLANS: dict[str, tuple[str, dict[str, Any], str]] = {
    "nothing yet": ("initial", {}, "snapshot stream new_slot"),
    "a mode without rows": ("no_data", {}, "stream new_slot"),
    "a mode that streams nothing leaves slots alone": ("initial_only", {"slot": SLOT}, "snapshot"),
    "a whole offset and its slot": ("initial", OURS, "stream"),
    "an unfinished snapshot of our own slot": ("initial", MADE, "snapshot stream new_slot"),
    "an unfinished snapshot beside a slot that was there": ("initial", FOUND, "snapshot stream"),
    "an unfinished snapshot goes on": ("initial", ONGOING, "snapshot stream resumes"),
    "so where it is needed": ("when_needed", ONGOING, "snapshot stream resumes"),
    "so beside a slot that was there": (
        *("initial", {**ONGOING, "made_slot": False}),
        "snapshot stream resumes",
    ),
    "a mode that reads at every start": ("always", ONGOING, "snapshot stream new_slot"),
    "within a run it goes on": ("always", WITHIN, "snapshot stream resumes"),
    "and takes no other": ("always", {**OURS, "reconnects": True}, "stream"),
    "a slot behind a gap": ("initial", {**ONGOING, "unreadable": GAP}, "snapshot stream new_slot"),
    "a slot that is gone": ("initial", {**ONGOING, "lost": GONE}, "snapshot stream new_slot"),
    "one that this run began to make": (
        *("initial", {**ONGOING, "begun": True}),
        "snapshot stream new_slot",
    ),
    "such a slot and nothing else": (
        *("initial", {"slot": SLOT, "begun": True}),
        "snapshot stream new_slot",
    ),
}
"""Snapshot mode, what is found, and what the plan does."""


@pytest.mark.parametrize(("mode", "facts", "does"), PLANS.values(), ids=PLANS)
def test_a_start(mode, facts, does):
    found = decided(mode, **facts)
    asked = ("snapshot", "stream", "new_slot", "resumes", "takes_over")
    assert " ".join(name for name in asked if getattr(found, name)) == does
    if found.resumes or does == "stream":
        assert found.offset is facts["offset"]
    if "slot" not in facts:
        assert found.slot is None


def test_somebody_elses_slot_needs_consent():
    with pytest.raises(SlotNotOurs):
        decided(slot=SLOT)
    assert decided(slot=SLOT, takes_over=True).takes_over
    assert not decided(slot=SLOT, known=True).takes_over


@pytest.mark.parametrize("wrong", [{"plugin": "wal2json"}, {"database": "other"}])
def test_a_slot_of_another_plugin_or_database_is_refused(wrong):
    with pytest.raises(SlotUnfit):
        decided(slot=SLOT, known=True, **wrong)


def test_a_slot_that_a_standby_copies_is_waited_for():
    copied = msgspec.structs.replace(SLOT, synchronized=True)
    with pytest.raises(SlotSynchronized) as waits:
        decided(slot=copied, offset=WHOLE, of_database=True)
    assert waits.value.retry is RetryVerdict.RECONNECT


@pytest.mark.parametrize(("lost", "slot"), [(GONE, None), (GAP, SLOT)])
def test_a_lost_position_is_an_error_unless_the_mode_recovers(lost, slot):
    facts = {"offset": WHOLE, "slot": slot, "lost": lost, "of_database": True}
    with pytest.raises(type(lost)):
        decided(**facts)
    found = decided("when_needed", **facts)
    assert (found.snapshot, found.recovers, found.new_slot) == (True, True, slot is None)
