"""Days as dates of Java's calendar.

That calendar is Julian before 15 October 1582.
"""

__all__ = ["civil_date"]

# 15 October 1582, in days since 1970.
GREGORIAN = -141_427

_JULIAN_DAY_OF_1970 = 2_440_588


def civil_date(days: int) -> tuple[int, int, int]:
    """Return year, month and day.

    A year before Christ is its positive number, as Java's calendar returns it.
    """
    number = days + _JULIAN_DAY_OF_1970
    # Richards' algorithm, with the Gregorian correction from its first day on.
    shifted = number + 1401
    if days >= GREGORIAN:
        shifted += (4 * number + 274_277) // 146_097 * 3 // 4 - 38
    fourth = 4 * shifted + 3
    rest = 5 * (fourth % 1461 // 4) + 2
    day, month = rest % 153 // 5 + 1, (rest // 153 + 2) % 12 + 1
    year = fourth // 1461 - 4716 + (14 - month) // 12
    return (year if year > 0 else 1 - year), month, day
