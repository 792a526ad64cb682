"""Delivery: the one rule of offsets, for one partition and for several."""

from contextlib import nullcontext
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from tests.harness.simulated import raising

from waltap.base.network.retry import RetryBackoff
from waltap.base.plugin_errors import UnusableResult
from waltap.changes.decode.message import Message
from waltap.changes.events.event import Record
from waltap.changes.transactions.order import TransactionOrder
from waltap.changes.transactions.position import SOLE, Position, Positions
from waltap.changes.transactions.transaction import (
    Batch,
    Heartbeat,
    Part,
    SnapshotRows,
    TransactionPart,
)
from waltap.clock import SystemClock
from waltap.config.pipeline_properties import SinkBranchProperties
from waltap.encoders.format.format import Format
from waltap.errors import OffsetError, SinkError
from waltap.pipeline.api.batches import BatchStreamSink
from waltap.pipeline.delivery.fan_out import FanOut
from waltap.pipeline.delivery.sink_branch import (
    PositionedBranch,
    SinkBranch,
    TransformChain,
)
from waltap.pipeline.delivery.sink_writer import SinkWriter
from waltap.pipeline.engine.connection import OnePartitionOnly
from waltap.pipeline.engine.stream_loop import SlotAdvancer
from waltap.pipeline.stages.partition_reader import PartitionReader
from waltap.plugins.host import Host
from waltap.ports.offsets.file_store import MemoryOffsetStore
from waltap.ports.offsets.offset import BranchPositions, Offset, PartitionOffset, SinkProgress
from waltap.ports.sink.sink import Sink, SinkCapabilities, SinkContext
from waltap.ports.sink.stored_position import DestinationBehind
from waltap.ports.source.connector import ChangeStream
from waltap.services.dead_letters.dead_letter import FailurePolicy
from waltap.services.dead_letters.poison_events import PoisonEventHandler
from waltap.services.dead_letters.queue import DeadLetterQueue
from waltap.services.dead_letters.store import DeadLetterStore
from waltap.services.monitor.counts import RunCounters
from waltap_testing.simulation import SimulatedDestination, SimulatedPipeline, VirtualClock
from waltap_testing.simulation.destination import sink_of
from waltap_testing.workload import ITEMS, ScriptedWorkload

ROWS = SnapshotRows(relation=ITEMS, rows=[], ts=0, lsn=None, xid=None, kind="incremental")


def transactions(count: int) -> list[TransactionPart]:
    workload = ScriptedWorkload()
    for number in range(1, count + 1):
        workload.insert(ITEMS, number, "x")
        workload.commit()
    return workload.parts


class Rig:
    """A delivery to a destination in memory."""

    def __init__(
        self,
        *partitions: str,
        sink: Sink | None = None,
        order: TransactionOrder | None = None,
        render: Format | None = None,
        delivered: Positions | None = None,
        several: FanOut | None = None,
        **stored: Any,
    ) -> None:
        self.clock = VirtualClock()
        self.destination, self.store = SimulatedDestination(self.clock), MemoryOffsetStore()
        given = {"position": Position(0x10), "slot": "s", "database": "d", "system_id": "7"}
        slot = PartitionOffset(**{**given, "timeline": 1, **stored})
        order = order or TransactionOrder()
        dead_letters = DeadLetterQueue(
            DeadLetterStore(Path("unused")), self.clock, describe=lambda r: r, form=lambda: None
        )
        made = sink_of(self.destination).factory(
            None, SinkContext(pipeline="p", state_dir=Path("unused"))
        )
        self.parts: dict[str, Any] = dict(
            name="",
            component=None,
            format_component=None,
            make=lambda: sink or made,
            make_format=lambda: render,
            chain=TransformChain(),
            undeliverable=PoisonEventHandler(FailurePolicy(), "", order, dead_letters),
            order=order,
            format=render,
            clock=self.clock,
        )
        branch = SinkBranch(**self.parts)
        branch.renew()
        self.delivery = SinkWriter(
            pipeline="p",
            branch=several or branch,
            store=self.store,
            host=Host(discover=False),
            offset=Offset(partitions=dict.fromkeys(partitions or (SOLE,), slot)),
            retries=RetryBackoff(lambda _s: False, retries=0, ceiling_s=0.0, chance=None),  # type: ignore[arg-type]
            clock=self.clock,
            counts=RunCounters(),
            delivered=delivered,
        )

    @property
    def stored(self) -> Positions:
        offset = self.store.load()
        return offset.positions


