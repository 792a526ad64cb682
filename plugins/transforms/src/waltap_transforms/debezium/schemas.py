"""ExtractSchemaToNewRecord and SchemaChangeEventFilter."""

from typing import Any, Literal

import msgspec

from waltap.base.property import NonEmptyList, Properties, declare
from waltap.changes.capture.topic_naming import schema_namer
from waltap.changes.mapping.connect_schema import ConnectKind, Field, Schema
from waltap.encoders.format.record_transform import (
    ConnectRecord,
    RecordTransform,
    RecordTransformContext,
    RecordUnfit,
    SchemaMemory,
)
from waltap_transforms.specs import debezium_spec, each_event
from waltap_transforms.structs import member, without_repeats

TYPES = ("CREATE", "ALTER", "DROP", "TRUNCATE", "DATABASE")
# Suffixes of the schema names of Debezium's schema change events.
ENDINGS = (".SchemaChangeValue", ".SchemaChangeKey")


class SchemaChangeFilterProperties(Properties):
    """Types of schema changes to drop."""

    excluded: NonEmptyList = declare(
        "schema.change.event.exclude.list",
        summary="Types of schema changes to leave out: CREATE, ALTER, DROP, TRUNCATE, DATABASE. "
        "PostgreSQL sends none; this is for other connectors.",
        words=TYPES,
    )


def _schema_change_filter(
    properties: SchemaChangeFilterProperties, _context: RecordTransformContext
) -> RecordTransform:
    def stays(record: ConnectRecord) -> bool:
        schema = record.value_schema
        if record.value is None or schema is None or not (schema.name or "").endswith(ENDINGS):
            return True
        changes = record.value.get("tableChanges")
        if changes is None:
            return False
        # An event without table changes is one about the database.
        return (changes[0].get("type") if changes else "DATABASE") not in properties.excluded

    return lambda records: [record for record in records if stays(record)]


SCHEMA_CHANGE_FILTER = debezium_spec(
    "SchemaChangeEventFilter",
    "Leaves schema change events out, by what was changed.",
    SchemaChangeFilterProperties,
    _schema_change_filter,
    name="schema-change-filter",
)


def _lineage(_properties: None, context: RecordTransformContext) -> RecordTransform:
    context.warn(f"{context.label} has no effect: waltap.openlineage.to sends lineage")
    return lambda records: records


OPEN_LINEAGE = debezium_spec(
    "openlineage.OpenLineage",
    "Has no effect: `waltap.openlineage.to` sends lineage.",
    None,
    _lineage,
    name="openlineage",
)


# Prefix of the schema parameters that `column.propagate.source.type` writes.
PARAMETER = "__debezium.source.column."
_TEXT = Schema(kind=ConnectKind.STRING)
_OPTIONAL_TEXT = Schema(kind=ConnectKind.STRING, optional=True)
_OPTIONAL_INT = Schema(kind=ConnectKind.INT32, optional=True)


class ExtractSchemaProperties(Properties):
    """Names of schemas."""

    names: Literal["none", "avro", "avro_unicode"] = declare(
        "schema.name.adjustment.mode",
        default="none",
        summary="How names of schemas are adjusted to what Avro takes.",
    )


class ExtractSchema:
    """Add the field ``sourceSchema`` to change events."""

    def __init__(self, properties: ExtractSchemaProperties) -> None:
        name = schema_namer(properties.names)
        column = Schema(
            kind=ConnectKind.STRUCT,
            name=name("io.debezium.connector.source.schema.Column"),
            version=1,
            fields=(
                Field("name", _TEXT),
                Field("typeName", _TEXT),
                Field("length", _OPTIONAL_INT),
                Field("scale", _OPTIONAL_INT),
                Field("comment", _OPTIONAL_TEXT),
            ),
        )
        table = Schema(
            kind=ConnectKind.STRUCT,
            # Debezium does not adjust this name, unlike the other two.
            name="io.debezium.connector.source.schema.Table",
            version=1,
            fields=(Field("columns", Schema(kind=ConnectKind.ARRAY, items=column)),),
        )
        self._block = Schema(
            kind=ConnectKind.STRUCT,
            name=name("io.debezium.connector.source.Schema"),
            version=1,
            fields=(Field("id", _TEXT), Field("table", table)),
        )
        self._known = SchemaMemory(self._made)

    def __call__(self, record: ConnectRecord) -> ConnectRecord:
        event = record.value
        # Truncates and logical messages have no row.
        if event.get("after") is None and event.get("before") is None:
            return record
        assert record.value_schema is not None
        schema, columns = self._known.of(record.value_schema)
        block = {"id": event["source"]["table"], "table": {"columns": columns}}
        return msgspec.structs.replace(
            record, value_schema=schema, value={**event, "sourceSchema": block}
        )

    def _made(self, envelope: Schema) -> tuple[Schema, list[dict[str, Any]]]:
        row = member(envelope, "after", "an event", ConnectKind.STRUCT).schema
        fields = (*envelope.fields, Field("sourceSchema", self._block))
        without_repeats(envelope.name, fields)
        made = msgspec.structs.replace(envelope, fields=fields, default=None)
        return made, [_column(field) for field in row.fields]


def _column(field: Field) -> dict[str, Any]:
    found = dict(field.schema.parameters)
    name, type_name = found.get(f"{PARAMETER}name"), found.get(f"{PARAMETER}type")
    if name is None or type_name is None:
        raise RecordUnfit(
            f"the schema of {field.name} does not name its type; set column.propagate.source.type=.* or "
            "datatype.propagate.source.type=.*"
        )
    length, scale = found.get(f"{PARAMETER}length"), found.get(f"{PARAMETER}scale")
    return {
        "name": name,
        "typeName": type_name,
        "length": None if length is None else int(length),
        "scale": None if scale is None else int(scale),
        "comment": found.get(f"{PARAMETER}comment"),
    }


SOURCE_SCHEMA = debezium_spec(
    "ExtractSchemaToNewRecord",
    "Writes the columns of the table into every event.",
    ExtractSchemaProperties,
    lambda properties, _context: each_event(ExtractSchema(properties)),
    name="extract-schema",
)
