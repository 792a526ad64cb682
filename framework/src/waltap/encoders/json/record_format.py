"""Combine the JSON converters of all record parts to one format.

Pipelines use it when transforms of records run before the encoding.
"""

from waltap.encoders.format.conversion import part_context
from waltap.encoders.format.converted import ConvertedFormat, RecordConverters
from waltap.encoders.format.converter import Converter, RecordPart
from waltap.encoders.format.format import Format, FormatContext
from waltap.encoders.json.converter import JsonConverter, JsonConverterProperties
from waltap.encoders.json.properties import JsonProperties


def json_record_format(properties: JsonProperties, context: FormatContext) -> Format:
    """Return the JSON format for transforms of records.

    A record that no transform changes has the same bytes as from `JsonFormat`.
    """
    parts: dict[RecordPart, JsonConverterProperties] = {
        "key": JsonConverterProperties(
            schemas=properties.key_schemas,
            null_to_default=properties.key_null_to_default,
            decimals=properties.key_decimal,
        ),
        "value": JsonConverterProperties(
            schemas=properties.value_schemas,
            null_to_default=properties.value_null_to_default,
            decimals=properties.value_decimal,
        ),
        "header": JsonConverterProperties(schemas=properties.header_schemas),
    }
    made: dict[str, Converter] = {
        record_part: JsonConverter(given, part_context(record_part, context))
        for record_part, given in parts.items()
    }
    # The profile may configure another converter for headers.
    if context.header is not None:
        made["header"] = context.header
    return ConvertedFormat(RecordConverters(**made), context)
