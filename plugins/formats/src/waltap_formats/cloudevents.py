"""CloudEvents of change events, in structured and binary mode.

The structured mode follows Debezium's CloudEventsConverter. Source: results of Debezium 3.6's
converter; for the binary mode CloudEvents' Kafka protocol binding 1.0.2.
"""

import re
from base64 import b64encode
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, NamedTuple

from waltap.base.cache import BoundedDict
from waltap.changes.capture.topic_naming import schema_namer
from waltap.changes.events.event import Header
from waltap.changes.mapping.connect_schema import ConnectKind, Field, Schema
from waltap.changes.mapping.json_schema import quote, schema_json
from waltap.encoders.format.converter import (
    Converter,
    ConverterContext,
    Encode,
    EncodeHeaded,
    SchemaMismatch,
)
from waltap.encoders.format.record_transform import ConnectHeader, SchemaMemory
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
CHANGES = (
    "cloudevents writes change events, and a transform (ExtractNewRecordState, EventRouter) made "
    "another value of this one: leave the transform out, use another value.converter, or have "
    "HeaderFrom$Value copy source and op to headers before, with metadata.source=header"
)
IN_HEADERS = (
    "metadata.source=header needs the headers source and op: HeaderFrom$Value must copy them from the "
    "change event"
)
NO_STRUCT = (
    "with metadata.source=header the value must be a struct: EventRouter makes one of a JSON payload "
    "with table.expand.json.payload=true"
)
# Most names of data that headers give.
MAX_NAMES = 1000

Attributes = dict[str, str | None]
# Schema and value of the source block, its operation and transaction, and the data.
HEADERS = ("source", "op", "transaction")


class EventParts(NamedTuple):
    """Hold the parts of an event."""

    source_schema: Schema
    source: dict[str, Any]
    op: str
    transaction: dict[str, Any]
    data: dict[str, Any]
    # The record's headers, by name.
    headers: Mapping[str, Any]


