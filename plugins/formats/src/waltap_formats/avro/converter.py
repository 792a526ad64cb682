"""Avro with a schema registry, as Confluent's AvroConverter writes it."""

import json

from waltap.changes.events.shape import TableShape
from waltap.changes.mapping.connect_schema import ConnectKind, Schema
from waltap.encoders.format.converter import (
    Converter,
    ConverterContext,
    Encode,
    WriteCreates,
    WriteKeys,
    refusing_null,
)
from waltap_formats.avro.binary import avro_writer
from waltap_formats.avro.rows import create_writer, key_writer
from waltap_formats.avro.schema import avro_schema
from waltap_formats.properties import AvroProperties
from waltap_formats.registry import RegistryConverter


class AvroConverter(RegistryConverter[AvroProperties]):
    """Write Avro behind the schema's id."""

    language = "AVRO"

    def __init__(self, properties: AvroProperties, context: ConverterContext) -> None:
        super().__init__(properties, context)
        # NULL is written as the column's default if there is one, like Confluent's.
        self.defaults = not properties.ignore_default

    def made(self, topic: str, schema: Schema) -> Encode:
        write = avro_writer(schema, defaults=self.defaults)
        prefix = self.prefix(topic, schema)
        if schema.kind is ConnectKind.BYTES and not schema.optional:
            # Confluent's serialiser writes bytes outside of a record without their length.
            null = schema.default if self.defaults else None
            write = refusing_null(prefix.__add__, "the value", schema)
            return lambda value: write(null if value is None else value)
        return lambda value: prefix + write(value)

    def keys(self, shape: TableShape, *, read: bool) -> WriteKeys | None:
        prefix = self.prefix(shape.plan.topic, shape.read_key if read else shape.key)
        return key_writer(shape, prefix, read=read, defaults=self.defaults)

    def creates(
        self, shape: TableShape, value: Schema, key: Converter, *, read: bool
    ) -> WriteCreates | None:
        prefix, key_prefix = self.prefix(shape.plan.topic, value), None
        # One pass over the rows can then write keys and values.
        if isinstance(key, AvroConverter) and key.defaults == self.defaults and shape.has_key:
            key_prefix = key.prefix(shape.plan.topic, shape.read_key if read else shape.key)
        return create_writer(
            shape, value, prefix, read=read, defaults=self.defaults, key_prefix=key_prefix
        )

    def address(self, topic: str, schema: Schema) -> str:
        """Return the registry's address of ``schema``. Raises: as `prefix`."""
        number = int.from_bytes(self.prefix(topic, schema)[1:], "big")
        return f"{self._registry.url}/schemas/ids/{number}"

    def prefix(self, topic: str, schema: Schema) -> bytes:
        """Register ``schema`` and return the prefix of its values.

        Raises: as `RegistryClient`.
        """
        made = avro_schema(schema, connect_metadata=self._properties.connect_metadata)
        text = json.dumps(made, ensure_ascii=False, separators=(",", ":"))
        name = None
        # Only records have the full name that RecordNameStrategy uses.
        if isinstance(made, dict) and made["type"] == "record":
            name = ".".join(filter(None, (made.get("namespace"), made["name"])))
        return self._registered(topic, name, text)
