"""Measuring what a call costs: time, and memory by tracemalloc."""

import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

__all__ = ["BlockCost", "measured", "soon"]

TRIES = 4


@dataclass(slots=True)
class BlockCost:
    """What a block took: ``seconds`` of the processor, in this thread, ``peak`` and ``kept`` bytes above
    what was there before."""

    seconds: float = 0.0
    peak: int = 0
    kept: int = 0


@contextmanager
def measured() -> Iterator[BlockCost]:
    """Measure the block; the result is filled in at its end, also when it raises."""
    cost = BlockCost()
    ours = not tracemalloc.is_tracing()
    if ours:
        tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    start = time.thread_time()
    try:
        yield cost
    finally:
        cost.seconds = time.thread_time() - start
        now, peak = tracemalloc.get_traced_memory()
        cost.peak, cost.kept = peak - before, now - before
        if ours:
            tracemalloc.stop()


def soon(call: Callable[[], None], within: float) -> bool:
    """Tell whether ``call`` returns within so many seconds by the clock, once in a few tries: what waits
    does so each time, a busy machine does not stand still each time."""
    for _ in range(TRIES):
        start = time.monotonic()
        call()
        if time.monotonic() - start < within:
            return True
    return False
