"""Positions of partitions: one is the normal case, several keep apart."""

import pytest

from waltap.source.position import SOLE, Position, Positions


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
    after = before.moved("b", Position(5))
    assert (before["b"], after["b"], after["a"]) == (Position(2), Position(5), Position(1))
    assert str(after) == "a: 0/1, b: 0/5"
    assert hash(after) == hash(Positions({"b": Position(5), "a": Position(1)}))


def test_several_have_no_sole_one() -> None:
    with pytest.raises(ValueError, match="too many"):
        assert Positions({"a": Position(1), "b": Position(2)}).sole
