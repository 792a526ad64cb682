"""DecodeLogicalDecodingMessageContent: expand the JSON in logical messages.

The message becomes a change event with the JSON object as its row.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from waltap.base.property import Properties, declare
from waltap.changes.mapping.connect_schema import ConnectKind, Field, Schema
from waltap.encoders.format.record_transform import ConnectRecord, RecordUnfit, SchemaMemory
from waltap_transforms.debezium.json_payload import JsonPayload, NotExpanded
from waltap_transforms.specs import debezium_spec, each
from waltap_transforms.structs import defaults_of, filled

__all__ = ["MESSAGE_CONTENT"]

MESSAGE = "message"
# Most schemas in the cache: every shape of JSON makes one.
SCHEMAS_KEPT = 10_000


class DecodeMessageContentProperties(Properties):
    """Content of the row."""

    nulls: bool = declare(
        "fields.null.include",
        default=False,
        summary="Keep fields that are null, with the type bytes; otherwise they are left out.",
    )


class DecodeMessageContent:
    """Convert logical messages to creates, for EventRouter."""

    def __init__(self, properties: DecodeMessageContentProperties, connector: str) -> None:
        self._payloads = JsonPayload(nulls=properties.nulls)
        self._name = f"io.debezium.connector.{connector}.MessageValue"
        self._schemas = SchemaMemory(_event_schema, most=SCHEMAS_KEPT)

    def __call__(self, record: ConnectRecord) -> ConnectRecord:
        """Return ``record`` with expanded messages.

        Raises: RecordUnfit.
        """
        schema = record.value_schema
        if schema is None or schema.name != self._name or record.value is None:
            return record
        row_schema, row = self._row(schema, record.value)
        made = self._schemas.of(schema, row_schema)
        # Debezium copies the other fields by Struct.get, so null becomes their default.
        value = filled(record.value, defaults_of(made))
        value.pop(MESSAGE, None)
        value |= {"op": "c", "after": row}
        return msgspec.structs.replace(
            record, key_schema=None, key=None, value_schema=made, value=value
        )

    def _row(self, schema: Schema, event: Mapping[str, Any]) -> tuple[Schema, dict[str, Any]]:
        kinds = {
            field.name: field.schema.kind
            for message in schema.fields
            if message.name == MESSAGE
            for field in message.schema.fields
        }
        # In the other modes the content is base64 or hexadecimal text, not JSON.
        if kinds.get("content") is not ConnectKind.BYTES:
            raise RecordUnfit(
                "the content of logical messages is text; binary.handling.mode must be bytes"
            )
        content = (event.get(MESSAGE) or {}).get("content")
        if content is None:
            raise RecordUnfit("a logical message has no content")
        try:
            return self._payloads.expanded(content.decode("utf-8", "replace"), None)
        except NotExpanded as cause:
            raise RecordUnfit(
                f"the content of a logical message is not expanded: {cause}"
            ) from cause


def _event_schema(schema: Schema, row: Schema) -> Schema:
    fields = tuple(field for field in schema.fields if field.name != MESSAGE)
    return Schema(
        kind=ConnectKind.STRUCT,
        # EventRouter recognises change events by this suffix.
        name=f"{schema.name}.Envelope",
        fields=(*fields, Field("after", row)),
    )


MESSAGE_CONTENT = (
    debezium_spec(
        "decode-message-content",
        "DecodeLogicalDecodingMessageContent",
        "Makes change events of logical messages whose content is JSON.",
        DecodeMessageContentProperties,
        lambda properties, context: each(DecodeMessageContent(properties, context.connector)),
        package="io.debezium.connector.postgresql.transforms",
    ),
)
