"""How fast WAL grows now: loads that repeat themselves are their mean, and those that grow are seen to."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltap.slot_monitor.forecast import WINDOW_S
from waltap.slot_monitor.pace import SHORTER_S, TREND_S, WalGrowth, pace

RATES = st.floats(1e3, 1e9)
STEPS = st.sampled_from((1, 2, 5, 10))
SOONEST_S = int(SHORTER_S[0])


def of_load(rate: Callable[[float], float], seconds: int, step: int = 10) -> WalGrowth:
    """The pace of what a load of so many bytes a second, told second by second, has written."""
    total, counts = 1 << 40, []
    for second in range(seconds + 1):
        counts.append(total)
        total += round(rate(second))
    first = max(0, seconds - int(WINDOW_S))
    at = range(first, seconds + 1, step)
    return pace([float(each) for each in at], [counts[each] for each in at])


@given(
    st.lists(
        st.tuples(st.floats(0.5, 200), st.integers(-(1 << 40), 1 << 40)), min_size=1, max_size=40
    ),
    st.integers(1, 1 << 50),
)
def test_a_shorter_window_and_a_trend_only_ever_shorten_the_time(
    steps: list[tuple[float, int]], left: int
) -> None:
    at, counts = [0.0], [0]
    for seconds, octets in steps:
        at.append(at[-1] + seconds)
        counts.append(counts[-1] + octets)
    told = pace(at, counts)
    mean = counts[-1] / at[-1]
    assert told.rate >= mean
    assert told.gain >= 0
    if mean > 0:
        until = told.seconds_until(left)
        assert until is not None
        assert until <= left / mean * (1 + 1e-9)


@given(
    st.floats(-1e6, 0) | st.floats(1e-6, 1e9), st.floats(0, 1e6), st.floats(0, 1e3),
    st.integers(0, 1 << 50), st.integers(0, 1 << 50),
)  # fmt: skip
def test_more_left_is_more_time_and_what_comes_until_then_is_what_is_left(
    rate: float, gain: float, known: float, one: int, other: int
) -> None:
    told = WalGrowth(rate=rate, gain=gain, known_s=known)
    soon, late = (told.seconds_until(left) for left in sorted((one, other)))
    if rate <= 0:
        assert late in (0.0, None)
        return
    assert soon is not None
    assert late is not None
    assert soon <= late * (1 + 1e-9)
    grows = min(late, known)
    come = rate * late + gain * grows**2 / 2 + gain * grows * (late - grows)
    assert come == pytest.approx(max(one, other))


@given(RATES, STEPS, st.integers(10, 3000))
def test_a_steady_load_is_its_rate(rate: float, step: int, seconds: int) -> None:
    told = of_load(lambda _t: rate, max(seconds, step), step)
    assert told.rate == pytest.approx(rate, rel=1e-3, abs=1)


@given(RATES, st.floats(1.2, 50), st.integers(2 * SOONEST_S, 2000), st.integers(0, 350), STEPS)
def test_a_load_that_jumps_is_known_after_the_shortest_window(
    rate: float, times: float, before: int, after: int, step: int
) -> None:
    """Until half of what is known is of the new load; then the mean has it, too."""
    seconds = before + SOONEST_S + step + after
    seconds -= seconds % step
    told = of_load(lambda t: rate if t < before else rate * times, seconds, step)
    known = min(seconds, WINDOW_S)
    if 2 * (seconds - before) <= known:
        assert told.rate >= rate * times * 0.85


@given(RATES, st.floats(0.0005, 0.01), st.integers(300, 3000), STEPS)
def test_a_load_that_grows_evenly_is_foretold_with_its_growth(
    rate: float, gain: float, seconds: int, step: int
) -> None:
    seconds -= seconds % step
    told = of_load(lambda t: rate * (1 + gain * t), seconds, step)
    assert told.rate == pytest.approx(rate * (1 + gain * seconds), rel=0.02)
    assert told.gain == pytest.approx(rate * gain, rel=0.05)
    ahead = told.known_s  # as far ahead as it was seen behind
    left = rate * ((1 + gain * seconds) * ahead + gain * ahead**2 / 2)
    assert told.seconds_until(left) == pytest.approx(ahead, rel=0.05)


@given(RATES, st.integers(10, 60), st.floats(0.1, 0.9), st.integers(600, 2000))
def test_bursts_that_were_seen_before_are_no_growth(
    rate: float, cycle: int, share: float, seconds: int
) -> None:
    busy = max(1, round(cycle * share))
    told = of_load(lambda t: rate if t % cycle < busy else 0.0, seconds, 1)
    assert told.rate <= rate * busy / cycle * 1.15 + 1
    assert told.gain <= told.rate / TREND_S / 100


@given(RATES, st.integers(100, 300), st.integers(901, 3000))
def test_the_teeth_of_a_saw_are_no_growth(rate: float, tooth: int, seconds: int) -> None:
    """What a slot keeps falls at each checkpoint, and comes to no more than a few teeth."""
    first = seconds - int(WINDOW_S)
    at = range(first, seconds + 1, 10)
    told = pace([float(each) for each in at], [round(rate * (each % tooth)) for each in at])
    assert told.rate <= rate * tooth * 2 / SHORTER_S[-1]
    assert told.gain <= rate / 1e6


def test_nothing_is_said_of_one_reading() -> None:
    assert pace([7.0], [100]) == WalGrowth()
    assert WalGrowth().seconds_until(1) is None
    assert WalGrowth().seconds_until(0) == 0
    assert math.isclose(pace([0.0, 500.0], [0, 1000]).rate, 2)
