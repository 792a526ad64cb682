"""What the engine does when, on a clock that jumps: the real engine between a source and a destination
in memory."""

import gc
import os
import sys
import tracemalloc
from contextlib import nullcontext
from itertools import pairwise

import pytest
from tests.harness.simulated import Gone, Refused, new, raising

from waltap.changes.transactions.position import Positions
from waltap.config.profile import Component
from waltap.errors import ConnectionLost, SinkError
from waltap.ports.sink.stored_position import DestinationBehind
from waltap_sinks.changelog import ChangeLog
from waltap_sinks.plugin import register_sinks
from waltap_testing.simulation import SimulatedPipeline
from waltap_testing.simulation.destination import _SimulatedSink
from waltap_testing.workload import ITEMS

__all__ = ["new"]
POLL = 0.25
ROWS = [(str(n), str(n), "x") for n in range(1, 1001)]


# --- reconnects ------------------------------------------------------------------------------------


# [simulation]
def test_waits_between_reconnects_double_and_the_stream_goes_on_where_it_was(new):
    pipeline = new()
    pipeline.source.insert(at=1.0, rows=3)
    pipeline.source.down(start=100.0, end=200.0)
    pipeline.source.insert(at=150.0, rows=2)
    pipeline.run(stop_at=300.0)
    assert pipeline.destination.durable == [1, 2, 3, 4, 5]
    tries = [at for at, state in pipeline.observed.states if state == "reconnecting"]
    waits = [after - before for before, after in pairwise(tries)]
    for waited, nominal in zip(waits, [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0], strict=False):
        assert 0.8 * nominal <= waited <= 1.2 * nominal
    assert max(waits) <= 12.0
    assert pipeline.source.refused == len(tries) - 1
    assert pipeline.source.links == 2


# [/simulation]


def test_a_sink_of_changes_has_types_and_identities(tmp_path):
    spec = {spec.name: spec for spec in register_sinks()}["changelog"]
    properties = spec.properties.model_validate({"path": str(tmp_path / "log")})
    pipeline = SimulatedPipeline(tmp_path / "state", sink=Component(spec, properties))
    pipeline.source.insert(at=1.0, rows=3)
    pipeline.run(stop_at=60.0)
    rows = [
        row
        for part in ChangeLog(str(tmp_path / "log")).rows("public", "items")
        for row in part.to_pylist()
    ]
    assert [row["name"] for row in rows] == ["item 1", "item 2", "item 3"]


def test_a_link_that_stood_a_while_makes_the_waits_short_again(new):
    pipeline = new()
    for start in (100.0, 500.0, 900.0):
        pipeline.source.down(start=start, end=start + 60)
    pipeline.run(stop_at=1000.0)
    tries = [at for at, state in pipeline.observed.states if state == "reconnecting"]
    for start in (100.0, 500.0, 900.0):
        assert next(at for at in tries if at > start) - start <= 0.25


@pytest.mark.parametrize("error", [ConnectionLost, Gone])
def test_without_a_try_left_the_run_ends_with_the_error(new, error):
    """Of the source, or of a sink that fails at each flush."""
    pipeline = new(errors_max_retries=3)
    if error is ConnectionLost:
        pipeline.source.down(start=50.0, end=10_000.0)
    else:
        pipeline.source.insert(at=50.0)
        gone = raising(Gone("no room"))
        pipeline.clock.at(49.0, lambda: setattr(pipeline.destination, "before_flush", gone))
    with pytest.raises(error):
        pipeline.run(stop_at=1000.0)
    assert [retried for _, _, retried in pipeline.observed.failures] == [True, True, True, False]
    assert pipeline.clock.now < 56.0


def test_a_server_that_was_never_there_is_no_reason_to_wait(new):
    pipeline = new()
    pipeline.source.reachable = False
    with pytest.raises(ConnectionLost):
        pipeline.run()
    assert pipeline.clock.now == 0.0


