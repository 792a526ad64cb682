"""Types that Debezium does not know: left out, or the bytes of their text.

``include.unknown.datatypes`` decides. These types are composite types, multiranges, ``tsquery``,
``pg_lsn``, geometric shapes and everything that no other spec claims. ``waltap.composite.types``
makes structs of composite types.

A type may be dropped before its values are decoded. The catalogue then no longer describes the
type, but the values exist. They become strings of PostgreSQL text.
"""

import dataclasses

from waltap.arrow.column import AS_TEXT, strings
from waltap.decode.relation import Column, DataType, TypeKind
from waltap.mapping.type_mapping import ColumnMapping, TypeMapper
from waltap.mapping.value_form import column_mapping
from waltap.specs import TypeSpec
from waltap_postgres.types.binary import binary_form
from waltap_postgres.types.claims import builtin_name
from waltap_postgres.types.composite import composite_mapping
from waltap_postgres.types.geometry import java_geometry
from waltap_postgres.types.text import text_mapping

__all__ = ["UNKNOWN_SPECS"]

_SHAPES = frozenset({"box", "circle", "line", "lseg", "path", "polygon"})


def _encoded(text: str) -> bytes:
    return text.encode()


def _encoded_shape(text: str) -> bytes:
    return java_geometry(text).encode()


def _opaque(column: Column, mapper: TypeMapper) -> ColumnMapping:
    assert column.data_type is not None
    # Debezium gets shapes from PgJDBC, which prints their numbers as Java does.
    shape = builtin_name(column.data_type) in _SHAPES
    read = _encoded_shape if shape else _encoded
    form = binary_form(mapper.options, read, strings(AS_TEXT))
    return column_mapping(column, mapper.options, dataclasses.replace(form, opaque=True))


def _build(column: Column, mapper: TypeMapper) -> ColumnMapping | None:
    data_type = column.data_type
    assert data_type is not None
    # The catalogue had no answer for the OID: the type was dropped.
    if not data_type.name and data_type.kind is TypeKind.BASE:
        return text_mapping(column, mapper)
    if mapper.options.composite_types == "struct" and data_type.attributes:
        return composite_mapping(column, mapper)
    if not mapper.options.include_unknown_datatypes:
        return None
    return _opaque(column, mapper)


def _claims(_: DataType) -> bool:
    return True


UNKNOWN_SPECS = (
    TypeSpec(
        name="unknown",
        summary="everything else: left out unless include.unknown.datatypes",
        claims=_claims,
        build=_build,
        order=1000,
    ),
)
