"""The state of incremental snapshots: one entry for each table whose reading has begun; the size of their chunks."""

import msgspec
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


@pytest.mark.parametrize("dropped", [[ORDERS], [ITEMS], [ORDERS, ITEMS]])
def test_a_dropped_table_leaves_no_progress_and_begins_anew(dropped):
    begun = {
        "public.orders": ChunkState(last_key=["5"]),
        "public.items": ChunkState(last_key=["7"]),
    }
    state = IncrementalState(queue=[ORDERS], chunks=begun, awaiting_stream=[ITEMS])
    state.drop(dropped)
    assert set(state.chunks) == set(begun) - {request.name for request in dropped}
    assert state.add([ORDERS], {("public", "orders")}) == [ORDERS]  # also behind its first reading
    state.read_on([])
    assert state.head == (ChunkState() if ORDERS in dropped else begun["public.orders"])


def test_the_second_reading_of_a_table_is_dropped_without_the_progress_of_the_first():
    again = msgspec.structs.replace(ORDERS, signal="again")
    state = IncrementalState(queue=[ORDERS], chunks={"public.orders": ChunkState(last_key=["5"])})
    state.add([again], {("public", "orders")})
    state.drop([again])
    assert (state.queue, state.head.last_key) == ([ORDERS], ["5"])


class NeverSearched(list[SnapshotRequest]):
    """Has thousands of entries, each of which would be compared with each one of the queue."""

    def __contains__(self, request: object) -> bool:
        raise AssertionError(request)


def test_a_list_of_dropped_tables_is_not_searched_for_each_queued_one():
    state = IncrementalState(queue=[ORDERS, ITEMS], awaiting_stream=[ITEMS])
    state.drop(NeverSearched([ITEMS]))
    assert (state.queue, state.awaiting_stream) == ([ORDERS], [])


def test_progress_without_a_request_in_an_older_offset_is_forgotten():
    state = IncrementalState(queue=[ITEMS], chunks={"public.orders": ChunkState(last_key=["5"])})
    state.read_on([])
    assert state.chunks == {}


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
