"""Properties of Protobuf, named as Confluent's converter names them."""

from typing import Literal

from waltap.base.property import declare
from waltap_formats.registry.properties import RegistryProperties

__all__ = ["ProtobufProperties"]


class ProtobufProperties(RegistryProperties):
    """The schema registry, registration there, and the form of messages."""

    optional: bool = declare(
        "optional.for.nullables",
        default=False,
        summary="Label nullable fields `optional`, so that readers can distinguish null from 0 "
        "and an empty text; otherwise both are left out.",
    )
    wrappers: bool = declare(
        "wrapper.for.nullables",
        default=False,
        summary="Write nullable fields as google.protobuf.StringValue and similar, so that "
        "readers can distinguish null from 0 and an empty text.",
    )
    scrub: bool = declare(
        "scrub.invalid.names",
        default=False,
        summary="Replace characters that Protobuf does not take in names, as Confluent's converter does.",
    )
    ignore_default: bool = declare(
        "ignore.default.for.nullables",
        default=False,
        summary="Write NULL as null where the column has a default; otherwise the default is written.",
        advanced=True,
    )
    enhanced: bool = declare(
        "enhanced.protobuf.schema.support",
        default=False,
        summary="Accepted for Kafka Connect's sake: it concerns reading.",
        advanced=True,
    )
    proto2: bool = declare(
        "optional.for.proto2",
        default=True,
        summary="Accepted for Kafka Connect's sake: it concerns reading.",
        advanced=True,
    )
    raw: bool = declare(
        "wrapper.for.raw.primitives",
        default=True,
        summary="Accepted for Kafka Connect's sake: it concerns reading.",
        advanced=True,
    )
    skip_known: Literal["true"] = declare(
        "skip.known.types",
        default="true",
        summary="Types of Google and Confluent that messages use are known to registries and readers: "
        "they are not registered.",
        advanced=True,
    )
