"""Conversions from numbers and times to PostgreSQL's text; days of any year.

Floating-point numbers match extra_float_digits above 0. The digits are the fewest strictly between
the midpoints to the neighbouring numbers; of several, the nearest. Python's ``repr`` also accepts a
midpoint if reading it back rounds to the number; this module computes such digits again.

Source: PostgreSQL's src/common/d2s.c and f2s.c (ryu, with ``acceptBounds`` off).
"""

import math
import struct
from collections.abc import Callable
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Final

DAY_MICROS: Final = 86_400_000_000

_SINGLE = struct.Struct("<f")
_SINGLE_BITS = struct.Struct("<I")
# Below this, no midpoint between doubles has as few digits as a double needs, so ``repr`` is
# right.
_MIDPOINTS_SHORT = 2.0**54

_Neighbours = Callable[[float], tuple[Fraction, Fraction]]


def float8_text(value: float) -> str:
    """Return a double as PostgreSQL prints it."""
    if not math.isfinite(value):
        return _special(value)
    text = repr(value)
    if "e" not in text:  # below 1e+16 and from 1e-04 on
        text = text.removesuffix(".0")
        # Such a number is below 1e+15: it has no exponent and is no midpoint.
        if len(text) < 16:
            return text
    shortest = Decimal(text)
    if abs(value) >= _MIDPOINTS_SHORT:
        shortest = _strictly_inside(value, len(shortest.as_tuple().digits), 17, _double_midpoints)
    # PostgreSQL prints float8 with an exponent from 1e+15 on.
    return _laid_out(shortest, 15)


def float4_text(value: float) -> str:
    """Return a single-precision number as PostgreSQL prints it.

    The number arrives as a double.
    """
    if not math.isfinite(value):
        return _special(value)
    if not value:  # -0 and 0 are equal: a cache would mix them up
        return "-0" if math.copysign(1, value) < 0 else "0"
    return _float4_text(value)


@lru_cache(maxsize=65536)
def _float4_text(value: float) -> str:
    # PostgreSQL prints float4 with an exponent from 1e+06 on.
    return _laid_out(_strictly_inside(value, 1, 9, _single_midpoints), 6)


def _strictly_inside(value: float, fewest: int, most: int, midpoints: _Neighbours) -> Decimal:
    """Return the shortest decimal strictly between the midpoints.

    Of several, it is the nearest to ``value``. Raises: ValueError when ``most`` digits do not
    suffice.
    """
    low, high = midpoints(abs(value))
    exact, magnitude = Fraction(abs(value)), Decimal(abs(value))
    for precision in range(fewest, most + 1):
        fitting = [
            number
            for rounding in (ROUND_FLOOR, ROUND_CEILING)
            if low < Fraction(number := Context(precision, rounding).plus(magnitude)) < high
        ]
        if fitting:
            # On a tie the even digit wins, as in ryu.
            nearest = min(
                fitting, key=lambda n: (abs(Fraction(n) - exact), n.as_tuple().digits[-1] & 1)
            )
            return nearest.copy_sign(Decimal(value))
    raise ValueError(f"{value!r} needs more than {most} digits")


def _double_midpoints(value: float) -> tuple[Fraction, Fraction]:
    """Return the midpoints from a positive double to its neighbours."""
    return _midpoints(math.nextafter(value, 0.0), value, math.nextafter(value, math.inf))


def _single_midpoints(value: float) -> tuple[Fraction, Fraction]:
    """Return the midpoints from a positive single to its neighbours."""
    (bits,) = _SINGLE_BITS.unpack(_SINGLE.pack(value))
    (below,) = _SINGLE.unpack(_SINGLE_BITS.pack(bits - 1))
    (above,) = _SINGLE.unpack(_SINGLE_BITS.pack(bits + 1))
    return _midpoints(below, value, above)


def _midpoints(below: float, value: float, above: float) -> tuple[Fraction, Fraction]:
    exact = Fraction(value)
    # The largest number has no upper neighbour; the gap below it is as wide.
    step = exact - Fraction(below) if math.isinf(above) else Fraction(above) - exact
    return (exact + Fraction(below)) / 2, exact + step / 2


def _special(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _laid_out(number: Decimal, limit: int) -> str:
    """Write ``number`` with an exponent where PostgreSQL does."""
    sign, digits, scale = number.as_tuple()
    text, exponent = "".join(map(str, digits)).lstrip("0"), int(scale)
    minus = "-" if sign else ""
    if not text:
        return minus + "0"
    exponent += len(text) - len(text.rstrip("0"))
    text = text.rstrip("0")
    power = exponent + len(text) - 1
    if power < -4 or power >= limit:
        fraction = f".{text[1:]}" if len(text) > 1 else ""
        return f"{minus}{text[0]}{fraction}e{power:+03d}"
    if exponent >= 0:
        return f"{minus}{text}{'0' * exponent}"
    if power >= 0:
        return f"{minus}{text[: power + 1]}.{text[power + 1 :]}"
    return f"{minus}0.{'0' * (-power - 1)}{text}"


def clock_text(micros: int) -> str:
    """Return the time of day ``micros`` after midnight."""
    seconds, fraction = divmod(micros, 1_000_000)
    minutes, second = divmod(seconds, 60)
    text = f"{_minute(minutes)}{second:02d}"
    return f"{text}.{fraction:06d}".rstrip("0") if fraction else text


@lru_cache(maxsize=1441)
def _minute(minutes: int) -> str:
    return f"{minutes // 60:02d}:{minutes % 60:02d}:"


# Python's dates end with 9999. Years are astronomical: the year 0 is 1 BC. The calendar is the
# proleptic Gregorian one. Java's dates have the Julian one until 4 October 1582, with ``java``.
_FIRST_GREGORIAN = -141_427


def day_number(year: int, month: int, day: int, *, java: bool = False) -> int:
    """Return days since 1970-01-01."""
    # Years begin in March, so that a leap day ends its year.
    year -= month <= 2
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    # Days of 400 years; 719,468 days separate 0000-03-01 from 1970-01-01.
    era, of_era = divmod(year, 400)
    found = era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468
    if java and found < _FIRST_GREGORIAN:
        era, of_era = divmod(year, 4)
        return era * 1461 + of_era * 365 + of_year - 719_470
    return found


def civil_date(day: int, *, java: bool = False) -> tuple[int, int, int]:
    """Return year, month and day of days since 1970-01-01."""
    if java and day < _FIRST_GREGORIAN:
        era, rest = divmod(day + 719_470, 1461)
        of_era = (rest - rest // 1460) // 365
        year, of_year = of_era + era * 4, rest - 365 * of_era
    else:
        era, rest = divmod(day + 719_468, 146_097)
        of_era = (rest - rest // 1460 + rest // 36_524 - rest // 146_096) // 365
        year, of_year = of_era + era * 400, rest - 365 * of_era - of_era // 4 + of_era // 100
    shifted = (5 * of_year + 2) // 153
    month = shifted + (3 if shifted < 10 else -9)
    return year + (month <= 2), month, of_year - (153 * shifted + 2) // 5 + 1


@lru_cache(maxsize=4096)
def day_text(days: int) -> tuple[str, str]:
    """Return year-month-day, and " BC" before year 1.

    The calendar is the proleptic Gregorian one.
    """
    year, month, day = civil_date(days)
    if year <= 0:
        return f"{1 - year:04d}-{month:02d}-{day:02d}", " BC"
    return f"{year:04d}-{month:02d}-{day:02d}", ""
