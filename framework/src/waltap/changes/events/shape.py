"""Schemas and values of a relation version's keys and rows.

A shape is compiled once from an `EventPlan`, for every format: JSON writes the same schemas next
to its payloads that Avro and the others register.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec

from waltap.changes.capture.column_transform import ColumnTransform
from waltap.changes.capture.source_type import has_other_figures
from waltap.changes.decode.tuple_image import ABSENT, UNCHANGED, Tuple
from waltap.changes.events.plan import CellShape, EventPlan
from waltap.changes.mapping import envelope
from waltap.changes.mapping.connect_schema import Field, Schema
from waltap.changes.mapping.type_mapping import ColumnMapping, TypeMapper

if TYPE_CHECKING:
    from waltap.changes.capture.capture import CaptureRules


ConnectValues = Callable[[Tuple], dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeColumn:
    """Describe one column of rows or keys."""

    # The column's index in tuples.
    index: int
    mapping: ColumnMapping
    transform: ColumnTransform | None
    # Has the schema of streamed rows.
    field: Field
    # Has the schema of rows that a snapshot reads. Propagated types have the driver's names
    # there, and wherever the wire announces nothing.
    read: Field


@dataclass(frozen=True, slots=True, kw_only=True)
class TableShape:
    """Hold a relation version's record schemas and their columns.

    Streamed records and those that a snapshot reads have schemas of their own.
    """

    plan: EventPlan
    values: tuple[ShapeColumn, ...]
    keys: tuple[ShapeColumn, ...]
    row: Schema
    read_row: Schema
    key: Schema
    read_key: Schema

    @property
    def has_key(self) -> bool:
        return bool(self.key.fields)


def table_shape(
    plan: EventPlan, capture: "CaptureRules", keys: TypeMapper, *, announced: bool
) -> TableShape:
    """Return the shape of ``plan``.

    ``keys`` maps the columns of keys. ``announced`` says that the decoder's wire announces
    relations.
    """
    # Without announcements Debezium keeps the driver's list, unless the figures of a type differ.
    streamed = announced or any(map(has_other_figures, plan.relation.columns))
    values = tuple(_values(plan, capture, streamed=streamed))
    key_columns = tuple(_keys(plan, keys, announced=announced))
    extra = () if plan.key_field is None else (Field(plan.key_field[0], envelope.HEADER),)
    row_name = capture.schema_name(f"{plan.topic}.Value")
    key_name = capture.schema_name(f"{plan.topic}.Key")
    return TableShape(
        plan=plan,
        values=values,
        keys=key_columns,
        row=envelope.row_schema(row_name, [column.field for column in values]),
        read_row=envelope.row_schema(row_name, [column.read for column in values]),
        key=envelope.key_schema(key_name, [*(column.field for column in key_columns), *extra]),
        read_key=envelope.key_schema(key_name, [*(column.read for column in key_columns), *extra]),
    )


def _values(plan: EventPlan, capture: "CaptureRules", *, streamed: bool) -> "list[ShapeColumn]":
    found = []
    for column in plan.columns:
        mapping, name, transform = column.mapping, column.field, column.transform
        if mapping is None:
            continue
        schema = mapping.schema
        # A snapshot propagates the driver's names of types (`listed`), a stream the wire's.
        listed = _with_parameters(
            schema, capture.transform(plan.relation, column.column, schema, listed=True)
        )
        schema = _with_parameters(schema, transform) if streamed else listed
        found.append(
            ShapeColumn(
                index=column.index,
                mapping=mapping,
                transform=transform,
                field=Field(name, plan.cell.schema(name, schema)),
                read=Field(name, plan.cell.schema(name, listed)),
            )
        )
    return found


def _keys(plan: EventPlan, mapper: TypeMapper, *, announced: bool) -> "list[ShapeColumn]":
    """Return the columns of keys."""
    captured = {column.index for column in plan.columns}
    found = []
    for column in plan.key_columns:
        index, name = column.index, column.field
        mapping = mapper.of(plan.relation, column.column)
        if mapping is None:
            continue
        # Without its values all rows would have one key.
        mapping = replace(mapping, streamed_as_null=False)
        schema = mapping.schema
        read = Field(name, plan.cell.schema(name, schema))
        # While streaming, Debezium knows nothing of a column that values leave out, and makes it
        # optional without default.
        if index not in captured and announced:
            schema = msgspec.structs.replace(schema, optional=True, default=None)
        field = Field(name, plan.cell.schema(name, schema))
        found.append(
            ShapeColumn(index=index, mapping=mapping, transform=None, field=field, read=read)
        )
    return found


def _with_parameters(schema: Schema, transform: ColumnTransform | None) -> Schema:
    if transform is None or not transform.parameters:
        return schema
    return msgspec.structs.replace(schema, parameters=schema.parameters + transform.parameters)


# --- values -----------------------------------------------------------------------------------------


def connect_values(
    columns: "tuple[ShapeColumn, ...]",
    cell: CellShape,
    *,
    read: bool = False,
    extra: tuple[str, str] | None = None,
    guard: "Callable[[ShapeColumn, Callable[[Any], Any]], Callable[[Any], Any]] | None" = None,
) -> ConnectValues:
    """Return a function: image → {field: Connect value}.

    ``read``: the rows come from a snapshot. ``extra`` is a (field, value) that every row gets in
    addition. ``guard`` may wrap each conversion.
    """
    converts = []
    for column in columns:
        convert = column_value(column, read=read)
        if guard is not None:
            convert = guard(column, convert)
        converts.append((column.field.name, column.index, _celled(convert, cell)))

    def values(image: Tuple) -> dict[str, Any]:
        row = {name: convert(image[index]) for name, index, convert in converts}
        if extra is not None:
            row[extra[0]] = extra[1]
        return row

    return values


def column_value(column: ShapeColumn, *, read: bool = False) -> Callable[[Any], Any]:
    """Return a function: tuple value → Connect value.

    Masks are applied.
    """
    mapping = column.mapping
    if read and mapping.read is not None:
        mapping = mapping.read
    null = None if mapping.schema.optional else mapping.fallback
    missing = null if mapping.unavailable is None else mapping.unavailable
    change = None if column.transform is None else column.transform.value
    to_connect = mapping.to_connect
    if change is not None:
        # The placeholders are masked, too: they are constants, so once is enough.
        null, missing, plain = change(null), change(missing), to_connect
        to_connect = lambda text: change(plain(text))  # noqa: E731 - it is handed on
    # Debezium streams null for these types, so the value is not even read.
    if mapping.streamed_as_null and not read:
        return lambda _value: null

    def convert(value: Any) -> Any:
        # The hot path: nearly all values are text.
        if value.__class__ is str:
            return to_connect(value)
        if value is None or value is ABSENT:
            return null
        return missing

    return convert


def _celled(convert: Callable[[Any], Any], cell: CellShape) -> Callable[[Any], Any]:
    if cell.members is None:
        return convert
    value, is_set = cell.members

    def in_cell(given: Any) -> Mapping[str, Any] | None:
        return None if given is UNCHANGED else {value: convert(given), is_set: True}

    return in_cell
