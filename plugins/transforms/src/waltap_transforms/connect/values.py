"""Cast, MaskField and TimestampConverter: convert or replace values of fields."""

from collections.abc import Callable
from typing import Any, Literal, Self

from msgspec.structs import replace
from pydantic import field_validator, model_validator

from waltap.base.property import Maybe, NonEmptyList, declare
from waltap.changes.mapping.connect_schema import (
    DATE,
    DECIMAL,
    TIME,
    TIMESTAMP,
    ConnectKind,
    Field,
    Schema,
    decimal_of,
    scale_of,
)
from waltap.changes.mapping.java_number import float_text
from waltap.encoders.format.record_transform import ConnectRecord, RecordUnfit, SchemaMemory
from waltap.encoders.format.simple_header import simple_text
from waltap_transforms.connect.record_parts import (
    Change,
    NullToDefault,
    Row,
    copied,
    key_and_value,
    map_of,
    struct_of,
)
from waltap_transforms.java.dates import DAY_MS, TEMPORAL, SimpleDateFormat, milliseconds
from waltap_transforms.java.numbers import (
    BITS,
    big_decimal,
    decimal_bytes,
    single,
    to_double,
    to_integer,
    to_single,
)

# Types of values without schema, as Connect's JSON converter reads them.
KINDS = {
    bool: ConnectKind.BOOLEAN,
    int: ConnectKind.INT64,
    float: ConnectKind.FLOAT64,
    str: ConnectKind.STRING,
    bytes: ConnectKind.BYTES,
    list: ConnectKind.ARRAY,
    dict: ConnectKind.MAP,
}

MASKS = "mask fields of"
# Masks without a replacement. They are functions, so that no two records share a list or a map.
NOTHING: dict[ConnectKind, Callable[[], Any]] = {
    ConnectKind.BOOLEAN: lambda: False,
    ConnectKind.FLOAT32: lambda: 0.0,
    ConnectKind.FLOAT64: lambda: 0.0,
    ConnectKind.STRING: lambda: "",
    ConnectKind.ARRAY: list,
    ConnectKind.MAP: dict,
    **dict.fromkeys(BITS, lambda: 0),
}


class MaskFieldProperties(NullToDefault):
    """Fields to mask, and their replacement."""

    fields: NonEmptyList = declare("fields", summary="Fields to mask.")
    replacement: Maybe[str] = declare(
        "replacement",
        summary="What numbers and texts get instead of 0 and the empty text.",
    )

    @field_validator("replacement")
    @classmethod
    def _something(cls, value: str | None) -> str | None:
        if value == "":
            raise ValueError("is empty: without it, texts become empty")
        return value


def _masking(properties: MaskFieldProperties) -> Change:
    masked, replacement = frozenset(properties.fields), properties.replacement

    def made(schema: Schema) -> tuple[Any, list[tuple[str, Callable[[], Any]]]]:
        copy = copied(schema, with_defaults=properties.null_to_default)
        masks = [
            (field.name, _mask(field, replacement))
            for field in schema.fields
            if field.name in masked
        ]
        return copy, masks

    # Masks depend only on the schema and the properties, so they are built once for each schema.
    memory = SchemaMemory(made)

    def change(_record: ConnectRecord, schema: Schema | None, value: Any) -> tuple[Any, Any]:
        if schema is None:
            row = dict(map_of(value, MASKS))
            for name in properties.fields:
                row[name] = _plain_mask(name, row.get(name), replacement)
            return None, row
        struct = struct_of(schema, value, MASKS)
        copy, masks = memory.of(schema)
        row = copy(struct)
        for name, mask in masks:
            # Null stays null, so that a mask does not invent a value.
            if row.get(name) is not None:
                row[name] = mask()
        return schema, row

    return change


