"""Enumerated types."""

from waltap.decode.relation import Column, DataType, TypeKind
from waltap.render.arrow_column import strings
from waltap.render.connect_schema import Kind, Schema
from waltap.render.schema_json import quote
from waltap.render.type_mapping import ColumnMapping, TypeMapper
from waltap.render.value_form import ValueForm, column_mapping, placeholder_text
from waltap.specs import TypeSpec
from waltap_postgres.types.default import default_value
from waltap_postgres.types.text import QUOTED, utf8

__all__ = ["ENUM_SPECS"]


def _claims(data_type: DataType) -> bool:
    return data_type.kind is TypeKind.ENUM


def _build(column: Column, mapper: TypeMapper) -> ColumnMapping:
    """Map an enum; ``allowed`` lists the labels in sort order, without any escaping."""
    assert column.data_type is not None
    literal = column.default if column.default and column.default.startswith("'") else None
    form = ValueForm(
        schema=Schema(
            kind=Kind.STRING,
            name="io.debezium.data.Enum",
            version=1,
            parameters=(("allowed", ",".join(column.data_type.labels)),),
        ),
        to_json=quote,
        to_connect=str,
        zero="",
        default=default_value(literal, "", str),
        unavailable=placeholder_text(mapper.options),
        from_binary=utf8,
        arrow=strings(sent_as_text=True),
        json_expression=QUOTED,
    )
    return column_mapping(column, mapper.options, form)


ENUM_SPECS = (
    TypeSpec(
        name="enum",
        summary="enumerated types",
        claims=_claims,
        build=_build,
        order=100,
    ),
)
