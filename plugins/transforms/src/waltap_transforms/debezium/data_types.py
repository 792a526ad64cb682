"""Transforms of column values: geometries, vectors, and EnforceRecordSize."""

import math
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import msgspec
from pydantic import field_validator

from waltap.base.property import CommaList, Positive, Properties, Whole, declare
from waltap.changes.capture.column_transform import truncated
from waltap.changes.mapping import double_text, float_text
from waltap.changes.mapping.connect_schema import ConnectKind, Field, Schema
from waltap.encoders.format.record_transform import (
    ConnectRecord,
    RecordTransform,
    RecordTransformContext,
    RecordUnfit,
    SchemaMemory,
)
from waltap_transforms.specs import debezium_spec, each
from waltap_transforms.structs import converted, field_of, is_envelope, value_of

# Geometries as well-known binary (WKB) and as extended WKB of PostGIS.
#
# The extended form may have an SRID. Source: OGC 06-103r4, section 8.2; PostGIS manual, "Extended
# forms".

# Flags in the type of extended WKB: an SRID follows; points have Z; points have M.
SRID = 0x20000000
MEASURES = (0x80000000, 0x40000000)
POINT, LINE, POLYGON = 1, 2, 3
# Collections of points, lines, polygons and any geometries, each with its own header.
COLLECTIONS = (4, 5, 6, 7)
# Bytes of the byte order and the type.
HEADER = 5


def is_extended(wkb: bytes) -> bool:
    """Return whether ``wkb`` contains an SRID."""
    return len(wkb) >= HEADER and bool(_head(wkb, 0)[1] & SRID)


def with_srid(wkb: bytes, srid: int) -> bytes:
    """Insert an SRID into plain ``wkb``. Raises: RecordUnfit if ``wkb`` is too short."""
    with _refuses_short_geometry():
        order, kind = _head(wkb, 0)
        return wkb[:1] + struct.pack(f"{order}Ii", kind | SRID, srid) + wkb[HEADER:]


def without_srid(wkb: bytes) -> bytes:
    """Remove the SRID from extended ``wkb``.

    Raises: RecordUnfit if ``wkb`` is too short.
    """
    with _refuses_short_geometry():
        order, kind = _head(wkb, 0)
        struct.unpack_from("4x", wkb, HEADER)
        return wkb[:1] + struct.pack(f"{order}I", kind & ~SRID) + wkb[HEADER + 4 :]


def swapped(wkb: bytes) -> bytes:
    """Swap the first two ordinates of every point of ``wkb``.

    Bytes after the geometry are removed. Raises: RecordUnfit for bytes that are not a geometry.
    """
    out = bytearray(wkb)
    with _refuses_short_geometry():
        return bytes(out[: _geometry(out, 0)])


@contextmanager
def _refuses_short_geometry() -> Iterator[None]:
    try:
        yield
    except struct.error as cause:
        raise RecordUnfit("a geometry ends early") from cause


def _head(data: bytes | bytearray, at: int) -> tuple[str, int]:
    """Return the byte order and the type of the geometry at ``at``."""
    (mark,) = struct.unpack_from("B", data, at)
    order = "<" if mark == 1 else ">"
    (kind,) = struct.unpack_from(f"{order}I", data, at + 1)
    return order, int(kind)


def _geometry(data: bytearray, at: int) -> int:
    """Swap the points of the geometry at ``at``, and return its end."""
    order, kind = _head(data, at)
    at += HEADER + (4 if kind & SRID else 0)
    ordinates = 2 + sum(bool(kind & flag) for flag in MEASURES)
    base = kind & 0xFF
    if base == POINT:
        return _points(data, at, 1, ordinates)
    if base not in (LINE, POLYGON, *COLLECTIONS):
        raise RecordUnfit(f"a geometry has the unknown type {base}")
    (count,) = struct.unpack_from(f"{order}I", data, at)
    at += 4
    if base == LINE:
        return _points(data, at, count, ordinates)
    for _ in range(count):
        if base == POLYGON:
            (points,) = struct.unpack_from(f"{order}I", data, at)
            at = _points(data, at + 4, points, ordinates)
        else:
            at = _geometry(data, at)
    return at