class EventData(NamedTuple):
    """Write the data of events of one schema."""

    write: Callable[[dict[str, Any]], bytes]
    content_type: str
    # Address of the schema.
    address: str | None


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
        self._in_headers = properties.metadata[0] == "header"
        self._named = properties.data_name and properties.in_header("dataSchemaName")
        self._identified, self._typed = map(properties.in_header, ("id", "type"))
        self._extensions = SchemaMemory(_extensions)
        self._warned = False

    @cached_property
    def _avro(self) -> AvroConverter:
        return AvroConverter(self._properties.avro(), self._context)

    def encoder(self, topic: str, schema: Schema | None) -> Encode:
        if self._context.record_part != "value":
            return self._json.encoder(topic, schema)
        write = self.headed(topic, schema)
        assert write is not None
        return lambda value: write(value, ())[0]

    def headed(self, topic: str, schema: Schema | None) -> EncodeHeaded | None:
        """Return the writer of events. In binary mode attributes become headers."""
        if self._context.record_part != "value":
            return None
        if not self._in_headers and (schema is None or not _is_change(schema)):
            return lambda _value, _headers: self._no_event(schema)
        known = BoundedDict[str, EventData](MAX_NAMES)
        encoders = SchemaMemory(self._event_encoder)
        parts_of = self._parts(schema)

        def write(
            value: Any, headers: tuple[ConnectHeader, ...]
        ) -> tuple[bytes | None, tuple[Header, ...]]:
            if value is None:
                return None, ()
            parts = parts_of(value, headers)
            if parts is None:
                return self._no_event(schema)
            name = self._data_name(parts)
            data = known.get(name)
            if data is None:
                assert schema is not None
                data = known[name] = self._data(topic, schema, name)
            attributes, written = self._attributes(parts, data), data.write(parts.data)
            if self._properties.mode == "binary":
                return written, _binary(attributes, data.content_type)
            if self._properties.serializer == "json":
                return self._as_json(attributes, written), ()
            encode = encoders.of(parts.source_schema, topic, self._event_name(parts))
            return encode({**attributes, "data": written}), ()

        return write

    def _no_event(self, schema: Schema | None) -> tuple[None, tuple[Header, ...]]:
        """Return null for a record of Debezium's own. Raises: SchemaMismatch for others."""
        if schema is None or not (schema.name or "").startswith(DEBEZIUMS_OWN):
            # Debezium sends null here, which would delete a table's rows at a compacting consumer.
            raise SchemaMismatch(IN_HEADERS if self._in_headers else CHANGES)
        # One warning, not one per heartbeat.
        if not self._warned:
            self._warned = True
            self._context.warn(NO_EVENTS)
        return None, ()

    def _parts(
        self, schema: Schema | None
    ) -> Callable[[Any, tuple[ConnectHeader, ...]], EventParts | None]:
        """Return the function of an event's parts, None for a record that is no event."""
        if self._in_headers:
            return lambda value, headers: self._parts_in_headers(schema, value, headers)
        assert schema is not None
        source = next(field.schema for field in schema.fields if field.name == "source")
        read = self._named or self._identified or self._typed or self._properties.tracing

        def of_value(event: dict[str, Any], headers: tuple[ConnectHeader, ...]) -> EventParts:
            data = {"before": event.get("before"), "after": event.get("after")}
            given = {name: held for name, _, held in headers} if read else {}
            return EventParts(
                source, event["source"], event["op"], event.get("transaction") or {}, data, given
            )

        return of_value

    @staticmethod
    def _parts_in_headers(
        schema: Schema | None, value: Any, headers: tuple[ConnectHeader, ...]
    ) -> EventParts | None:
        # The last of several headers with one name counts.
        given = {name: (of, held) for name, of, held in headers}
        source_schema, source = given.get("source", (None, None))
        _, op = given.get("op", (None, None))
        if source_schema is None or source is None or op is None:
            return None
        if schema is None or schema.kind is not ConnectKind.STRUCT:
            raise SchemaMismatch(NO_STRUCT)
        _, transaction = given.get("transaction", (None, None))
        held = {name: each for name, (_, each) in given.items()}
        return EventParts(source_schema, source, op, transaction or {}, value, held)

    def _data_name(self, parts: EventParts) -> str:
        if self._named:
            return _header(parts, "dataSchemaName")
        return schema_namer("avro")(f"{DEBEZIUMS_OWN}connector.{parts.source['connector']}.Data")

    def _data(self, topic: str, schema: Schema, name: str) -> EventData:
        options = self._properties
        fields = schema.fields
        if not self._in_headers:
            fields = tuple(field for field in fields if field.name in ("before", "after"))
        data = Schema(kind=ConnectKind.STRUCT, name=name, fields=fields)
        if options.data_serializer == "avro":
            # Event and data have different schemas, so they need different subjects.
            of = f"{topic}-data" if options.serializer == "avro" else topic
            encode = self._avro.encoder(of, data)
            address = self._avro.address(of, data)
            return EventData(lambda row: encode(row) or b"", "application/avro", address)
        write = json_writer(data, defaults=options.json_null_to_default)
        before, after = "", ""
        if options.json_schemas:
            before, after = f'{{"schema":{schema_json(data)},"payload":', "}"
        return EventData(
            lambda row: f"{before}{write(row)}{after}".encode(), "application/json", None
        )

    def _as_json(self, attributes: Attributes, data: bytes) -> bytes:
        members = [
            f"{quote(name)}:{'null' if value is None else quote(value)}"
            for name, value in attributes.items()
        ]
        if self._properties.data_serializer == "avro":
            # Avro's bytes must be text inside a JSON event.
            data = b'"' + b64encode(data) + b'"'
        return f"{{{','.join(members)},".encode() + b'"data":' + data + b"}"

    def _attributes(self, parts: EventParts, data: EventData) -> Attributes:
        """Return an event's attributes in order, without the data."""
        options, source = self._properties, parts.source
        connector, name = source["connector"], source["name"]
        found: Attributes = {
            "id": _header(parts, "id") if self._identified else _identifier(source),
            "source": f"/debezium/{connector}/{name}",
            "specversion": "1.0",
            "type": _header(parts, "type")
            if self._typed
            else f"{DEBEZIUMS_OWN}connector.{connector}.DataChangeEvent",
            "time": _instant(source["ts_ms"]),
            "datacontenttype": data.content_type,
        }
        if data.address is not None:
            found["dataschema"] = data.address
        if options.tracing:
            found["traceparent"] = _header(parts, "traceparent")
        if not options.extensions:
            return found
        found[f"{PREFIX}op"] = parts.op
        for field, attribute, default in self._extensions.of(parts.source_schema):
            value = source.get(field)
            value = default if value is None else value
            found[attribute] = None if value is None else str(value)
        for field, attribute in TRANSACTION.items():
            value = parts.transaction.get(field)
            found[attribute] = None if value is None else str(value)
        return found

    def _event_name(self, parts: EventParts) -> str:
        options, source = self._properties, parts.source
        name = options.event_name
        if name is None:
            name = f"{source['name']}.{source['db']}.CloudEvents.Envelope"
        return schema_namer("avro")(name) if options.names == "avro" else name

    def _event_encoder(self, source: Schema, topic: str, name: str) -> Encode:
        """Return the encoder of events whose schema has ``name``."""
        options = self._properties
        names = ["id", "source", "specversion", "type", "time", "datacontenttype", "dataschema"]
        fields = [Field(each, _STRING) for each in names]
        if options.tracing:
            fields.append(Field("traceparent", _STRING))
        if options.extensions:
            fields.append(Field(f"{PREFIX}op", _STRING))
            fields += [
                Field(extension(field.name), _OPTIONAL if field.schema.optional else _STRING)
                for field in source.fields
            ]
            fields += [Field(each, _OPTIONAL) for each in TRANSACTION.values()]
        fields.append(Field("data", Schema(kind=ConnectKind.BYTES)))
        return self._avro.encoder(
            topic, Schema(kind=ConnectKind.STRUCT, name=name, fields=tuple(fields))
        )


