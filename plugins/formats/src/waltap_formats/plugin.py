"""Hook implementations of the formats."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from waltap.plugins.hookspecs import hookimpl
from waltap.ports.specs import FormatSpec, lazy

if TYPE_CHECKING:
    from waltap.encoders.format.converter import Converter


Make = Callable[[Any, Any], "Converter"]

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
    yield _format(
        "avro",
        "Avro with a schema registry, as Confluent's AvroConverter writes it.",
        lazy("waltap_formats.avro.converter:AvroConverter"),
        aliases=("io.confluent.connect.avro.AvroConverter",),
        properties=lazy("waltap_formats.properties:AvroProperties"),
    )
    yield _format(
        "protobuf",
        "Protobuf with a schema registry, as Confluent's ProtobufConverter writes it.",
        lazy("waltap_formats.protobuf.converter:ProtobufConverter"),
        aliases=("io.confluent.connect.protobuf.ProtobufConverter",),
        properties=lazy("waltap_formats.properties:ProtobufProperties"),
        takes_record_transforms=False,
    )
    yield _format(
        "json-schema",
        "JSON with its schema in a registry, as Confluent's JsonSchemaConverter writes it.",
        lazy("waltap_formats.json_schema:JsonSchemaConverter"),
        aliases=("io.confluent.connect.json.JsonSchemaConverter", "jsonschema"),
        properties=lazy("waltap_formats.properties:JsonSchemaProperties"),
    )
    yield _format(
        "cloudevents",
        "CloudEvents of change events, with data in JSON or Avro; keys are JSON.",
        lazy("waltap_formats.cloudevents:CloudEventsConverter"),
        aliases=("io.debezium.converters.CloudEventsConverter",),
        properties=lazy("waltap_formats.properties:CloudEventsProperties"),
        change_events_only=lambda properties: properties.metadata[0] == "value",
    )
    yield _format(
        "string",
        "Texts as they are, and other values as Java prints them.",
        lazy("waltap_formats.plain:StringConverter"),
        aliases=("org.apache.kafka.connect.storage.StringConverter",),
        properties=lazy("waltap_formats.plain:StringProperties"),
    )
    yield _format(
        "bytes",
        "Bytes as they are, for values that a transform made; others are JSON, or refused.",
        lazy("waltap_formats.plain:BytesConverter"),
        aliases=(
            "org.apache.kafka.connect.converters.ByteArrayConverter",
            "io.debezium.converters.ByteArrayConverter",
            "io.debezium.converters.BinaryDataConverter",
        ),
        properties=lazy("waltap_formats.plain:BytesProperties"),
        scalar=True,
    )
    for name, kind in NUMBERS.items():
        yield _format(
            name,
            f"Values of the kind {name} as Kafka writes them, big-endian; others are refused.",
            _number(kind),
            aliases=(f"org.apache.kafka.connect.converters.{name.capitalize()}Converter",),
            scalar=True,
        )


def _format(
    name: str, summary: str, make: Make, *, takes_record_transforms: bool = True, **facts: Any
) -> FormatSpec:
    from waltap.encoders.format.conversion import with_one_converter

    return FormatSpec(
        name=name,
        summary=summary,
        factory=with_one_converter(make),
        takes_events=True,
        takes_record_transforms=takes_record_transforms,
        converter=make,
        **facts,
    )


def _number(kind: str) -> Make:
    def make(_properties: Any, context: Any) -> "Converter":
        from waltap.changes.mapping.connect_schema import ConnectKind
        from waltap_formats.plain import NumberConverter

        return NumberConverter(ConnectKind[kind], context)

    return make