def _points(data: bytearray, at: int, count: int, ordinates: int) -> int:
    width = 8 * ordinates
    # A damaged count must not make a loop of four billion steps.
    if at + count * width > len(data):
        raise RecordUnfit("a geometry ends early")
    for offset in range(at, at + count * width, width):
        first, second = data[offset : offset + 8], data[offset + 8 : offset + 16]
        data[offset : offset + 16] = second + first
    return at + count * width


# Rewriting of values at any depth of a struct.
#
# The functions that do it are built once for each schema.

Convert = Callable[[Any], Any]
# Returns the new schema of values and the function that converts them; None for no change.
Change = Callable[[Schema], tuple[Schema, Convert] | None]


class StructRewrite:
    """Rewrite the values of records that are structs.

    Tombstones pass, and other values too unless it ``refuses`` them. ``inside`` also rewrites the
    elements of arrays and maps.
    """

    def __init__(self, change: Change, *, inside: bool, refuses: bool = False) -> None:
        self._change, self._inside, self._refuses = change, inside, refuses
        self._known = SchemaMemory(self._made)

    def __call__(self, record: ConnectRecord) -> ConnectRecord:
        schema = record.value_schema
        if record.value is None:
            return record
        if schema is None or schema.kind is not ConnectKind.STRUCT:
            if self._refuses:
                raise RecordUnfit("the value is no struct")
            return record
        schema, convert = self._known.of(schema)
        if convert is None:
            return record
        return msgspec.structs.replace(record, value_schema=schema, value=convert(record.value))

    def _made(self, schema: Schema) -> tuple[Schema, Convert | None]:
        found = self._change(schema)
        if found is not None:
            return found
        if schema.kind is ConnectKind.STRUCT:
            return self._struct(schema)
        if not self._inside or schema.kind not in (ConnectKind.ARRAY, ConnectKind.MAP):
            return schema, None
        return self._collection(schema)

    def _struct(self, schema: Schema) -> tuple[Schema, Convert | None]:
        made = [(field, *self._known.of(field.schema)) for field in schema.fields]
        changes = any(of is not field.schema for field, of, _ in made)
        parts = [
            (field.name, field.schema.default, convert)
            for field, _, convert in made
            if convert is not None or field.schema.default is not None
        ]
        if not parts and not changes:
            return schema, None
        if changes:
            fields = tuple(
                field if of is field.schema else Field(field.name, of) for field, of, _ in made
            )
            # A default of the struct would have the old types.
            schema = msgspec.structs.replace(schema, fields=fields, default=None)

        return schema, lambda value: converted(value, parts)

    def _collection(self, schema: Schema) -> tuple[Schema, Convert | None]:
        """Return the function that rewrites the elements of ``schema``."""
        items = None if schema.items is None else self._known.of(schema.items)[1]
        keys = None if schema.keys is None else self._known.of(schema.keys)[1]
        values = None if schema.values is None else self._known.of(schema.values)[1]

        def element(convert: Convert | None, value: Any) -> Any:
            return value if convert is None or value is None else convert(value)

        if items is not None:
            return schema, lambda value: [element(items, each) for each in value]
        if keys is not None or values is not None:
            return schema, lambda value: {
                element(keys, key): element(values, each) for key, each in value.items()
            }
        return schema, None


# Schema name → the text that Java prints for an element.
DENSE = {"io.debezium.data.DoubleVector": double_text, "io.debezium.data.FloatVector": float_text}
SPARSE = "io.debezium.data.SparseDoubleVector"


def _vector(schema: Schema) -> tuple[Schema, Convert] | None:
    json = Schema(
        kind=ConnectKind.STRING, optional=schema.optional, name="io.debezium.data.Json", version=1
    )
    if schema.name == SPARSE:
        return json, _sparse
    text = DENSE.get(schema.name or "")
    if text is None:
        return None

    def dense(value: Any) -> str:
        numbers = ", ".join("null" if each is None else text(each) for each in value)
        return f'{{ "values": [{numbers}] }}'

    return json, dense


def _sparse(value: Any) -> str:
    numbers = ", ".join(f'"{at}": {double_text(of)}' for at, of in sorted(value["vector"].items()))
    return f'{{ "dimensions": {value["dimensions"]}, "vector": {{ {numbers} }} }}'


VECTORS = debezium_spec(
    "VectorToJsonConverter",
    "Writes vectors as JSON text.",
    None,
    lambda _properties, _context: each(StructRewrite(_vector, inside=False, refuses=True)),
    name="vector-to-json",
)


