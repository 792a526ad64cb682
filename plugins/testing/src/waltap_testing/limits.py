"""Measure the processor time and memory of a call."""

import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

# A waiting call is slow each time; on a busy machine at least one try is fast.
TRIES = 4


@dataclass(slots=True)
class BlockCost:
    """The measured cost of a block."""

    # Processor time of this thread, so that other processes do not count.
    seconds: float = 0.0
    # Bytes above those allocated before the block: at most, and at its end.
    peak: int = 0
    retained: int = 0


@contextmanager
def measured() -> Iterator[BlockCost]:
    """Measure the block; set the result even after errors."""
    cost = BlockCost()
    # Tracing may be on already: then its owner stops it.
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
        cost.peak, cost.retained = peak - before, now - before
        if ours:
            tracemalloc.stop()


def soon(call: Callable[[], None], within: float) -> bool:
    """Return whether ``call`` returns within ``within`` seconds in a few tries."""
    for _ in range(TRIES):
        start = time.monotonic()
        call()
        if time.monotonic() - start < within:
            return True
    return False
