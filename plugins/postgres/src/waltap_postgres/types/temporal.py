"""``date``, ``time`` and ``timestamp`` by ``time.precision.mode``; zoned types.

``adaptive`` chooses milliseconds up to three declared digits, else microseconds. ``connect`` is
always milliseconds, ``isostring`` is text, and ``microseconds`` and ``nanoseconds`` are named by
their unit. Source: Debezium 3.6's ``TemporalPrecisionMode``; its events show the values of
±infinity and 24:00.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

from waltap.changes.arrow import column as arrow_column
from waltap.changes.decode.relation import Column
from waltap.changes.decode.value_text import DAY_MICROS, civil_date, clock_text, day_number
from waltap.changes.mapping.connect_schema import ConnectKind, Schema
from waltap.changes.mapping.type_mapping import (
    ColumnMapping,
    JsonExpression,
    TypeMapper,
    TypeOptions,
)
from waltap.changes.mapping.value_form import (
    OutOfRange,
    ValueForm,
    column_mapping,
    default_value,
    placeholder_text,
)
from waltap.encoders.json import columns

# Convert dates and times of day from PostgreSQL's text to numbers and back.
#
# Text is in ISO style and UTC. Days count from 1970-01-01 in the proleptic Gregorian calendar,
# microseconds likewise. Years are astronomical: 1 BC is year 0.

# About 180 years: a column holds few different days, so that a day costs one look-up.
_CACHED_DAYS = 65_536


class _EpochDays(dict[str, int]):
    """Map ``YYYY-MM-DD`` to the seconds since 1970 at its midnight.

    The map is filled on use and emptied when full.
    """

    def __missing__(self, text: str) -> int:
        # Other widths are BC or far years, which need `parse_day`.
        if len(text) != 10 or text[4] != "-" or text[7] != "-":
            raise ValueError("not a date of a year between 1 and 9999")
        seconds = _day_number(int(text[:4]), int(text[5:7]), int(text[8:])) * 86_400
        if len(self) >= _CACHED_DAYS:
            self.clear()
        self[text] = seconds
        return seconds


DAYS = _EpochDays()


class _DaySeconds(dict[str, int]):
    """Map ``HH:MM:SS`` to seconds since midnight, filled on use."""

    def __missing__(self, text: str) -> int:
        if len(text) != 8 or text[2] != ":" or text[5] != ":":
            raise ValueError("not a time of day")
        hours, minutes, seconds = int(text[:2]), int(text[3:5]), int(text[6:])
        total = (hours * 60 + minutes) * 60 + seconds
        # 24:00:00 is a time of day in PostgreSQL, so there are at most 86,401 entries.
        if minutes > 59 or seconds > 59 or total > 86_400:
            raise ValueError("time of day out of range")
        self[text] = total
        return total


SECONDS = _DaySeconds()


def _day_number(year: int, month: int, day: int) -> int:
    """Return days since 1970-01-01. Raises ValueError outside the calendar."""
    if not (1 <= month <= 12 and 1 <= day <= 31):
        raise ValueError("month or day out of range")
    return day_number(year, month, day)


def parse_day(text: str) -> int:
    """Return days since 1970 of ``YYYY…-MM-DD[ BC]``."""
    before_christ = text.endswith(" BC")
    parts = (text[:-3] if before_christ else text).split("-")
    if len(parts) != 3 or not all(part.isdecimal() for part in parts):
        raise ValueError("not an ISO date: DateStyle must be ISO")
    year, month, day = map(int, parts)
    return _day_number(1 - year if before_christ else year, month, day)


def parse_clock(text: str) -> int:
    """Return microseconds since midnight of ``HH:MM:SS[.ffffff]``."""
    fraction = text[9:]
    if text[8:9] not in {"", "."} or len(fraction) > 6:
        raise ValueError("not a time of day")
    return SECONDS[text[:8]] * 1_000_000 + (int(fraction.ljust(6, "0")) if fraction else 0)


def parse_zone(text: str) -> int:
    """Return microseconds east of UTC of ``+HH[:MM[:SS]]``."""
    sign = {"+": 1, "-": -1}.get(text[:1], 0)
    parts = text[1:].split(":")
    if not sign or len(parts) > 3:
        raise ValueError("not a zone offset")
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
        raise ValueError("not a timestamp: DateStyle must be ISO")
    zone = max(clock.find("+"), clock.find("-"))
    offset = 0
    if zone > 0:
        clock, offset = clock[:zone], parse_zone(clock[zone:])
    return parse_day(date + era) * DAY_MICROS + parse_clock(clock) - offset


def iso_date(days: int) -> str:
    """Return the date in Java's ISO format."""
    year, month, day = civil_date(days)
    if 0 <= year <= 9999:
        return f"{year:04d}-{month:02d}-{day:02d}"
    # Java signs astronomical years outside 0000 to 9999.
    return f"{'-' if year < 0 else '+'}{abs(year):04d}-{month:02d}-{day:02d}"