GEOMETRY_SCHEMA = "io.debezium.data.geometry.Geometry"


class SwapCoordinatesProperties(Properties):
    """Geometries to change."""

    srids: CommaList = declare(
        "srids",
        default=("4326", "3857", "4269"),
        summary="SRIDs of the geometries whose coordinates are swapped; one without an SRID never is.",
    )

    @field_validator("srids")
    @classmethod
    def _numbers(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not all(each.lstrip("-").isdigit() for each in value):
            raise ValueError("must be numbers")
        return value


class GeometryFormatProperties(Properties):
    """Format of plain geometries."""

    format: Literal["wkb", "ewkb"] = declare(
        "format",
        default="wkb",
        summary="Format that plain geometries have: those in WKB get their SRID inside (EWKB). Extended "
        "ones become plain.",
    )


def _swap_coordinates(
    properties: SwapCoordinatesProperties, _context: RecordTransformContext
) -> RecordTransform:
    srids = frozenset(map(int, properties.srids))

    def convert(value: Any) -> Any:
        srid = value.get("srid")
        if srid is None or srid not in srids:
            return value
        return {**value, "wkb": swapped(value["wkb"])}

    return each(StructRewrite(_geometries(convert), inside=True))


def _geometry_format(
    properties: GeometryFormatProperties, _context: RecordTransformContext
) -> RecordTransform:
    """Return the transform that converts geometries between WKB and EWKB."""

    def convert(value: Any) -> Any:
        wkb, srid = value["wkb"], value.get("srid")
        # Extended geometries become plain for either value of the property.
        if is_extended(wkb):
            return {**value, "wkb": without_srid(wkb)}
        if properties.format != "wkb":
            return value
        if srid is None:
            raise RecordUnfit("a geometry without an SRID cannot become EWKB")
        return {**value, "wkb": with_srid(wkb, srid)}

    return each(StructRewrite(_geometries(convert), inside=False))


def _geometries(convert: Convert) -> Change:
    def change(schema: Schema) -> tuple[Schema, Convert] | None:
        if schema.kind is ConnectKind.STRUCT and schema.name == GEOMETRY_SCHEMA:
            return schema, convert
        return None

    return change


GEOMETRY = (
    debezium_spec(
        "SwapGeometryCoordinates",
        "Swaps x and y of geometries.",
        SwapCoordinatesProperties,
        _swap_coordinates,
    ),
    debezium_spec(
        "GeometryFormatTransformer",
        "Puts the SRID into geometries, or takes it out.",
        GeometryFormatProperties,
        _geometry_format,
        name="geometry-format",
    ),
)


# EnforceRecordSize: cut long columns of records that are too large.
#
# Debezium does not write a record to know its size: it adds up what a JVM keeps for it.

_REFERENCE, _NUMBER = 8, 24
_EMPTY = {
    ConnectKind.STRUCT: 56,
    ConnectKind.STRING: 56,
    ConnectKind.BYTES: 24,
    ConnectKind.ARRAY: 64,
    ConnectKind.MAP: 88,
}
# Size of a header, and of an entry of the source and position that Debezium stores with a record; the
# number of those entries, and how many more there are in an incremental snapshot and with a transaction
# block.
# Source: what Debezium 3.6 cuts.
_ENTRY = 100
_ENTRIES, _OF_INCREMENTAL, _OF_TRANSACTION = 7, 7, 2
_TIMESTAMP = 8
_ROWS = ("before", "after")

Measure = Callable[[Any], int]


class RecordSizeProperties(Properties):
    """Largest size of records, and the columns that are cut."""

    max_bytes: Positive = declare(
        "max.bytes",
        summary="Estimated size from which on columns are cut.",
        examples=("1048576",),
    )
    ratio: float = declare(
        "compression.ratio",
        default=1.0,
        gt=0,
        summary="What the estimated size is multiplied by, for a producer that compresses.",
    )
    min_field: Whole = declare(
        "min.field.size",
        default=25_000,
        unit="bytes",
        summary="Only values that are longer are cut.",
    )


class RecordSize:
    """Cut the long texts and bytes of rows whose record is too large."""

    def __init__(self, properties: RecordSizeProperties) -> None:
        self._of = properties
        self._measures = SchemaMemory(self._measure)
        self._columns = SchemaMemory(_long_columns)

    def __call__(self, record: ConnectRecord) -> ConnectRecord:
        schema = record.value_schema
        if record.value is None or schema is None or schema.kind is not ConnectKind.STRUCT:
            return record
        excess = math.ceil(self._size(record, schema) * self._of.ratio) - self._of.max_bytes
        if excess <= 0:
            return record
        rows = {
            image: self._long(schema, image, record.value.get(image) or {})
            for image in _ROWS
            if field_of(schema, image) is not None
        }
        lengths = {image: sum(map(_length, row.values())) for image, row in rows.items()}
        total = sum(lengths.values())
        if not total:
            return record
        value = dict(record.value)
        for image, row in rows.items():
            # Each row loses its share, and each of its values a share of that.
            share = math.ceil(lengths[image] / total * excess)
            for name, old in row.items():
                remaining = max(0, _length(old) - math.ceil(_length(old) / lengths[image] * share))
                cut = truncated(old, remaining) if isinstance(old, str) else old[:remaining]
                value[image] = {**value[image], name: cut}
        return msgspec.structs.replace(record, value=value)

    def _size(self, record: ConnectRecord, schema: Schema) -> int:
        size = self._measures.of(schema)(record.value)
        if record.key_schema is not None:
            size += self._measures.of(record.key_schema)(record.key)
        entries = len(record.headers) + _ENTRIES
        if is_envelope(record):
            source = record.value.get("source") or {}
            entries += source.get("xmin") is not None
            if source.get("snapshot") == "incremental":
                entries += _OF_INCREMENTAL
            if record.value.get("transaction") is not None:
                entries += _OF_TRANSACTION
        return size + _ENTRY * entries + _TIMESTAMP + len(record.topic.encode("utf-8", "replace"))

    def _long(self, schema: Schema, image: str, row: Mapping[str, Any]) -> dict[str, str | bytes]:
        """Return the values of ``row`` that may be cut."""
        columns = self._columns.of(schema, image) if row else ()
        found = {}
        for column in columns:
            value = value_of(column, row)
            if value is not None and _length(value) > self._of.min_field:
                found[column.name] = value
        return found

    def _measure(self, schema: Schema) -> Measure:
        """Return the function of the size of values of ``schema``."""
        empty = _EMPTY.get(schema.kind)
        if empty is None:
            return lambda _value: _NUMBER  # null has a size, too
        content = self._content(schema)
        return lambda value: 0 if value is None else empty + content(value)

    def _content(self, schema: Schema) -> Measure:
        """Return the function of the size of a value's content, of no null."""
        kind, of = schema.kind, self._measures.of
        if kind is ConnectKind.STRING:
            return lambda value: len(value.encode("utf-8", "replace"))
        if kind is ConnectKind.BYTES:
            return len
        if kind is ConnectKind.STRUCT:
            fields = [(each.name, of(each.schema)) for each in schema.fields]
            base = _REFERENCE * len(fields)
            return lambda value: base + sum(size(value.get(name)) for name, size in fields)
        if schema.items is not None:
            item = of(schema.items)
            return lambda value: sum(_REFERENCE + item(each) for each in value)
        assert schema.keys is not None
        assert schema.values is not None
        of_key, of_value = of(schema.keys), of(schema.values)
        return lambda value: sum(
            2 * _REFERENCE + of_key(key) + of_value(each) for key, each in value.items()
        )


def _length(value: str | bytes) -> int:
    """Return the length in Java: bytes, or UTF-16 units of a text."""
    if isinstance(value, bytes) or value.isascii():
        return len(value)
    return len(value.encode("utf-16-le", "surrogatepass")) // 2


def _long_columns(schema: Schema, image: str) -> tuple[Field, ...]:
    """Return the columns of a row that can be cut."""
    row = field_of(schema, image)
    fields = () if row is None else row.schema.fields
    return tuple(
        each
        for each in fields
        if each.schema.kind is ConnectKind.STRING
        # A part of a decimal or of a bit string would be another value. Debezium fails on them.
        or (each.schema.kind is ConnectKind.BYTES and each.schema.name is None)
    )


RECORD_SIZE = debezium_spec(
    "EnforceRecordSize",
    "Cuts the long columns of records that are too large.",
    RecordSizeProperties,
    lambda properties, _context: each(RecordSize(properties)),
)
