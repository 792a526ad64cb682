"""The offset file: in which order it is replaced, what is refused, and its stored form."""

from pathlib import Path

import pytest

from waltap.changes.transactions.position import SOLE, Position, Positions
from waltap.ports.offsets.file_store import FileOffsetStore
from waltap.ports.offsets.offset import (
    BranchPositions,
    Offset,
    PartitionOffset,
    SinkProgress,
    decoded,
)
from waltap_testing.crash import KillPoint, in_child

ONE = Offset.of(
    PartitionOffset(position=Position(1), slot="s", database="d", system_id="7", timeline=1)
)


@pytest.fixture
def store(tmp_path: Path) -> FileOffsetStore:
    return FileOffsetStore(tmp_path / "state" / "offset.json")


def test_the_new_offset_is_on_disk_before_it_takes_the_place_of_the_old(
    store: FileOffsetStore,
) -> None:
    outcome = in_child(lambda _child: store.store(ONE), KillPoint())
    assert outcome.error is None
    order = [step for step in outcome.steps if step in {"os.fsync", "os.rename"}]
    assert order == ["os.fsync", "os.rename", "os.fsync"]


# --- the stored form -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data", [b'{"version": 2}', b'{"version": 1}', b'{"version": "2"}', b"null"]
)
def test_half_an_offset_is_none(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decoded(data)


# --- positions of partitions, and of several sinks --------------------------------------------------------


def test_a_position_alone_is_that_of_the_only_partition() -> None:
    positions = Positions.of(Position(7))
    assert positions == {SOLE: Position(7)}
    assert positions.sole == Position(7)
    assert str(positions) == "0/7"
    assert Positions.of(positions) is positions
    assert Positions.of(Position(7), "slot a") == {"slot a": Position(7)}
    assert not Positions.of(None)


def test_moving_one_leaves_the_rest_and_the_original() -> None:
    before = Positions({"a": Position(1), "b": Position(2)})
    after = before.advanced("b", Position(5))
    assert (before["b"], after["b"], after["a"]) == (Position(2), Position(5), Position(1))
    assert str(after) == "a: 0/1, b: 0/5"
    assert hash(after) == hash(Positions({"b": Position(5), "a": Position(1)}))


def test_several_have_no_sole_one() -> None:
    with pytest.raises(ValueError, match="too many"):
        assert Positions({"a": Position(1), "b": Position(2)}).sole


AHEAD = {
    "fast": SinkProgress(positions={"": Position(200)}),
    "slow": SinkProgress(positions={"": Position(100)}),
}


def at(lsn: int) -> Positions:
    return Positions({"": Position(lsn)})


@pytest.fixture
def kept(tmp_path: Path) -> BranchPositions:
    BranchPositions(tmp_path / "sinks.json").store(AHEAD, at(100))
    return BranchPositions(tmp_path / "sinks.json")


def test_each_goes_on_from_its_own(kept: BranchPositions) -> None:
    assert kept.load(at(100)) == AHEAD
    assert kept.load(at(150)) == AHEAD, "idle progress moves the offset alone"


def test_nothing_is_left_out_behind_an_offset_that_was_set_back(kept: BranchPositions) -> None:
    assert kept.load(at(50)) == {}
    assert kept.load(Positions()) == {}