_DEBEZIUM, _CONNECT = "io.debezium.time.", "org.apache.kafka.connect.data."
_LONG_MAX, _LONG_MIN = 2**63 - 1, -(2**63)
# PgJDBC's numbers for ±infinity, as Debezium's events show them.
_INFINITE_MICROS = {"infinity": 9_223_372_036_825_200_000, "-infinity": -9_223_372_036_832_400_000}
# By `waltap.infinite.date`. Debezium overflows in another way where it reads rows, and in arrays.
_INFINITE_DAYS = {
    "debezium": {"infinity": -2_147_472_692, "-infinity": -2_147_472_691},
    "debezium, read": {"infinity": -622_191_234, "-infinity": -625_821_272},
    "extreme": {"infinity": 2**31 - 1, "-infinity": -(2**31)},
}
_INFINITE_ISO_READ = {"infinity": "+292278994-08-16Z", "-infinity": "+292269055-12-02Z"}


def _default(
    column: Column, generated: str, convert: Callable[[str], object], *, clock: bool
) -> object:
    """Return the default of a day, or of an instant (``clock``).

    As in Debezium, the literal may be of the other kind, which a cast makes fit.
    """

    def read(text: str) -> object:
        day, _, rest = text.partition(" ")
        if not clock:
            text = f"{day} BC" if rest.endswith("BC") else day
        elif rest in {"", "BC"} and day[:1].isdecimal():
            text = f"{day} 00:00:00 {rest}".rstrip()
        return convert(text)

    return default_value(column.default, generated, read)


def _digits(typmod: int) -> int:
    """Return the declared fraction digits of a time type."""
    # Without a modifier there are six.
    return typmod if 0 <= typmod <= 6 else 6


def _schema(kind: ConnectKind, name: str) -> Schema:
    return Schema(kind=kind, name=name, version=1)


# --- date ---------------------------------------------------------------------------------------


class _DateNumbers(dict[str, str]):
    """Map a date's text to JSON.

    The map is filled on use and emptied when full. There is one for each form of infinity.
    """

    def __init__(self, convert: Callable[[str], str]) -> None:
        super().__init__()
        self._convert = convert

    def __missing__(self, text: str) -> str:
        if len(self) >= 65_536:
            self.clear()
        found = self[text] = self._convert(text)
        return found


def _day_converter(infinite_date: str) -> Callable[[str], int]:
    infinite = _INFINITE_DAYS[infinite_date]

    def to_day(text: str) -> int:
        day = infinite.get(text)
        return parse_day(text) if day is None else day

    return to_day


def _iso_day_converter(infinite_date: str) -> Callable[[str], str]:
    if infinite_date == "extreme":
        return lambda text: text if text in _INFINITE_MICROS else f"{iso_date(parse_day(text))}Z"
    if infinite_date == "debezium, read":
        return lambda text: _INFINITE_ISO_READ.get(text) or f"{iso_date(parse_day(text))}Z"
    to_day = _day_converter(infinite_date)
    return lambda text: f"{iso_date(to_day(text))}Z"


@cache
def _date_json(infinite_date: str, *, iso: bool) -> tuple[Callable[[str], str], JsonExpression]:
    """Return the cache of date → JSON and its expression."""
    # Shared by all columns: equal names in expressions must mean equal objects.
    name = f"date_json_{'iso' if iso else 'days'}_{infinite_date.replace(', ', '_')}"
    if iso:
        to_text = _iso_day_converter(infinite_date)
        numbers = _DateNumbers(lambda text: f'"{to_text(text)}"')
    else:
        to_day = _day_converter(infinite_date)
        numbers = _DateNumbers(lambda text: str(to_day(text)))
    expression = JsonExpression(template=f"{name}[{{v}}]", names={name: numbers})
    return numbers.__getitem__, expression


