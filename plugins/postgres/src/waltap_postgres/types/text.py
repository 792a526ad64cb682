"""Types with a string as Connect form: text, UUID, JSON, XML, label paths."""

from collections.abc import Callable

from waltap.arrow import column as arrow_column
from waltap.decode.relation import Column, DataType
from waltap.json import columns
from waltap.json.schema import quote
from waltap.mapping.column_default import default_value
from waltap.mapping.connect_schema import ConnectKind, Schema
from waltap.mapping.type_mapping import (
    ArrowMapping,
    ColumnMapping,
    JsonExpression,
    TypeMapper,
    types_named,
)
from waltap.mapping.value_form import ValueForm, column_mapping, placeholder_text
from waltap.specs import TypeSpec
from waltap_postgres.types.claims import builtin, builtin_name

__all__ = ["QUOTED", "TEXT_SPECS", "text_mapping", "utf8"]

QUOTED = JsonExpression(template="quote({v})", names={"quote": quote})


def utf8(data: bytes) -> str:
    """Return send format that is the text itself.

    Raises ValueError when it is not UTF-8.
    """
    return data.decode()


def text_mapping(
    column: Column,
    mapper: TypeMapper,
    *,
    name: str | None = None,
    generated: str | None = None,
    from_binary: Callable[[bytes], str] | None = utf8,
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
        from_binary=from_binary,
        # Only text in send format can go to Arrow without decoding.
        arrow=arrow or arrow_column.strings(sent_as_text=from_binary is utf8),
        json_expression=QUOTED,
        json_column=columns.QUOTED,
        streamed_as_null=streamed_as_null,
    )
    return column_mapping(column, mapper.options, form)


def _build_text(column: Column, mapper: TypeMapper) -> ColumnMapping:
    return text_mapping(column, mapper, generated="")


def _build_char(column: Column, mapper: TypeMapper) -> ColumnMapping:
    return text_mapping(column, mapper, from_binary=_char_from_binary)


def _char_from_binary(data: bytes) -> str:
    """Return the text of a ``"char"`` in send format."""
    if data == b"\0":
        return ""
    # `charout` of PostgreSQL 15 prints a high byte as three octal digits; earlier versions print
    # it raw.
    return f"\\{data[0]:03o}" if data[0] > 0x7F else data.decode()


def _build_name(column: Column, mapper: TypeMapper) -> ColumnMapping:
    """Map ``name``."""
    options = mapper.options
    known = options.include_unknown_datatypes or options.streamed_names == "value"
    # Debezium reads it in snapshots but drops it from streamed rows.
    return text_mapping(column, mapper, streamed_as_null=not known)


def _build_extension_text(column: Column, mapper: TypeMapper) -> ColumnMapping:
    return text_mapping(column, mapper)


def _build_isbn(column: Column, mapper: TypeMapper) -> ColumnMapping:
    # isn has no send function: its values always come as text.
    return text_mapping(column, mapper, from_binary=None)


def _build_uuid(column: Column, mapper: TypeMapper) -> ColumnMapping:
    return text_mapping(
        column,
        mapper,
        name="io.debezium.data.Uuid",
        generated="00000000-0000-0000-0000-000000000000",
        from_binary=_uuid_from_binary,
        arrow=arrow_column.uuids((("waltap.form", "uuid"),)),
    )


def _uuid_from_binary(data: bytes) -> str:
    text = data.hex()
    if len(text) != 32:
        msg = "UUID is not of 16 bytes"
        raise ValueError(msg)
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _build_json(column: Column, mapper: TypeMapper) -> ColumnMapping:
    assert column.data_type is not None
    binary = builtin_name(column.data_type) == "jsonb"
    return text_mapping(
        column,
        mapper,
        name="io.debezium.data.Json",
        generated="{}",
        from_binary=_versioned if binary else utf8,
        arrow=arrow_column.strings((("waltap.form", "json"),), sent_as_text=not binary),
    )


def _versioned(data: bytes) -> str:
    """Return the text after a version byte (jsonb, jsonpath, ltree)."""
    # The version is 1 in all three types.
    if data[0] != 1:
        msg = "unknown version of a binary value"
        raise ValueError(msg)
    return data[1:].decode()


_XML_ARROW = arrow_column.strings((("waltap.form", "xml"),), sent_as_text=True)


def _build_xml(column: Column, mapper: TypeMapper) -> ColumnMapping:
    return text_mapping(column, mapper, name="io.debezium.data.Xml", generated="", arrow=_XML_ARROW)


def _build_ltree(column: Column, mapper: TypeMapper) -> ColumnMapping:
    return text_mapping(column, mapper, name="io.debezium.data.Ltree", from_binary=_versioned)


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
    _spec("char", 'the one-byte type "char"', builtin("char"), _build_char),
    _spec("name", "identifiers of the catalogue", builtin("name"), _build_name),
    _spec("citext", "case-insensitive text", types_named("citext"), _build_extension_text),
    _spec("isbn", "book numbers of isn", types_named("isbn"), _build_isbn),
    _spec("ltree", "label paths", types_named("ltree"), _build_ltree),
    _spec("uuid", "universally unique identifiers", builtin("uuid"), _build_uuid),
    _spec("json", "json and jsonb", builtin("json", "jsonb"), _build_json),
    _spec("xml", "XML documents", builtin("xml"), _build_xml),
)
