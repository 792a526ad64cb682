"""Properties of JSON Schema, named as Confluent's converter names them."""

from typing import Literal

from waltap.base.property import declare
from waltap_formats.registry.properties import RegistryProperties

__all__ = ["JsonSchemaProperties"]


class JsonSchemaProperties(RegistryProperties):
    """The schema registry, registration there, and the form of values."""

    decimals: Literal["BASE64", "NUMERIC"] = declare(
        "decimal.format",
        default="BASE64",
        summary="How precise decimals are written: base64 of the unscaled number, or as JSON numbers.",
        advanced=True,
    )
    ignore_default: bool = declare(
        "ignore.default.for.nullables",
        default=False,
        summary="Write NULL as null where the column has a default; otherwise the default is written.",
        advanced=True,
    )
