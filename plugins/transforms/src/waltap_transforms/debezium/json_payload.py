"""Connect schemas and values of JSON documents, as Debezium infers them.

Every schema is optional. An object is a struct with its path as name. A null member has no field, or
one of optional bytes. The objects in an array share one struct with the fields of all. Documents of the
same shape share one schema object.
"""

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from waltap.base.cache import BoundedDict
from waltap.base.property import Properties, Switch, declare
from waltap.changes.mapping.connect_schema import ConnectKind, Field, Schema
from waltap.encoders.format.record_transform import ConnectRecord, RecordUnfit, SchemaMemory
from waltap_transforms.specs import debezium_spec, each
from waltap_transforms.structs import defaults_of, filled

# Most schemas in the cache: documents with random member names would otherwise fill the memory.
MAX_SHAPES = 10_000
# Levels of a document. Converters cannot write much deeper schemas: orjson has 254 levels, of which
# a JSON Schema takes four for an object, and Python's stack ends at 1000 calls.
MAX_LEVELS = 50

_INT32, _INT64 = range(-(2**31), 2**31), range(-(2**63), 2**63)
_SCALARS = {
    kind: Schema(kind=kind, optional=True)
    for kind in (
        ConnectKind.STRING,
        ConnectKind.BOOLEAN,
        ConnectKind.INT32,
        ConnectKind.INT64,
        ConnectKind.FLOAT64,
        ConnectKind.BYTES,
    )
}

# A scalar's kind, ("array", shape) or ("struct", path, ((name, shape), …), optional). Unlike a schema,
# it is cheap to build and to look up for every document.
Shape = ConnectKind | tuple[Any, ...]


class NotExpanded(ValueError):
    """Report that a document has no schema.

    The text has the reason but never a value of the document.
    """


class JsonPayload:
    """Expand JSON documents to structs.

    ``nulls`` makes null members optional bytes; otherwise they are left out. ``field_name`` adjusts the
    names of fields.
    """

    def __init__(
        self, *, nulls: bool, field_name: Callable[[str], str] = lambda name: name
    ) -> None:
        self._nulls, self._field_name = nulls, field_name
        # Python also reads NaN and Infinity, which are not JSON.
        self._decoder = json.JSONDecoder(parse_constant=_no_constant)
        self._schemas = BoundedDict[Shape, Schema](MAX_SHAPES)

    def expanded(self, text: str, name: str | None) -> tuple[Schema, dict[str, Any]]:
        """Return schema and value of a JSON object.

        ``name`` is the name of the schema. Raises: NotExpanded.
        """
        if not text.startswith(("{", "[")):
            raise NotExpanded("it is neither an object nor an array")
        try:
            # Text after the first document is ignored.
            document, _ = self._decoder.raw_decode(text)
        except (ValueError, RecursionError) as cause:
            raise NotExpanded("it is not JSON") from cause
        if not isinstance(document, dict):
            raise NotExpanded("it is an array, which has no fields")
        shape = self._shape(name, document)
        assert shape is not None
        schema = self._schema(shape)
        value: dict[str, Any] = _value(document, schema)
        return schema, value

    def _shape(self, key: str | None, node: Any, level: int = 0) -> Shape | None:
        """Return the shape of ``node``, None for a member to leave out."""
        if level > MAX_LEVELS:
            raise NotExpanded("it is nested too deeply")
        if isinstance(node, dict):
            fields: dict[str, Shape] = {}
            for given, member in node.items():
                field = self._field_name(given)
                if any("\ud800" <= character <= "\udfff" for character in field):
                    raise NotExpanded("half of a surrogate pair is no name of a field")
                path = f"{key}.{field}" if key and key.strip() else field
                shape = self._shape(path, member, level + 1)
                if shape is not None:
                    if not field:
                        raise NotExpanded("a field has no name")
                    # Two names may become equal when they are adjusted; the first one wins.
                    fields.setdefault(field, shape)
            return "struct", key, tuple(fields.items()), True
        if isinstance(node, list):
            return ("array", self._element(key, node, level + 1)) if node else None
        if node is None:
            return ConnectKind.BYTES if self._nulls else None
        return _scalar(node)

    def _element(self, key: str | None, nodes: list[Any], level: int) -> Shape:
        some = [node for node in nodes if node is not None]
        # The items of an array share one schema.
        if len({_type(node) for node in some}) > 1:
            raise NotExpanded("an array has elements of several types")
        if some and isinstance(some[0], dict):
            return self._joined([self._shape(key, node, level) for node in some])
        shape = self._shape(None, some[0] if some else None, level)
        if shape is None:
            raise NotExpanded("an array has nothing that names its type")
        return shape

    @staticmethod
    def _joined(shapes: list[Any]) -> Shape:
        """Return the struct with the fields of all elements."""
        if len(set(shapes)) == 1:
            shape: Shape = shapes[0]
            return shape
        fields: dict[str, Shape] = {}
        for _, _, members, _ in shapes:
            for name, shape in members:
                # Optional bytes is the shape of null; a later element may show the real type.
                if name not in fields or (
                    fields[name] is ConnectKind.BYTES and shape is not ConnectKind.BYTES
                ):
                    fields[name] = shape
        # Debezium makes the struct required if its elements differ.
        return "struct", shapes[0][1], tuple(fields.items()), False

    def _schema(self, shape: Shape) -> Schema:
        if isinstance(shape, ConnectKind):
            return _SCALARS[shape]
        known = self._schemas.get(shape)
        if known is None:
            if shape[0] == "array":
                known = Schema(kind=ConnectKind.ARRAY, optional=True, items=self._schema(shape[1]))
            else:
                fields = tuple(Field(name, self._schema(part)) for name, part in shape[2])
                known = Schema(
                    kind=ConnectKind.STRUCT, optional=shape[3], name=shape[1], fields=fields
                )
            self._schemas[shape] = known
        return known