def test_what_a_snapshot_saw_is_kept_until_the_stream_is_past_it():
    """A transaction that begins where the last one ended may still be one that the snapshot saw."""
    rig, parts = Rig(), transactions(2)
    seen = msgspec.structs.replace(rig.delivery.offset.sole, visible_in={"public.items": "8:8:"})
    rig.delivery.offset = msgspec.structs.replace(rig.delivery.offset, partitions={SOLE: seen})
    rig.delivery.overlap_until = parts[0].end_lsn
    rig.delivery.write([parts[0]])
    rig.delivery.flush()
    assert rig.delivery.offset.sole.visible_in == {"public.items": "8:8:"}
    rig.delivery.write([parts[1]])
    rig.delivery.flush()
    assert rig.delivery.offset.sole.visible_in == {}


class OnePosition(Sink):
    """Knows one partition: it promises a position without a name."""

    capabilities = SinkCapabilities(records=False)
    accepted: Position | None = None

    def open(self) -> None:
        """Nothing is kept."""

    def write(self, batch: Batch) -> None:
        self.accepted = batch.position

    def flush(self) -> Position | None:
        return self.accepted

    def close(self) -> None:
        """Nothing is held."""


@pytest.mark.parametrize("name", [SOLE, "tablets"])
def test_a_sink_that_knows_one_partition_needs_not_name_it(name):
    rig, (part,) = Rig(name, sink=OnePosition()), transactions(1)
    assert rig.delivery.flush() == {}
    rig.delivery.write([part])
    assert rig.delivery.flush() == {name: Position(part.end_lsn)}
    assert rig.stored == {name: Position(part.end_lsn)}


class LagsBehind(OnePosition):
    """Makes durable what it was given before the last batch, as a sink with requests under way does."""

    def write(self, batch: Batch) -> None:
        self.durable = self.accepted
        super().write(batch)

    def flush(self) -> Position | None:
        return self.durable


class CountsChanges(Format):
    """Counts each change, and renders none."""

    def __init__(self, order: TransactionOrder) -> None:
        self._order = order

    def render(self, parts: list[Part], now: int) -> list[Record]:
        for part in parts:
            assert isinstance(part, TransactionPart)
            self._order.enter(part)
            for _ in part.changes:
                self._order.next("items")
        return []


@pytest.mark.parametrize(
    ("records", "given"),
    [([Record("t", b"1", "text")], "str"), ([Record("t", {"id": 1}, b""), Record("t", None, b"")], "dict"), ([7], "int")],
)  # fmt: skip
def test_records_that_are_no_bytes_are_a_fault_of_the_format(records, given):
    """The last record is judged at once, the others once the sink has failed by them."""
    sink, render = LagsBehind(), CountsChanges(TransactionOrder())
    sink.write = lambda batch: b"".join(record.key or b"" for record in batch.records)
    render.render = lambda _parts, _now: records
    rig = Rig(sink=sink, render=render)
    wanted = "Record" if given == "int" else "bytes or None"
    with pytest.raises(UnusableResult, match=rf"CountsChanges.render gave {given}, not {wanted}"):
        rig.delivery.write([])


def test_one_of_several_sinks_is_at_the_position_that_it_promised():
    sink, far = LagsBehind(), Position(2**40)
    branch = PositionedBranch(**Rig(sink=sink).parts)
    branch.renew()
    branch.continue_from(None, Positions({SOLE: Position(0x10)}))
    batches = [
        Batch(parts=[part], position=part.position(Position(0x10)), events=1)
        for part in transactions(2)
    ]
    for batch in batches:
        branch.write(batch)
    for _ in range(2):
        branch.flush()
        assert branch.durable == {SOLE: batches[0].position}
    sink.durable = sink.accepted
    branch.write(Batch(parts=[], position=far, events=0))
    for durable in (batches[1].position, far):
        branch.flush()
        assert branch.durable == {SOLE: durable}
    # The stream is at the position of a slower sink.
    branch.write(Batch(parts=[Heartbeat(ts=1)], position=batches[0].position, events=1))
    assert sink.accepted == far


