"""Types that Connect has as strings: text, JSON, enums."""

from functools import lru_cache, partial
from itertools import count

from waltap.changes.arrow import column as arrow_column
from waltap.changes.decode.relation import Column, DataType, TypeKind
from waltap.changes.mapping.connect_schema import ConnectKind, Schema
from waltap.changes.mapping.json_schema import quote
from waltap.changes.mapping.type_mapping import (
    ArrowMapping,
    ColumnMapping,
    JsonExpression,
    TypeMapper,
)
from waltap.changes.mapping.value_form import (
    ValueForm,
    column_mapping,
    default_value,
    placeholder_text,
)
from waltap.encoders.json import columns

QUOTED = JsonExpression(template="quote({v})", names={"quote": quote})


def text_mapping(
    column: Column,
    mapper: TypeMapper,
    *,
    name: str | None = None,
    generated: str | None = None,
    arrow: ArrowMapping | None = None,
    streamed_as_null: bool = False,
) -> ColumnMapping:
    """Map a column whose Connect value is its PostgreSQL text.

    ``generated`` replaces a default that is a function call; None: the type has no defaults.
    """
    form = ValueForm(
        schema=Schema(kind=ConnectKind.STRING, name=name, version=None if name is None else 1),
        to_json=quote,
        to_connect=str,
        zero="",
        default=None if generated is None else default_value(column.default, generated, str),
        unavailable=placeholder_text(mapper.options),
        arrow=arrow or arrow_column.strings(),
        json_expression=QUOTED,
        json_column=columns.QUOTED,
        streamed_as_null=streamed_as_null,
    )
    return column_mapping(column, mapper.options, form)


def build_name(column: Column, mapper: TypeMapper) -> ColumnMapping:
    """Map ``name``."""
    options = mapper.options
    known = options.include_unknown_datatypes or options.streamed_names == "value"
    # Debezium reads it in snapshots but drops it from streamed rows.
    return text_mapping(column, mapper, streamed_as_null=not known)


build_text = partial(text_mapping, generated="")
build_tsvector = partial(text_mapping, name="io.debezium.data.Tsvector")
build_ltree = partial(text_mapping, name="io.debezium.data.Ltree")
build_uuid = partial(
    text_mapping,
    name="io.debezium.data.Uuid",
    generated="00000000-0000-0000-0000-000000000000",
    arrow=arrow_column.strings((("waltap.form", "uuid"),)),
)
build_json = partial(
    text_mapping,
    name="io.debezium.data.Json",
    generated="{}",
    arrow=arrow_column.strings((("waltap.form", "json"),)),
)
build_xml = partial(
    text_mapping,
    name="io.debezium.data.Xml",
    generated="",
    arrow=arrow_column.strings((("waltap.form", "xml"),)),
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
        arrow=arrow_column.strings(),
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
