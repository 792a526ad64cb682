"""Conversions from decoderbufs' dates and times to PostgreSQL's text.

DateStyle is ISO. Source: decoderbufs.c, with its overflows, and datetime.c of PostgreSQL.
"""

from functools import lru_cache

__all__ = ["date_text", "time_text", "timestamp_text", "timetz_text"]

_DAY = 86_400_000_000
_INFINITY, _MINUS_INFINITY = (1 << 63) - 1, -(1 << 63)
# 4714-11-24 BC, PostgreSQL's earliest timestamp, in µs since 1970. Anything lower wrapped when
# decoderbufs added the epoch.
_EARLIEST = -210_866_803_200_000_000
# 4714-11-24 BC and 5874897-12-31, in days since 1970.
_FIRST_DAY, _LAST_DAY = -2_440_588, 2_145_042_905
# decoderbufs adds 10957 days to ±infinity (INT_MAX and INT_MIN) as well; these are the wrapped
# results.
_DAY_INFINITY, _DAY_MINUS_INFINITY = -2_147_472_692, -2_147_472_691


def date_text(days: int) -> str:
    """Return the date ``days`` after 1970-01-01.

    Raises: ValueError.
    """
    if days == _DAY_INFINITY:
        return "infinity"
    if days == _DAY_MINUS_INFINITY:
        return "-infinity"
    if not _FIRST_DAY <= days <= _LAST_DAY:
        message = f"days from {_FIRST_DAY} to {_LAST_DAY}"
        raise ValueError(message)
    day, era = _day(days)
    return day + era


def timestamp_text(micros: int, *, zone: str = "") -> str:
    """Return the timestamp ``micros`` after 1970-01-01.

    ``zone`` follows the time of day.
    """
    if micros == _INFINITY:
        return "infinity"
    if micros == _MINUS_INFINITY:
        return "-infinity"
    if micros < _EARLIEST:
        micros += 1 << 64
    days, rest = divmod(micros, _DAY)
    day, era = _day(days)
    return f"{day} {_clock(rest)}{zone}{era}"


def time_text(micros: int) -> str:
    """Return the time of day ``micros`` after midnight.

    Raises: ValueError.
    """
    if not 0 <= micros <= _DAY:
        message = f"microseconds from 0 to {_DAY}"
        raise ValueError(message)
    return _clock(micros)


def timetz_text(micros: float) -> str:
    """Return the time of day in UTC.

    The original zone does not arrive. Midnight at the end of a day becomes midnight at its start.
    Raises: ValueError.
    """
    if not -_DAY <= micros <= 2 * _DAY or micros != int(micros):
        message = f"whole microseconds from {-_DAY} to {2 * _DAY}"
        raise ValueError(message)
    return _clock(int(micros) % _DAY) + "+00"


def _clock(micros: int) -> str:
    seconds, fraction = divmod(micros, 1_000_000)
    minutes, second = divmod(seconds, 60)
    text = f"{_minute(minutes)}{second:02d}"
    return f"{text}.{fraction:06d}".rstrip("0") if fraction else text


@lru_cache(maxsize=1441)
def _minute(minutes: int) -> str:
    return f"{minutes // 60:02d}:{minutes % 60:02d}:"


@lru_cache(maxsize=4096)
def _day(days: int) -> tuple[str, str]:
    """Return year-month-day, and " BC" before year 1.

    The calendar is the proleptic Gregorian one.
    """
    # Eras of 400 years are counted from 0000-03-01, so that a leap day ends its year.
    era, day_of_era = divmod(days + 719_468, 146_097)
    year_of_era = (
        day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096
    ) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * shifted + 2) // 5 + 1
    month = shifted + 3 if shifted < 10 else shifted - 9
    year = year_of_era + era * 400 + (month <= 2)
    if year <= 0:
        return f"{1 - year:04d}-{month:02d}-{day:02d}", " BC"
    return f"{year:04d}-{month:02d}-{day:02d}", ""