def _type(node: Any) -> Any:
    return _scalar(node) if isinstance(node, int | float | str) else type(node)


def _scalar(node: str | float) -> ConnectKind:
    if isinstance(node, str):
        return ConnectKind.STRING
    if isinstance(node, bool):
        return ConnectKind.BOOLEAN
    if isinstance(node, float):
        if not math.isfinite(node):
            raise NotExpanded("a number is too large")
        return ConnectKind.FLOAT64
    if node in _INT32:
        return ConnectKind.INT32
    if node in _INT64:
        return ConnectKind.INT64
    raise NotExpanded("a whole number has more than 64 bits")


def _value(node: Any, schema: Schema) -> Any:
    """Convert ``node`` to a value of ``schema``.

    Raises: NotExpanded if the types differ.
    """
    if node is None:
        if not schema.optional:
            raise NotExpanded("an array has null among objects that differ")
        return None
    if isinstance(node, dict) and schema.kind is ConnectKind.STRUCT:
        return {
            field.name: _value(node[field.name], field.schema)
            for field in schema.fields
            if field.name in node
        }
    if isinstance(node, list) and schema.kind is ConnectKind.ARRAY:
        assert schema.items is not None
        return [_value(each, schema.items) for each in node]
    if isinstance(node, dict | list) or _scalar(node) is not schema.kind:
        raise NotExpanded("a field has values of several types")
    return node


def _no_constant(name: str) -> Any:
    raise ValueError(name)


# DecodeLogicalDecodingMessageContent: expand the JSON in logical messages.
#
# The message becomes a change event with the JSON object as its row.

MESSAGE = "message"
# Most schemas in the cache: every shape of JSON makes one.
MAX_SCHEMAS = 10_000


class DecodeMessageContentProperties(Properties):
    """Content of the row."""

    nulls: Switch = declare(
        "fields.null.include",
        summary="Keep fields that are null, with the type bytes; otherwise they are left out.",
    )


class DecodeMessageContent:
    """Convert logical messages to creates, for EventRouter."""

    def __init__(self, properties: DecodeMessageContentProperties, connector: str) -> None:
        self._payloads = JsonPayload(nulls=properties.nulls)
        self._name = f"io.debezium.connector.{connector}.MessageValue"
        self._schemas = SchemaMemory(_event_schema, most=MAX_SCHEMAS)

    def __call__(self, record: ConnectRecord) -> ConnectRecord:
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


MESSAGE_CONTENT = debezium_spec(
    "DecodeLogicalDecodingMessageContent",
    "Makes change events of logical messages whose content is JSON.",
    DecodeMessageContentProperties,
    lambda properties, context: each(DecodeMessageContent(properties, context.connector)),
    name="decode-message-content",
    package="io.debezium.connector.postgresql.transforms",
)
