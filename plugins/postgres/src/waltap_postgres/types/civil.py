"""Convert dates and times of day from PostgreSQL's text to numbers and back.

Text is in ISO style and UTC. Days count from 1970-01-01 in the proleptic Gregorian calendar,
microseconds likewise. Years are astronomical: 1 BC is year 0.
"""

__all__ = [
    "DAY",
    "DAYS",
    "SECONDS",
    "clock_text",
    "iso_date",
    "parse_clock",
    "parse_day",
    "parse_timestamp",
    "parse_zone",
]

# Microseconds of a day.
DAY = 86_400_000_000

# About 180 years: a column holds few different days, so that a day costs one look-up.
_CACHED_DAYS = 65_536


class _EpochDays(dict[str, int]):
    """Map ``YYYY-MM-DD`` to the seconds since 1970 at its midnight.

    The map is filled on use and emptied when full.
    """

    def __missing__(self, text: str) -> int:
        # Other widths are BC or far years, which need `parse_day`.
        if len(text) != 10 or text[4] != "-" or text[7] != "-":
            msg = "not a date of a year between 1 and 9999"
            raise ValueError(msg)
        seconds = _day_number(int(text[:4]), int(text[5:7]), int(text[8:])) * 86_400
        if len(self) >= _CACHED_DAYS:
            self.clear()
        self[text] = seconds
        return seconds


DAYS = _EpochDays()


class _DaySeconds(dict[str, int]):
    """Map ``HH:MM:SS`` to the seconds since midnight.

    The map is filled on use.
    """

    def __missing__(self, text: str) -> int:
        if len(text) != 8 or text[2] != ":" or text[5] != ":":
            msg = "not a time of day"
            raise ValueError(msg)
        hours, minutes, seconds = int(text[:2]), int(text[3:5]), int(text[6:])
        total = (hours * 60 + minutes) * 60 + seconds
        # 24:00:00 is a time of day in PostgreSQL, so there are at most 86,401 entries.
        if minutes > 59 or seconds > 59 or total > 86_400:
            msg = "time of day out of range"
            raise ValueError(msg)
        self[text] = total
        return total


SECONDS = _DaySeconds()


def _day_number(year: int, month: int, day: int) -> int:
    """Return days since 1970-01-01.

    Raises ValueError for a month or day out of range.
    """
    if not (1 <= month <= 12 and 1 <= day <= 31):
        msg = "month or day out of range"
        raise ValueError(msg)
    # A year starts in March here, so that the leap day is its last.
    year -= month <= 2
    era, year_of_era = divmod(year, 400)
    day_of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return (
        # Days of 400 years; 719,468 days separate 0000-03-01 from 1970-01-01.
        era * 146_097
        + year_of_era * 365
        + year_of_era // 4
        - year_of_era // 100
        + day_of_year
        - 719_468
    )


def _civil(day_number: int) -> tuple[int, int, int]:
    """Return (year, month, day) of days since 1970-01-01."""
    era, day_of_era = divmod(day_number + 719_468, 146_097)
    year_of_era = (
        day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096
    ) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted = (5 * day_of_year + 2) // 153
    month = shifted + (3 if shifted < 10 else -9)
    day = day_of_year - (153 * shifted + 2) // 5 + 1
    return year_of_era + era * 400 + (month <= 2), month, day


def parse_day(text: str) -> int:
    """Return days since 1970 of ``YYYY-MM-DD[ BC]``.

    The year has four digits or more.
    """
    before_christ = text.endswith(" BC")
    parts = (text[:-3] if before_christ else text).split("-")
    if len(parts) != 3 or not all(part.isdecimal() for part in parts):
        msg = "not an ISO date: DateStyle must be ISO"
        raise ValueError(msg)
    year, month, day = map(int, parts)
    return _day_number(1 - year if before_christ else year, month, day)


def parse_clock(text: str) -> int:
    """Return microseconds since midnight of ``HH:MM:SS[.ffffff]``."""
    fraction = text[9:]
    if text[8:9] not in {"", "."} or len(fraction) > 6:
        msg = "not a time of day"
        raise ValueError(msg)
    return SECONDS[text[:8]] * 1_000_000 + (int(fraction.ljust(6, "0")) if fraction else 0)


def parse_zone(text: str) -> int:
    """Return microseconds east of UTC of ``+HH[:MM[:SS]]``."""
    sign = {"+": 1, "-": -1}.get(text[:1], 0)
    parts = text[1:].split(":")
    if not sign or len(parts) > 3:
        msg = "not a zone offset"
        raise ValueError(msg)
    seconds = 0
    for part, weight in zip(parts, (3600, 60, 1), strict=False):
        seconds += int(part) * weight
    return sign * seconds * 1_000_000


def parse_timestamp(text: str) -> int:
    """Return microseconds since 1970 of any finite timestamp.

    The form is ``Y…-MM-DD HH:MM:SS[.f][±HH[:MM[:SS]]][ BC]``. A zone offset is applied.
    """
    era = ""
    if text.endswith(" BC"):
        text, era = text[:-3], " BC"
    date, space, clock = text.partition(" ")
    if not space:
        msg = "not a timestamp: DateStyle must be ISO"
        raise ValueError(msg)
    zone = max(clock.find("+"), clock.find("-"))
    offset = 0
    if zone > 0:
        clock, offset = clock[:zone], parse_zone(clock[zone:])
    return parse_day(date + era) * DAY + parse_clock(clock) - offset


def clock_text(micros: int) -> str:
    """Return ``HH:MM:SS[.f]`` as the server prints it."""
    seconds, fraction = divmod(micros, 1_000_000)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    text = f"{hour:02d}:{minute:02d}:{second:02d}"
    # The server prints no trailing zeros.
    return f"{text}.{fraction:06d}".rstrip("0") if fraction else text


def iso_date(day_number: int) -> str:
    """Return the date in Java's ISO format."""
    year, month, day = _civil(day_number)
    if 0 <= year <= 9999:
        return f"{year:04d}-{month:02d}-{day:02d}"
    # Java signs astronomical years outside 0000 to 9999.
    return f"{'-' if year < 0 else '+'}{abs(year):04d}-{month:02d}-{day:02d}"
