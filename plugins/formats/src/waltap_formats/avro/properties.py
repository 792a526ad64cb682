"""Properties of Avro, named as Confluent's AvroConverter names them."""

from waltap.base.property import declare
from waltap_formats.registry.properties import RegistryProperties

__all__ = ["AvroProperties"]


class AvroProperties(RegistryProperties):
    """The schema registry, registration there, and the form of schemas."""

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
    enhanced: bool = declare(
        "enhanced.avro.schema.support",
        default=False,
        summary="Accepted for Kafka Connect's files, without effect: it concerns enums from "
        "Avro, and events have none.",
        advanced=True,
    )
