"""Closing the sinks of a pipeline: all of them, whatever becomes of one."""

from pathlib import Path

import pytest
from waltap.clock import SystemClock
from waltap.errors import SinkError
from waltap.offsets.outlet_positions import OutletPositions
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