def test_sinks_that_are_ahead_of_the_offset_promise_what_came_again(tmp_path):
    """A run was killed before it stored the offset, and one sink is not exactly once."""
    part, start = transactions(1)[0], Positions({SOLE: Position(0x10)})
    sinks, ahead = [OnePosition(), OnePosition()], Positions({SOLE: Position(2**40)})
    branches = [
        PositionedBranch(**Rig(sink=sink).parts | {"name": name})
        for name, sink in zip("ab", sinks, strict=True)
    ]
    stored = BranchPositions(tmp_path / "sinks.json")
    stored.store({"b": SinkProgress(positions=dict(ahead))}, start, start)
    fan = FanOut(branches, stored, load=lambda: start, clock=SystemClock())
    fan.renew()
    sinks[0].open = lambda: ahead  # it has its position with the rows
    assert fan.open() is None
    fan.begin(start, lambda durable: durable)
    assert fan.flush() == start
    batch = Batch(parts=[part], position=part.position(start[SOLE]), events=1)
    fan.write(batch)
    assert fan.flush() == {SOLE: batch.position}
    assert [sink.accepted for sink in sinks] == [None, None]


def test_what_a_sink_has_beyond_the_offset_comes_again_for_the_engine_alone():
    """A run was killed between the sink's commit and the storing of the offset. Its signals are in between."""
    workload = ScriptedWorkload()
    for number in range(6):
        workload.insert(ITEMS, number, "x")
        if number != 2:
            workload.commit()
    one, two, large, four, five = workload.parts
    ahead = large.split(1)[0].position(Position(two.end_lsn))
    sink = OnePosition()
    rig = Rig(sink=sink, delivered=Positions({SOLE: ahead}))
    given: list[Batch] = []
    sink.write = lambda batch: given.append(batch) or OnePosition.write(sink, batch)
    rig.delivery.write([one, two], signals={"queue": ["asked"]})
    assert (given, rig.store.load()) == ([], None)
    assert rig.delivery.flush() == {SOLE: Position(two.end_lsn)}
    assert rig.store.load().signals == {"queue": ["asked"]}
    # A batch between changes must not take the sink back.
    rig.delivery.write([Heartbeat(ts=1)])
    rig.delivery.write([Heartbeat(ts=2)], snapshot=True)
    assert [batch.position for batch in given] == [ahead, ahead]
    rig.delivery.flush()
    assert rig.stored == {SOLE: Position(two.end_lsn)}
    rig.delivery.advance(SOLE, two.end_lsn + 1)  # WAL without changes does not either
    rig.delivery.write([large, four])
    assert [change.new[1] for part in given[-1].parts for change in part.changes] == ["4", "5"]
    assert rig.delivery.flush() == {SOLE: Position(four.end_lsn)}
    rig.delivery.write([five])
    assert given[-1].parts == [five]


def test_the_signals_of_a_batch_that_failed_are_not_stored(monkeypatch):
    """They say that its rows of an incremental snapshot were delivered."""
    rig, (one, two) = Rig(sink=OnePosition()), transactions(2)
    rig.delivery.write([one], signals={"queue": ["asked"]})
    monkeypatch.setattr(OnePosition, "write", raising(SinkError("no")))
    with pytest.raises(SinkError):
        rig.delivery.write([two], signals={"queue": []})
    assert rig.delivery.flush() == {SOLE: Position(one.end_lsn)}
    assert rig.store.load().signals == {"queue": ["asked"]}


@pytest.mark.parametrize("several", [False, True])
def test_signals_are_stored_once_the_rows_that_they_asked_for_are_durable(tmp_path, several):
    """Such rows move no position, and a sink may keep them to itself. Several sinks know the stored place."""
    sinks, (one, two), asked = [LagsBehind(), LagsBehind()], transactions(2), {"queue": ["asked"]}
    fan = two_sinks(tmp_path, *sinks, load=lambda: Positions({SOLE: Position(0x10)}))
    fan.open()
    rig = Rig(several=fan) if several else Rig(sink=sinks[0])
    rig.delivery.write([one], signals=asked)
    rig.delivery.write([ROWS, two], signals={"queue": []})
    for at in (0x10, one.end_lsn + 1, two.end_lsn):
        sinks[0].durable = sinks[1].durable = Position(at)
        rig.delivery.flush()
        rig.delivery.keep_signals()
        found = rig.store.load().signals, rig.stored[SOLE] <= Position(one.end_lsn)
        assert found == (({"queue": []}, False) if at == two.end_lsn else (asked, True))
        assert bool(BranchPositions(tmp_path / "sinks.json").load(rig.stored)) == several


