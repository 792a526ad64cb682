"""Map types to Connect, JSON and Arrow.

A plugin's type needs no other import.
"""

from typing import TYPE_CHECKING

from waltap.base.import_rules import on_first_use

if TYPE_CHECKING:
    from waltap.changes.arrow.column import (
        booleans,
        byte_strings,
        converted,
        floats,
        integers,
        strings,
    )
    from waltap.changes.decode.relation import Column, DataType, TypeKind
    from waltap.changes.mapping.connect_schema import ConnectKind, Field, Schema
    from waltap.changes.mapping.conversion import ColumnConversion, ColumnConverter
    from waltap.changes.mapping.java_number import double_text, float_text, single
    from waltap.changes.mapping.json_schema import number_json, quote, value_json
    from waltap.changes.mapping.type_mapping import (
        ArrowMapping,
        ColumnMapping,
        JsonColumn,
        JsonExpression,
        TypeMapper,
        TypeOptions,
        TypeSample,
        types_named,
    )
    from waltap.changes.mapping.type_registry import TypeRegistry, TypeSpec, simple_type
    from waltap.changes.mapping.value_form import (
        OutOfRange,
        ValueForm,
        column_mapping,
        default_text,
        default_value,
        placeholder_text,
    )

__all__ = [
    "ArrowMapping",
    "Column",
    "ColumnConversion",
    "ColumnConverter",
    "ColumnMapping",
    "ConnectKind",
    "DataType",
    "Field",
    "JsonColumn",
    "JsonExpression",
    "OutOfRange",
    "Schema",
    "TypeKind",
    "TypeMapper",
    "TypeOptions",
    "TypeRegistry",
    "TypeSample",
    "TypeSpec",
    "ValueForm",
    "booleans",
    "byte_strings",
    "column_mapping",
    "converted",
    "default_text",
    "default_value",
    "double_text",
    "float_text",
    "floats",
    "integers",
    "number_json",
    "placeholder_text",
    "quote",
    "simple_type",
    "single",
    "strings",
    "types_named",
    "value_json",
]

# Names are imported at first use: the JSON and Arrow halves import this package, too.
if not TYPE_CHECKING:
    __getattr__ = on_first_use(__name__)
