"""Properties of Avro, as Confluent's AvroConverter has them."""

from typing import Literal

from waltap.config.property import declare
from waltap_formats.registry.properties import RegistryProperties

__all__ = ["AvroProperties"]


class AvroProperties(RegistryProperties):
    """Where the schema registry is, how schemas are registered there, and what they look like."""

    connect_metadata: bool = declare(
        "connect.meta.data",
        default=True,
        summary="Keep names, versions, parameters and defaults of Connect schemas as properties.",
        advanced=True,
    )
    ignore_default: bool = declare(
        "ignore.default.for.nullables",
        default=False,
        summary="Write NULL as null where the column has a default; otherwise the default is written.",
        advanced=True,
    )
    enhanced: Literal["false"] = declare(
        "enhanced.avro.schema.support",
        default="false",
        summary="Accepted for Kafka Connect's sake: enums and packages of Avro are not kept.",
        advanced=True,
    )
