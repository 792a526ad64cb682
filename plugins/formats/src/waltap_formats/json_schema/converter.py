"""JSON with a schema registry, as Confluent's JsonSchemaConverter writes it."""

from functools import cached_property

import orjson

from waltap.format.converter import Converter, ConverterContext, Encode
from waltap.json.converter import json_writer
from waltap.mapping.connect_schema import ConnectKind, Schema
from waltap_formats.json_schema.properties import JsonSchemaProperties
from waltap_formats.json_schema.schema import json_schema
from waltap_formats.registry.client import RegistryClient

__all__ = ["JsonSchemaConverter"]


class JsonSchemaConverter(Converter):
    """Write the wire form of Confluent's serialisers.

    It is a zero byte, the schema's id, and JSON.
    """

    def __init__(self, properties: JsonSchemaProperties, context: ConverterContext) -> None:
        self._properties, self._context = properties, context

    @cached_property
    def _registry(self) -> RegistryClient:
        return RegistryClient(
            self._properties,
            stopping=self._context.stopping,
            waits_for=self._context.waits_for,
        )

    def encoder(self, topic: str, schema: Schema | None) -> Encode:
        schema = schema or Schema(kind=ConnectKind.STRING, optional=True)
        options, numeric = self._properties, self._properties.decimals == "NUMERIC"
        write = json_writer(
            schema, defaults=not options.ignore_default, numeric=numeric, entries=True
        )
        text = orjson.dumps(json_schema(schema, numeric=numeric)).decode()
        prefix = self.prefix(topic, schema.name, text)
        return lambda value: prefix + write(value).encode()

    def prefix(self, topic: str, name: str | None, text: str) -> bytes:
        """Register a schema and return the prefix of its values.

        Raises: as `RegistryClient`.
        """
        subject = self._properties.subject(self._context.side, topic, name)
        number = self._registry.id_of(subject, text, "JSON")
        return b"\x00" + number.to_bytes(4, "big")
