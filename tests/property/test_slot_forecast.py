"""The forecast of a slot: exact where rates are steady, careful where they are not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltap.config.pipeline_properties import budget_bytes, octets
from waltap.ports.source.slot_status import SlotStatus
from waltap.services.slot_monitor import (
    SLACK,
    WINDOW_S,
    SlotReading,
    WalThresholds,
    forecast,
    tightest,
)


def reading(at_s: float, server_lsn: int, restart_lsn: int, **more: int | None) -> SlotReading:
    status = SlotStatus(
        name="s", decoder="d", reader=None, restart_lsn=restart_lsn, confirmed_lsn=restart_lsn,
        server_lsn=server_lsn, **more,
    )  # fmt: skip
    return at_s, status


SIZES = st.integers(0, 1 << 50)
SHARES = st.floats(0.01, 1.0)


def steady(
    written: int, released: int, seconds: int, step: int, **more: int | None
) -> list[SlotReading]:
    """A server that writes and a slot that lets go at steady rates, in bytes a second."""
    base = 1 << 40
    return [
        reading(float(at), base + written * at, base - 1000 + released * at, **more)
        for at in range(0, seconds + 1, step)
    ]


@given(
    st.integers(1, 1 << 30),
    st.integers(0, 1 << 30),
    st.integers(1, 5000),
    st.integers(1, 60),
    SIZES,
)
def test_steady_rates_are_predicted_exactly(written, released, seconds, step, remaining):
    released = min(released, written)
    readings = steady(written, released, max(seconds, step), step)
    kept = readings[-1][1].retained_bytes
    reported = forecast(readings, kept + remaining)
    assert reported.limit is not None
    assert (reported.limit.kind, reported.limit.remaining) == ("budget", remaining)
    growth = written - released
    if not remaining:
        assert reported.seconds == reported.stalled_seconds == 0
        return
    assert reported.stalled_seconds == pytest.approx(remaining / written)
    if growth:
        assert reported.seconds == pytest.approx(remaining / growth)
        # what the slot keeps at that time is the budget
        assert kept + growth * reported.seconds == pytest.approx(kept + remaining)
    else:
        assert reported.seconds is None


@given(
    st.lists(st.tuples(st.floats(0.1, 400), SIZES, SIZES), min_size=1, max_size=30),
    st.none() | SIZES, st.none() | st.integers(-(1 << 30), 1 << 50), st.none() | SIZES,
)  # fmt: skip
def test_a_stall_is_never_the_better_case(steps, budget, safe, free):
    at, server, restart, readings = 0.0, 0, 0, []
    for seconds, written, released in steps:
        at, server = at + seconds, server + written
        restart = min(server, restart + released)
        readings.append(reading(at, 1 + server, 1 + restart, safe_bytes=safe, free_bytes=free))
    reported = forecast(readings, budget)
    known = [each for each in (budget, safe, free) if each is not None]
    assert (reported.limit is None) == (not known)
    assert reported.growth <= reported.written + 1e-6
    if reported.limit is not None:
        assert reported.limit.remaining >= 0
        assert 0 <= reported.limit.used <= 1
    for seconds_left in (reported.seconds, reported.stalled_seconds):
        assert seconds_left is None or seconds_left >= 0
    if reported.seconds is not None:
        assert reported.stalled_seconds is not None
        assert reported.stalled_seconds <= reported.seconds * (1 + 1e-9)


def test_rates_are_those_of_the_window():
    """A day of silence before a burst does not hide the burst."""
    quiet = [reading(float(at), 1000, 1) for at in range(0, 80_000, 1000)]
    burst = [reading(80_000.0 + at, 1000 + 100 * at, 1) for at in range(0, int(WINDOW_S) + 1, 10)]
    reported = forecast([*quiet, *burst], burst[-1][1].retained_bytes + 1000)
    assert reported.seconds == pytest.approx(10)


def test_the_tightest_limit_counts():
    _, slot = reading(0, 1000, 400, safe_bytes=300, free_bytes=200)
    assert [tightest(slot, budget).kind for budget in (None, 700, 900)] == [  # type: ignore[union-attr]
        "disk", "budget", "disk",
    ]  # fmt: skip
    _, lost = reading(0, 1000, 400, safe_bytes=-50)
    limit = tightest(lost, None)
    assert (limit.remaining, limit.used) == (0, 1.0)


@given(st.lists(SHARES, max_size=4), SHARES, st.lists(st.floats(0, 1.2), max_size=30))
def test_each_threshold_is_reported_once_until_it_was_left(warn_at, act_at, shares):
    thresholds, reported = WalThresholds(warn_at, act_at), set[float]()
    for used in shares:
        crossing = thresholds.update(used)
        above = {each for each in (*warn_at, act_at) if used >= each}
        new = above - reported
        assert crossing.warns == max(new, default=None)
        assert crossing.acts == (used >= act_at)
        kept = {each for each in reported if used >= each - SLACK}
        assert crossing.calms == (bool(reported) and not kept and not new)
        reported = kept | new
        assert (thresholds.level == "ok") == (not reported)


@pytest.mark.parametrize(
    ("text", "octets_of_it"),
    [("10GB", 10 << 30), ("1.5 MB", 3 << 19), ("512kB", 1 << 19), ("7B", 7), ("2TiB", 2 << 40)],
)
def test_sizes_are_read_as_the_server_does(text, octets_of_it):
    assert octets(text) == budget_bytes(text, None) == octets_of_it


def test_a_share_is_one_of_the_disk():
    assert budget_bytes("20%", 1000) == 200
    assert budget_bytes("20%", None) is budget_bytes(None, 1000) is None
    for wrong in ("20", "%", "-1GB", "1 XB"):
        with pytest.raises(ValueError, match="is no"):
            budget_bytes(wrong, 1)
