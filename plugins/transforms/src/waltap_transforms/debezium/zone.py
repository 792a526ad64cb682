"""Time zones for every instant of PostgreSQL, and ISO texts as in Java."""

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from waltap.encoders.format.record_transform import RecordUnfit
from waltap_transforms.java.dates import civil_date, day_number

__all__ = ["NamedZone", "moved_time", "moved_timestamp"]

_OFFSET = re.compile(r"([+-])(\d\d):(\d\d)(?::(\d\d))?")
_TIME = r"(\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?(Z|[+-]\d\d:\d\d(?::\d\d)?)"
_ISO_TIME = re.compile(_TIME)
_ISO = re.compile(rf"([+-]?\d{{4,9}})-(\d\d)-(\d\d)T{_TIME}")
_DAY = 86_400
# Days of 400 years, after which the calendar repeats.
_CYCLE = 146_097


class NamedZone:
    """Represent a zone by its name or offset.

    Examples are ``Europe/Vienna`` and ``+08:00``. Raises: ValueError.
    """

    def __init__(self, name: str) -> None:
        self._zone: tzinfo
        fixed = _OFFSET.fullmatch(name)
        if fixed is not None:
            self._zone = timezone(timedelta(seconds=_seconds(name)))
            return
        try:
            self._zone = ZoneInfo(name)
        except (ZoneInfoNotFoundError, ValueError, OSError) as cause:
            raise ValueError(
                f"{name!r} is neither a zone (America/Los_Angeles) nor an offset (+08:00)"
            ) from cause

    def offset(self, local: int) -> int:
        """Return the offset in s at a local time.

        ``local`` is in seconds since 1970 on the zone's own clock.
        """
        # fold=0 is Java's choice, too: in a gap the offset before it, in an overlap the first one.
        return _of(_near(local).replace(tzinfo=self._zone))

    def offset_at(self, instant: int) -> int:
        """Return the offset in s at an instant.

        ``instant`` is in seconds since 1970 UTC.
        """
        return _of(_near(instant).replace(tzinfo=UTC).astimezone(self._zone))


def moved_timestamp(text: str, zone: NamedZone) -> str:
    """Convert an ISO text with date and offset to ``zone``.

    Raises: RecordUnfit for any other text.
    """
    match = _ISO.fullmatch(text)
    if match is None:
        raise RecordUnfit("a timestamp with time zone is not an ISO text")
    year, month, day = int(match[1]), int(match[2]), int(match[3])
    local = day_number(year, month, day) * _DAY + _clock(match[4], match[5], match[6])
    # Debezium takes the zone's offset at the text's own date and time, not at its instant.
    offset = zone.offset(local)
    days, second = divmod(local - _seconds(match[8]) + offset, _DAY)
    year, month, day = civil_date(days)
    # Java writes a plus before years of five digits.
    sign = "+" if year > 9999 else "-" if year < 0 else ""
    return f"{sign}{abs(year):04}-{month:02}-{day:02}T{_shown(second, match[7], offset)}"


def moved_time(text: str, offset: int) -> str:
    """Convert an ISO time of day to another offset.

    ``offset`` is in s. Raises: RecordUnfit for any other text.
    """
    match = _ISO_TIME.fullmatch(text)
    if match is None:
        raise RecordUnfit("a time with time zone is not an ISO text")
    second = _clock(match[1], match[2], match[3]) - _seconds(match[5]) + offset
    return _shown(second % _DAY, match[4], offset)


def _clock(hour: str, minute: str, second: str | None) -> int:
    return int(hour) * 3600 + int(minute) * 60 + int(second or 0)


def _shown(second: int, fraction: str | None, offset: int) -> str:
    digits = (fraction or "").rstrip("0")
    clock = f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"
    return f"{clock}{'.' if digits else ''}{digits}{_written(offset)}"


def _written(offset: int) -> str:
    if offset == 0:
        return "Z"
    sign, size = "-" if offset < 0 else "+", abs(offset)
    rest = f":{size % 60:02}" if size % 60 else ""
    return f"{sign}{size // 3600:02}:{size // 60 % 60:02}{rest}"


def _seconds(offset: str) -> int:
    match = _OFFSET.fullmatch(offset)
    if match is None:
        return 0
    size = int(match[2]) * 3600 + int(match[3]) * 60 + int(match[4] or 0)
    return -size if match[1] == "-" else size


def _near(seconds: int) -> datetime:
    """Return a datetime with the same offset as ``seconds``."""
    # Python has the years 1 to 9999. Earlier times follow the rules of the year 1; later ones are moved
    # back by whole cycles of the calendar.
    days, second = divmod(seconds, _DAY)
    first, last = day_number(1, 1, 2), day_number(9999, 12, 31)
    if days < first:
        days = first
    elif days >= last:
        days -= ((days - last) // _CYCLE + 1) * _CYCLE
    return datetime(1970, 1, 1) + timedelta(days=days, seconds=second)  # noqa: DTZ001 - no zone yet


def _of(moment: datetime) -> int:
    offset = moment.utcoffset()
    assert offset is not None
    return offset.days * _DAY + offset.seconds
