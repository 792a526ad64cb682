"""Types with a string as Connect form: text, UUID, JSON, XML, addresses, ranges."""

from collections.abc import Callable

from waltap.changes.arrow import column as arrow_column
from waltap.changes.decode.relation import Column, DataType
from waltap.changes.mapping.connect_schema import ConnectKind, Schema
from waltap.changes.mapping.json_schema import quote
from waltap.changes.mapping.type_mapping import (
    ArrowMapping,
    ColumnMapping,
    JsonExpression,
    TypeMapper,
    types_named,
)
from waltap.changes.mapping.value_form import (
    ValueForm,
    column_mapping,
    default_value,
    placeholder_text,
)
from waltap.encoders.json import columns
from waltap.ports.specs import TypeSpec
from waltap_postgres.types.builtin import builtin

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


def _build_text(column: Column, mapper: TypeMapper) -> ColumnMapping:
    return text_mapping(column, mapper, generated="")


def _build_name(column: Column, mapper: TypeMapper) -> ColumnMapping:
    """Map ``name``."""
    options = mapper.options
    known = options.include_unknown_datatypes or options.streamed_names == "value"
    # Debezium reads it in snapshots but drops it from streamed rows.
    return text_mapping(column, mapper, streamed_as_null=not known)


def _build_plain(column: Column, mapper: TypeMapper) -> ColumnMapping:
    return text_mapping(column, mapper)


def _build_tsvector(column: Column, mapper: TypeMapper) -> ColumnMapping:
    return text_mapping(column, mapper, name="io.debezium.data.Tsvector")


def _build_ltree(column: Column, mapper: TypeMapper) -> ColumnMapping:
    return text_mapping(column, mapper, name="io.debezium.data.Ltree")


def _build_uuid(column: Column, mapper: TypeMapper) -> ColumnMapping:
    return text_mapping(
        column,
        mapper,
        name="io.debezium.data.Uuid",
        generated="00000000-0000-0000-0000-000000000000",
        arrow=arrow_column.strings((("waltap.form", "uuid"),)),
    )


def _build_json(column: Column, mapper: TypeMapper) -> ColumnMapping:
    return text_mapping(
        column,
        mapper,
        name="io.debezium.data.Json",
        generated="{}",
        arrow=arrow_column.strings((("waltap.form", "json"),)),
    )


_XML_ARROW = arrow_column.strings((("waltap.form", "xml"),))


def _build_xml(column: Column, mapper: TypeMapper) -> ColumnMapping:
    return text_mapping(column, mapper, name="io.debezium.data.Xml", generated="", arrow=_XML_ARROW)


def _spec(
    name: str,
    summary: str,
    claims: Callable[[DataType], bool],
    build: Callable[[Column, TypeMapper], ColumnMapping],
) -> TypeSpec:
    return TypeSpec(name=name, summary=summary, claims=claims, build=build, order=100)


TEXT_SPECS = (
    _spec(
        "text",
        "text, varchar and blank-padded char",
        builtin("text", "varchar", "bpchar"),
        _build_text,
    ),
    _spec("char", 'the one-byte type "char"', builtin("char"), _build_plain),
    _spec("name", "identifiers of the catalogue", builtin("name"), _build_name),
    _spec("citext", "case-insensitive text", types_named("citext"), _build_plain),
    _spec("isbn", "book numbers of isn", types_named("isbn"), _build_plain),
    _spec("ltree", "label paths", types_named("ltree"), _build_ltree),
    _spec("uuid", "universally unique identifiers", builtin("uuid"), _build_uuid),
    _spec("json", "json and jsonb", builtin("json", "jsonb"), _build_json),
    _spec("xml", "XML documents", builtin("xml"), _build_xml),
    _spec(
        "network",
        "inet, cidr, macaddr, macaddr8",
        builtin("inet", "cidr", "macaddr", "macaddr8"),
        _build_plain,
    ),
    _spec(
        "range",
        "the six built-in range types, as text",
        builtin("int4range", "int8range", "numrange", "tsrange", "tstzrange", "daterange"),
        _build_plain,
    ),
    _spec("tsvector", "text search vectors, as text", builtin("tsvector"), _build_tsvector),
)
