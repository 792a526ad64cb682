"""Properties of CloudEvents, named as Debezium's converter names them."""

from typing import Any, Literal

from pydantic import model_validator

from waltap.base.property import CommaList, Properties, declare
from waltap_formats.avro.properties import AvroProperties

__all__ = ["CloudEventsProperties"]


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
        advanced=True,
    )
    event_name: str | None = declare(
        "schema.cloudevents.name",
        default=None,
        summary="Name of the schema of events that are Avro; by default PREFIX.DATABASE."
        "CloudEvents.Envelope.",
        advanced=True,
    )
    metadata: CommaList = declare(
        "metadata.source",
        default=("value", "id:generate", "type:generate", "dataSchemaName:generate"),
        words=("value", "id:generate", "type:generate", "dataSchemaName:generate"),
        summary="Accepted for Debezium's sake: attributes come of the value.",
        advanced=True,
    )
    names: Literal["avro", "none"] = declare(
        "schema.name.adjustment.mode",
        default="avro",
        summary="Replace characters that Avro does not take in the name of the schema of events.",
        advanced=True,
    )
    urls: CommaList = declare(
        "avro.schema.registry.url",
        default=(),
        summary="Addresses of the schema registry; Avro needs it.",
        examples=("http://registry:8081",),
    )
    user_info: str | None = declare(
        "avro.basic.auth.user.info",
        default=None,
        secret=True,
        summary="USER:PASSWORD for the registry; may also stand in the address.",
    )
    bearer_token: str | None = declare(
        "avro.bearer.auth.token",
        default=None,
        secret=True,
        summary="Token for the registry.",
    )
    auto_register: bool = declare(
        "avro.auto.register.schemas",
        default=True,
        summary="Register schemas that the registry does not have.",
        advanced=True,
    )

    @model_validator(mode="after")
    def _fits(self) -> "CloudEventsProperties":
        if "avro" in (self.serializer, self.data_serializer) and not self.urls:
            raise ValueError("avro.schema.registry.url is required for Avro")
        if self.serializer == "avro" and self.data_serializer == "json":
            raise ValueError("data.serializer.type must be avro where serializer.type is")
        return self

    def avro(self) -> AvroProperties:
        """Return the properties of the Avro in events."""
        given: dict[str, Any] = {
            "schema.registry.url": self.urls,
            "basic.auth.user.info": self.user_info,
            "bearer.auth.token": self.bearer_token,
            "auto.register.schemas": self.auto_register,
        }
        return AvroProperties.model_validate(given)
