"""Roles of a sink: it has one by its methods alone, and needs none."""

from collections.abc import Collection, Mapping, Sequence

import pytest

from waltap.changes.transactions.position import Position
from waltap.changes.transactions.transaction import Batch
from waltap.ports.sink.downstream import DownstreamProgress
from waltap.ports.sink.roles import (
    GapAwareSink,
    ProgressSink,
    RedeliveryAwareSink,
    SnapshotChoosingSink,
    SplitReadingSink,
)
from waltap.ports.sink.sink import Sink
from waltap.ports.snapshot.chunk_source import SnapshotChunk

ROLES = [GapAwareSink, ProgressSink, RedeliveryAwareSink, SnapshotChoosingSink, SplitReadingSink]


class SmallSink(Sink):
    def open(self) -> Position | None:
        return None

    def write(self, batch: Batch) -> None: ...

    def flush(self) -> Position | None:
        return None

    def close(self) -> None: ...


class SinkOfAllRoles(SmallSink):
    """Written for the contract that had these methods in `Sink`."""

    def missed(self, table: str) -> None: ...

    def onward(self) -> Sequence[DownstreamProgress]:
        return ()

    def redelivered(self) -> Collection[str]:
        return ()

    def wants_chunks(self) -> bool:
        return True

    def hand_over(self, chunks: Sequence[SnapshotChunk]) -> str:
        return "name"

    def handed_over(self) -> Mapping[str, int] | None:
        return {}


@pytest.mark.parametrize("role", ROLES)
def test_a_sink_has_the_roles_whose_methods_it_has(role: type) -> None:
    assert isinstance(SinkOfAllRoles(), role)
    assert not isinstance(SmallSink(), role)
