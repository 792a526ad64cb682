"""MaskField: replace fields by an empty value or a given one."""

from collections.abc import Callable
from typing import Any

from pydantic import field_validator

from waltap.base.property import CommaList, declare
from waltap.changes.mapping.connect_schema import ConnectKind, Field, Schema
from waltap.encoders.format.record_transform import ConnectRecord, RecordUnfit, SchemaMemory
from waltap_transforms.connect.sides import (
    Change,
    NullToDefault,
    copied,
    map_of,
    sides,
    struct_of,
)
from waltap_transforms.java.dates import TEMPORAL
from waltap_transforms.java.numbers import (
    BITS,
    DECIMAL,
    big_decimal,
    decimal_bytes,
    scale_of,
    single,
    to_double,
    to_integer,
)

__all__ = ["MASK_FIELD"]

PURPOSE = "mask fields of"
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

    fields: CommaList = declare("fields", summary="Fields to mask.", min_length=1)
    replacement: str | None = declare(
        "replacement",
        default=None,
        summary="What numbers and texts get in place of 0 and the empty text.",
    )

    @field_validator("replacement")
    @classmethod
    def _something(cls, value: str | None) -> str | None:
        if value == "":
            raise ValueError("is empty: without it, texts become empty")
        return value


def _change(properties: MaskFieldProperties) -> Change:
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
            row = dict(map_of(value, PURPOSE))
            for name in properties.fields:
                row[name] = _plain(name, row.get(name), replacement)
            return None, row
        struct = struct_of(schema, value, PURPOSE)
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
        return _unfit(problem)
    if value is None:
        with_what = "" if replacement is None else " with a replacement"
        return _unfit(
            f"the field {field.name} of type {schema.kind.value} cannot be masked{with_what}"
        )
    return lambda: value


def _unfit(problem: str) -> Callable[[], Any]:
    def mask() -> Any:
        raise RecordUnfit(problem)

    return mask


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


def _plain(name: str, value: Any, replacement: str | None) -> Any:
    """Return the mask of a value without schema."""
    if value is None:
        return None
    kinds = {
        bool: ConnectKind.BOOLEAN,
        int: ConnectKind.INT64,
        float: ConnectKind.FLOAT64,
        str: ConnectKind.STRING,
    }
    kinds |= {list: ConnectKind.ARRAY, dict: ConnectKind.MAP}
    kind = kinds.get(type(value), ConnectKind.BYTES)
    return _mask(Field(name, Schema(kind=kind)), replacement)()


MASK_FIELD = sides(
    "MaskField",
    "Puts 0, nothing, or a replacement in the place of fields of the {side}.",
    MaskFieldProperties,
    _change,
)
