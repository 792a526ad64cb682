"""TimestampConverter: convert dates and times to another form."""

from collections.abc import Callable
from typing import Any, Literal, Self

from msgspec.structs import replace
from pydantic import model_validator

from waltap.base.property import declare
from waltap.changes.mapping.connect_schema import ConnectKind, Field, Schema
from waltap.encoders.format.record_transform import ConnectRecord, RecordUnfit, SchemaMemory
from waltap_transforms.connect.sides import (
    Change,
    NullToDefault,
    Row,
    copied,
    map_of,
    sides,
    struct_of,
)
from waltap_transforms.java.dates import (
    DATE,
    DAY_MS,
    TEMPORAL,
    TIME,
    TIMESTAMP,
    SimpleDateFormat,
    milliseconds,
)

__all__ = ["TIMESTAMP_CONVERTER"]

PURPOSE = "convert timestamps in"
# Precision → its unit in ns.
UNIX_NS = {
    "seconds": 1_000_000_000,
    "milliseconds": 1_000_000,
    "microseconds": 1_000,
    "nanoseconds": 1,
}
MILLISECOND_NS = 1_000_000
LONGEST = (1 << 63) - 1

Convert = Callable[[Any], Any]


class TimestampConverterProperties(NullToDefault):
    """Field to convert, and the form that it gets."""

    field: str = declare(
        "field", default="", summary="Field to convert; without it, the whole is a timestamp."
    )
    target: Literal["string", "unix", "Date", "Time", "Timestamp"] = declare(
        "target.type",
        summary="A text, a number since 1970, or Kafka Connect's Date, Time or Timestamp.",
    )
    format: str = declare(
        "format",
        default="",
        summary="Pattern of Java's SimpleDateFormat that texts follow, in UTC.",
        examples=("yyyy-MM-dd HH:mm:ss.SSS",),
    )
    precision: Literal["seconds", "milliseconds", "microseconds", "nanoseconds"] = declare(
        "unix.precision",
        default="milliseconds",
        summary="Unit of numbers since 1970, read or written; what is finer than a millisecond is lost.",
    )

    @model_validator(mode="after")
    def _readable(self) -> Self:
        if self.target == "string" and not self.format.strip():
            raise ValueError("format is missing: target.type=string needs it")
        # A bad pattern fails when the profile is read, not at the first record.
        SimpleDateFormat(self.format)
        return self


