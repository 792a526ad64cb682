"""The state of incremental snapshots: one entry for each table whose reading has begun."""

import msgspec

from waltap.ports.signals.signal import SnapshotRequest
from waltap.ports.snapshot.incremental_state import ChunkState, IncrementalState

ORDERS = SnapshotRequest(schema="public", table="orders", signal="ad-hoc")
ITEMS = SnapshotRequest(schema="public", table="items", signal="ad-hoc")


def test_what_is_stored_is_restored():
    state = IncrementalState(queue=[ORDERS, ITEMS])
    state.bounded(["9"])
    state.advance_to(["5"])
    stored = msgspec.to_builtins(state)
    assert IncrementalState.restored(stored) == state
    assert IncrementalState.restored({}) == IncrementalState()
    assert state.head == ChunkState(["5"], ["9"])


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