def build_date(column: Column, mapper: TypeMapper) -> ColumnMapping:
    """Map ``date``."""
    options = mapper.options
    mapping = _date_mapping(column, options, options.infinite_date)
    if options.infinite_date != "debezium":
        return mapping
    # A snapshot's infinity has other numbers in Debezium.
    return replace(mapping, read=_date_mapping(column, options, "debezium, read"))


def _date_mapping(column: Column, options: TypeOptions, infinite_date: str) -> ColumnMapping:
    iso = options.time_precision_mode == "isostring"
    to_json, expression = _date_json(infinite_date, iso=iso)
    if iso:
        to_text = _iso_day_converter(infinite_date)
        form = ValueForm(
            schema=_schema(ConnectKind.STRING, _DEBEZIUM + "IsoDate"),
            to_json=to_json,
            to_connect=to_text,
            zero="1970-01-01Z",
            default=_default(column, "1970-01-01", to_text, clock=False),
            unavailable=placeholder_text(options),
            arrow=arrow_column.dates(options),
            json_expression=expression,
        )
    else:
        to_day = _day_converter(infinite_date)
        prefix = _CONNECT if options.time_precision_mode == "connect" else _DEBEZIUM
        form = ValueForm(
            schema=_schema(ConnectKind.INT32, prefix + "Date"),
            to_json=to_json,
            to_connect=to_day,
            zero=0,
            default=_default(column, "1970-01-01", to_day, clock=False),
            arrow=arrow_column.dates(options),
            json_expression=expression,
            json_column=columns.DAYS,
        )
    return column_mapping(column, options, form)


# --- time ---------------------------------------------------------------------------------------


_TIME_UNITS: dict[str, tuple[ConnectKind, str, int, int]] = {
    "milli": (ConnectKind.INT32, _DEBEZIUM + "Time", 1, 1000),
    "connect": (ConnectKind.INT32, _CONNECT + "Time", 1, 1000),
    "micro": (ConnectKind.INT64, _DEBEZIUM + "MicroTime", 1, 1),
    "nano": (ConnectKind.INT64, _DEBEZIUM + "NanoTime", 1000, 1),
}
_FIXED_UNITS = {"connect": "connect", "microseconds": "micro", "nanoseconds": "nano"}
_TIMESTAMP_UNITS: dict[str, tuple[str, int, int]] = {
    "milli": (_DEBEZIUM + "Timestamp", 1, 1000),
    "connect": (_CONNECT + "Timestamp", 1, 1000),
    "micro": (_DEBEZIUM + "MicroTimestamp", 1, 1),
    "nano": (_DEBEZIUM + "NanoTimestamp", 1000, 1),
}


def _unit(mode: str, digits: int, *, adaptive_time: bool) -> str:
    """Return the units of a mode and fraction digits."""
    if adaptive_time and mode == "adaptive_time_microseconds":
        return "micro"
    return _FIXED_UNITS.get(mode, "milli" if digits <= 3 else "micro")


