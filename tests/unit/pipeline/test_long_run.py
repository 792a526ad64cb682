"""Hours of a pipeline, in virtual time: what it keeps does not grow with what it has done."""

import gc
import os
import sys
import tracemalloc

import pytest

from waltap_testing.simulation import SimulatedPipeline

HOUR = 3600.0
EVERY_S = 29
"""Between two transactions: commits, polls and heartbeats meet in any order."""
SETTLED = 2
"""Hours after which caches and buffers have what they ever need."""
GROWTH = 4 * 1024
"""Octets at most: one hour delivers 124 transactions, any object kept of each would be more."""


@pytest.mark.parametrize("hours", [6, pytest.param(24, marks=pytest.mark.exhaustive)])
def test_memory_and_files_are_flat(tmp_path, hours):
    pipeline = SimulatedPipeline(tmp_path / "state", **{"heartbeat.interval.ms": 30_000})
    source, clock = pipeline.source, pipeline.clock
    for second in range(10, int(hours * HOUR), EVERY_S):
        source.insert(at=float(second), rows=1 + second % 7)
    for hour in range(1, hours):
        source.foreign(at=hour * HOUR + 1, octets=1 << 24)
        source.cut(at=hour * HOUR + 2)
        source.down(start=hour * HOUR + 600, end=hour * HOUR + 660)
    rows = sum(1 + second % 7 for second in range(10, int(hours * HOUR), EVERY_S))
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

    for hour in range(SETTLED + 2, hours):
        clock.at(hour * HOUR + 1800, look)
    engine = pipeline.engine()
    clock.at(hours * HOUR + 60, engine.stop)
    # from the beginning: what is freed and taken again would else become visible bit by bit
    tracemalloc.start()
    try:
        engine.run()
    finally:
        tracemalloc.stop()
    assert pipeline.destination.durable == list(range(1, rows + 1)), "with a cut in each hour"
    memory, files = zip(*seen, strict=True)
    assert max(memory) - memory[0] <= GROWTH, memory
    assert max(files) <= files[0], files
