"""Combine converters to formats, one converter for each part of a record."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from waltap.base.plugin_errors import part_of

if TYPE_CHECKING:
    from waltap.encoders.format.converter import Converter, ConverterContext, RecordPart
    from waltap.encoders.format.format import Format, FormatContext
    from waltap.encoders.json.properties import JsonProperties


RECORD_PARTS = ("key", "value", "header")

# Makes the converter of a record's key, value or header.
Make = Callable[["ConverterContext"], "Converter"]


def part_context(record_part: "RecordPart", context: "FormatContext") -> "ConverterContext":
    """Return the facts for the converter of a record's part."""
    from waltap.encoders.format.converter import ConverterContext

    return ConverterContext(
        record_part=record_part,
        topic_prefix=context.capture.properties.topic_prefix,
        warn=context.warn,
        stopping=context.stopping,
        waits_for=context.waits_for,
    )


def joined(key: Make, value: Make, header: Make) -> "Callable[[Any, FormatContext], Format]":
    """Return the factory of a format with these converters."""

    def make(_properties: Any, context: "FormatContext") -> "Format":
        from waltap.encoders.format.converted import ConvertedFormat, RecordConverters

        made = RecordConverters(
            key=key(part_context("key", context)),
            value=value(part_context("value", context)),
            header=header(part_context("header", context)),
        )
        return ConvertedFormat(made, context)

    return make


def headed(
    factory: "Callable[[Any, FormatContext], Format]", header: Make
) -> "Callable[[Any, FormatContext], Format]":
    """Return a format's factory with another converter for headers."""

    def make(properties: Any, context: "FormatContext") -> "Format":
        return factory(properties, replace(context, header=header(part_context("header", context))))

    return make


def with_one_converter(
    converter: "Callable[[Any, ConverterContext], Converter]",
) -> "Callable[[Any, FormatContext], Format]":
    """Return the factory of a format with one converter.

    It writes keys and values; header values are JSON.
    """

    def make(properties: Any, context: "FormatContext") -> "Format":
        from waltap.encoders.format.converter import Converter
        from waltap.encoders.json.converter import JsonConverter, JsonConverterProperties

        record_part = partial(part_of, converter, Converter, properties)

        def header(given: "ConverterContext") -> "Converter":
            return JsonConverter(JsonConverterProperties(), given)

        return joined(record_part, record_part, header)(properties, context)

    return make


def json_records(properties: "JsonProperties", context: "FormatContext") -> "Format":
    """Return the JSON format for transforms of records.

    A record that no transform changes has the same bytes as from `JsonFormat`.
    """
    from waltap.encoders.json.converter import JsonConverter, JsonConverterProperties

    def part(**given: Any) -> Make:
        return lambda own: JsonConverter(JsonConverterProperties(**given), own)

    key = part(
        schemas=properties.key_schemas,
        null_to_default=properties.key_null_to_default,
        decimals=properties.key_decimal,
    )
    value = part(
        schemas=properties.value_schemas,
        null_to_default=properties.value_null_to_default,
        decimals=properties.value_decimal,
    )
    # The profile may configure another converter for headers.
    other = context.header
    header = part(schemas=properties.header_schemas) if other is None else lambda _own: other
    return joined(key, value, header)(properties, context)
