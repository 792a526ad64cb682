"""Roles of a sink: it has one by its methods alone, and needs none."""

from collections.abc import Collection, Mapping, Sequence

import pytest

from waltap.changes.transactions.position import Position, Positions
from waltap.changes.transactions.transaction import Batch
from waltap.ports.sink import roles
from waltap.ports.sink.roles import DownstreamProgress
from waltap.ports.sink.sink import Sink
from waltap.ports.snapshot.chunk_source import SnapshotChunk
from waltap.ports.source.connector import PreflightCheck, PublicationCompleteness

ROLES = [each for name, each in vars(roles).items() if name.endswith("Sink") and each is not Sink]


class SmallSink(Sink):
    def open(self) -> Position | None:
        return None

    def write(self, batch: Batch) -> None: ...

    def flush(self) -> Position | None:
        return None

    def close(self) -> None: ...


class SinkOfAllRoles(SmallSink):
    """Written for the contract that had these methods in `Sink`."""

    def check(self) -> list[PreflightCheck]:
        return []

    def begins(self, completeness: PublicationCompleteness) -> None: ...

    def forget(self, oid: int) -> None: ...

    def held(self) -> Position | Positions | None:
        return Position(1)

    def acknowledged(self) -> int:
        return 0

    def drain(self) -> None: ...

    def identity(self) -> str:
        return "log"

    def holds_back(self) -> bool:
        return False

    def maintain(self) -> None: ...

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


def test_what_the_engine_asks_of_a_sink_without_the_role() -> None:
    small, whole = SmallSink(), SinkOfAllRoles()
    assert (roles.checks_of(small), roles.held_by(small), roles.identity_of(small)) == (
        [],
        None,
        "",
    )
    assert (roles.held_by(whole), roles.identity_of(whole)) == (Position(1), "log")
