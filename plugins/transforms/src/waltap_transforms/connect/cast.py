"""Cast: convert fields, or a whole side, to another type."""

from collections.abc import Callable
from typing import Any, Self

from msgspec.structs import replace
from pydantic import model_validator

from waltap.base.property import CommaList, declare
from waltap.changes.mapping.connect_schema import ConnectKind, Field, Schema
from waltap.changes.mapping.java_number import float_text
from waltap.encoders.format.record_transform import ConnectRecord, RecordUnfit, SchemaMemory
from waltap.encoders.format.simple_header import simple_text
from waltap_transforms.connect.sides import (
    Change,
    NullToDefault,
    Row,
    copied,
    map_of,
    sides,
    struct_of,
)
from waltap_transforms.java.dates import TEMPORAL
from waltap_transforms.java.numbers import (
    BITS,
    DECIMAL,
    decimal_of,
    scale_of,
    single,
    to_double,
    to_integer,
    to_single,
)

__all__ = ["CAST"]

PURPOSE = "cast fields of"
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

    spec: CommaList = declare(
        "spec",
        summary="Fields and their types, as field:type, or one type for the whole: "
        f"{', '.join(TARGETS)}.",
        examples=("id:string", "price:float64"),
        min_length=1,
    )

    @model_validator(mode="after")
    def _readable(self) -> Self:
        self.targets()
        return self

    def targets(self) -> dict[str | None, ConnectKind]:
        """Return the target type of each field.

        The key None is the whole side. Raises: ValueError.
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
            raise ValueError("spec: the type of the whole stands alone")
        return found


def _change(properties: CastProperties) -> Change:
    targets = properties.targets()
    whole = targets.get(None)

    def made(schema: Schema) -> tuple[Schema, To]:
        if whole is not None:
            if schema.name in LOGICAL:
                raise RecordUnfit(f"it is a {schema.name}, of which only fields can be cast")
            return _cast_schema(schema, whole, basics=schema), _caster(schema, whole, "it")
        return _cast_struct(schema, targets, with_defaults=properties.null_to_default)

    # Encoders find a schema by its object, so one source schema must always give the same object.
    memory = SchemaMemory(made)

    def change(_record: ConnectRecord, schema: Schema | None, value: Any) -> tuple[Any, Any]:
        if value is None:
            return schema, value
        if schema is not None:
            if whole is None:
                struct_of(schema, value, PURPOSE)
            updated, cast = memory.of(schema)
            return updated, cast(value)
        if whole is not None:
            return None, _plain(value, whole, "it")
        row = dict(map_of(value, PURPOSE))
        for name, target in targets.items():
            assert name is not None  # for mypy: the whole was cast above
            found = row.get(name)
            row[name] = None if found is None else _plain(found, target, f"the field {name}")
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
        made,
        name=basics.name,
        version=basics.version,
        doc=basics.doc,
        parameters=basics.parameters,
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


def _refusal(problem: str) -> To:
    def refuse(_value: Any) -> Any:
        raise RecordUnfit(problem)

    return refuse


def _plain(value: Any, target: ConnectKind, what: str) -> Any:
    """Cast a value without schema to ``target``."""
    kinds = {
        bool: ConnectKind.BOOLEAN,
        int: ConnectKind.INT64,
        float: ConnectKind.FLOAT64,
        str: ConnectKind.STRING,
    }
    kinds |= {bytes: ConnectKind.BYTES, list: ConnectKind.ARRAY, dict: ConnectKind.MAP}
    cast = _caster(Schema(kind=kinds[type(value)]), target, what)(value)
    # Without a schema, no later step knows that this is a float. A double with the digits that Java
    # prints for the float is written the same.
    return float(float_text(cast)) if target is ConnectKind.FLOAT32 else cast


CAST = sides(
    "Cast",
    "Casts fields of the {side}, or the {side} as a whole, to another type.",
    CastProperties,
    _change,
)