def test_a_sink_beyond_the_offset_that_takes_no_new_change_is_flushed(monkeypatch):
    one, two, three = transactions(3)
    sink, ahead = OnePosition(), Position(two.end_lsn)
    sink.accepted = ahead
    rig = Rig(sink=sink, delivered=Positions({SOLE: ahead}))
    rig.delivery.write([one])
    monkeypatch.setattr(OnePosition, "write", raising(SinkError("no")))
    with pytest.raises(SinkError):
        rig.delivery.write([two, three])
    assert rig.delivery.flush() == {SOLE: Position(one.end_lsn)}


class StoresPosition(OnePosition):
    """Has its position with the rows, until it is closed; ``there`` is what an open finds."""

    there = Position(0x50)

    def open(self) -> Position:  # type: ignore[override]
        self.accepted = self.there
        return self.there

    def stored_position(self) -> Position | None:
        return self.accepted

    def close(self) -> None:
        self.accepted = None


def two_sinks(tmp_path: Path, *sinks: Sink, **more: Any) -> FanOut:
    """Return the sinks "a" and "b", of which the second may be paused."""
    may_pause = SinkBranchProperties.model_validate({"on.failure": "pause"})
    branches = [
        PositionedBranch(**Rig(sink=sink).parts | {"name": name} | own)
        for name, sink, own in zip("ab", sinks, ({}, {"properties": may_pause}), strict=True)
    ]
    start = Positions({SOLE: Position(0x50)})
    file = BranchPositions(tmp_path / "sinks.json")
    more = {"load": lambda: start, "clock": VirtualClock()} | more
    fan = FanOut(branches, file, **more)
    fan.renew()
    return fan


@pytest.mark.parametrize("when", ["at its open", "later"])
def test_a_sink_that_lost_changes_in_a_pause_is_found_behind(tmp_path, monkeypatch, when):
    sink = StoresPosition()
    fan = two_sinks(tmp_path, OnePosition(), sink)
    fan.open()
    fan.flush()
    failing = "open" if when == "at its open" else "flush"
    with monkeypatch.context() as broken:
        broken.setattr(sink, failing, raising(SinkError("restored")))
        if failing == "open":
            fan.close()
            fan.renew()
            fan.open()
        else:
            (part,) = transactions(1)
            fan.write(Batch(parts=[part], position=part.position(Position(0x60)), events=1))
        fan.flush()
    assert fan.branches[1].paused is not None
    fan.flush()
    sink.there = Position(0x40)
    with pytest.raises(DestinationBehind):
        two_sinks(tmp_path, OnePosition(), sink).open()


@pytest.mark.parametrize("flushed", [False, True])
def test_a_sink_with_rows_that_no_stream_repeats_is_not_paused(tmp_path, monkeypatch, flushed):
    sink, (part,) = OnePosition(), transactions(1)
    fan = two_sinks(tmp_path, OnePosition(), sink)
    fan.open()
    fan.write(Batch(parts=[ROWS], position=Position(0x50), events=1))
    if flushed:
        fan.flush()
    monkeypatch.setattr(sink, "write", raising(SinkError("no")))
    with nullcontext() if flushed else pytest.raises(SinkError, match="no"):
        fan.write(Batch(parts=[part], position=part.position(Position(0x60)), events=1))
    assert (fan.branches[1].paused is not None) == flushed


