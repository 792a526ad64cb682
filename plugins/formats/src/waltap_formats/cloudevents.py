"""CloudEvents of change events, in structured and binary mode.

The structured mode follows Debezium's CloudEventsConverter. Source: results of Debezium 3.6's
converter; for the binary mode CloudEvents' Kafka protocol binding 1.0.2.
"""

import re
from base64 import b64encode
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from waltap.changes.capture.topic_naming import schema_namer
from waltap.changes.events.event import Header
from waltap.changes.mapping.connect_schema import ConnectKind, Field, Schema
from waltap.changes.mapping.json_schema import quote, schema_json
from waltap.encoders.format.converter import Converter, ConverterContext, Encode, SchemaMismatch
from waltap.encoders.json.converter import JsonConverter, JsonConverterProperties, json_writer
from waltap_formats.avro.converter import AvroConverter
from waltap_formats.properties import CloudEventsProperties

_STRING = Schema(kind=ConnectKind.STRING)
_OPTIONAL = Schema(kind=ConnectKind.STRING, optional=True)
_NO_ATTRIBUTE = re.compile(r"[^A-Za-z0-9]")
PREFIX = "iodebezium"
TRANSACTION = {
    "id": f"{PREFIX}txid",
    "total_order": f"{PREFIX}txtotalorder",
    "data_collection_order": f"{PREFIX}txdatacollectionorder",
}
NO_EVENTS = (
    "heartbeats, logical messages and transaction records are no change events: CloudEvents have "
    "null in their place, as Debezium's have"
)

# Prefix of the schema names of records that belong to no table.
DEBEZIUMS_OWN = "io.debezium."

Attributes = Callable[[dict[str, Any]], dict[str, Any]]


