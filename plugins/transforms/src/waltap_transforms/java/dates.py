"""Java's SimpleDateFormat in UTC and English.

A pattern is, for example, ``yyyy-MM-dd HH:mm:ss.SSS``. Instants are in ms since 1970 UTC, as in
java.util.Date. Days before 15 October 1582 are Julian, as in Java's GregorianCalendar. Parsing is as
lenient as in Java: month 13 is January of the next year, and text after the end of the pattern is
ignored.

Source: the documentation of java.text.SimpleDateFormat and java.util.GregorianCalendar (Java 17).
"""

import re
import time
from dataclasses import dataclass
from typing import Any

from waltap.changes.decode.value_text import civil_date, day_number
from waltap.changes.mapping.connect_schema import DATE, TIME, TIMESTAMP, Schema

# Kafka Connect's dates and times, which Java has as java.util.Date.
TEMPORAL = frozenset({DATE, TIME, TIMESTAMP})
DAY_MS = 86_400_000
MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October",
    "November", "December",
)  # fmt: skip
DAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
# Every letter that Java 17 defines; it refuses all others.
LETTERS = "GyYMLwWDdFEuaHkKhmsSzZX"
TEXTS = {"G": ("BC", "AD"), "a": ("AM", "PM")}
# A quote, a quoted text, a run of one letter, or another character.
_TOKEN = re.compile(r"''|'(?P<text>(?:[^']|'')+)'|(?P<letter>[A-Za-z])(?P=letter)*|[^A-Za-z']")
# Minutes east of UTC by the names that Java's English texts have for them, such as Date.toString().
_ZONES = {
    "GMT": 0, "UTC": 0, "UT": 0, "Z": 0, "WET": 0, "WEST": 60, "BST": 60, "CET": 60, "CEST": 120,
    "EET": 120, "EEST": 180, "IST": 120, "SAST": 120, "MSK": 180, "HKT": 480, "SGT": 480, "AWST": 480,
    "JST": 540, "KST": 540, "ACST": 570, "AEST": 600, "AEDT": 660, "NZST": 720, "NZDT": 780,
    "NST": -210, "NDT": -150, "AST": -240, "ADT": -180, "EST": -300, "EDT": -240, "CST": -360,
    "CDT": -300, "MST": -420, "MDT": -360, "PST": -480, "PDT": -420, "AKST": -540, "AKDT": -480,
    "HST": -600,
}  # fmt: skip
# A long name, such as West Kazakhstan Time, may begin with another zone's short one.
_NAME = rf"(?:{'|'.join(_ZONES)})(?![a-z]|(?: [a-z]+)+ time)"
_ZONE = re.compile(rf"(?:GMT)?([+-])(\d{{1,2}}):?(\d{{2}})?|{_NAME}", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _PatternPart:
    """Describe one part of a pattern: a letter or a text."""

    # Empty for a text.
    letter: str
    # Number of times that the pattern repeats the letter.
    count: int = 0
    text: str = ""


@dataclass(frozen=True, slots=True)
class _DateFields:
    """Hold an instant as calendar fields."""

    # 0 is 1 BC.
    year: int
    month: int
    day: int
    day_of_year: int
    # 1 is Sunday.
    weekday: int
    # Milliseconds since midnight.
    ms: int


def milliseconds(schema: Schema, value: Any) -> int:
    """Convert a value of a temporal schema to ms since 1970 UTC."""
    # A Date is in days; Time and Timestamp are in ms already.
    return value * DAY_MS if schema.name == DATE else value  # type: ignore[no-any-return]


class SimpleDateFormat:
    """Format and parse instants by one pattern."""

    def __init__(self, pattern: str) -> None:
        """Read ``pattern``. Raises: ValueError for an unknown letter or an open quote."""
        self.pattern = pattern
        self._parts = _parts(pattern)
        # Java puts years of two digits into the last 80 years and the next 20.
        self._first_year = time.gmtime().tm_year - 80

    def format(self, instant: int) -> str:
        moment = _moment(instant)
        return "".join(
            part.text if not part.letter else _written(part, moment) for part in self._parts
        )

    def parse(self, text: str) -> int:
        """Parse the instant at the start of ``text``.

        Raises: ValueError if ``text`` does not match the pattern.
        """
        fields: dict[str, int] = {}
        at = 0
        for number, part in enumerate(self._parts):
            if not part.letter:
                if not text.startswith(part.text, at):
                    raise ValueError(f"it does not match {self.pattern}")
                at += len(part.text)
                continue
            at = self._take(part, text, at, fields, width=self._width(number))
        return _instant(fields)

    def _width(self, number: int) -> int:
        """Return the most digits of a part, 0 for no limit.

        A limit is needed only if another number follows without a text between them.
        """
        part, following = self._parts[number], self._parts[number + 1 : number + 2]
        joined = _is_number(part) and bool(following) and _is_number(following[0])
        return part.count if joined else 0

    def _take(
        self, part: _PatternPart, text: str, at: int, fields: dict[str, int], *, width: int
    ) -> int:
        """Read one part at ``at``, and return the position after it."""
        while at < len(text) and text[at] in " \t":
            at += 1
        letter = part.letter
        if letter in "zZX":
            return self._zone(text, at, fields)
        if not _is_number(part):
            return self._word(part, text, at, fields)
        # In a run of numbers such as yyyyMMdd a minus cannot be a sign.
        end = at + 1 if text[at : at + 1] == "-" and not width else at
        most = at + width if width else len(text)
        first = end
        while end < most and text[end : end + 1].isascii() and text[end : end + 1].isdigit():
            end += 1
        if end == first:
            raise ValueError(f"it does not match {self.pattern}")
        value = int(text[at:end])
        # Only exactly two digits are an abbreviated year; 5 is the year 5, as in Java.
        if letter in "yY" and part.count <= 2 and end - at == 2 and value >= 0:
            value += self._first_year // 100 * 100
            if value < self._first_year:
                value += 100
        fields[letter] = value
        return end

    def _word(self, part: _PatternPart, text: str, at: int, fields: dict[str, int]) -> int:
        letter = part.letter
        names = MONTHS if letter in "ML" else DAYS if letter == "E" else TEXTS[letter]
        # Java accepts full and short names, whichever of them the pattern has.
        short = [name[:3] for name in names if letter in "MLE"]
        for number, word in [*enumerate(names), *enumerate(short)]:
            if text[at : at + len(word)].casefold() == word.casefold():
                fields[letter] = number + (letter in "MLE")
                return at + len(word)
        raise ValueError(f"it does not match {self.pattern}")

    def _zone(self, text: str, at: int, fields: dict[str, int]) -> int:
        match = _ZONE.match(text, at)
        if match is None:
            raise ValueError(f"it does not match {self.pattern}")
        sign, hours, minutes = match.groups()
        if sign is None:
            east = _ZONES[match[0].upper()]
        else:
            east = int(f"{sign}1") * (int(hours) * 60 + int(minutes or 0))
        fields["Z"] = east * 60_000
        return match.end()


def _parts(pattern: str) -> tuple[_PatternPart, ...]:
    parts: list[_PatternPart] = []
    at = 0
    while at < len(pattern):
        match = _TOKEN.match(pattern, at)
        if match is None:
            raise ValueError(f"{pattern!r}: a quote has no other one")
        token, letter, at = match[0], match["letter"], match.end()
        if letter is None:
            # Two quotes mean one, also within a quoted text.
            parts.append(_PatternPart("", text=(match["text"] or token).replace("''", "'")))
            continue
        if letter not in LETTERS:
            raise ValueError(f"{pattern!r}: {letter} means nothing in a pattern of dates")
        if letter == "X" and len(token) > 3:
            raise ValueError(f"{pattern!r}: at most three X")
        parts.append(_PatternPart(letter, len(token)))
    return tuple(parts)


def _is_number(part: _PatternPart) -> bool:
    if not part.letter:  # a text; "" would be in any string of letters
        return False
    if part.letter in "ML":
        return part.count < 3
    return part.letter not in "GEazZX"


# --- writing ----------------------------------------------------------------------------------------


def _written(part: _PatternPart, m: _DateFields) -> str:
    letter, count = part.letter, part.count
    hour = m.ms // 3_600_000
    if letter in "yY":
        year = _week_year(m) if letter == "Y" else m.year
        # Java prints the year of the era: the year 0 is 1 BC.
        year = year if year > 0 else 1 - year
        return str(year % 100).zfill(2) if count == 2 else str(year).zfill(count)
    if letter in "ML" and count >= 3:
        return MONTHS[m.month - 1] if count > 3 else MONTHS[m.month - 1][:3]
    if letter == "E":
        return DAYS[m.weekday - 1] if count > 3 else DAYS[m.weekday - 1][:3]
    if letter == "G":
        return TEXTS["G"][m.year > 0]
    if letter == "a":
        return TEXTS["a"][hour >= 12]
    if letter == "z":
        return "Coordinated Universal Time" if count > 3 else "UTC"
    if letter in "ZX":
        # Every instant is written in UTC.
        return "+0000" if letter == "Z" else "Z"
    number = {
        "M": m.month, "L": m.month, "d": m.day, "D": m.day_of_year, "H": hour, "k": hour or 24,
        "K": hour % 12, "h": hour % 12 or 12, "m": m.ms // 60_000 % 60, "s": m.ms // 1000 % 60,
        "S": m.ms % 1000, "u": (m.weekday + 5) % 7 + 1, "F": (m.day - 1) // 7 + 1,
        "w": _week_of_year(m), "W": (m.day - 1 + _first_weekday(m, m.day)) // 7 + 1,
    }[letter]  # fmt: skip
    return str(number).zfill(count)


def _first_weekday(m: _DateFields, day: int) -> int:
    """Return the weekday of the day ``day - 1`` days before. 0 is Sunday."""
    return (m.weekday - 1 - (day - 1)) % 7


def _week_of_year(m: _DateFields) -> int:
    # English weeks begin on Sunday, and the week of 1 January is the first.
    week = (m.day_of_year - 1 + _first_weekday(m, m.day_of_year)) // 7 + 1
    return 1 if _week_year(m) > m.year else week


def _week_year(m: _DateFields) -> int:
    # A week that reaches 1 January belongs to the new year.
    days_after = (366 if _is_leap(m.year) else 365) - m.day_of_year
    saturday = 7 - m.weekday
    return m.year + 1 if days_after < saturday else m.year


# --- calendar ---------------------------------------------------------------------------------------


def _is_leap(year: int) -> bool:
    # The Julian calendar was in force until October 1582.
    if year <= 1582:
        return year % 4 == 0
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def _moment(instant: int) -> _DateFields:
    day, ms = divmod(instant, DAY_MS)
    year, month, of_month = civil_date(day, java=True)
    of_year = day - _day_number(year, 1, 1) + 1
    return _DateFields(year, month, of_month, of_year, (day + 4) % 7 + 1, ms)


def _day_number(year: int, month: int, day: int) -> int:
    """Convert a date to days since 1970.

    Month and day may be out of range, since parsing is lenient.
    """
    year, month = year + (month - 1) // 12, (month - 1) % 12 + 1
    return day_number(year, month, day, java=True)


def _instant(fields: dict[str, int]) -> int:
    year = fields.get("y", fields.get("Y", 1970))
    if fields.get("G") == 0:
        year = 1 - year
    if "D" in fields and "d" not in fields:
        day = _day_number(year, 1, fields["D"])
    elif "w" in fields and not {"M", "L", "d"} & fields.keys():
        # Weeks begin on Sunday, and 1 January is in the first week. A number of a weekday may be
        # out of range.
        weeks, weekday = divmod(fields.get("u", 7) - 1, 7)
        day = _day_number(year, 1, 1)
        day += 7 * (fields["w"] - 1 + weeks) - (day + 4) % 7 + (weekday + 1) % 7
    else:
        month = fields.get("M", fields.get("L", 1))
        day = _day_number(year, month, fields.get("d", 1))
    # A weekday counts only if no day was read; it moves the date to the next such weekday.
    if "E" in fields and not {"d", "D"} & fields.keys():
        day += (fields["E"] - 1 - (day + 4)) % 7
    hour = fields.get("H", fields.get("k", 0) % 24)
    if {"h", "K"} & fields.keys() and not {"H", "k"} & fields.keys():
        hour = fields.get("h", fields.get("K", 0)) % 12 + 12 * fields.get("a", 0)
    ms = ((hour * 60 + fields.get("m", 0)) * 60 + fields.get("s", 0)) * 1000 + fields.get("S", 0)
    return day * DAY_MS + ms - fields.get("Z", 0)