def _time_json(multiplier: int, divisor: int) -> Callable[[str], str]:
    if divisor == 1000:
        return lambda text: str(parse_clock(text) // 1000)
    if multiplier == 1000:
        return lambda text: str(parse_clock(text) * 1000)
    return lambda text: str(parse_clock(text))


def _iso_time(text: str) -> str:
    """Return a time of day for isostring."""
    parse_clock(text)
    # Java wraps 24:00 to midnight.
    return "00:00:00Z" if text[:2] == "24" else text + "Z"


def build_time(column: Column, mapper: TypeMapper) -> ColumnMapping:
    """Map ``time``."""
    options = mapper.options
    if options.time_precision_mode == "isostring":
        form = ValueForm(
            schema=_schema(ConnectKind.STRING, _DEBEZIUM + "IsoTime"),
            to_json=lambda text: f'"{_iso_time(text)}"',
            to_connect=_iso_time,
            zero="00:00:00Z",
            default=default_value(column.default, "00:00:00", _iso_time),
            unavailable=placeholder_text(options),
            arrow=arrow_column.clocks(options),
        )
        return column_mapping(column, options, form)
    unit = _unit(options.time_precision_mode, _digits(column.typmod), adaptive_time=True)
    kind, name, multiplier, divisor = _TIME_UNITS[unit]

    def to_connect(text: str) -> int:
        return parse_clock(text) * multiplier // divisor

    form = ValueForm(
        schema=_schema(kind, name),
        to_json=_time_json(multiplier, divisor),
        to_connect=to_connect,
        zero=0,
        default=default_value(column.default, "00:00:00", to_connect),
        arrow=arrow_column.clocks(options),
    )
    return column_mapping(column, options, form)


# --- timestamp ----------------------------------------------------------------------------------


def _near_micros(text: str) -> int:
    """Return microseconds since 1970 of a timestamp in years 1 to 9999.

    The text has no zone. Raises ValueError for anything else, infinity, BC and far years
    included.
    """
    fraction = text[20:]
    if text[19:20] not in {"", "."} or (fraction and not fraction.isdigit()) or len(text) > 26:
        raise ValueError("not a timestamp of a year between 1 and 9999")
    seconds = DAYS[text[:10]] + SECONDS[text[11:19]]
    return seconds * 1_000_000 + (int(fraction.ljust(6, "0")) if fraction else 0)


def _number_converter(
    unit: str, misfit: OutOfRange
) -> tuple[Callable[[str], str], Callable[[str], object]]:
    """Return text → JSON and text → Connect number of a unit.

    Numbers beyond int64 are misfits.
    """
    _, multiplier, divisor = _TIMESTAMP_UNITS[unit]

    def far(text: str) -> int | None:
        """Return the number of a timestamp outside years 1 to 9999."""
        micros = _INFINITE_MICROS.get(text)
        if micros is not None:
            if unit == "nano":
                # Nanoseconds overflow, so Debezium gives the limits.
                return _LONG_MAX if micros > 0 else _LONG_MIN
            return micros // divisor
        number = parse_timestamp(text) * multiplier // divisor
        return number if _LONG_MIN <= number <= _LONG_MAX else None

    def to_connect(text: str) -> object:
        # Years 1 to 9999 fit 64 bits in microseconds, and not in nanoseconds.
        if unit != "nano":
            try:
                return _near_micros(text) // divisor
            except ValueError:
                pass
        number = far(text)
        return misfit.connect("timestamp exceeds 64 bits") if number is None else number

    def micro_number(text: str) -> object:
        try:
            fraction = text[20:]
            # The usual width, with six digits: no padding.
            if len(text) == 26 and fraction.isdigit():
                return (DAYS[text[:10]] + SECONDS[text[11:19]]) * 1_000_000 + int(fraction)
        except ValueError:
            pass
        return to_connect(text)

    def far_json(text: str) -> str:
        number = far(text)
        return misfit.json("timestamp exceeds 64 bits") if number is None else str(number)

    width = 26 if divisor == 1 else 23

    def near_json(text: str) -> str:
        try:
            fraction = text[20:]
            if len(text) == width and fraction.isdigit():
                seconds = DAYS[text[:10]] + SECONDS[text[11:19]]
                if seconds > 0:  # digits of seconds and fraction side by side are the number
                    return f"{seconds}{fraction}"
            return str(_near_micros(text) // divisor)
        except ValueError:
            return far_json(text)

    to_json = far_json if unit == "nano" else near_json
    return to_json, micro_number if unit == "micro" else to_connect


def _iso_timestamp(text: str) -> str:
    """Return a timestamp for isostring."""
    try:
        _near_micros(text)
    except ValueError:
        micros = _INFINITE_MICROS.get(text)
        day, clock = divmod(parse_timestamp(text) if micros is None else micros, DAY_MICROS)
        return f"{iso_date(day)}T{clock_text(clock)}Z"
    # The server's text has as few fraction digits as the value needs.
    return f"{text[:10]}T{text[11:]}Z"


def build_timestamp(column: Column, mapper: TypeMapper) -> ColumnMapping:
    """Map ``timestamp``."""
    options = mapper.options
    generated = "1970-01-01 00:00:00"
    if options.time_precision_mode == "isostring":
        form = ValueForm(
            schema=_schema(ConnectKind.STRING, _DEBEZIUM + "IsoTimestamp"),
            to_json=lambda text: f'"{_iso_timestamp(text)}"',
            to_connect=_iso_timestamp,
            zero="1970-01-01T00:00:00Z",
            default=_default(column, generated, _iso_timestamp, clock=True),
            unavailable=placeholder_text(options),
            arrow=arrow_column.timestamps(options),
        )
        return column_mapping(column, options, form)
    misfit = OutOfRange(column.name, options)
    unit = _unit(options.time_precision_mode, _digits(column.typmod), adaptive_time=False)
    to_json, to_connect = _number_converter(unit, misfit)
    form = ValueForm(
        schema=_schema(ConnectKind.INT64, _TIMESTAMP_UNITS[unit][0]),
        to_json=to_json,
        to_connect=to_connect,
        zero=0,
        default=_default(column, generated, to_connect, clock=True),
        arrow=arrow_column.timestamps(options),
        json_column=None if unit == "nano" else columns.timestamps(_TIMESTAMP_UNITS[unit][2]),
    )
    return column_mapping(column, options, form, misfit)


# --- with zone ----------------------------------------------------------------------------------


def _zoned_text(digits: int) -> Callable[[str], str]:
    """Return timestamptz → ISO text in UTC with ``digits`` of fraction."""
    pads = _pads(digits)

    def convert(text: str) -> str:
        try:
            if text[-3:] == "+00" and text[10] == " ":
                return f"{text[:10]}T{text[11:-3]}{pads[len(text)]}Z"
        except (KeyError, IndexError):
            pass  # another width is cut or padded, another zone is turned to UTC
        if text in _INFINITE_MICROS:
            return text
        day, clock = divmod(parse_timestamp(text), DAY_MICROS)
        seconds, fraction = divmod(clock, 1_000_000)
        tail = f".{fraction:06d}"[: digits + 1] if digits else ""
        return f"{iso_date(day)}T{clock_text(seconds * 1_000_000)}{tail}Z"

    return convert


def _pads(digits: int) -> dict[int, str]:
    """Return a UTC timestamptz's end by its width."""
    pads = {23 + shown: "0" * (digits - shown) for shown in range(1, digits + 1)}
    pads[22] = "." + "0" * digits if digits else ""
    return pads


def _zoned_json(digits: int, careful: Callable[[str], str]) -> Callable[[str], str]:
    """Return timestamptz → JSON."""
    pads = _pads(digits)

    def to_json(text: str) -> str:
        try:
            # Texts in UTC of years 1 to 9999 are only padded.
            if text[-3:] == "+00" and text[10] == " ":
                return f'"{text[:10]}T{text[11:-3]}{pads[len(text)]}Z"'
        except (KeyError, IndexError):
            pass  # another width: the careful way cuts or pads it
        return f'"{careful(text)}"'

    return to_json


def build_timestamptz(column: Column, mapper: TypeMapper) -> ColumnMapping:
    """Map ``timestamptz``."""
    digits = _digits(column.typmod)
    convert = _zoned_text(digits)
    form = ValueForm(
        schema=_schema(ConnectKind.STRING, _DEBEZIUM + "ZonedTimestamp"),
        to_json=_zoned_json(digits, convert),
        to_connect=convert,
        zero="1970-01-01T00:00:00Z",
        default=_default(column, "1970-01-01 00:00:00+00", convert, clock=True),
        unavailable=placeholder_text(mapper.options),
        arrow=arrow_column.timestamps(mapper.options, "UTC"),
        json_column=columns.zoned(digits),
    )
    return column_mapping(column, mapper.options, form)


def _split_zone(text: str) -> tuple[str, str]:
    zone = max(text.find("+"), text.find("-"))
    if zone < 0:
        raise ValueError("time without zone offset")
    return text[:zone], text[zone:]


def _zoned_time(text: str) -> str:
    """Return a timetz in UTC, with minimal fraction digits."""
    clock, zone = _split_zone(text)
    micros = parse_clock(clock)
    # Only 24:00 at UTC keeps its hour, as in Debezium 3.7. In other zones the end of a day is a
    # time of day at UTC like others.
    if zone == "+00":
        return clock + "Z"
    return clock_text((micros - parse_zone(zone)) % DAY_MICROS) + "Z"


def build_timetz(column: Column, mapper: TypeMapper) -> ColumnMapping:
    """Map ``timetz``."""
    form = ValueForm(
        schema=_schema(ConnectKind.STRING, _DEBEZIUM + "ZonedTime"),
        to_json=lambda text: f'"{_zoned_time(text)}"',
        to_connect=_zoned_time,
        zero="00:00:00Z",
        unavailable=placeholder_text(mapper.options),
        arrow=arrow_column.strings((("waltap.form", "time with zone"),)),
    )
    return column_mapping(column, mapper.options, form)