def _mask(field: Field, replacement: str | None) -> Callable[[], Any]:
    """Return the function that makes the mask of a field.

    The function raises RecordUnfit if the type of the field has no mask.
    """
    schema = field.schema
    if replacement is None and schema.kind is ConnectKind.BYTES and schema.name == DECIMAL:
        return lambda: b"\0"  # the unscaled value 0 of a Decimal
    if replacement is None and schema.kind in NOTHING:
        return NOTHING[schema.kind]
    try:
        value = None if replacement is None else _replaced(schema, replacement)
    except ValueError as cause:
        problem = f"replacement cannot be a {schema.kind.value} of the field {field.name}: {cause}"
        return _refusal(problem)
    if value is None:
        with_what = "" if replacement is None else " with a replacement"
        return _refusal(
            f"the field {field.name} of type {schema.kind.value} cannot be masked{with_what}"
        )
    return lambda: value


def _replaced(schema: Schema, text: str) -> Any:
    """Convert ``text`` to a value of ``schema``.

    None means that the type takes no replacement. Raises: ValueError.
    """
    if schema.kind is ConnectKind.STRING:
        return text
    # Their values are integers here, but Java has Date objects, which Connect does not replace.
    if schema.name in TEMPORAL:
        return None
    if schema.kind in BITS:
        # Fractions are cut off and large numbers wrap, as Java's BigDecimal does.
        return to_integer(to_integer(big_decimal(text), 64), BITS[schema.kind])
    if schema.kind is ConnectKind.FLOAT64:
        return to_double(big_decimal(text))
    if schema.kind is ConnectKind.FLOAT32:
        return single(to_double(big_decimal(text)))
    if schema.kind is ConnectKind.BYTES and schema.name == DECIMAL:
        return decimal_bytes(big_decimal(text), scale_of(schema))
    return None


def _plain_mask(name: str, value: Any, replacement: str | None) -> Any:
    if value is None:
        return None
    return _mask(Field(name, Schema(kind=KINDS[type(value)])), replacement)()


MASK_FIELD = key_and_value(
    "MaskField",
    "Replaces fields of the {record_part} by 0, nothing, or a given value.",
    MaskFieldProperties,
    _masking,
)


