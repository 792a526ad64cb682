"""The status of a run: true at every instant, for any thread, and free until somebody asks."""

import dataclasses
import threading
from functools import partial
from pathlib import Path

import pytest
from tests.harness.meanwhile import meanwhile
from tests.harness.simulated import Gone, Refused, raising

from waltap.changes.transactions.position import Position
from waltap.config.profile import TransformUse
from waltap.plugin import register_transforms
from waltap.ports.offsets.state_folder import state_unusable
from waltap.ports.transforms.filter import FilterProperties
from waltap.services.monitor.counts import EventRate
from waltap.services.monitor.status import PipelineStatus
from waltap_testing.simulation import SimulatedPipeline
from waltap_testing.workload import ITEMS


@pytest.fixture
def pipeline(tmp_path) -> SimulatedPipeline:
    return SimulatedPipeline(tmp_path / "state")


def watched(
    pipeline: SimulatedPipeline, *instants: float, stop_at: float, **limits: float
) -> tuple[PipelineStatus, ...]:
    """Run, and return the status at some instants, and at the end."""
    engine, seen = pipeline.engine(**limits), []
    for instant in instants:
        pipeline.clock.at(instant, lambda: seen.append(engine.status()))
    pipeline.clock.at(stop_at, engine.stop)
    engine.run()
    return (*seen, engine.status())


