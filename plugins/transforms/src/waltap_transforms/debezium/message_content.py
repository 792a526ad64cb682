"""DecodeLogicalDecodingMessageContent: expand the JSON in logical messages.

The message becomes a change event with the JSON object as its row.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from waltap.base.property import Properties, declare
from waltap.changes.mapping.connect_schema import ConnectKind, Field, Schema
from waltap.encoders.format.record_transform import ConnectRecord, RecordUnfit
from waltap_transforms.debezium.json_payload import JsonPayload, NotExpanded
from waltap_transforms.debezium.structure import defaults_of, filled

__all__ = ["DecodeMessageContent", "DecodeMessageContentProperties"]

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
        self._schemas: dict[tuple[int, int], tuple[Schema, Schema, Schema]] = {}

    def __call__(self, records: list[ConnectRecord]) -> list[ConnectRecord]:
        """Return a batch's records with expanded messages, in order.

        Raises: RecordUnfit.
        """
        return [self._decoded(record) for record in records]

    def _decoded(self, record: ConnectRecord) -> ConnectRecord:
        schema = record.value_schema
        if schema is None or schema.name != self._name or record.value is None:
            return record
        row_schema, row = self._row(schema, record.value)
        made = self._event_schema(schema, row_schema)
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

    def _event_schema(self, schema: Schema, row: Schema) -> Schema:
        place = id(schema), id(row)
        entry = self._schemas.get(place)
        if entry is None:
            if len(self._schemas) >= SCHEMAS_KEPT:
                self._schemas.clear()
            fields = tuple(field for field in schema.fields if field.name != MESSAGE)
            made = Schema(
                kind=ConnectKind.STRUCT,
                # EventRouter recognises change events by this suffix.
                name=f"{schema.name}.Envelope",
                fields=(*fields, Field("after", row)),
            )
            # The key of the cache has ids: keeping the objects alive prevents that an id is used again.
            entry = self._schemas[place] = schema, row, made
        return entry[2]