def test_a_sink_that_another_session_keeps_from_opening_is_waited_for(new, monkeypatch):
    """Such as the paused process that this one takes over from."""
    pipeline, opens = new(), []
    before = _SimulatedSink.open

    def open_(sink: _SimulatedSink) -> Positions | None:
        opens.append(pipeline.clock.now)
        if len(opens) < 4:
            raise Refused("locked")
        return before(sink)

    monkeypatch.setattr(_SimulatedSink, "open", open_)
    pipeline.source.insert(at=10.0)
    pipeline.run(stop_at=20.0)
    assert pipeline.destination.durable == [1]
    assert pipeline.observed.states[-1][1] != "reconnecting"
    opens.clear()
    with pytest.raises(Refused):
        again = new(errors_max_retries=2)
        again.run()
    assert len(opens) == 3


def test_a_reconnect_shows_nothing_that_the_owner_holds_back_and_the_rest_once_it_lets_go(new):
    pipeline = new(offset_flush_interval_ms=1000)
    source, made = pipeline.source, pipeline.source.wal_end
    pipeline.confirmable = lambda lsn: lsn if pipeline.clock.now >= 100.0 else made
    source.insert(at=10.0)
    source.cut(at=20.0)
    reported: list[int | None] = []
    pipeline.clock.at(50.0, lambda: reported.append(source.slot_lsn))
    pipeline.run(stop_at=200.0)
    assert source.links == 2
    assert reported == [made], "what is stored, and not let go of, is reported by the new stream"
    at, lsn = source.confirmed[-1]
    assert lsn == source.log[0].end_lsn
    assert at <= 101.0 + POLL, "what the stream started at is owed, too"


# --- flush and confirmation ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [SinkError("no room"), RuntimeError("a bug of the sink")], ids=repr
)
def test_after_a_failed_flush_nothing_more_is_flushed_stored_or_confirmed(new, error):
    pipeline = new()
    pipeline.source.insert(at=10.0)
    pipeline.source.insert(at=20.0)

    def fail() -> None:
        if pipeline.clock.now > 15:
            raise error

    pipeline.destination.before_flush = fail
    with pytest.raises(type(error), match=str(error)):
        pipeline.run()
    assert pipeline.destination.durable == [1]
    kept = pipeline.store.load()
    assert kept.sole.position.end_lsn < pipeline.source.log[1].end_lsn
    assert all(lsn < pipeline.source.log[1].end_lsn for _, lsn in pipeline.source.confirmed)
    assert pipeline.destination.made == pipeline.destination.closed == 1


def test_a_write_that_fails_without_an_orderly_refusal_ends_the_sink(new):
    """Half of a batch may be in there: it is not flushed either."""
    pipeline, flushes = new(), list[str]()
    pipeline.source.insert(at=10.0, rows=2)
    pipeline.destination.before_write = raising(ValueError("half written"))
    pipeline.destination.before_flush = lambda: flushes.append("flush")
    with pytest.raises(ValueError, match="half written"):
        pipeline.run()
    assert flushes == []
    assert pipeline.source.confirmed == []


def test_waits_for_a_sink_that_fails_at_each_flush_double_until_something_is_durable(new):
    """Each new sink gets what was lost."""
    pipeline = new()
    pipeline.source.insert(at=10.0, rows=2)

    def fail() -> None:
        if 10.0 <= pipeline.clock.now < 60.0 or 200.0 <= pipeline.clock.now < 260.0:
            raise Gone("no room")

    pipeline.destination.before_flush = fail
    pipeline.source.insert(at=200.0)
    pipeline.run(stop_at=300.0)
    assert pipeline.destination.durable == [1, 2, 3]
    assert pipeline.destination.made == pipeline.destination.closed
    tries = [at for at, state in pipeline.observed.states if state == "reconnecting"]
    assert pipeline.destination.made == len(tries) + 1
    assert len(tries) < 30, "the source sends again each time, which is no success of the sink"
    for start in (10.0, 200.0):
        some = [at for at in tries if start <= at < start + 60.0]
        waits = [after - before for before, after in pairwise(some)]
        assert waits[0] < 2.0
        assert waits[-1] > 3.0


