"""``interval`` under ``interval.handling.mode``: microseconds or ISO duration.

Text is in IntervalStyle postgres. Infinite intervals (PostgreSQL 17) have no Connect value.
"""

from decimal import Decimal
from typing import NamedTuple

from waltap.changes.arrow.column import arrow_type, converted
from waltap.changes.decode.relation import Column
from waltap.changes.mapping.connect_schema import ConnectKind, Schema
from waltap.changes.mapping.type_mapping import ColumnMapping, TypeMapper
from waltap.changes.mapping.value_form import (
    OutOfRange,
    ValueForm,
    column_mapping,
    default_value,
    placeholder_text,
)

# Debezium's own constant: 30.4375 days.
_DAYS_PER_MONTH = 365.25 / 12.0
_LONG_MAX, _LONG_MIN = 2**63 - 1, -(2**63)
_MONTHS = {"year": 12, "years": 12, "mon": 1, "mons": 1}


class Interval(NamedTuple):
    """Hold an interval's stored parts, each with its sign."""

    months: int
    days: int
    micros: int


def parse_interval(text: str) -> Interval:
    """Return the parts of ``1 year 2 mons -3 days +04:05:06.7``.

    Raises ValueError for other text.
    """
    months = days = micros = 0
    words = text.split()
    if not words:
        raise ValueError("malformed interval: nothing there")
    if ":" in words[-1]:
        micros = _clock(words.pop())
    if len(words) % 2:
        raise ValueError("malformed interval: IntervalStyle must be postgres")
    for number, unit in zip(words[::2], words[1::2], strict=True):
        if unit in _MONTHS:
            months += int(number) * _MONTHS[unit]
        elif unit in {"day", "days"}:
            days += int(number)
        else:
            raise ValueError("malformed interval: IntervalStyle must be postgres")
    return Interval(months, days, micros)


def _clock(text: str) -> int:
    """Return microseconds of ``[±]H…:MM:SS[.f]``."""
    sign = -1 if text[0] == "-" else 1
    hours, minutes, seconds = text.lstrip("+-").split(":")
    whole_seconds, _, fraction = seconds.partition(".")
    total = (int(hours) * 60 + int(minutes)) * 60 + int(whole_seconds)
    # The sign is for the whole clock, not for the hours alone.
    return sign * (total * 1_000_000 + int(fraction.ljust(6, "0")))


def _toward_zero(number: int, by: int) -> tuple[int, int]:
    """Divide as Java and C do, toward zero."""
    quotient, rest = divmod(abs(number), by)
    return (-quotient, -rest) if number < 0 else (quotient, rest)


def _numeric(interval: Interval) -> int:
    """Return the interval in microseconds, as Debezium computes it."""
    seconds_whole, fraction = _toward_zero(interval.micros, 1_000_000)
    minutes_whole, seconds = _toward_zero(seconds_whole, 60)
    hours, minutes = _toward_zero(minutes_whole, 60)
    days = interval.months * _DAYS_PER_MONTH + interval.days
    # In doubles, with their rounding errors, as Debezium does.
    total = (((days * 24 + hours) * 60) + minutes) * 60 + (seconds + fraction / 1e6)
    # Java's cast of a double to long stops at the limits.
    return max(_LONG_MIN, min(_LONG_MAX, int(total * 1e6)))


def _duration(interval: Interval) -> str:
    """Return the ISO duration with every part."""
    years, months = _toward_zero(interval.months, 12)
    seconds_whole, fraction = _toward_zero(interval.micros, 1_000_000)
    minutes_whole, seconds = _toward_zero(seconds_whole, 60)
    hours, minutes = _toward_zero(minutes_whole, 60)
    exact = Decimal(seconds * 1_000_000 + fraction).scaleb(-6)
    # Seconds have no trailing zeros.
    shown = f"{exact:f}".rstrip("0").rstrip(".") if fraction else str(seconds)
    return f"P{years}Y{months}M{interval.days}DT{hours}H{minutes}M{shown}S"


_INFINITE = frozenset({"infinity", "-infinity"})


def _arrow_text(text: str) -> str:
    """Return an ISO duration, or the word for an infinite interval."""
    return text if text in _INFINITE else _duration(parse_interval(text))


_ARROW = converted(
    "interval", arrow_type("string"), _arrow_text, (("waltap.form", "iso8601 duration"),)
)


def build_interval(column: Column, mapper: TypeMapper) -> ColumnMapping:
    """Map ``interval``."""
    options = mapper.options
    misfit = OutOfRange(column.name, options)
    as_text = options.interval_handling_mode == "string"

    def to_connect(text: str) -> object:
        if text in _INFINITE:
            return misfit.connect("interval is infinite")
        return (_duration if as_text else _numeric)(parse_interval(text))

    def to_json(text: str) -> str:
        if text in _INFINITE:
            return misfit.json("interval is infinite")
        return f'"{to_connect(text)}"' if as_text else str(to_connect(text))

    form = ValueForm(
        schema=Schema(
            kind=ConnectKind.STRING if as_text else ConnectKind.INT64,
            name="io.debezium.time.Interval" if as_text else "io.debezium.time.MicroDuration",
            version=1,
        ),
        to_json=to_json,
        to_connect=to_connect,
        zero="P0Y0M0DT0H0M0S" if as_text else 0,
        default=default_value(column.default, "00:00:00", to_connect),
        unavailable=placeholder_text(options) if as_text else None,
        arrow=_ARROW,
    )
    return column_mapping(column, options, form, misfit)
