"""The file with the positions of several sinks."""

from pathlib import Path

import pytest

from waltap.offsets.sink_positions import OutletPositions, OutletPositionsUnreadable, SinkProgress
from waltap.source.position import Position, Positions

AHEAD = {
    "fast": SinkProgress(positions={"": Position(200)}),
    "slow": SinkProgress(positions={"": Position(100)}),
}


def at(lsn: int) -> Positions:
    return Positions({"": Position(lsn)})


@pytest.fixture
def kept(tmp_path: Path) -> OutletPositions:
    OutletPositions(tmp_path / "sinks.json").store(AHEAD, at(100))
    return OutletPositions(tmp_path / "sinks.json")


def test_each_goes_on_from_its_own(kept: OutletPositions) -> None:
    assert kept.load(at(100)) == AHEAD
    assert kept.load(at(150)) == AHEAD, "idle progress moves the offset alone"


def test_nothing_is_left_out_behind_an_offset_that_was_set_back(kept: OutletPositions) -> None:
    assert kept.load(at(50)) == {}
    assert kept.load(Positions()) == {}


@pytest.mark.parametrize("data", [b"{", b'{"outlets": {"\xff": {}}}'])
def test_a_damaged_file_is_told(kept: OutletPositions, tmp_path: Path, data: bytes) -> None:
    (tmp_path / "sinks.json").write_bytes(data)
    with pytest.raises(OutletPositionsUnreadable, match=r"sinks\.json"):
        kept.load(at(100))
