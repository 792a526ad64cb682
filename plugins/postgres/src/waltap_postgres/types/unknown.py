"""Types that Debezium does not know: left out, or the bytes of their text.

``include.unknown.datatypes`` decides. These types are composite types, multiranges, ``tsquery``,
``pg_lsn``, geometric shapes and everything that no other spec claims. ``waltap.composite.types``
makes structs of composite types.

A type may be dropped before its values are decoded. The catalogue then no longer describes the
type, but the values exist. They become strings of PostgreSQL text.
"""

import dataclasses
import struct
from collections.abc import Callable

from waltap.arrow.column import AS_TEXT, strings
from waltap.decode.relation import Column, DataType, TypeKind
from waltap.mapping.type_mapping import ColumnMapping, TypeMapper
from waltap.mapping.value_form import column_mapping
from waltap.specs import TypeSpec
from waltap_postgres.types.binary import binary_form
from waltap_postgres.types.claims import builtin_name
from waltap_postgres.types.composite import composite_mapping
from waltap_postgres.types.geometry import java_geometry, native_from_binary
from waltap_postgres.types.network import lsn_from_binary
from waltap_postgres.types.number import whole_number
from waltap_postgres.types.range import multirange_reader
from waltap_postgres.types.text import text_mapping

__all__ = ["UNKNOWN_SPECS"]

_SHAPES = frozenset({"box", "circle", "line", "lseg", "path", "polygon"})


def _encoded(text: str) -> bytes:
    return text.encode()


def _encoded_shape(text: str) -> bytes:
    return java_geometry(text).encode()


def _jsonpath_from_binary(data: bytes) -> str:
    # The first byte is a version.
    return data[1:].decode()


_READERS: dict[str, Callable[[bytes], str]] = {
    "pg_lsn": lsn_from_binary,
    "xid": whole_number(">I"),
    "cid": whole_number(">I"),
    "xid8": whole_number(">Q"),
    "refcursor": bytes.decode,
    "jsonpath": _jsonpath_from_binary,
}


def _reader(column: Column, mapper: TypeMapper) -> Callable[[bytes], str] | None:
    """Return send format → text, or None for a type with a private format."""
    assert column.data_type is not None
    name = builtin_name(column.data_type) or ""
    if name in _SHAPES:
        return lambda data: native_from_binary(name, data)
    if column.data_type.kind is TypeKind.COMPOSITE:
        return _composite_reader(column.data_type, mapper)
    return _READERS.get(name) or multirange_reader(name, mapper)


def _composite_reader(data_type: DataType, mapper: TypeMapper) -> Callable[[bytes], str] | None:
    """Return a reader of the composite send format.

    The format has a count, then OID, size and bytes of each attribute.
    """
    fields: list[Callable[[bytes], str]] = []
    for name, attribute, typmod in data_type.attributes:
        column = Column(name=name, type_oid=attribute.oid, typmod=typmod, data_type=attribute)
        mapping = mapper.column(column) or _opaque(column, mapper)
        if mapping.from_binary is None:
            return None
        fields.append(mapping.from_binary)

    def read(data: bytes) -> str:
        at, shown = 4, []
        (count,) = _INT.unpack_from(data)
        for field in fields[:count]:
            (size,) = _INT.unpack_from(data, at + 4)
            at += 8
            if size < 0:
                shown.append("")
            else:
                shown.append(_field_text(field(data[at : at + size])))
                at += size
        shown += [""] * (count - len(fields))  # attributes that the type got since it was asked for
        return f"({','.join(shown)})"

    return read


_INT = struct.Struct(">i")
_UNSAFE = frozenset('(),"\\ \t\n\r\v\f')


def _field_text(text: str) -> str:
    """Return one field as ``record_out`` prints it."""
    if not text or any(c in _UNSAFE for c in text):
        escaped = text.replace("\\", "\\\\").replace('"', '""')
        return f'"{escaped}"'
    return text


def _opaque(column: Column, mapper: TypeMapper) -> ColumnMapping:
    assert column.data_type is not None
    # Debezium gets shapes from PgJDBC, which prints their numbers as Java does.
    shape = builtin_name(column.data_type) in _SHAPES
    read = _encoded_shape if shape else _encoded
    form = binary_form(mapper.options, read, _reader(column, mapper), strings(AS_TEXT))
    return column_mapping(column, mapper.options, dataclasses.replace(form, opaque=True))


def _dropped_from_binary(data: bytes) -> str:
    r"""Return the text of a value whose type is not known."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return "\\x" + data.hex()
    # Enums and the like send their text; other formats are shown in hexadecimal, as bytea is.
    return text if text.replace("\n", "").isprintable() else "\\x" + data.hex()


def _build(column: Column, mapper: TypeMapper) -> ColumnMapping | None:
    data_type = column.data_type
    assert data_type is not None
    # The catalogue had no answer for the OID: the type was dropped.
    if not data_type.name and data_type.kind is TypeKind.BASE:
        return text_mapping(column, mapper, from_binary=_dropped_from_binary)
    if mapper.options.composite_types == "struct" and data_type.attributes:
        return composite_mapping(column, mapper, _composite_reader(data_type, mapper))
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