def test_a_write_that_fails_is_retried_also_if_the_sink_then_refuses_the_last_flush(new):
    pipeline, failed = new(offset_flush_interval_ms=5000), list[float]()
    pipeline.source.insert(at=10.0)
    pipeline.source.insert(at=11.0)

    def fail(_batch: object) -> None:
        if pipeline.clock.now >= 11.0 and not failed:
            failed.append(pipeline.clock.now)
            raise Gone("no room")

    def refuse() -> None:
        if pipeline.clock.now in failed:
            raise SinkError("takes nothing more: it failed before")

    pipeline.destination.before_write = fail
    pipeline.destination.before_flush = refuse
    pipeline.run(stop_at=100.0)
    assert pipeline.destination.durable == [1, 2]
    assert [code for _, code, _ in pipeline.observed.failures] == ["WT-5998"]


# --- idle progress ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings", [{}, {"heartbeat_interval_ms": 50, "offset_flush_interval_ms": 500}], ids=str
)
def test_wal_of_others_is_confirmed_while_nothing_is_pending_but_heartbeats(new, settings):
    """They are written like anything else, and may always be waiting for their flush."""
    pipeline = new(**settings)
    for second in (5, 25, 45):
        pipeline.source.foreign(at=second)
    pipeline.run(stop_at=60.0)
    progress = [at for at, _ in pipeline.source.confirmed]
    assert all(any(s < at <= s + 10.0 + 2 * POLL for at in progress) for s in (5, 25, 45))
    assert pipeline.source.slot_lsn == pipeline.source.wal_end
    assert bool(pipeline.destination.writes) == bool(settings)


def test_a_server_that_shuts_down_hears_at_once_what_is_durable(new):
    pipeline = new(status_update_interval_ms=60_000)
    pipeline.source.foreign(at=3.0)
    pipeline.source.urge(at=4.0)
    pipeline.run(stop_at=8.0)
    at, lsn = pipeline.source.confirmed[0]
    assert 4.0 <= at <= 4.0 + POLL
    assert lsn == pipeline.source.wal_end


def test_what_waits_to_be_written_is_never_confirmed_by_the_way(new):
    pipeline = new(waltap_linger_ms=20_000, status_update_interval_ms=1000)
    pipeline.source.insert(at=10.0)
    pipeline.source.foreign(at=11.0)
    pipeline.source.urge(at=12.0)
    pipeline.run(stop_at=100.0)
    written, _ = pipeline.destination.writes[0]
    assert written >= 30.0
    assert all(at >= written for at, lsn in pipeline.source.confirmed if at > 10.0)
    assert pipeline.destination.durable == [1]


# --- linger ----------------------------------------------------------------------------------------


def test_while_changes_are_gathered_new_tables_are_looked_for_once_a_period(new):
    pipeline = new(waltap_linger_ms=50_000, status_update_interval_ms=1000)
    pipeline.source.insert(at=10.0)
    pipeline.run(stop_at=60.0)
    during = [at for at in pipeline.source.looks if 12.0 <= at < 50.0]
    assert 30 <= len(during) <= 40


# --- heartbeats ------------------------------------------------------------------------------------


def test_heartbeats_come_at_their_period_beside_changes_or_not(new):
    pipeline = new(heartbeat_interval_ms=60_000)
    for number in range(50):
        pipeline.source.insert(at=100.0 + number * 7)
    pipeline.run(stop_at=900.0)
    beats = pipeline.destination.heartbeats
    assert len(beats) == len(pipeline.source.heartbeats) == pytest.approx(14, abs=1)
    assert all(60.0 <= after - before <= 60.0 + POLL for before, after in pairwise(beats))
    without = new()
    without.run(stop_at=600.0)
    assert without.destination.heartbeats == without.source.heartbeats == []


# --- limits, and stops -----------------------------------------------------------------------------