def test_wal_without_changes_is_not_kept_for_a_paused_sink(tmp_path, monkeypatch):
    sinks, six = [OnePosition(), OnePosition()], Position(6 * 2**30)
    fan = two_sinks(tmp_path, *sinks)
    rig = Rig(several=fan, position=Position(0x50))
    fan.open()
    early, late = transactions(2)
    rig.delivery.write([early])
    rig.delivery.flush()
    rig.delivery.advance(SOLE, six.end_lsn)
    again = two_sinks(tmp_path, *sinks, load=lambda: rig.stored)
    again.open()
    monkeypatch.setattr(sinks[1], "write", raising(SinkError("no")))
    lsns = {name: six.end_lsn + n for n, name in enumerate(("begin_lsn", "commit_lsn", "end_lsn"))}
    late = msgspec.structs.replace(late, **lsns)
    rig.delivery.write([late])
    again.write(Batch(parts=[late], position=late.position(six), events=1))
    for each in (fan, again):
        each.flush()
        each.maintain()
        assert each.branches[1].paused is not None
        assert [dict(branch.durable) for branch in each.branches] == [
            {SOLE: late.position(six)},
            {SOLE: six},
        ]


@pytest.mark.parametrize(
    ("moved", "again"), [(0, False), (-1, True)], ids=["killed", "set by hand"]
)
def test_a_kill_before_the_offset_is_stored_is_no_offset_that_was_set_lower(tmp_path, moved, again):
    early, late = transactions(2)
    start, idle = Position(early.end_lsn), Position(early.end_lsn + 1)
    fan = two_sinks(tmp_path, OnePosition(), OnePosition(), load=lambda: Positions({SOLE: start}))
    fan.open()
    fan.flush()
    rig = Rig(several=fan, position=start)
    rig.delivery.advance(SOLE, idle.end_lsn)
    batch = Batch(parts=[late], position=late.position(idle), events=1)
    fan.write(batch)
    assert fan.flush() == {SOLE: batch.position}
    stored, sinks = (
        Positions({SOLE: Position(idle.end_lsn + moved)}),
        [OnePosition(), OnePosition()],
    )
    fan = two_sinks(tmp_path, *sinks, load=lambda: stored)
    fan.open()
    fan.write(batch)
    assert [sink.accepted == batch.position for sink in sinks] == [again, again]


def test_sinks_that_outlive_a_connection_promise_what_came_again(tmp_path):
    """They are not opened again: they have what the next connection repeats."""
    one, two, three = transactions(3)
    sinks, start = [LagsBehind(), LagsBehind()], Positions({SOLE: Position(0x10)})
    fan = two_sinks(tmp_path, *sinks, load=lambda: start)
    fan.open()
    rig = Rig(several=fan)
    rig.delivery.write([one])
    rig.delivery.write([two, three])
    assert rig.delivery.flush() == {SOLE: Position(one.end_lsn)}
    for sink in sinks:
        sink.durable = sink.accepted
    rig = Rig(several=fan, position=Position(one.end_lsn))
    rig.delivery.write([two])
    assert rig.delivery.flush() == {SOLE: Position(two.end_lsn)}


def test_wal_without_changes_takes_no_sink_back_that_is_ahead(tmp_path):
    """After a restart the stream is at the position of the slowest sink."""
    early, late = transactions(2)
    start, ahead = Position(early.end_lsn), Position(late.end_lsn)
    stored = Positions({SOLE: start})
    BranchPositions(tmp_path / "sinks.json").store(
        {"a": SinkProgress(positions={SOLE: ahead}), "b": SinkProgress(positions={SOLE: start})},
        stored,
        stored,
    )
    sinks = [OnePosition(), OnePosition()]
    fan = two_sinks(tmp_path, *sinks, load=lambda: stored)
    fan.open()
    rig = Rig(several=fan, position=start)
    between = Position(early.end_lsn + 1)
    assert start < between < ahead
    rig.delivery.advance(SOLE, between.end_lsn)
    for branch in fan.branches:
        assert branch.written == branch.durable == {SOLE: ahead if branch.name == "a" else between}
    rig.delivery.write([late])
    assert [sink.accepted for sink in sinks] == [None, ahead]
    fan.advance(SOLE, between.end_lsn)
    assert fan.flush() == {SOLE: ahead}


