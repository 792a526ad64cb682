"""Properties of registries and formats, named as Confluent and Debezium name them."""

from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import field_validator, model_validator

from waltap.base.property import (
    Maybe,
    MaybeList,
    NonEmptyList,
    Positive,
    Properties,
    Switch,
    Whole,
    declare,
)
from waltap.base.redaction import header_value, whole_address

Strategy = Literal[
    "TopicNameStrategy",
    "RecordNameStrategy",
    "TopicRecordNameStrategy",
    "io.confluent.kafka.serializers.subject.TopicNameStrategy",
    "io.confluent.kafka.serializers.subject.RecordNameStrategy",
    "io.confluent.kafka.serializers.subject.TopicRecordNameStrategy",
]


class RegistryProperties(Properties):
    """The schema registry, and registration there."""

    urls: NonEmptyList = declare(
        "schema.registry.url",
        summary="Addresses of the registry; the next is asked where one does not answer.",
        examples=("http://registry:8081", "http://apicurio:8080/apis/ccompat/v7"),
    )
    user_info: Maybe[str] = declare(
        "basic.auth.user.info",
        secret=True,
        aliases=("schema.registry.basic.auth.user.info",),
        summary="USER:PASSWORD; may also be in the address.",
    )
    credentials_source: Literal["URL", "USER_INFO"] = declare(
        "basic.auth.credentials.source",
        default="URL",
        summary="Place of user and password; both places are read, whatever this says.",
    )
    bearer_token: Maybe[str] = declare(
        "bearer.auth.token",
        secret=True,
        summary="Token that is sent as `Authorization: Bearer`.",
    )
    bearer_source: Literal["STATIC_TOKEN"] = declare(
        "bearer.auth.credentials.source",
        default="STATIC_TOKEN",
        summary="Place of the token.",
    )
    ca_file: Maybe[str] = declare(
        "schema.registry.ssl.truststore.location",
        aliases=("schema.registry.ssl.ca.location",),
        path=True,
        summary="Certificates of authorities to trust, as a PEM file; by default the system's.",
    )
    client_file: Maybe[str] = declare(
        "schema.registry.ssl.keystore.location",
        aliases=("schema.registry.ssl.certificate.location",),
        path=True,
        summary="Certificate of the client with its key, as a PEM file.",
    )
    client_key: Maybe[str] = declare(
        "schema.registry.ssl.key.location",
        path=True,
        summary="Key of the client's certificate, as a PEM file, where it is in a file of its own.",
    )
    client_key_password: Maybe[str] = declare(
        "schema.registry.ssl.key.password",
        secret=True,
        summary="Password of that key.",
    )
    auto_register: bool = declare(
        "auto.register.schemas",
        default=True,
        summary="Register schemas that the registry does not have; otherwise that is an error.",
    )
    use_latest: Switch = declare(
        "use.latest.version",
        summary="Write the id of the subject's latest version, without comparing it with the "
        "schema of the values: for schemas registered by hand.",
    )
    normalize: Switch = declare(
        "normalize.schemas",
        summary="Have the registry compare schemas without regard to order.",
    )
    key_strategy: Strategy = declare(
        "key.subject.name.strategy",
        default="TopicNameStrategy",
        summary="Subject of keys: TOPIC-key, the record's name, or TOPIC-NAME.",
    )
    value_strategy: Strategy = declare(
        "value.subject.name.strategy",
        default="TopicNameStrategy",
        summary="Subject of values: TOPIC-value, the record's name, or TOPIC-NAME.",
    )
    timeout_ms: Positive = declare(
        "schema.registry.request.timeout.ms",
        default=10_000,
        le=2**31 - 1,
        aliases=("http.read.timeout.ms",),
        summary="How long one answer may take.",
    )
    patience_ms: Whole = declare(
        "schema.registry.retry.timeout.ms",
        default=30_000,
        summary="How long a registry that is away is asked again before the pipeline reconnects.",
    )
    ignore_default: Switch = declare(
        "ignore.default.for.nullables",
        summary="Write NULL as null where the column has a default; otherwise the default is written.",
    )

    @field_validator("urls")
    @classmethod
    def _addresses(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        for url in urls:
            parts = urlsplit(whole_address(url) or "")
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError(
                    "an address is http://HOST:PORT or https://HOST:PORT, with a path if any"
                )
        return urls

    _of_header = field_validator("bearer_token")(header_value)

    def subject(self, record_part: str, topic: str, record: str | None) -> str:
        """Return the subject of the schemas of keys or values.

        ``record`` is the record's full name.
        """
        strategy = self.key_strategy if record_part == "key" else self.value_strategy
        name = record or "null"
        match strategy.rpartition(".")[2]:
            case "RecordNameStrategy":
                return name
            case "TopicRecordNameStrategy":
                return f"{topic}-{name}"
            case _:
                return f"{topic}-{'key' if record_part == 'key' else 'value'}"


class AvroProperties(RegistryProperties):
    """The schema registry, registration there, and the form of schemas."""

    connect_metadata: bool = declare(
        "connect.meta.data",
        default=True,
        summary="Keep names, versions, parameters and defaults of Connect schemas as properties.",
    )
    enhanced: Switch = declare(
        "enhanced.avro.schema.support",
        summary="Accepted for Kafka Connect's files, without effect: it concerns enums from "
        "Avro, and events have none.",
    )


class JsonSchemaProperties(RegistryProperties):
    """The schema registry, registration there, and the form of values."""

    decimals: Literal["BASE64", "NUMERIC"] = declare(
        "decimal.format",
        default="BASE64",
        summary="How precise decimals are written: base64 of the unscaled number, or as JSON numbers.",
    )


class ProtobufProperties(RegistryProperties):
    """The schema registry, registration there, and the form of messages."""

    optional: Switch = declare(
        "optional.for.nullables",
        summary="Label nullable fields `optional`, so that readers can distinguish null from 0 "
        "and an empty text; otherwise both are left out.",
    )
    wrappers: Switch = declare(
        "wrapper.for.nullables",
        summary="Write nullable fields as google.protobuf.StringValue and similar, so that "
        "readers can distinguish null from 0 and an empty text.",
    )
    scrub: Switch = declare(
        "scrub.invalid.names",
        summary="Replace characters that Protobuf does not take in names, as Confluent's converter does.",
    )
    enhanced: Switch = declare(
        "enhanced.protobuf.schema.support",
        summary="Accepted for Kafka Connect's sake: it concerns reading.",
    )
    proto2: bool = declare(
        "optional.for.proto2",
        default=True,
        summary="Accepted for Kafka Connect's sake: it concerns reading.",
    )
    raw: bool = declare(
        "wrapper.for.raw.primitives",
        default=True,
        summary="Accepted for Kafka Connect's sake: it concerns reading.",
    )
    skip_known: Literal["true"] = declare(
        "skip.known.types",
        default="true",
        summary="Types of Google and Confluent that messages use are known to registries and readers: "
        "they are not registered.",
    )


# Entries of `metadata.source`: for all, and for an attribute that a header may have.
FOR_ALL = ("value", "header")
FOR_ONE = tuple(
    f"{name}:{place}"
    for name in ("id", "type", "traceparent", "dataSchemaName")
    for place in ("header", "generate")
)


class CloudEventsProperties(Properties):
    """The form of events, and the formats of events and data."""

    mode: Literal["structured", "binary"] = declare(
        "content.mode",
        default="structured",
        summary="One value with attributes and data, or attributes as headers `ce_NAME` and the "
        "data as value (not in Debezium).",
    )
    serializer: Literal["json", "avro"] = declare(
        "serializer.type", default="json", summary="How events are written."
    )
    data_serializer: Literal["json", "avro"] = declare(
        "data.serializer.type", default="json", summary="How the data of events is written."
    )
    extensions: bool = declare(
        "extension.attributes.enable",
        default=True,
        summary="Write operation, source block and transaction as extension attributes.",
    )
    json_schemas: bool = declare(
        "json.schemas.enable",
        default=True,
        profile_default=False,
        summary="Write the schema beside data that is JSON, and beside keys.",
    )
    json_null_to_default: bool = declare(
        "json.replace.null.with.default",
        default=True,
        summary="Write the column's default for NULL in data that is JSON.",
    )
    event_name: Maybe[str] = declare(
        "schema.cloudevents.name",
        summary="Name of the schema of events that are Avro; by default PREFIX.DATABASE."
        "CloudEvents.Envelope.",
    )
    metadata: NonEmptyList = declare(
        "metadata.source",
        default=(
            "value",
            "id:generate",
            "type:generate",
            "traceparent:header",
            "dataSchemaName:generate",
        ),
        words=FOR_ALL + FOR_ONE,
        summary="Where source block, operation and transaction are: in the value, or in the headers "
        "source, op and transaction, which HeaderFrom$Value makes; the complete value is then the data. "
        "Further entries choose for one attribute: NAME:header reads the header, NAME:generate makes it.",
        examples=("header", "value,id:header,type:generate"),
    )
    tracing: Switch = declare(
        "opentelemetry.tracing.attributes.enable",
        summary="Write the header traceparent as an attribute.",
    )
    data_name: Switch = declare(
        "schema.data.name.source.header.enable",
        summary="Let metadata.source take dataSchemaName, the name of the data's schema, from the header.",
    )
    names: Literal["avro", "none"] = declare(
        "schema.name.adjustment.mode",
        default="avro",
        summary="Replace characters that Avro does not take in the name of the schema of events.",
    )
    urls: MaybeList = declare(
        "avro.schema.registry.url",
        summary="Addresses of the schema registry; Avro needs it.",
        examples=("http://registry:8081",),
    )
    user_info: Maybe[str] = declare(
        "avro.basic.auth.user.info",
        secret=True,
        summary="USER:PASSWORD for the registry; may also be in the address.",
    )
    bearer_token: Maybe[str] = declare(
        "avro.bearer.auth.token", secret=True, summary="Token for the registry."
    )
    auto_register: bool = declare(
        "avro.auto.register.schemas",
        default=True,
        summary="Register schemas that the registry does not have.",
    )

    @model_validator(mode="after")
    def _fits(self) -> "CloudEventsProperties":
        if "avro" in (self.serializer, self.data_serializer) and not self.urls:
            raise ValueError("avro.schema.registry.url is required for Avro")
        if self.serializer == "avro" and self.data_serializer == "json":
            raise ValueError("data.serializer.type must be avro where serializer.type is")
        if self.tracing and not self.in_header("traceparent"):
            raise ValueError(
                "opentelemetry.tracing.attributes.enable needs traceparent:header in metadata.source"
            )
        return self

    @field_validator("metadata")
    @classmethod
    def _places(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if value[0] not in FOR_ALL or not set(value[1:]) <= set(FOR_ONE):
            raise ValueError(f"must be value or header, and then some of {', '.join(FOR_ONE)}")
        return value

    def in_header(self, name: str) -> bool:
        """Return whether a header has the attribute ``name``.

        Of several entries the last counts.
        """
        found = [each for each in self.metadata if each.startswith(f"{name}:")] or self.metadata[:1]
        return found[-1].endswith("header")

    def avro(self) -> AvroProperties:
        given: dict[str, Any] = {
            "schema.registry.url": self.urls,
            "basic.auth.user.info": self.user_info,
            "bearer.auth.token": self.bearer_token,
            "auto.register.schemas": self.auto_register,
        }
        return AvroProperties.model_validate(given)
