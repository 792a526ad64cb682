"""Transforms that unwrap ``{"value", "set"}`` cells of records.

They match Debezium's for YugabyteDB. Source: Debezium's connector for YugabyteDB,
``transforms/yugabytedb/PGCompatible.java`` and ``YBExtractNewRecordState.java``.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from waltap.changes.mapping.connect_schema import ConnectKind, Field, Schema
from waltap.encoders.format.record_transform import ConnectRecord, SchemaMemory
from waltap.ports.specs import RecordTransformSpec
from waltap_transforms.debezium.record_state import (
    ExtractNewRecordState,
    ExtractNewRecordStateProperties,
)

Convert = Callable[[Any], Any]
PACKAGE = "io.debezium.connector.postgresql.transforms"
CELL = ("value", "set")
# Each set of unsent columns makes a schema; the limit bounds their memory.
MAX_SHAPES = 1000


class PgCompatible:
    """Replace cells by their values at any depth.

    A null cell becomes null, as does a cell with NULL.
    """

    def __init__(self) -> None:
        self._flat = SchemaMemory(_flattened)

    def __call__(self, records: list[ConnectRecord]) -> list[ConnectRecord]:
        return [self._made(record) for record in records]

    def _made(self, record: ConnectRecord) -> ConnectRecord:
        key_schema, key = self._part(record.key_schema, record.key)
        value_schema, value = self._part(record.value_schema, record.value)
        return msgspec.structs.replace(
            record, key_schema=key_schema, key=key, value_schema=value_schema, value=value
        )

    def _part(self, schema: Schema | None, value: Any) -> tuple[Schema | None, Any]:
        if schema is None or value is None:
            return schema, value
        flat, convert = self._flat.of(schema)
        return flat, convert(value)


def _is_cell(schema: Schema) -> bool:
    return schema.kind is ConnectKind.STRUCT and tuple(f.name for f in schema.fields) == CELL


def _flattened(schema: Schema) -> tuple[Schema, Convert]:
    """Return a schema without cells, and the conversion of its values."""
    if schema.kind is not ConnectKind.STRUCT:
        return schema, lambda value: value
    if _is_cell(schema):
        inner, of = _flattened(schema.fields[0].schema)
        return inner, lambda cell: None if cell is None else of(cell["value"])
    parts = [(field.name, *_flattened(field.schema)) for field in schema.fields]
    made = msgspec.structs.replace(schema, fields=tuple(Field(name, of) for name, of, _ in parts))

    def convert(value: Any) -> Any:
        if value is None:
            return None
        return {name: part(value.get(name)) for name, _, part in parts}

    return made, convert


class YbExtractNewRecordState:
    """Replace the event by its row, and cells by their values.

    Columns that were not sent are removed, from the schema as well. The schema therefore differs
    between records.
    """

    def __init__(self, properties: ExtractNewRecordStateProperties) -> None:
        self._unwrap = ExtractNewRecordState(properties)
        self._flat = PgCompatible()
        self._schemas = SchemaMemory(_without, most=MAX_SHAPES)

    def __call__(self, records: list[ConnectRecord]) -> list[ConnectRecord]:
        """Return the transformed ``records``. Raises: RecordUnfit."""
        return self._flat([self._sent(record) for record in self._unwrap(records)])

    def _sent(self, record: ConnectRecord) -> ConnectRecord:
        schema, row = record.value_schema, record.value
        if schema is None or schema.kind is not ConnectKind.STRUCT or row is None:
            return record
        missing = tuple(
            field.name
            for field in schema.fields
            if _is_cell(field.schema) and row.get(field.name) is None
        )
        if not missing:
            return record
        made = self._schemas.of(schema, missing)
        remaining = {name: value for name, value in row.items() if name not in missing}
        return msgspec.structs.replace(record, value_schema=made, value=remaining)


def _without(schema: Schema, missing: tuple[str, ...]) -> Schema:
    fields = tuple(field for field in schema.fields if field.name not in missing)
    return msgspec.structs.replace(schema, fields=fields)


def _aliases(java: str) -> tuple[str, ...]:
    return (f"{PACKAGE}.yugabytedb.{java}", f"{PACKAGE}.{java}", java)


# Result of ``register_transforms``.
TRANSFORMS = (
    RecordTransformSpec(
        name="pg-compatible",
        aliases=_aliases("PGCompatible"),
        summary="Replaces cells by values: events as of any PostgreSQL.",
        factory=lambda _properties, _context: PgCompatible(),
    ),
    RecordTransformSpec(
        name="yb-extract-new-record-state",
        aliases=_aliases("YBExtractNewRecordState"),
        summary="Replaces the event by the row, without the columns that were not sent.",
        properties=ExtractNewRecordStateProperties,
        factory=lambda properties, _context: YbExtractNewRecordState(properties),
    ),
)