def test_a_batch_without_changes_moves_no_sink_of_several_beyond_the_offset(tmp_path):
    """After a kill the sinks themselves are ahead, and keep what they have."""
    (part,) = transactions(1)
    stored, ahead = Positions({SOLE: Position(0x50)}), Positions({SOLE: Position(part.end_lsn)})
    sinks = [OnePosition(), OnePosition()]
    fan = two_sinks(tmp_path, *sinks, load=lambda: stored)
    for sink in sinks:
        sink.open = lambda: ahead  # type: ignore[assignment]
    fan.open()
    rig = Rig(several=fan, position=stored[SOLE], delivered=ahead)
    rig.delivery.write([Heartbeat(ts=1)])
    assert [sink.accepted for sink in sinks] == [ahead[SOLE]] * 2
    rig.delivery.flush()
    assert set(BranchPositions(tmp_path / "sinks.json").load(stored)) == {"a", "b"}
    rig.delivery.write([part])
    rig.delivery.flush()
    rig.delivery.advance(SOLE, ahead[SOLE].end_lsn)
    assert rig.stored == ahead


def test_a_part_of_a_transaction_is_behind_one_that_does_not_come_again():
    """Another list of tables leaves out the transaction that the sink's position ends with."""
    workload = ScriptedWorkload()
    for number in range(4):
        workload.insert(ITEMS, number, "x")
        if number != 2:
            workload.commit()
    _one, gone, large = workload.parts
    first, rest = large.split(1)
    sink, ahead = OnePosition(), Position(gone.end_lsn)
    rig = Rig(sink=sink, delivered=Positions({SOLE: ahead}))
    rig.delivery.write([first])
    assert sink.accepted == first.position(ahead)
    assert rig.delivery.flush() == {SOLE: first.position(ahead)}
    rig.delivery.write([rest])
    assert rig.delivery.flush() == {SOLE: Position(large.end_lsn)}


@pytest.mark.parametrize("error", [SinkError("no room"), OffsetError("no room")])
def test_after_a_flush_or_an_offset_that_failed_there_is_no_other(monkeypatch, error):
    rig, (part,) = Rig(), transactions(1)
    rig.delivery.write([part])
    if isinstance(error, SinkError):
        rig.destination.before_flush = raising(error)
    else:
        monkeypatch.setattr(rig.store, "store", raising(error))
    with pytest.raises(type(error)):
        rig.delivery.flush()
    assert rig.delivery.failed
    assert rig.store.load() is None
    assert rig.delivery.offset.sole.position == Position(0x10)
    with pytest.raises(AssertionError):
        rig.delivery.flush()


def test_several_partitions_and_a_sink_of_one_are_refused_and_nothing_is_left(tmp_path):
    pipeline = SimulatedPipeline(tmp_path)
    pipeline.source.partitions = ("one", "other")
    pipeline.destination.partitions = False
    with pytest.raises(OnePartitionOnly, match="2 partitions"):
        pipeline.run()
    assert pipeline.store.load() is None
    assert pipeline.source.undone == 1


class Acknowledged(OnePosition):
    """Promises as far as somebody says."""

    capabilities = SinkCapabilities(records=False)
    upto = 0

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def write(self, batch: Batch) -> None:
        super().write(batch)
        self.numbers.append(batch.number)

    def acknowledged(self) -> int:
        return self.upto

    def drain(self) -> None:
        """Nobody is waited for."""


def test_a_flush_moves_as_far_as_is_acknowledged_with_the_state_of_then():
    sink, parts = Acknowledged(), transactions(3)
    rig = Rig(sink=sink)
    for number, part in enumerate(parts):
        rig.delivery.signals = {"read": number}
        rig.delivery.write([part])
    rig.delivery.signals = {"read": 3}
    assert rig.delivery.flush() == {}
    assert rig.delivery.due(0), "who waits for others asks again"
    sink.upto = sink.numbers[1]
    assert rig.delivery.flush() == {SOLE: Position(parts[1].end_lsn)}
    assert rig.delivery.offset.signals == {"read": 1}
    assert rig.delivery.awaits_acks
    rig.delivery.keep_signals()
    assert rig.delivery.offset.signals == {"read": 1}, "a batch of before is not acknowledged"
    sink.upto = sink.numbers[2]
    assert rig.delivery.flush() == {SOLE: Position(parts[2].end_lsn)}
    assert rig.delivery.offset.signals == {"read": 3}
    assert not rig.delivery.awaits_acks
    assert not rig.delivery.due(0)


