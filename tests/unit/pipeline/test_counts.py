"""The counts of a transaction's events, which go on behind each place inside it."""

import msgspec
import pytest
from tests.unit.pipeline.test_delivery import (
    CountsChanges,
    LagsBehind,
    OnePosition,
    Rig,
    two_sinks,
)

from waltap.changes.transactions.order import TransactionCounts, TransactionOrder
from waltap.changes.transactions.position import SOLE, Position, Positions
from waltap.changes.transactions.transaction import Batch
from waltap.pipeline.delivery.sink_branch import PositionedBranch
from waltap.ports.offsets.offset import SinkProgress
from waltap.ports.sink.sink import SinkCapabilities
from waltap_testing.workload import ITEMS, ScriptedWorkload


def test_counts_of_a_transaction_are_stored_with_the_position_that_is_durable():
    workload, order = ScriptedWorkload(), TransactionOrder()
    for number in range(6):
        workload.insert(ITEMS, number, "x")
    workload.commit()
    (first, rest), sink = workload.parts[0].split(2), LagsBehind()
    second, third = rest.split(2)
    rig = Rig(sink=sink, order=order, render=CountsChanges(order))
    rig.delivery.write([first])
    rig.delivery.write([second])
    assert rig.delivery.flush() == {SOLE: first.position(Position(0x10))}
    counted = rig.delivery.offset.sole.counted
    assert isinstance(counted, TransactionCounts)
    assert (counted.total, counted.collections) == (2, {"items": 2})
    rig.delivery.write([third])
    rig.delivery.flush()
    assert rig.delivery.offset.sole.counted == msgspec.structs.replace(
        counted, index=4, total=4, collections={"items": 4}
    )
    sink.durable = sink.accepted
    rig.delivery.flush()
    assert rig.delivery.offset.sole.counted is msgspec.UNSET


@pytest.mark.parametrize("several", [False, True], ids=["the only sink", "one of several"])
def test_a_start_counts_on_inside_a_transaction(several):
    workload, order, at = ScriptedWorkload(), TransactionOrder(), Position(0x10, 900, 2)
    counted = TransactionCounts(commit_lsn=900, index=2, total=2, collections={"items": 2})
    rig = Rig(order=order, position=at, **({} if several else {"counted": counted}))
    if several:
        branch = PositionedBranch(**rig.parts)
        branch.renew()
        branch.continue_from(SinkProgress(positions={SOLE: at}, counted=counted), Positions())
    # WAL without changes comes before the rest, too.
    for lsn, reached in ((900, Position(900, 900, 2)), (0x10, Position(900, 900, 2))):
        if several:
            branch.advance(SOLE, lsn)
            assert branch.own_progress() == SinkProgress(positions={SOLE: reached}, counted=counted)
        else:
            rig.delivery.advance(SOLE, lsn)
            assert rig.stored == {SOLE: reached}
            assert rig.delivery.offset.sole.counted == counted
    for number in range(4):
        workload.insert(ITEMS, number, "x")
    workload.commit()
    whole = msgspec.structs.replace(workload.parts[0], commit_lsn=900)
    order.enter(whole.split(2)[1])
    assert order.next("items") == (3, 3)
    if several:
        branch.advance(SOLE, 901)
        assert branch.durable == {SOLE: Position(901)}


@pytest.mark.parametrize("several", [False, True], ids=["the only sink", "one of several"])
def test_counts_go_on_behind_what_a_sink_itself_has_of_a_transaction(several):
    workload, order, start = ScriptedWorkload(), TransactionOrder(), Position(0x10)
    for number in range(9):
        workload.insert(ITEMS, number, "x")
    workload.commit()
    (whole,) = workload.parts
    numbers = [0, 2, 3, 5, 6, 7, 8]
    first, rest = whole.with_only([whole.changes[n] for n in numbers], numbers).split(2)
    ahead = whole.split(6)[0].position(start)
    there = TransactionCounts(
        commit_lsn=ahead.commit_lsn, index=6, total=4, collections={"items": 4}
    )
    rig = Rig(order=order, render=CountsChanges(order), delivered=Positions({SOLE: ahead}))
    if several:
        branch = PositionedBranch(**rig.parts)
        branch.renew()
        branch.continue_from(None, Positions({SOLE: start}), ahead)
        branch.write(Batch(parts=[first], position=first.position(start), events=2))
        progress = branch.own_progress()  # of a run that is killed before the rest
        assert progress.positions == {SOLE: first.position(start)}
        # The stream passes WAL without changes, which the sink knows nothing of.
        start = Position(start.end_lsn + 1)
        branch.continue_from(progress, Positions({SOLE: start}), ahead)
        branch.write(Batch(parts=[first], position=first.position(start), events=2))
        second, third = rest.split(3)
        more = Batch(parts=[second], position=second.position(start), events=3)
        branch.write(more)
        assert branch.own_progress().counted == there
        branch.write(msgspec.structs.replace(more))  # the stream returns to the slowest sink
        branch.write(Batch(parts=[third], position=third.position(start), events=2))
    else:
        rig.delivery.write([first])
        rig.delivery.flush()
        counted = rig.delivery.offset.sole.counted
        assert isinstance(counted, TransactionCounts)
        assert (counted.index, counted.total) == (3, 2)
        stored = {"position": Position(0x20), "order": order, "render": CountsChanges(order)}
        sink = LagsBehind()
        sink.accepted = ahead.passed(0x20)
        rig = Rig(sink=sink, delivered=Positions({SOLE: ahead}), **stored)
        rig.delivery.write([first])
        rig.delivery.write([rest])
        assert rig.delivery.counts.events == 3
        assert rig.delivery.flush() == {SOLE: sink.durable}
        assert rig.delivery.offset.sole.counted == there
    assert order.total == 7


def test_sinks_inside_a_transaction_all_get_the_events_that_they_have_to_count(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(OnePosition, "capabilities", SinkCapabilities(exactly_once=True))
    sinks = [OnePosition(), OnePosition()]
    fan = two_sinks(tmp_path, *sinks)
    for index, sink in enumerate(sinks, 3):
        sink.open = lambda index=index: Position(0x60, 900, index)  # type: ignore[misc]
    assert fan.open() == {SOLE: Position(0x60)}
