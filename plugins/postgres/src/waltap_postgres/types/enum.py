"""Enumerated types."""

from functools import lru_cache
from itertools import count

from waltap.changes.arrow.column import strings
from waltap.changes.decode.relation import Column, DataType, TypeKind
from waltap.changes.mapping.connect_schema import ConnectKind, Schema
from waltap.changes.mapping.json_schema import quote
from waltap.changes.mapping.type_mapping import ColumnMapping, JsonExpression, TypeMapper
from waltap.changes.mapping.value_form import (
    ValueForm,
    column_mapping,
    default_value,
    placeholder_text,
)


def is_enum(data_type: DataType) -> bool:
    """Return whether the type is an enum."""
    return data_type.kind is TypeKind.ENUM


def build_enum(column: Column, mapper: TypeMapper) -> ColumnMapping:
    """Map an enum."""
    assert column.data_type is not None
    # Only a literal is a default: labels have no placeholder for a call.
    literal = column.default if column.default and column.default.startswith("'") else None
    form = ValueForm(
        schema=Schema(
            kind=ConnectKind.STRING,
            name="io.debezium.data.Enum",
            version=1,
            # Labels in sort order, without any escaping, as in Debezium.
            parameters=(("allowed", ",".join(column.data_type.labels)),),
        ),
        to_json=quote,
        to_connect=str,
        zero="",
        default=default_value(literal, "", str),
        unavailable=placeholder_text(mapper.options),
        arrow=strings(),
        json_expression=_by_label(column.data_type.labels),
    )
    return column_mapping(column, mapper.options, form)


@lru_cache(maxsize=4096)
def _by_label(labels: tuple[str, ...]) -> JsonExpression:
    """Return an expression that knows only the present labels.

    Another label raises KeyError. The format then reads the type's labels again. ``to_json``
    takes any label.
    """
    name = f"labels_{next(_NUMBERS)}"
    return JsonExpression(template=f"{name}[{{v}}]", names={name: written_labels(labels)})


def written_labels(labels: tuple[str, ...]) -> dict[str, str]:
    """Return label → its JSON."""
    return {label: quote(label) for label in labels}


_NUMBERS = count()
