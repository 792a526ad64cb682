"""TimezoneConverter: convert the times of rows to another time zone."""

import re
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec
from pydantic import field_validator, model_validator

from waltap.base.property import MaybeList, Properties, declare
from waltap.changes.decode.value_text import civil_date, day_number
from waltap.changes.mapping.connect_schema import DATE, TIME, TIMESTAMP, ConnectKind, Field, Schema
from waltap.encoders.format.record_transform import (
    ConnectRecord,
    RecordTransformContext,
    RecordUnfit,
    SchemaMemory,
)
from waltap_transforms.specs import debezium_spec, each_event, warnings
from waltap_transforms.structs import converted, field_of

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
        """Return the offset in s at an instant. ``instant`` is in seconds since 1970 UTC."""
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


def instant_of(at: int, zone: NamedZone, unit: int) -> int:
    """Return the instant of a local time of ``zone``; a second is ``unit``."""
    moved = at - zone.offset(at // unit) * unit
    return (moved + 2**63) % 2**64 - 2**63  # as Java's: -infinity overflows


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


MAX_PLANS = 10_000
RULES = re.compile(r'\[(source|topic|[".\w\s]+):([".\w\s]+(?::[".\w\s]+)?(?:,|]$))+')
# Field of the source block → its units per second.
EPOCHS = {"ts_ms": 1_000, "ts_us": 1_000_000, "ts_ns": 1_000_000_000}
# Type without a zone → its units per second.
UNITS = {
    "io.debezium.time.Timestamp": 1_000,
    "io.debezium.time.MicroTimestamp": 1_000_000,
    "io.debezium.time.NanoTimestamp": 1_000_000_000,
    TIMESTAMP: 1_000,
}
ZONED_TIMESTAMP, ZONED_TIME = "io.debezium.time.ZonedTimestamp", "io.debezium.time.ZonedTime"
INFINITE = frozenset({"infinity", "-infinity"})
# Without a date, a time has no offset in a zone with daylight saving; without a time, a date has none.
_DATES_AND_TIMES = ("Date", "MicroTime", "NanoTime", "Time")
UNTOUCHED = frozenset({f"io.debezium.time.{name}" for name in _DATES_AND_TIMES} | {DATE, TIME})

Convert = Callable[[Any], Any]


class TimezoneConverterProperties(Properties):
    """Time zone, and the fields to convert."""

    zone: str = declare(
        "converted.timezone",
        summary="Time zone to convert to: a name (America/Los_Angeles) or an offset (+08:00).",
    )
    include: MaybeList = declare(
        "include.list",
        summary="Fields to convert, by default all: source:TABLE, source:TABLE:FIELD, "
        "topic:TOPIC, topic:TOPIC:FIELD, or NAME:FIELD of a topic or table. A field is "
        "a column, or `source.ts_ms`, `before.x`, `after.x`.",
    )
    exclude: MaybeList = declare(
        "exclude.list", summary="What is not converted, written in the same way."
    )

    @field_validator("zone")
    @classmethod
    def _known(cls, value: str) -> str:
        NamedZone(value)
        return value

    @model_validator(mode="after")
    def _readable(self) -> Self:
        if self.include and self.exclude:
            raise ValueError("give include.list or exclude.list, not both")
        rules = self.include or self.exclude
        if rules and not RULES.fullmatch(f"[{', '.join(rules)}]"):
            raise ValueError(
                f"{', '.join(rules)} is no list of source:TABLE:FIELD, topic:TOPIC:FIELD or NAME:FIELD"
            )
        return self


class TimezoneConverter:
    """Convert times in change events to another zone."""

    def __init__(
        self, properties: TimezoneConverterProperties, context: RecordTransformContext
    ) -> None:
        self._zone = NamedZone(properties.zone)
        self._includes, self._excludes = bool(properties.include), bool(properties.exclude)
        self._rules = _rules(properties.exclude or properties.include)
        # Rules name topics and tables, so one schema may have several plans.
        self._plans: SchemaMemory[_Plan] = SchemaMemory(self._plan, most=MAX_PLANS)
        self._report = warnings(context)

    def __call__(self, record: ConnectRecord) -> ConnectRecord:
        event, schema = record.value, record.value_schema
        assert schema is not None
        table = (event.get("source") or {}).get("table")
        changed = {}
        for envelope_field, parts in self._plans.of(schema, record.topic, table):
            struct = event.get(envelope_field)
            if struct is not None:
                changed[envelope_field] = converted(struct, parts)
        return msgspec.structs.replace(record, value={**event, **changed}) if changed else record

    def _plan(self, schema: Schema, topic: str, table: str | None) -> "_Plan":
        wanted = self._wanted(topic, table)
        if wanted is None:
            return []
        plan = []
        for envelope_field in ("before", "after", "source"):
            inside = field_of(schema, envelope_field)
            if inside is None or inside.schema.kind is not ConnectKind.STRUCT:
                continue
            parts = [
                (field.name, field.schema.default, convert)
                for field in inside.schema.fields
                if wanted(envelope_field, field.name)
                and (convert := self._conversion(envelope_field, field)) is not None
            ]
            if parts:
                plan.append((envelope_field, parts))
        return plan

    def _wanted(self, topic: str, table: str | None) -> Callable[[str, str], bool] | None:
        """Return the test for the fields to convert, None for no field."""
        # A rule with the kind wins over one with only a name, and the topic over the table.
        rules, found = self._rules, None
        for kind, name in (("topic", topic), ("source", table), ("", topic), ("", table)):
            if (kind, name) in rules:
                found = rules[kind, name or ""]
                break
        if not found:  # no rule, or one without fields
            none = self._includes if found is None else self._excludes
            # The source block is converted only where a rule names one of its fields.
            return None if none else lambda envelope_field, _field: envelope_field != "source"
        of_source = any(field.startswith("source.") for field in found)

        def named(envelope_field: str, field: str) -> bool:
            if envelope_field == "source" and not of_source:
                return False
            listed = f"{envelope_field}.{field}" in found or (
                envelope_field != "source" and field in found
            )
            return listed is not self._excludes

        return named

    def _conversion(self, envelope_field: str, field: Field) -> Convert | None:
        name, zone = field.schema.name, self._zone
        if name is None:
            return _epoch(zone, EPOCHS.get(field.name)) if envelope_field == "source" else None
        if name in UNTOUCHED:
            self._report(f"{field.name} is not converted: {name} is no date with a time")
            return None
        if name == ZONED_TIMESTAMP:

            def moved(text: str) -> str:
                if text in INFINITE:
                    self._report(
                        f"{text} in {field.name} is not converted: it is the same in every zone"
                    )
                    return text
                return moved_timestamp(text, zone)

            return moved
        if name == ZONED_TIME:
            # A time has no date, so it gets the zone's present offset.
            return lambda text: moved_time(text, zone.offset_at(int(time.time())))
        if name in UNITS:
            unit = UNITS[name]
            return lambda at: instant_of(at, zone, unit)
        return None


# (field, default, function) of each field, and these for each such field of the envelope.
_Parts = list[tuple[str, object, Convert]]
_Plan = list[tuple[str, _Parts]]


def _epoch(zone: NamedZone, unit: int | None) -> Convert | None:
    return None if unit is None else lambda at: at + zone.offset_at(at // unit) * unit


def _rules(entries: Iterable[str]) -> dict[tuple[str, str], set[str]]:
    """Return the fields of each (kind, name).

    The kind is topic, source, or "" for either.
    """
    found: dict[tuple[str, str], set[str]] = {}
    common = ""
    for entry in entries:
        parts = entry.split(":")
        if len(parts) > 1 and parts[0].lower() in ("source", "topic"):
            # A kind also applies to the entries after it.
            common = parts[0] if parts[0] in ("source", "topic") else ""
            parts = parts[1:]
        fields = found.setdefault((common, parts[0]), set())
        fields.update(parts[1:2])
    return found


TIMEZONE_CONVERTER = debezium_spec(
    "TimezoneConverter",
    "Converts times of rows to another time zone.",
    TimezoneConverterProperties,
    lambda properties, context: each_event(TimezoneConverter(properties, context)),
)