def _binary(attributes: Attributes, content_type: str) -> tuple[Header, ...]:
    headers = tuple(
        (f"ce_{name}", value.encode("utf-8", "replace"))
        for name, value in attributes.items()
        # In binary mode the content-type header has this attribute.
        if value is not None and name != "datacontenttype"
    )
    return (*headers, ("content-type", content_type.encode()))


def _header(parts: EventParts, name: str) -> str:
    """Return the text of a header. Raises: SchemaMismatch."""
    value = parts.headers.get(name)
    if not isinstance(value, str):
        what = "missing" if value is None else "no text"
        raise SchemaMismatch(
            f"the header {name}, which metadata.source names, is {what}",
            way="A transform must make it: EventRouter makes id, InsertHeader a constant, and "
            "HeaderFrom$Value takes a field",
        )
    return value


def _extensions(source: Schema) -> tuple[tuple[str, str, Any], ...]:
    """Return (field, attribute, default) of the members of a source block."""
    return tuple(
        (field.name, extension(field.name), field.schema.default) for field in source.fields
    )


def extension(name: str) -> str:
    """Return the attribute name of a source field."""
    # CloudEvents allows only letters and digits in names of attributes.
    return PREFIX + _NO_ATTRIBUTE.sub("", name)


def _is_change(schema: Schema) -> bool:
    names = {field.name for field in schema.fields}
    return {"source", "op", "before", "after"} <= names


def _identifier(source: Mapping[str, Any]) -> str:
    names = ("name", "lsn", "txId", "sequence")
    return ";".join(f"{name}:{_text(source.get(name))}" for name in names)


def _text(value: object) -> str:
    return "null" if value is None else str(value)


def _instant(ms: int) -> str:
    moment = datetime.fromtimestamp(ms / 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{ms % 1000:03d}Z"