TEN = [(1.0 + number, 3) for number in range(10)]
"""When so many rows are inserted."""
FIVE = [(10.0 + number * 4, 1) for number in range(5)]
ALL = 1 << 40
RUNS = {
    "so many changes and not one more": (
        {}, TEN, [({"max_records": 7}, 7, ALL), ({"max_records": 6}, 13, ALL), ({"stop_at": 100.0}, 30, ALL)],
    ),
    # The same turn of the loop flushes what was written, and may look for idle progress at once.
    "what a limit cut off is not passed over where idle progress is due": (
        {"offset_flush_interval_ms": 0, "status_update_interval_ms": 1},
        [(1.0, 3)], [({"max_records": 2}, 2, ALL), ({"stop_at": 10.0}, 3, ALL)],
    ),
    "so many seconds": ({}, [], [({"max_seconds": 77.0}, 0, 77.0)]),
    "until a silence counts from the last change": ({}, FIVE, [({"until_idle": 30.0}, 5, 56.0)]),
    "until an LSN is read": ({}, FIVE, [({"until_lsn": 5 * 0x40}, 2, 14.0)]),
    "a stop ends the wait for changes and writes what is gathered": (
        {}, [(99.9, 1)], [({"stop_at": 100.0}, 1, 100.0)],
    ),
    "a stop ends linger": ({"waltap_linger_ms": 60_000}, [(10.0, 1)], [({"stop_at": 20.0}, 1, 20.0)]),
}  # fmt: skip
"""Settings, what is inserted, and of each run its limit, how many rows there are then, and when it ends. An LSN counts
from the end of the WAL."""


@pytest.mark.parametrize("case", RUNS)
def test_a_run_ends_at_its_limit(new, case):
    settings, inserts, runs = RUNS[case]
    pipeline = new(**settings)
    for at, rows in inserts:
        pipeline.source.insert(at=at, rows=rows)
    wal_end = pipeline.source.wal_end
    for limits, count, ends in runs:
        more = {"until_lsn": wal_end + limits["until_lsn"]} if "until_lsn" in limits else {}
        pipeline.run(**limits | more)
        assert pipeline.destination.durable == [*range(1, count + 1)]
        assert ends == ALL or ends <= pipeline.clock.now <= ends + 2 * POLL
    if "stop" in case:
        assert pipeline.source.confirmed[-1][1] == pipeline.source.wal_end


@pytest.mark.parametrize(
    ("limits", "count"), [({"max_records": 142}, 142), ({"stop_at": 4.5}, 400)], ids=str
)
def test_a_snapshot_that_a_limit_or_a_stop_ends_is_taken_anew(new, limits, count):
    pipeline = new()
    pipeline.source.tables[ITEMS] = ROWS
    pipeline.source.read_s = 1.0
    pipeline.run(**limits)
    assert pipeline.clock.now <= 5.0
    assert pipeline.destination.durable == list(range(1, count + 1))
    kept = pipeline.store.load()
    assert kept.snapshot is not None
    pipeline.run(stop_at=100.0)
    assert pipeline.destination.durable[count:] == list(range(1, 1001))


def test_so_many_seconds_also_while_it_waits_for_the_server_and_in_a_snapshot(new):
    waiting = new(retriable_restart_connector_wait_ms=60_000)
    waiting.source.down(start=10.0, end=1000.0)
    waiting.run(max_seconds=100.0)
    assert waiting.clock.now == 100.0
    reading = new()
    reading.source.tables[ITEMS] = ROWS
    reading.source.read_s = 1.0
    reading.run(max_seconds=4.5)
    assert 4.5 <= reading.clock.now <= 5.5
    found = reading.destination.durable
    assert found == list(range(1, len(found) + 1))
    assert 0 < len(found) < 1000


def test_a_stop_ends_the_wait_for_the_server_and_for_the_sink(new):
    pipeline = new()
    pipeline.source.down(start=10.0, end=1000.0)
    pipeline.run(stop_at=100.0)
    assert pipeline.clock.now == 100.0
    refused = new()
    refused.source.insert(at=10.0)
    refused.destination.before_write = raising(Refused("busy"))
    with pytest.raises(Refused):
        refused.run(stop_at=100.0)
    assert refused.clock.now == 100.0


def test_a_stop_after_the_last_row_leaves_nothing_to_read_again(new):
    pipeline = new()
    pipeline.source.tables[ITEMS] = [("1", "1", "x")]
    engine = pipeline.engine()
    pipeline.destination.before_write = lambda _batch: engine.stop()
    engine.run()
    kept = pipeline.store.load()
    assert kept.snapshot is None
    pipeline.run(stop_at=100.0)
    assert pipeline.destination.durable == [1]


