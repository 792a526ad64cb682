"""Hook implementations of the formats."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from waltap.encoders.format.conversion import whole
from waltap.plugins.hookspecs import hookimpl
from waltap.ports.specs import FormatSpec

if TYPE_CHECKING:
    from waltap.encoders.format.converter import Converter


# Format → kind of Connect value.
NUMBERS = {
    "short": "INT16",
    "integer": "INT32",
    "long": "INT64",
    "float": "FLOAT32",
    "double": "FLOAT64",
    "boolean": "BOOLEAN",
}


@hookimpl
def register_formats() -> Iterable[FormatSpec]:
    """Contribute the formats."""
    # Only properties are imported here; a converter's libraries load with its first use.
    from waltap_formats.avro.properties import AvroProperties
    from waltap_formats.cloudevents.properties import CloudEventsProperties
    from waltap_formats.json_schema.properties import JsonSchemaProperties
    from waltap_formats.plain import StringProperties
    from waltap_formats.protobuf.properties import ProtobufProperties

    return [
        FormatSpec(
            name="avro",
            aliases=("io.confluent.connect.avro.AvroConverter",),
            summary="Avro with a schema registry, as Confluent's AvroConverter writes it.",
            properties=AvroProperties,
            factory=whole(_avro),
            takes_events=True,
            takes_record_transforms=True,
            converter=_avro,
        ),
        FormatSpec(
            name="protobuf",
            aliases=("io.confluent.connect.protobuf.ProtobufConverter",),
            summary="Protobuf with a schema registry, as Confluent's ProtobufConverter writes it.",
            properties=ProtobufProperties,
            factory=whole(_protobuf),
            takes_events=True,
            converter=_protobuf,
        ),
        FormatSpec(
            name="json-schema",
            aliases=("io.confluent.connect.json.JsonSchemaConverter", "jsonschema"),
            summary="JSON with its schema in a registry, as Confluent's JsonSchemaConverter writes it.",
            properties=JsonSchemaProperties,
            factory=whole(_json_schema),
            takes_events=True,
            takes_record_transforms=True,
            converter=_json_schema,
        ),
        FormatSpec(
            name="cloudevents",
            aliases=("io.debezium.converters.CloudEventsConverter",),
            summary="CloudEvents of change events, with data in JSON or Avro; keys are JSON.",
            properties=CloudEventsProperties,
            factory=whole(_cloudevents),
            takes_events=True,
            takes_record_transforms=True,
            converter=_cloudevents,
            events_only=True,
        ),
        FormatSpec(
            name="string",
            aliases=("org.apache.kafka.connect.storage.StringConverter",),
            summary="Texts as they are, and other values as Java prints them.",
            properties=StringProperties,
            factory=whole(_string),
            takes_events=True,
            takes_record_transforms=True,
            converter=_string,
        ),
        FormatSpec(
            name="bytes",
            aliases=(
                "org.apache.kafka.connect.converters.ByteArrayConverter",
                "io.debezium.converters.ByteArrayConverter",
                "io.debezium.converters.BinaryDataConverter",
            ),
            summary="Bytes as they are, for values that a transform made; others are refused.",
            factory=whole(_bytes),
            takes_events=True,
            takes_record_transforms=True,
            converter=_bytes,
            scalar=True,
        ),
        *(_number_format(name) for name in NUMBERS),
    ]


def _number_format(name: str) -> FormatSpec:
    """Return the format of one primitive kind."""

    def make(_properties: Any, context: Any) -> "Converter":
        from waltap.changes.mapping.connect_schema import ConnectKind
        from waltap_formats.plain import NumberConverter

        return NumberConverter(ConnectKind[NUMBERS[name]], context)

    return FormatSpec(
        name=name,
        aliases=(f"org.apache.kafka.connect.converters.{name.capitalize()}Converter",),
        summary=f"Values of the kind {name} as Kafka writes them, big-endian; others are refused.",
        properties=None,
        factory=whole(make),
        takes_events=True,
        takes_record_transforms=True,
        converter=make,
        scalar=True,
    )


def _avro(properties: Any, context: Any) -> "Converter":
    from waltap_formats.avro.converter import AvroConverter

    return AvroConverter(properties, context)


def _protobuf(properties: Any, context: Any) -> "Converter":
    from waltap_formats.protobuf.converter import ProtobufConverter

    return ProtobufConverter(properties, context)


def _json_schema(properties: Any, context: Any) -> "Converter":
    from waltap_formats.json_schema.converter import JsonSchemaConverter

    return JsonSchemaConverter(properties, context)


def _cloudevents(properties: Any, context: Any) -> "Converter":
    from waltap_formats.cloudevents.converter import CloudEventsConverter

    return CloudEventsConverter(properties, context)


def _string(properties: Any, context: Any) -> "Converter":
    from waltap_formats.plain import StringConverter

    return StringConverter(properties, context)


def _bytes(properties: Any, context: Any) -> "Converter":
    from waltap_formats.plain import BytesConverter

    return BytesConverter(properties, context)