class CloudEventsConverter(Converter):
    """Write values as CloudEvents. Keys and headers remain JSON."""

    def __init__(self, properties: CloudEventsProperties, context: ConverterContext) -> None:
        self._properties, self._context = properties, context
        options = {
            "schemas.enable": properties.json_schemas,
            "replace.null.with.default": properties.json_null_to_default,
        }
        self._json = JsonConverter(JsonConverterProperties.model_validate(options), context)
        structured = properties.mode == "structured"
        self.text = context.record_part != "value" or (
            structured and properties.serializer == "json"
        )
        self._warned = False

    @cached_property
    def _avro(self) -> AvroConverter:
        return AvroConverter(self._properties.avro(), self._context)

    def encoder(self, topic: str, schema: Schema | None) -> Encode:
        if self._context.record_part != "value":
            return self._json.encoder(topic, schema)
        if schema is None or not _is_change(schema):
            if schema is None or not (schema.name or "").startswith(DEBEZIUMS_OWN):
                return _refused
            # One warning, not one per heartbeat.
            if not self._warned:
                self._warned = True
                self._context.warn(NO_EVENTS)
            return lambda _value: None
        data, kind, address = self._data(topic, schema)
        attributes = self._attributes(schema, kind, address)
        if self._properties.serializer == "json":
            return lambda event: self._as_json(attributes(event), data(event))
        # The encoder is made at the first event, which has the database's name.
        write: dict[str, Encode] = {}

        def avro(event: dict[str, Any]) -> bytes | None:
            found = attributes(event)
            if not write:  # the schema's name contains the database's
                write["event"] = self._avro.encoder(topic, self._event_schema(schema, event))
            return write["event"]({**found, "data": data(event)})

        return avro

    def headed(
        self, topic: str, schema: Schema | None
    ) -> Callable[[Any], tuple[bytes | None, tuple[Header, ...]]] | None:
        """Return the writer of events in binary mode. Attributes become headers."""
        binary = self._properties.mode == "binary" and self._context.record_part == "value"
        if not binary or schema is None or not _is_change(schema):
            return None
        data, kind, address = self._data(topic, schema)
        attributes = self._attributes(schema, kind, address)

        def write(event: dict[str, Any]) -> tuple[bytes | None, tuple[Header, ...]]:
            found = attributes(event)
            headers = tuple(
                (f"ce_{name}", str(value).encode("utf-8", "replace"))
                for name, value in found.items()
                # In binary mode the content-type header has this attribute.
                if value is not None and name != "datacontenttype"
            )
            return data(event), (*headers, ("content-type", kind.encode()))

        return write

    def _data(self, topic: str, schema: Schema) -> tuple[Callable[[Any], bytes], str, str | None]:
        """Return the data's writer, content type and schema address."""
        options = self._properties
        data = _data_schema(schema)

        def pick(event: dict[str, Any]) -> dict[str, Any]:
            return {"before": event.get("before"), "after": event.get("after")}

        if options.data_serializer == "avro":
            # Event and data have different schemas, so they need different subjects.
            of = f"{topic}-data" if options.serializer == "avro" else topic
            encode = self._avro.encoder(of, data)
            address = self._avro.address(of, data)
            return lambda event: encode(pick(event)) or b"", "application/avro", address
        write = json_writer(data, defaults=options.json_null_to_default)
        before, after = "", ""
        if options.json_schemas:
            before, after = f'{{"schema":{schema_json(data)},"payload":', "}"
        return (
            lambda event: f"{before}{write(pick(event))}{after}".encode(),
            "application/json",
            None,
        )

    def _as_json(self, attributes: dict[str, Any], data: bytes) -> bytes:
        members = [
            f"{quote(name)}:{'null' if value is None else quote(value)}"
            for name, value in attributes.items()
        ]
        if self._properties.data_serializer == "avro":
            # Avro's bytes must be text inside a JSON event.
            data = b'"' + b64encode(data) + b'"'
        return f"{{{','.join(members)},".encode() + b'"data":' + data + b"}"

    def _attributes(self, schema: Schema, kind: str, address: str | None) -> Attributes:
        """Return the function of an event's attributes.

        They are in order, without the data, and all are texts.
        """
        options = self._properties
        source_schema = _field(schema, "source")
        extensions = {
            field.name: (extension(field.name), field.schema.default)
            for field in source_schema.fields
        }

        def attributes(event: dict[str, Any]) -> dict[str, Any]:
            source = event["source"]
            connector, name = source["connector"], source["name"]
            found: dict[str, Any] = {
                "id": ";".join(
                    f"{part}:{_text(source.get(part))}"
                    for part in ("name", "lsn", "txId", "sequence")
                ),
                "source": f"/debezium/{connector}/{name}",
                "specversion": "1.0",
                "type": f"io.debezium.connector.{connector}.DataChangeEvent",
                "time": _instant(source["ts_ms"]),
                "datacontenttype": kind,
            }
            if address is not None:
                found["dataschema"] = address
            if not options.extensions:
                return found
            found[f"{PREFIX}op"] = event["op"]
            for field, (attribute, default) in extensions.items():
                value = source.get(field)
                value = default if value is None else value
                found[attribute] = None if value is None else str(value)
            block = event.get("transaction") or {}
            for field, attribute in TRANSACTION.items():
                value = block.get(field)
                found[attribute] = None if value is None else str(value)
            return found

        return attributes

    def _event_schema(self, schema: Schema, event: dict[str, Any]) -> Schema:
        options, source = self._properties, _field(schema, "source")
        name = options.event_name
        if name is None:
            name = f"{event['source']['name']}.{event['source']['db']}.CloudEvents.Envelope"
        if options.names == "avro":
            name = schema_namer("avro")(name)
        names = ["id", "source", "specversion", "type", "time", "datacontenttype", "dataschema"]
        fields = [Field(each, _STRING) for each in names]
        if options.extensions:
            fields.append(Field(f"{PREFIX}op", _STRING))
            fields += [
                Field(extension(field.name), _OPTIONAL if field.schema.optional else _STRING)
                for field in source.fields
            ]
            fields += [Field(each, _OPTIONAL) for each in TRANSACTION.values()]
        fields.append(Field("data", Schema(kind=ConnectKind.BYTES)))
        return Schema(kind=ConnectKind.STRUCT, name=name, fields=tuple(fields))


def extension(name: str) -> str:
    """Return the attribute name of a source field."""
    # CloudEvents allows only letters and digits in names of attributes.
    return PREFIX + _NO_ATTRIBUTE.sub("", name)


def _refused(_value: Any) -> bytes | None:
    """Refuse an event that a transform changed to another value."""
    # Debezium sends null here, which would delete a table's rows at a compacting consumer.
    raise SchemaMismatch(
        "cloudevents writes change events, and a transform (ExtractNewRecordState, EventRouter) made "
        "another value of this one: leave the transform out, or use another value.converter"
    )


def _is_change(schema: Schema) -> bool:
    names = {field.name for field in schema.fields}
    return {"source", "op", "before", "after"} <= names


def _field(schema: Schema, name: str) -> Schema:
    return next(field.schema for field in schema.fields if field.name == name)


def _data_schema(schema: Schema) -> Schema:
    source = _field(schema, "source").name or ""
    return Schema(
        kind=ConnectKind.STRUCT,
        name=schema_namer("avro")(f"{source.rpartition('.')[0]}.Data"),
        fields=tuple(field for field in schema.fields if field.name in ("before", "after")),
    )


def _text(value: object) -> str:
    return "null" if value is None else str(value)


def _instant(ms: int) -> str:
    moment = datetime.fromtimestamp(ms / 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{ms % 1000:03d}Z"