def test_the_stored_end_of_the_last_transaction_is_of_the_stored_position(monkeypatch):
    sink, parts = Acknowledged(), transactions(3)
    for number, part in enumerate(parts):
        part.commit_ts = (number + 1) * 1_000_000
    rig = Rig(sink=sink)
    for part in parts[:2]:
        rig.delivery.write([part])

    def stored() -> tuple[int, int | None, int | None]:
        rig.delivery.flush()
        found = rig.delivery.offset.sole
        return found.position.end_lsn, found.previous_end_lsn, found.as_of_ms

    sink.upto = sink.numbers[0]
    assert stored()[:2] == (parts[0].end_lsn,) * 2
    monkeypatch.setattr(sink, "write", raising(SinkError("no")))
    with pytest.raises(SinkError):
        rig.delivery.write([parts[2]])
    sink.upto = sink.numbers[1]
    end_lsn = parts[1].end_lsn
    assert stored() == (end_lsn, end_lsn, 2000)
    rig.delivery.advance(SOLE, 2**40)  # no transaction ends there
    assert stored()[:2] == (2**40, end_lsn)


def test_one_of_several_sinks_is_waited_for_until_its_batches_are_acknowledged(monkeypatch):
    sink, (part,) = Acknowledged(), transactions(1)
    batch = Batch(parts=[part], position=part.position(Position(0x10)), events=1, number=7)
    branch = PositionedBranch(**Rig(sink=sink).parts)
    branch.renew()
    branch.write(batch)
    with pytest.raises(UnusableResult, match="drain returned before"):
        branch.flush()
    assert not branch.durable
    monkeypatch.setattr(sink, "drain", lambda: setattr(sink, "upto", sink.numbers[-1]))
    branch.write(Batch(parts=[], position=batch.position, events=0, number=8, snapshot=True))
    branch.flush()
    assert (sink.upto, branch.durable) == (8, {SOLE: batch.position})


def test_a_commit_that_comes_behind_its_change_holds_nothing_up():
    """A batch of a loop in which there is nothing needs no acknowledgement; what waits before it does."""
    sink, (part,) = BatchStreamSink(records=False, each=False, most=9), transactions(1)
    given = []
    for number, changes in enumerate((part.changes, []), 1):
        piece = msgspec.structs.replace(part, changes=changes)
        batch = Batch(parts=[piece], position=Position(number), events=len(changes), number=number)
        sink.write(batch)
        given.append(sink.get())
    assert sink.acknowledged() == 0
    given[0].ack()
    assert sink.acknowledged() == 2


def test_batches_at_one_position_are_distinguished():
    """As those of a snapshot and of chunks are."""
    sink = Acknowledged()
    rig = Rig(sink=sink)
    for number in range(3):
        rig.delivery.signals = {"chunk": number}
        rig.delivery.write([])
    sink.upto = sink.numbers[0]
    assert rig.delivery.flush() == {}
    assert rig.delivery.offset.signals == {"chunk": 0}


class Told(ChangeStream):
    """Keeps what the server is reported."""

    def __init__(self, idle: int = 0) -> None:
        self.lsns: list[int] = []
        self.idle = idle

    def receive(self, timeout: float) -> list[Message]:
        return []

    def confirm(self, end_lsn: int) -> None:
        self.lsns.append(end_lsn)

    def idle_lsn(self) -> int:
        return self.idle

    def request_keepalive(self) -> None:
        """There is nothing to ask."""

    def close(self) -> None:
        """Nothing is open."""


def confirmation_of(rig: Rig, pipeline: SimulatedPipeline, **streams: Told) -> SlotAdvancer:
    """Return the confirmation of partitions with these streams; "sole" is the one without a name."""
    names = {SOLE if name == "sole" else name: stream for name, stream in streams.items()}
    state = pipeline.engine()._run.state
    readers = [
        PartitionReader(state, lambda relation: relation, rig.delivery, *each)
        for each in names.items()
    ]
    return SlotAdvancer(state, readers, rig.delivery)


