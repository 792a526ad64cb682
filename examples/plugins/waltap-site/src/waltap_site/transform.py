"""A transform of records that adds a field with a text to values."""

from collections.abc import Callable

from msgspec.structs import replace

from waltap.config import Properties, declare
from waltap.encoders.format import ConnectRecord, RecordTransformContext, RecordUnfit, SchemaMemory
from waltap.changes.mapping import Field, ConnectKind, Schema


class SiteProperties(Properties):
    """Which field, and its text."""

    field: str = declare("field", summary="Name of the field.")
    text: str = declare("text", summary="Text that the field has in every record.")


def new_transform(
    properties: SiteProperties, _context: RecordTransformContext
) -> Callable[[list[ConnectRecord]], list[ConnectRecord]]:
    """Return the transform: one per pipeline, called once per batch."""

    def added(schema: Schema) -> Schema:
        """Make the schema of values once; it is kept, as encoders are looked up by the object."""
        if any(field.name == properties.field for field in schema.fields):
            raise RecordUnfit(f"the value has a field {properties.field} already")
        field = Field(properties.field, Schema(kind=ConnectKind.STRING))
        return replace(schema, fields=(*schema.fields, field))

    memory = SchemaMemory(added)

    def transform(records: list[ConnectRecord]) -> list[ConnectRecord]:
        """Return the records to go on with; those that came in are left as they are."""
        out = []
        for record in records:
            if record.value_schema is None or record.value is None:  # a tombstone
                out.append(record)
                continue
            value = {**record.value, properties.field: properties.text}
            out.append(replace(record, value_schema=memory.of(record.value_schema), value=value))
        return out

    return transform
