"""Measuring what a call costs: seconds, and memory by tracemalloc."""

import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

__all__ = ["Cost", "measured"]


@dataclass(slots=True)
class Cost:
    """What a block took: ``seconds``, ``peak`` and ``kept`` bytes above what was there before."""

    seconds: float = 0.0
    peak: int = 0
    kept: int = 0


@contextmanager
def measured(*, memory: bool = True) -> Iterator[Cost]:
    """Measure the block; the result is filled in at its end, also when it raises."""
    cost = Cost()
    ours = memory and not tracemalloc.is_tracing()
    if ours:
        tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0] if memory else 0
    if memory:
        tracemalloc.reset_peak()
    start = time.perf_counter()
    try:
        yield cost
    finally:
        cost.seconds = time.perf_counter() - start
        if memory:
            now, peak = tracemalloc.get_traced_memory()
            cost.peak, cost.kept = peak - before, now - before
        if ours:
            tracemalloc.stop()
