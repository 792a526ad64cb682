"""Protobuf with a schema registry, as Confluent's converter writes it."""

from typing import Any

from waltap.changes.mapping.connect_schema import ConnectKind, Schema
from waltap.encoders.format.converter import Encode
from waltap.errors import ConfigurationError
from waltap_formats.avro.binary import long_bytes
from waltap_formats.properties import ProtobufProperties
from waltap_formats.protobuf.binary import message_writer, wrapped_writer
from waltap_formats.protobuf.schema import (
    LOGICAL,
    PRIMITIVES,
    WRAPPERS,
    WRAPPERS_TEXT,
    ProtobufFile,
)
from waltap_formats.registry import RegistryConverter


class ProtobufConverter(RegistryConverter[ProtobufProperties]):
    """Write the wire form of Confluent's serialisers.

    It is a zero byte, the schema's id, the message's index in its file, and the message.
    """

    language = "PROTOBUF"

    def made(self, topic: str, schema: Schema) -> Encode:
        options = self._properties
        if schema.kind is ConnectKind.STRUCT:
            file, write = ProtobufFile(schema, options), message_writer(schema, options)
            prefix = self._registered(topic, file.full_name, file.text) + b"\x00"
        else:
            # Protobuf has no arrays and maps outside of messages.
            if schema.kind not in PRIMITIVES:
                property_name = f"{self._context.record_part}.converter"
                problem = f"Protobuf has no form for {topic}'s values that are no structs"
                raise ConfigurationError.of(property_name, problem)
            write = wrapped_writer(schema)
            prefix = self._registered(topic, "google.protobuf.DoubleValue", WRAPPERS_TEXT)
            prefix += _message_index(schema)
        default = None if options.ignore_default else schema.default

        def encode(value: Any) -> bytes | None:
            value = default if value is None else value
            return None if value is None else prefix + write(value)

        return encode


def _message_index(schema: Schema) -> bytes:
    """Return a wrapper's message index in its file."""
    if schema.name in LOGICAL:
        return b"\x00"
    index = WRAPPERS.index(PRIMITIVES[schema.kind])
    # Confluent writes the first message's index as a single zero.
    return long_bytes(1) + long_bytes(index) if index else b"\x00"
