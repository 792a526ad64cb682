"""What is said to all sinks of a pipeline, whatever becomes of one: the end, and what was left out."""

from pathlib import Path

import pytest

from waltap.clock import SystemClock
from waltap.errors import SinkError
from waltap.offsets.sink_positions import OutletPositions
from waltap.pipeline.fan_out import FanOut


class _Closing:
    """An outlet that is closed."""

    def __init__(self, problem: str = "") -> None:
        self.problem, self.closed = problem, False

    def close(self) -> None:
        self.closed = True
        if self.problem:
            raise SinkError(self.problem)


def test_every_sink_is_closed_and_the_first_that_fails_is_told(tmp_path: Path) -> None:
    fan = FanOut([], OutletPositions(tmp_path), load=lambda: None, clock=SystemClock())
    outlets = [_Closing(), _Closing("first"), _Closing("second"), _Closing()]
    fan.outlets = outlets  # type: ignore[assignment]
    with pytest.raises(SinkError, match="first"):
        fan.close()
    assert all(each.closed for each in outlets)


class _Noting:
    """An outlet, and the sink of it, that is told what was left out."""

    def __init__(self, paused: str | None = None) -> None:
        self.paused, self.tables = paused, list[str]()
        self.sink = self

    def missed(self, table: str) -> None:
        self.tables.append(table)


def test_a_paused_sink_is_told_too_what_was_left_out(tmp_path: Path) -> None:
    fan = FanOut([], OutletPositions(tmp_path), load=lambda: None, clock=SystemClock())
    outlets = [_Noting(), _Noting("it was unwell")]
    fan.outlets = outlets  # type: ignore[assignment]
    fan.missed("public.t")
    assert [each.tables for each in outlets] == [["public.t"]] * 2