def test_a_stop_before_the_first_row_leaves_nothing_behind(new):
    pipeline = new()
    pipeline.source.tables[ITEMS] = [("1", "1", "x")]
    pipeline.source.read_s = 10.0
    pipeline.run(stop_at=5.0)
    assert pipeline.store.load() is None
    assert pipeline.source.undone == 1
    assert not pipeline.destination.durable


# --- the same again --------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_run_to_the_nanosecond(tmp_path):
    def run(folder: str, seed: int) -> tuple[object, ...]:
        pipeline = SimulatedPipeline(tmp_path / folder, seed=seed)
        for number in range(1, 6):
            pipeline.source.insert(at=number * 61.7, rows=number % 4 + 1)
            pipeline.source.down(start=number * 97.3, end=number * 97.3 + number)
        pipeline.run(stop_at=500.0)
        return pipeline.observed.states, pipeline.source.confirmed, pipeline.destination.writes

    assert run("a", 1) == run("b", 1)
    assert run("c", 1) != run("d", 2)


def test_a_flush_that_the_sink_holds_back_is_not_asked_for_without_a_wait(new, monkeypatch):
    pipeline = new(offset_flush_interval_ms=0)
    clock = pipeline.clock
    monkeypatch.setattr(_SimulatedSink, "holds_back", lambda _sink: clock.now < 60.0, raising=False)
    pipeline.source.insert(at=1.0)
    pipeline.run(stop_at=70.0)  # else the clock stands
    assert 60.0 <= pipeline.destination.flushes[0] < 60.1


# --- destinations that lost something --------------------------------------------------------------


@pytest.mark.parametrize(("emptied", "slot_too"), [(True, False), (False, False), (False, True)])
def test_a_destination_that_has_less_than_before_ends_the_run(new, emptied, slot_too):
    """The changes are streamed again only where the slot has confirmed no more than the destination has."""
    pipeline = new()
    destination = pipeline.destination
    destination.exactly_once = True
    pipeline.source.insert(at=1.0, rows=1)
    pipeline.run(stop_at=10.0)
    before = destination.positions
    pipeline.source.insert(at=20.0, rows=2)
    pipeline.run(stop_at=30.0)
    assert destination.durable == [1, 2, 3]
    destination.positions = Positions() if emptied else before
    if slot_too:
        pipeline.source.slot_lsn = before.sole.end_lsn
    pipeline.source.insert(at=40.0, rows=1)
    with pytest.raises(DestinationBehind) as error:
        pipeline.run(stop_at=50.0)
    assert ("no position" if emptied else str(before.sole)) in error.value.problem
    assert ("offsets set FILE" in error.value.advice()) == slot_too
    assert destination.durable == [1, 2, 3]
    offset = pipeline.store.load()
    destination.positions = offset.positions
    pipeline.run(stop_at=60.0)
    assert destination.durable == [1, 2, 3, 4]


def test_a_destination_that_is_restored_under_a_run_ends_it(new):
    pipeline = new()
    destination = pipeline.destination
    destination.exactly_once = True
    pipeline.source.insert(at=1.0, rows=1)
    pipeline.source.insert(at=20.0, rows=1)

    def restored() -> None:
        if len(destination.durable) == 1 and destination.clock.now > 15.0:
            destination.positions = Positions()
            raise Gone("the target restarted")

    destination.before_flush = restored
    with pytest.raises(DestinationBehind):
        pipeline.run(stop_at=60.0)


@pytest.mark.parametrize("breaks", [False, True])
@pytest.mark.parametrize("limits", [{}, {"max_records": 1}], ids=["no limit", "one record"])
def test_what_the_destination_has_beyond_the_offset_is_not_given_again(
    new, monkeypatch, breaks, limits
):
    """The process was killed between the sink's commit and the storing of the offset."""
    pipeline = new()
    source, destination = pipeline.source, pipeline.destination
    destination.exactly_once = True
    source.insert(at=1.0, rows=1)
    pipeline.run(stop_at=10.0)
    offset = pipeline.store.load()
    for at in (20.0, 21.0):
        source.insert(at=at, rows=2)
    pipeline.run(stop_at=30.0)
    pipeline.store.store(offset)
    source.slot_lsn = offset.positions.sole.end_lsn
    for at in (30.1, 30.2):
        source.insert(at=at, rows=1)
    given, sent = destination.positions, type(source).after

    def broken(_source: object, _lsn: int) -> object:
        monkeypatch.setattr(type(source), "after", sent)
        raise ConnectionLost("the link broke before the changes came")

    if breaks:
        monkeypatch.setattr(type(source), "after", broken)
    pipeline.clock.wait(1.0, lambda: False)
    pipeline.run(stop_at=40.0, **limits)
    if limits:
        assert destination.durable == [1, 2, 3, 4, 5, 6]
        assert pipeline.store.load().positions.sole > given.sole
        pipeline.run(stop_at=50.0)
    assert destination.durable == [1, 2, 3, 4, 5, 6, 7]