CONVERTS = "convert timestamps in"
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
            return lambda value: self._written(_scaled(value, self._unit, MILLISECOND_NS))
        raise RecordUnfit(f"{what} is of type {schema.kind.value}, which holds no timestamp")

    def plain(self, value: Any, what: str) -> Any:
        """Convert a value that has no schema."""
        if value is None:
            return None
        if self._target in ("Date", "Time", "Timestamp"):
            raise RecordUnfit(f"{what} has no schema, and nothing else names a {self._target}")
        if isinstance(value, str):
            return self._written(self._read(value, what))
        # In Python a bool is an int, too.
        if isinstance(value, int) and not isinstance(value, bool):
            return self._written(_scaled(value, self._unit, MILLISECOND_NS))
        raise RecordUnfit(f"{what} is of type {type(value).__name__}, which holds no timestamp")

    def _read(self, text: str, what: str) -> int:
        if self._format is None:
            raise RecordUnfit(f"{what} is a text, and format does not say how to read it")
        try:
            return self._format.parse(text)
        except ValueError as cause:
            raise RecordUnfit(f"{what}: {cause}") from cause

    def _written(self, instant: int) -> Any:
        match self._target:
            case "string":
                assert self._format is not None
                return self._format.format(instant)
            case "unix":
                return _scaled(instant, MILLISECOND_NS, self._unit)
            case "Date":
                return to_integer(instant // DAY_MS, 32)  # Java's int of a far day wraps
            case "Time":
                return instant % DAY_MS
            case _:
                return instant


def _scaled(number: int, unit: int, wanted: int) -> int:
    """Convert a number of ``unit`` (ns) to ``wanted``, as Java's TimeUnit does.

    A finer part is cut off, and the result is a long at most.
    """
    if unit >= wanted:
        return max(-LONGEST - 1, min(LONGEST, number * (unit // wanted)))
    # Java's division rounds towards 0, Python's downwards.
    finer = wanted // unit
    return -(-number // finer) if number < 0 else number // finer


def _converting(properties: TimestampConverterProperties) -> Change:
    converter, name = _TimestampConversion(properties), properties.field

    def made(schema: Schema) -> tuple[Schema, Convert]:
        if not name:
            return converter.schema(schema), converter.of(schema, "it")
        if schema.kind is not ConnectKind.STRUCT:
            raise RecordUnfit(f"it needs a struct to {CONVERTS}, and found {schema.kind.value}")
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

    memory = SchemaMemory(made)

    def change(_record: ConnectRecord, schema: Schema | None, value: Any) -> tuple[Any, Any]:
        if schema is None:
            if value is None or not name:
                return None, converter.plain(value, "it")
            row = dict(map_of(value, CONVERTS))
            row[name] = converter.plain(row.get(name), f"the field {name}")
            return None, row
        if name and value is not None:
            struct_of(schema, value, CONVERTS)
        updated, convert = memory.of(schema)
        return updated, None if value is None else convert(value)

    return change


TIMESTAMP_CONVERTER = key_and_value(
    "TimestampConverter",
    "Converts times in the {record_part}: texts, numbers since 1970, Kafka Connect's types.",
    TimestampConverterProperties,
    _converting,
)


CASTS = "cast fields of"
TARGETS = {
    "int8": ConnectKind.INT8,
    "int16": ConnectKind.INT16,
    "int32": ConnectKind.INT32,
    "int64": ConnectKind.INT64,
    "float32": ConnectKind.FLOAT32,
    "float64": ConnectKind.FLOAT64,
    "boolean": ConnectKind.BOOLEAN,
    "string": ConnectKind.STRING,
}
# Java represents these as Date and BigDecimal objects; Connect casts them only within a struct.
LOGICAL = TEMPORAL | {DECIMAL}
COMPOUND = frozenset({ConnectKind.ARRAY, ConnectKind.MAP, ConnectKind.STRUCT})

To = Callable[[Any], Any]


class CastProperties(NullToDefault):
    """Fields to cast, and their types."""

    spec: NonEmptyList = declare(
        "spec",
        summary="Fields and their types, as field:type, or one type for the whole: "
        f"{', '.join(TARGETS)}.",
        examples=("id:string", "price:float64"),
    )

    @model_validator(mode="after")
    def _readable(self) -> Self:
        self.targets()
        return self

    def targets(self) -> dict[str | None, ConnectKind]:
        """Return the target type of each field.

        The key None is the whole key or value. Raises: ValueError.
        """
        found: dict[str | None, ConnectKind] = {}
        for entry in self.spec:
            *names, word = (part.strip() for part in entry.split(":"))
            if len(names) > 1:
                raise ValueError(f"spec: {entry!r} is not field:type")
            if word.lower() not in TARGETS:
                raise ValueError(f"spec: {word!r} is no type: {', '.join(TARGETS)}")
            found[names[0] if names else None] = TARGETS[word.lower()]
        # Connect refuses a type for the whole together with fields.
        if None in found and len(self.spec) > 1:
            raise ValueError("spec: the type of the whole value must be the only one")
        return found


def _casting(properties: CastProperties) -> Change:
    targets = properties.targets()
    only = targets.get(None)

    def made(schema: Schema) -> tuple[Schema, To]:
        if only is not None:
            if schema.name in LOGICAL:
                raise RecordUnfit(f"it is a {schema.name}, of which only fields can be cast")
            return _cast_schema(schema, only, basics=schema), _caster(schema, only, "it")
        return _cast_struct(schema, targets, with_defaults=properties.null_to_default)

    memory = SchemaMemory(made)

    def change(_record: ConnectRecord, schema: Schema | None, value: Any) -> tuple[Any, Any]:
        if value is None:
            return schema, value
        if schema is not None:
            if only is None:
                struct_of(schema, value, CASTS)
            updated, cast = memory.of(schema)
            return updated, cast(value)
        if only is not None:
            return None, _plain_cast(value, only, "it")
        row = dict(map_of(value, CASTS))
        for name, target in targets.items():
            assert name is not None  # for mypy: the whole was cast above
            found = row.get(name)
            row[name] = None if found is None else _plain_cast(found, target, f"the field {name}")
        return None, row

    return change


def _cast_struct(
    schema: Schema, targets: dict[str | None, ConnectKind], *, with_defaults: bool
) -> tuple[Schema, To]:
    fields, casts, copy = [], [], copied(schema, with_defaults=with_defaults)
    for field in schema.fields:
        target = targets.get(field.name)
        if target is None:
            fields.append(field)
            continue
        what = f"the field {field.name}"
        # Connect drops name, version, doc and parameters of a cast field's schema.
        fields.append(Field(field.name, _cast_schema(field.schema, target, basics=None)))
        casts.append((field.name, _caster(field.schema, target, what)))

    def cast(row: Row) -> Row:
        made = copy(row)
        for name, of in casts:
            value = made.get(name)
            if value is not None:
                made[name] = of(value)
        return made

    return replace(schema, fields=tuple(fields)), cast


def _cast_schema(schema: Schema, target: ConnectKind, *, basics: Schema | None) -> Schema:
    """Return the schema of cast values.

    It is optional if ``schema`` is, and its default is cast. ``basics`` gives name, version, doc and
    parameters; only a cast of the whole keeps them.
    """
    default = schema.default
    if default is not None:
        default = _caster(schema, target, "the default")(default)
    made = Schema(kind=target, optional=schema.optional, default=default)
    if basics is None:
        return made
    return replace(
        made, name=basics.name, version=basics.version, doc=basics.doc, parameters=basics.parameters
    )


def _caster(schema: Schema, target: ConnectKind, what: str) -> To:
    """Return the function that casts values of ``schema``.

    The function, not this call, raises RecordUnfit: a column of nulls needs no cast.
    """
    if schema.kind in COMPOUND:
        return _refusal(f"{what} is of type {schema.kind.value}, which cannot be cast")
    if target is ConnectKind.STRING:
        return lambda value: simple_text(value, schema)
    read: To = lambda value: value  # noqa: E731 - it is replaced below
    if schema.kind is ConnectKind.BYTES:
        # The bytes of a Decimal hold a number, which has every cast.
        if schema.name == DECIMAL:
            scale = scale_of(schema)
            read = lambda value: decimal_of(value, scale)  # noqa: E731
        else:
            return _refusal(f"{what} is of type bytes, which can be cast to string only")
    elif schema.kind is ConnectKind.FLOAT32:
        # A double of the same digits would become another integer or text than Java's float.
        read = lambda value: single(float(value))  # noqa: E731
    elif schema.kind is ConnectKind.FLOAT64:
        read = float
    to = _to(target)

    def cast(value: Any) -> Any:
        try:
            return to(read(value))
        except ValueError as cause:
            raise RecordUnfit(f"{what} is out of the range of {target.value}: {cause}") from cause

    return cast


def _to(target: ConnectKind) -> To:
    if target in BITS:
        bits = BITS[target]
        return lambda value: to_integer(value, bits)
    if target is ConnectKind.FLOAT32:
        return to_single
    if target is ConnectKind.FLOAT64:
        return to_double
    return _truth


def _truth(value: Any) -> bool:
    # Java's Boolean.parseBoolean: every other text is false.
    if isinstance(value, str):
        return value.lower() == "true"
    return to_integer(value, 64) != 0


def _refusal(problem: str) -> Callable[..., Any]:
    def refuse(*_value: Any) -> Any:
        raise RecordUnfit(problem)

    return refuse


def _plain_cast(value: Any, target: ConnectKind, what: str) -> Any:
    cast = _caster(Schema(kind=KINDS[type(value)]), target, what)(value)
    # Without a schema, no later step knows that this is a float. A double with the digits that Java
    # prints for the float is written the same.
    return float(float_text(cast)) if target is ConnectKind.FLOAT32 else cast


CAST = key_and_value(
    "Cast",
    "Casts fields of the {record_part}, or the {record_part} as a whole, to another type.",
    CastProperties,
    _casting,
)
