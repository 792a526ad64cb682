"""The state of incremental snapshots: one entry for each table whose reading has begun; the size of their chunks."""

import pytest

from waltap.ports.signals.signal import SnapshotRequest
from waltap.ports.snapshot.chunk_source import ChunkSize
from waltap.ports.snapshot.incremental_state import ChunkState, IncrementalState

ORDERS = SnapshotRequest(schema="public", table="orders", signal="ad-hoc")
ITEMS = SnapshotRequest(schema="public", table="items", signal="ad-hoc")


def test_the_next_table_begins_anew():
    state = IncrementalState(queue=[ORDERS, ITEMS])
    state.bounded(["9"])
    state.forget_head()
    state.queue = state.queue[1:]
    assert state.head == ChunkState()
    assert state.chunks == {}
    state.queue = []
    state.forget_head()
    assert state.head == ChunkState()


@pytest.mark.parametrize(
    ("first", "target_s", "seconds", "rows"),
    [
        pytest.param(1000, 2.0, [1.0], 1000, id="in time"),
        pytest.param(1000, 2.0, [2.01], 750, id="a little longer"),
        pytest.param(1000, 2.0, [60.0] * 9, 100, id="never below 100"),
        pytest.param(1000, 2.0, [60.0, 1.5], 250, id="near the target it stays"),
        pytest.param(1000, 2.0, [60.0, 0.1, 0.1, 0.1, 0.1], 1000, id="never above the first"),
        pytest.param(1000, 0, [60.0], 1000, id="without a target nothing changes"),
        pytest.param(10, 2.0, [60.0], 10, id="small chunks get no smaller"),
    ],
)
def test_slow_chunks_make_smaller_ones_and_quick_ones_larger(first, target_s, seconds, rows):
    size = ChunkSize(first, target_s)
    for each in seconds:
        size.record_duration(each)
    assert size.rows == rows
    size.restart()  # of another table
    assert size.rows == first