def test_progress_without_data_is_no_loss(new):
    pipeline = new()
    pipeline.destination.exactly_once = True
    pipeline.source.insert(at=1.0, rows=1)
    pipeline.source.foreign(at=20.0, octets=1 << 24)
    pipeline.run(stop_at=40.0)
    offset = pipeline.store.load()
    assert offset.positions.sole > pipeline.destination.positions.sole
    pipeline.source.insert(at=50.0, rows=1)
    pipeline.run(stop_at=60.0)
    assert pipeline.destination.durable == [1, 2]


# --- what is kept does not grow with what was done ------------------------------------------------


ROUND_S = 600.0
EVERY_S = 5
"""Between two transactions: commits, polls and heartbeats, of every 4 s, meet in any order."""
SETTLED = 2
"""Rounds after which caches and buffers have what they ever need."""
GROWTH = 4 * 1024
"""Octets at most: one round delivers 120 transactions in 2400 polls, any object kept of each would be more."""


@pytest.mark.parametrize("error", [None, SinkError("no")], ids=["ended", "failed"])
def test_a_run_leaves_no_observer_behind(new, monkeypatch, error):
    pipeline = new()
    if error is not None:
        monkeypatch.setattr(_SimulatedSink, "open", raising(error))
    engine = pipeline.engine(max_seconds=10.0)
    for _ in range(2):
        with pytest.raises(SinkError) if error else nullcontext():
            engine.run()
    assert [plugin.name for plugin in engine.host.plugins()] == ["observed"]


@pytest.mark.parametrize("rounds", [6, pytest.param(24, marks=pytest.mark.exhaustive)])
def test_memory_and_files_are_flat(tmp_path, rounds):
    pipeline = SimulatedPipeline(tmp_path / "state", **{"heartbeat.interval.ms": 4_000})
    source, clock = pipeline.source, pipeline.clock
    for second in range(10, int(rounds * ROUND_S), EVERY_S):
        source.insert(at=float(second), rows=1 + second % 7)
    for number in range(1, rounds):
        source.foreign(at=number * ROUND_S + 1, octets=1 << 24)
        source.cut(at=number * ROUND_S + 2)
        source.down(start=number * ROUND_S + 100, end=number * ROUND_S + 160)
    rows = sum(1 + second % 7 for second in range(10, int(rounds * ROUND_S), EVERY_S))
    seen: list[tuple[int, int]] = []

    def look() -> None:
        gc.collect()
        sys._clear_type_cache()  # it keeps names of attributes that it was asked for, up to 4096
        # the script's own memory, a log of all transactions among it, is not asked about
        kept = tracemalloc.take_snapshot().filter_traces(
            [
                tracemalloc.Filter(True, "*/waltap/*"),
                tracemalloc.Filter(False, "*/waltap_testing/*"),
            ]
        )
        seen.append((sum(each.size for each in kept.traces), len(os.listdir("/proc/self/fd"))))

    for number in range(SETTLED + 2, rounds):
        clock.at(number * ROUND_S + 300, look)
    engine = pipeline.engine()
    clock.at(rounds * ROUND_S + 60, engine.stop)
    # from the beginning: what is freed and taken again would else become visible bit by bit
    tracemalloc.start()
    try:
        engine.run()
    finally:
        tracemalloc.stop()
    assert pipeline.destination.durable == list(range(1, rows + 1)), "with a cut in each round"
    memory, files = zip(*seen, strict=True)
    assert max(memory) - memory[0] <= GROWTH, memory
    assert max(files) <= files[0], files