class _TimestampConversion:
    """Convert values of any temporal form to the target.

    Every conversion goes by milliseconds, as it does in Java by java.util.Date.
    """

    def __init__(self, properties: TimestampConverterProperties) -> None:
        self._target = properties.target
        self._unit = UNIX_NS[properties.precision]
        given = properties.format.strip()
        self._format = SimpleDateFormat(properties.format) if given else None

    def schema(self, schema: Schema) -> Schema:
        """Return the schema of the converted values."""
        kind, name = {
            "string": (ConnectKind.STRING, None),
            "unix": (ConnectKind.INT64, None),
            "Date": (ConnectKind.INT32, DATE),
            "Time": (ConnectKind.INT32, TIME),
            "Timestamp": (ConnectKind.INT64, TIMESTAMP),
        }[self._target]
        return Schema(kind=kind, optional=schema.optional, name=name, version=1 if name else None)

    def of(self, schema: Schema, what: str) -> Convert:
        """Return the function that converts values of ``schema``.

        Raises: RecordUnfit for a type that has no timestamps.
        """
        if schema.name in TEMPORAL:
            return lambda value: self._written(milliseconds(schema, value))
        if schema.kind is ConnectKind.STRING:
            return lambda value: self._written(self._read(value, what))
        if schema.kind is ConnectKind.INT64:
            return lambda value: self._written(self._of_unix(value))
        raise RecordUnfit(f"{what} is of type {schema.kind.value}, which holds no timestamp")

    def plain(self, value: Any, what: str) -> Any:
        """Convert a value that has no schema."""
        if value is None:
            return None
        if self._target in ("Date", "Time", "Timestamp"):
            raise RecordUnfit(f"{what} has no schema, and nothing else would tell a {self._target}")
        if isinstance(value, str):
            return self._written(self._read(value, what))
        # In Python a bool is an int, too.
        if isinstance(value, int) and not isinstance(value, bool):
            return self._written(self._of_unix(value))
        raise RecordUnfit(f"{what} is of type {type(value).__name__}, which holds no timestamp")

    def _read(self, text: str, what: str) -> int:
        if self._format is None:
            raise RecordUnfit(f"{what} is a text, and format does not say how to read it")
        try:
            return self._format.parse(text)
        except ValueError as cause:
            raise RecordUnfit(f"{what}: {cause}") from cause

    def _of_unix(self, number: int) -> int:
        """Convert a number of the profile's unit to ms.

        A finer part is cut off.
        """
        if self._unit >= MILLISECOND_NS:
            return _held(number * (self._unit // MILLISECOND_NS))
        # Java's division rounds towards 0, Python's downwards.
        finer = MILLISECOND_NS // self._unit
        return -(-number // finer) if number < 0 else number // finer

    def _written(self, instant: int) -> Any:
        match self._target:
            case "string":
                assert self._format is not None
                return self._format.format(instant)
            case "unix":
                if self._unit <= MILLISECOND_NS:
                    return _held(instant * (MILLISECOND_NS // self._unit))
                coarser = self._unit // MILLISECOND_NS
                return -(-instant // coarser) if instant < 0 else instant // coarser
            case "Date":
                return instant // DAY_MS
            case "Time":
                return instant % DAY_MS
            case _:
                return instant


def _held(number: int) -> int:
    """Limit ``number`` to a long, as Java's TimeUnit does."""
    return max(-LONGEST - 1, min(LONGEST, number))


def _change(properties: TimestampConverterProperties) -> Change:
    converter, name = _TimestampConversion(properties), properties.field

    def made(schema: Schema) -> tuple[Schema, Convert]:
        if not name:
            return converter.schema(schema), converter.of(schema, "it")
        if schema.kind is not ConnectKind.STRUCT:
            raise RecordUnfit(f"it needs a struct to {PURPOSE}, and found {schema.kind.value}")
        copy = copied(schema, with_defaults=properties.null_to_default)
        own = next((field for field in schema.fields if field.name == name), None)
        if own is None:
            return schema, copy
        # A field of another type is refused at its first row, so that the schema alone is no error.
        try:
            convert = converter.of(own.schema, f"the field {name}")
        except RecordUnfit as cause:
            convert, problem = None, cause

        def convert_row(row: Row) -> Row:
            if convert is None:
                raise problem
            found = copy(row)
            if found.get(name) is not None:
                found[name] = convert(found[name])
            return found

        # The default must have the type of the new schema.
        fields = tuple(
            Field(name, converter.schema(own.schema)) if field is own else field
            for field in schema.fields
        )
        default = schema.default
        if isinstance(default, dict):
            default = convert_row(default)
        return replace(schema, fields=fields, default=default), convert_row

    # Encoders find a schema by its object, so one source schema must always give the same object.
    memory = SchemaMemory(made)

    def change(_record: ConnectRecord, schema: Schema | None, value: Any) -> tuple[Any, Any]:
        if schema is None:
            if value is None or not name:
                return None, converter.plain(value, "it")
            row = dict(map_of(value, PURPOSE))
            row[name] = converter.plain(row.get(name), f"the field {name}")
            return None, row
        if name and value is not None:
            struct_of(schema, value, PURPOSE)
        updated, convert = memory.of(schema)
        return updated, None if value is None else convert(value)

    return change


TIMESTAMP_CONVERTER = sides(
    "TimestampConverter",
    "Converts times in the {side}: texts, numbers since 1970, Kafka Connect's types.",
    TimestampConverterProperties,
    _change,
)
