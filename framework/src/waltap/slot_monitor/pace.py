"""How fast a count of bytes grows now, and how much faster it gets: from what it was before. Sans-IO.

The mean over all that is known is the rate of a load that repeats itself. Growth shows in shorter windows:
one counts by as much as it exceeds every window of its length before it, so that a burst or a tooth of a
saw that was seen before counts for nothing, and a load that is new counts in full.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

__all__ = ["PARTS", "SHORTER_S", "WalGrowth", "pace"]

SHORTER_S = (60.0, 90.0, 135.0, 200.0, 300.0, 420.0)
"""Windows that end now and are looked at where as much again is known from before: twice the longest is
less than what is kept of the past, whose oldest reading comes and goes."""

PARTS = 4
"""A load grows where each of so many equal parts of its time has a higher rate than the one before."""

TREND_S = 2 * SHORTER_S[0]
"""What is known of less time shows no trend."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WalGrowth:
    """``rate`` in bytes a second, and its ``gain`` each second, never below 0, which is trusted for as
    long as it was seen: ``known_s`` seconds."""

    rate: float = 0.0
    gain: float = 0.0
    known_s: float = 0.0

    def seconds_until(self, left: float) -> float | None:
        """Return after how many seconds ``left`` bytes have come; None: never."""
        if left <= 0:
            return 0.0
        if self.rate <= 0:
            return None
        whole = self.rate * self.known_s + self.gain * self.known_s**2 / 2
        if self.gain and whole >= left:
            # the usual form of the root loses its digits where the gain is small
            return 2 * left / (self.rate + math.sqrt(self.rate**2 + 2 * self.gain * left))
        if not self.gain:
            return left / self.rate
        return self.known_s + (left - whole) / (self.rate + self.gain * self.known_s)


def pace(at_s: Sequence[float], octets: Sequence[int]) -> WalGrowth:
    """Return the pace of a count: ``octets`` at each of the seconds ``at_s``, which rise."""
    known_s = at_s[-1] - at_s[0]
    if known_s <= 0:
        return WalGrowth()
    mean = rate = (octets[-1] - octets[0]) / known_s
    for window in SHORTER_S:
        if 2 * window > known_s:
            break
        rate = max(rate, _of_window(at_s, octets, window, mean))
    gain = _gain(at_s, octets) if known_s >= TREND_S else 0.0
    if gain:
        last = (octets[-1] - _between(at_s, octets, at_s[-1] - known_s / PARTS)) * PARTS / known_s
        rate = max(rate, last + gain * known_s / PARTS / 2)
    return WalGrowth(rate=rate, gain=gain, known_s=known_s)


def _of_window(at_s: Sequence[float], octets: Sequence[int], window: float, mean: float) -> float:
    """Return the rate that the last ``window`` speaks for: ``mean`` and what is new, and not more than it
    had."""
    begin = len(at_s) - 1
    while at_s[-1] - at_s[begin] < window:
        begin -= 1
    rate = (octets[-1] - octets[begin]) / (at_s[-1] - at_s[begin])
    if rate <= mean:
        return mean
    highest, low = -math.inf, 0
    for high in range(1, begin + 1):
        while at_s[high] - at_s[low + 1] >= window:
            low += 1
        if (seconds := at_s[high] - at_s[low]) >= window:
            highest = max(highest, (octets[high] - octets[low]) / seconds)
    if highest == -math.inf:  # one reading within twice the window: nothing to hold it against
        return mean
    return min(rate, mean + max(0.0, rate - highest))


def _gain(at_s: Sequence[float], octets: Sequence[int]) -> float:
    """Return by how much the rate rises each second, 0 where it does not from part to part."""
    part = (at_s[-1] - at_s[0]) / PARTS
    marks = [_between(at_s, octets, at_s[0] + n * part) for n in range(PARTS)] + [octets[-1]]
    rates = [(late - soon) / part for soon, late in pairwise(marks)]
    rises = (late - soon for soon, late in pairwise(rates))
    return max(0.0, min(rises)) / part


def _between(at_s: Sequence[float], octets: Sequence[int], moment: float) -> float:
    """Return the count at ``moment``, between two readings by their distance."""
    after = bisect_left(at_s, moment)
    if after == 0 or after == len(at_s):
        return octets[min(after, len(octets) - 1)]
    soon, late = at_s[after - 1], at_s[after]
    share = (moment - soon) / (late - soon)
    return octets[after - 1] + share * (octets[after] - octets[after - 1])
