"""Count days of any year; Python's dates end with 9999.

Years are astronomical: the year 0 is 1 BC. The calendar is the proleptic Gregorian one, or the
Julian one, which was in force until 4 October 1582.
"""


def day_number(year: int, month: int, day: int, *, julian: bool = False) -> int:
    """Return days since 1970-01-01."""
    # Years begin in March, so that a leap day ends its year.
    year -= month <= 2
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    if julian:
        era, of_era = divmod(year, 4)
        return era * 1461 + of_era * 365 + of_year - 719_470
    # Days of 400 years; 719,468 days separate 0000-03-01 from 1970-01-01.
    era, of_era = divmod(year, 400)
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


def civil_date(day: int, *, julian: bool = False) -> tuple[int, int, int]:
    """Return year, month and day of days since 1970-01-01."""
    if julian:
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
