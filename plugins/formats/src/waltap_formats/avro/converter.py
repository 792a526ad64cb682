"""Avro with a schema registry, as Confluent's AvroConverter writes it."""

import json
from functools import cached_property

from waltap.events.shape import TableShape
from waltap.format.converter import Converter, ConverterContext, Encode, WriteCreates, WriteKeys
from waltap.mapping.connect_schema import ConnectKind, Schema
from waltap_formats.avro.binary import avro_writer
from waltap_formats.avro.properties import AvroProperties
from waltap_formats.avro.rows import create_writer, key_writer
from waltap_formats.avro.schema import avro_schema
from waltap_formats.registry.client import RegistryClient

__all__ = ["AvroConverter"]


class AvroConverter(Converter):
    """Writes the wire form of Confluent's serialisers: a zero byte, the schema's id, the value.

    ``defaults``: null is written as the default where there is one.
    """

    def __init__(self, properties: AvroProperties, context: ConverterContext) -> None:
        self._properties, self._context = properties, context
        self.defaults = not properties.ignore_default

    @cached_property
    def _registry(self) -> RegistryClient:
        return RegistryClient(self._properties, stopping=self._context.stopping)

    def encoder(self, topic: str, schema: Schema | None) -> Encode:
        schema = schema or Schema(kind=ConnectKind.STRING, optional=True)
        write = avro_writer(schema, defaults=self.defaults)
        prefix = self.prefix(topic, schema)
        return lambda value: prefix + write(value)

    def keys(self, shape: TableShape, *, read: bool) -> WriteKeys | None:
        prefix = self.prefix(shape.plan.topic, shape.read_key if read else shape.key)
        return key_writer(shape, prefix, read=read, defaults=self.defaults)

    def creates(
        self, shape: TableShape, value: Schema, key: Converter, *, read: bool
    ) -> WriteCreates | None:
        prefix, key_prefix = self.prefix(shape.plan.topic, value), None
        if isinstance(key, AvroConverter) and key.defaults == self.defaults and shape.has_key:
            key_prefix = key.prefix(shape.plan.topic, shape.read_key if read else shape.key)
        return create_writer(
            shape, value, prefix, read=read, defaults=self.defaults, key_prefix=key_prefix
        )

    def address(self, topic: str, schema: Schema) -> str:
        """Return where the registry has ``schema``. Raises: as `prefix`."""
        number = int.from_bytes(self.prefix(topic, schema)[1:], "big")
        return f"{self._registry.url}/schemas/ids/{number}"

    def prefix(self, topic: str, schema: Schema) -> bytes:
        """Return what precedes values of ``schema``, which is registered. Raises: as `RegistryClient`."""
        options = self._properties
        made = avro_schema(schema, connect_metadata=options.connect_metadata)
        text = json.dumps(made, ensure_ascii=False, separators=(",", ":"))
        name = None
        if isinstance(made, dict) and made["type"] == "record":
            name = ".".join(filter(None, (made.get("namespace"), made["name"])))
        subject = options.subject(self._context.side, topic, name)
        number = self._registry.id_of(subject, text, "AVRO")
        return b"\x00" + number.to_bytes(4, "big")