def test_what_the_owner_held_back_is_reported_to_each_partition_whichever_is_further(tmp_path):
    rig, parts = Rig("a", "b"), transactions(4)
    pipeline, held = SimulatedPipeline(tmp_path), 0x20
    pipeline.confirmable = lambda lsn: min(lsn, held)
    streams = {"b": Told(), "a": Told()}
    confirmation = confirmation_of(rig, pipeline, **streams)
    rig.delivery.write([parts[3]], partition="b")
    rig.delivery.write([parts[0]], partition="a")
    confirmation.flush_now()
    assert confirmation.idle()  # the server has reported no later place
    assert {name: each.lsns for name, each in streams.items()} == {"a": [0x20], "b": [0x20]}
    held = parts[3].end_lsn
    confirmation.last()
    confirmation.last()
    assert [streams[n].lsns[1:] for n in "ab"] == [[parts[0].end_lsn], [parts[3].end_lsn]]


@pytest.fixture
def idle(tmp_path) -> tuple[Rig, SlotAdvancer, Told]:
    """A confirmation of one stream whose server has read far ahead."""
    rig, stream = Rig(), Told(idle=0x999_0000_0000)
    pipeline = SimulatedPipeline(tmp_path)
    return rig, confirmation_of(rig, pipeline, sole=stream), stream


def test_nothing_idle_is_confirmed_while_a_batch_waits_for_its_flush(idle):
    rig, confirmation, stream = idle
    rig.delivery.write([])  # as rows of an incremental snapshot it moves no position
    assert not confirmation.idle()
    assert stream.lsns == []
    confirmation.flush_now()
    assert confirmation.idle()
    assert stream.lsns[-1] == stream.idle


def test_a_sink_whose_flush_gives_no_position_is_reported_once(idle, monkeypatch, caplog):
    (rig, confirmation, stream), parts = idle, transactions(2)
    monkeypatch.setattr(rig.delivery._sink, "flush", lambda: None)
    for part in parts:
        rig.delivery.write([part])
        confirmation.last()
        assert not confirmation.idle()
    assert [r.getMessage().count("flush returns no position") for r in caplog.records] == [1]
    assert stream.lsns == []


def test_nothing_idle_is_confirmed_behind_a_transaction_that_goes_on(idle):
    (rig, confirmation, stream), parts = idle, transactions(2)
    far, stream.idle = stream.idle, parts[0].end_lsn
    rig.delivery.write([parts[0]])
    rig.delivery.flush()  # as after the rows of a signal, which confirms nothing
    assert confirmation.idle()
    stream.idle = far
    rig.delivery.written = Positions({SOLE: Position(parts[0].end_lsn, parts[1].commit_lsn, 1)})
    assert not confirmation.idle()
    assert stream.lsns == [parts[0].end_lsn]


def test_the_end_of_a_snapshot_is_stored_after_its_flush():
    rig = Rig()
    stored_at_flush: list[object] = []
    rig.destination.before_flush = lambda: stored_at_flush.append(rig.store.load())
    rig.delivery.finish_snapshot()
    assert stored_at_flush == [None]
    assert rig.store.load() is not None


# --- tries, and several sinks ------------------------------------------------------------------------------


def test_a_stop_ends_a_wait_and_without_a_try_left_there_is_none():
    """How long the waits are is reported by runs on a clock that jumps."""
    for goes_on, tries in ((True, 0), (False, -1)):
        left = RetryBackoff(
            lambda _s, on=goes_on: on, retries=tries, ceiling_s=1.0, chance=Random(1)
        )  # type: ignore[misc]
        assert not left.wait()


class StubBranch:
    """A branch, and the sink of it, that is reported what was left out and may fail when it is closed."""

    def __init__(self, problem: str = "", paused: str | None = None) -> None:
        self.problem, self.closed = problem, False
        self.paused, self.tables = paused, list[str]()
        self.sink = self

    def close(self) -> None:
        self.closed = True
        if self.problem:
            raise SinkError(self.problem)

    def record_gap(self, table: str) -> None:
        self.tables.append(table)


def test_every_sink_is_reported_what_was_left_out_and_is_closed_whatever_becomes_of_one(tmp_path):
    fan = FanOut([], BranchPositions(tmp_path), load=lambda: None, clock=SystemClock())
    branches = [
        StubBranch(),
        StubBranch("first", "it was unwell"),
        StubBranch("second"),
        StubBranch(),
    ]
    fan.branches = branches  # type: ignore[assignment]
    fan.record_gap("public.t")
    assert [each.tables for each in branches] == [["public.t"]] * 4
    with pytest.raises(SinkError, match="first"):
        fan.close()
    assert all(each.closed for each in branches)