def test_before_a_run_there_is_a_status_too_and_it_does_not_change(pipeline):
    status = pipeline.engine().status()
    assert (status.state, status.partitions, status.events) == ("new", (), 0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        status.events = 1  # type: ignore[misc]
    hash(status)


def test_positions_follow_each_other(pipeline):
    pipeline.source.insert(at=10.0, rows=5)
    before, written, durable, stopped = watched(pipeline, 9.0, 10.5, 12.0, stop_at=30.0)
    start, end = before.partitions[0].durable.end_lsn, pipeline.source.log[0].end_lsn
    assert before.state == "streaming"
    (part,) = written.partitions
    assert part.received_lsn == part.written.end_lsn == end
    assert part.durable == Position(start)
    assert part.confirmed_lsn == 0
    assert written.unflushed_ms == pytest.approx(500, abs=250)
    (part,) = durable.partitions
    assert part.durable.end_lsn == part.confirmed_lsn == end
    assert durable.unflushed_ms is None
    assert stopped.state == "stopped"
    assert (stopped.events, stopped.batches, stopped.records) == (5, 1, 0)
    assert (stopped.changes, stopped.snapshot_rows, stopped.transactions) == (5, 0, 1)


def test_lag_is_the_wal_that_is_not_durable_as_of_the_last_look(tmp_path):
    pipeline = SimulatedPipeline(tmp_path, **{"offset.flush.interval.ms": 60_000})
    start = pipeline.source.wal_end
    pipeline.source.insert(at=5.0)
    pipeline.source.foreign(at=6.0, octets=0x5000)
    before, looked, flushed, _ = watched(pipeline, 9.0, 12.0, 80.0, stop_at=90.0)
    end = pipeline.source.log[0].end_lsn
    assert before.partitions[0].lag_bytes == end - start
    assert looked.partitions[0].server_lsn == end + 0x5000
    assert looked.partitions[0].lag_bytes == end + 0x5000 - start
    assert flushed.partitions[0].lag_bytes == 0


def test_lag_in_time_is_how_old_a_change_was_when_it_was_taken(pipeline):
    pipeline.source.down(start=9.0, end=12.0)
    pipeline.source.insert(at=10.0)
    *_, last = watched(pipeline, stop_at=60.0)
    lag = last.partitions[0].lag_ms
    assert lag is not None
    assert 2000 <= lag <= 6000


def failing(pipeline: SimulatedPipeline, error: Exception, *, start: float, end: float) -> None:
    """Let writes fail for a time."""
    for at, then in ((start, raising(error)), (end, lambda _batch: None)):
        pipeline.clock.at(at, partial(setattr, pipeline.destination, "before_write", then))


def test_lag_in_time_grows_while_a_sink_refuses_what_it_has_not_taken(pipeline):
    """The last flush of a connection, which promises what came before, leaves the refused change old."""
    pipeline.source.insert(at=20.0)
    failing(pipeline, Gone("gone"), start=25.0, end=55.0)
    pipeline.source.insert(at=30.0)
    away, back = watched(pipeline, 50.0, stop_at=90.0)
    assert away.state == "reconnecting"
    lag = away.partitions[0].lag_ms
    assert lag is not None
    assert 20_000 <= lag <= 21_000
    assert back.events == 2


def test_a_sink_that_is_tried_again_and_again_holds_a_write(pipeline):
    failing(pipeline, Refused("busy"), start=1.0, end=65.0)
    pipeline.source.insert(at=20.0)
    early, late, _ = watched(pipeline, 25.0, 60.0, stop_at=90.0)
    assert (early.state, early.stalled) == ("streaming", False)
    assert (late.state, late.stalled) == ("streaming", True)
    assert late.write_ms is not None
    assert late.write_ms > 35_000


def test_lag_in_time_grows_while_a_sink_hangs_with_nothing_to_write(pipeline):
    pipeline.source.insert(at=20.0)
    pipeline.source.foreign(at=49.9, octets=0x5000)
    pipeline.clock.at(45.0, lambda: setattr(pipeline.destination, "maintain_s", 300.0))
    pipeline.clock.at(150.0, lambda: setattr(pipeline.destination, "maintain_s", 0.0))
    before, hung, _ = watched(pipeline, 44.0, 140.0, stop_at=400.0)
    (was,), (part,) = before.partitions, hung.partitions
    assert was.lag_ms is not None
    assert was.lag_ms < 1000
    assert (hung.state, hung.stalled) == ("streaming", True)
    assert part.lag_bytes
    assert part.lag_ms is not None
    assert 80_000 <= part.lag_ms <= 110_000


def test_a_snapshot_shows_table_by_table(pipeline):
    pipeline.source.tables[ITEMS] = [(str(n), str(n), "x") for n in range(1, 1001)]
    pipeline.source.read_s = 1.0
    first, later, end = watched(pipeline, 3.5, 7.5, stop_at=60.0)
    assert first.state == "snapshot"
    assert [(t.table, t.rows, t.estimate, t.complete) for t in first.snapshot] == [
        ("public.items", 300, 1000, False)
    ]
    assert later.snapshot[0].rows == 700
    assert (end.snapshot[0].rows, end.snapshot[0].complete) == (1000, True)
    assert (end.events, end.snapshot_rows) == (1000, 1000)
    pipeline.source.insert(at=61.0)
    *_, end = watched(pipeline, stop_at=90.0)
    assert (end.events, end.snapshot_rows) == (1, 0)


def test_failures_and_tries_are_counted(pipeline):
    left = [1, 2, 3]
    pipeline.source.down(start=10.0, end=11.0)
    pipeline.source.insert(at=20.0)

    def refuse(_batch: object) -> None:
        if left:
            raise Refused(f"busy {left.pop()}")

    pipeline.destination.before_write = refuse
    down, up, end = watched(pipeline, 10.5, 15.0, stop_at=60.0)
    assert down.state == "reconnecting"
    assert down.last_failure is not None
    assert (down.last_failure.code, down.last_failure.retried) == ("WT-2001", True)
    assert up.state == "streaming"
    assert up.reconnects >= 2
    assert end.batch_retries == 3


def test_what_transforms_leave_out_is_counted_by_their_names(tmp_path):
    filters = {spec.name: spec for spec in register_transforms()}
    inserts = TransformUse(filters["filter"], FilterProperties(operations=("c",)))
    deletes = TransformUse(filters["filter"], FilterProperties(operations=("d",)))
    pipeline = SimulatedPipeline(tmp_path, transforms=[deletes, inserts])
    pipeline.source.insert(at=1.0, rows=4)
    *_, end = watched(pipeline, stop_at=10.0)
    assert end.filtered == (("filter", 0), ("filter", 4))
    assert end.events == 0
    assert pipeline.destination.durable == []


def test_any_thread_may_ask_at_any_time(pipeline):
    for number in range(1, 500):
        pipeline.source.insert(at=number * 0.3, rows=2)
    engine, seen = pipeline.engine(max_seconds=200.0), []

    def ask(done: threading.Event) -> None:
        while not done.is_set():
            seen.append(engine.status())

    with meanwhile(ask):
        engine.run()
    assert seen
    for status in seen:
        for part in status.partitions:
            durable = part.durable.end_lsn
            assert part.confirmed_lsn <= durable <= part.written.end_lsn <= part.received_lsn
    counts = [status.events for status in seen]
    assert counts == sorted(counts)
    assert engine.status().events == 998


def test_a_rate_is_that_of_whole_seconds_that_have_passed():
    meter = EventRate()
    assert meter.per_second(100.0, 10) == 0.0
    for second in range(20):
        meter.add(100.25 + second, 50)
    assert meter.per_second(120.5, 10) == 50.0
    assert meter.per_second(120.5, 60) == 50.0  # it has not run that long
    assert meter.per_second(125.5, 10) == 25.0
    assert meter.per_second(300.0, 60) == 0.0


def failure(path: Path) -> OSError:
    try:
        path.read_bytes()
    except OSError as error:
        return error
    raise AssertionError(path)


def test_only_what_lies_in_the_folder_is_the_folders_fault(tmp_path):
    state = tmp_path / "state"
    (state / "spill").mkdir(parents=True)
    found = state_unusable(failure(state / "spill"), state)
    assert found.problem == f"{state / 'spill'} cannot be used: Is a directory"
    assert str(state) in found.advice()
    assert state_unusable(failure(tmp_path / "elsewhere"), state) is None
    assert state_unusable(OSError(28, "No space left on device"), state) is None
    assert state_unusable(ValueError("x"), state) is None
