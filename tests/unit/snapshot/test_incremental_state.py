"""The state of incremental snapshots: one entry for each table whose reading has begun."""

import msgspec

from waltap.ports.signals.signal import SnapshotRequest
from waltap.ports.snapshot.incremental_state import ChunkState, IncrementalState

ORDERS = SnapshotRequest(schema="public", table="orders", signal="ad-hoc")
ITEMS = SnapshotRequest(schema="public", table="items", signal="ad-hoc")

UNTIL_0_1 = {
    "queue": [
        {"schema": "public", "table": "orders", "signal": "ad-hoc", "condition": None,
         "surrogate_key": None},
        {"schema": "public", "table": "items", "signal": "ad-hoc", "condition": None,
         "surrogate_key": None},
    ],
    "last_key": ["1024"],
    "maximum": ["5000"],
    "paused": True,
}  # fmt: skip
"""What an offset of version 1 held in the middle of a table."""


def test_what_was_stored_before_chunks_had_names_is_read() -> None:
    state = IncrementalState.restored(UNTIL_0_1)
    assert state.queue == [ORDERS, ITEMS]
    assert state.chunks == {"public.orders": ChunkState(["1024"], ["5000"])}
    assert state.head == ChunkState(["1024"], ["5000"])
    assert state.paused


def test_what_was_stored_between_two_tables_has_no_chunk() -> None:
    state = IncrementalState.restored(UNTIL_0_1 | {"last_key": None, "maximum": None})
    assert (state.chunks, state.head) == ({}, ChunkState())
    assert IncrementalState.restored({}) == IncrementalState()


def test_what_is_stored_is_restored() -> None:
    state = IncrementalState(queue=[ORDERS, ITEMS])
    state.bounded(["9"])
    state.advance_to(["5"])
    stored = msgspec.to_builtins(state)
    assert IncrementalState.restored(stored) == state
    assert state.head == ChunkState(["5"], ["9"])


def test_the_next_table_begins_anew() -> None:
    state = IncrementalState(queue=[ORDERS, ITEMS])
    state.bounded(["9"])
    state.forget_head()
    state.queue = state.queue[1:]
    assert state.head == ChunkState()
    assert state.chunks == {}
    state.queue = []
    state.forget_head()
    assert state.head == ChunkState()
