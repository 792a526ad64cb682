"""Declare the JSON format's properties, named as in Kafka Connect."""

from typing import Literal

from waltap.base.property import Properties, declare


class JsonProperties(Properties):
    """Set how keys, values and headers become JSON."""

    key_schemas: bool = declare(
        "key.converter.schemas.enable",
        default=True,
        profile_default=False,
        summary="Write the schema of each key beside it.",
    )
    value_schemas: bool = declare(
        "value.converter.schemas.enable",
        default=True,
        profile_default=False,
        summary="Write the schema of each value beside it.",
    )
    header_schemas: bool = declare(
        "header.converter.schemas.enable",
        default=True,
        summary="Write the schema of each header value beside it.",
    )
    key_null_to_default: bool = declare(
        "key.converter.replace.null.with.default",
        default=True,
        summary="Write the column's default for NULL in a key.",
    )
    value_null_to_default: bool = declare(
        "value.converter.replace.null.with.default",
        default=True,
        summary="Write the column's default for NULL in a value.",
    )
    key_decimal: Literal["BASE64", "NUMERIC"] = declare(
        "key.converter.decimal.format",
        default="BASE64",
        summary="How precise decimals are written in keys: base64 of the unscaled number, or as numbers.",
    )
    value_decimal: Literal["BASE64", "NUMERIC"] = declare(
        "value.converter.decimal.format",
        default="BASE64",
        summary="How precise decimals are written in values. NUMERIC costs about as much as a "
        "transform of records.",
    )
