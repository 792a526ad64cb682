"""Built-in ranges as text, as in Debezium, and reading of multiranges."""

import struct
from collections.abc import Callable

from waltap.decode.relation import Column, DataType
from waltap.mapping.type_mapping import ColumnMapping, TypeMapper
from waltap.specs import TypeSpec
from waltap_postgres.types.claims import BUILTIN_OIDS, builtin, builtin_name
from waltap_postgres.types.text import text_mapping

__all__ = ["RANGE_SPECS", "multirange_reader"]

_SUBTYPES = {
    "int4range": "int4",
    "int8range": "int8",
    "numrange": "numeric",
    "tsrange": "timestamp",
    "tstzrange": "timestamptz",
    "daterange": "date",
    "int4multirange": "int4",
    "int8multirange": "int8",
    "nummultirange": "numeric",
    "tsmultirange": "timestamp",
    "tstzmultirange": "timestamptz",
    "datemultirange": "date",
}
# RANGE_EMPTY, RANGE_LB_INC, RANGE_UB_INC, RANGE_LB_INF and RANGE_UB_INF of rangetypes.h.
_EMPTY, _LOWER_INCLUSIVE, _UPPER_INCLUSIVE, _LOWER_INFINITE, _UPPER_INFINITE = 1, 2, 4, 8, 16
_INT = struct.Struct(">i")
_UNSAFE = frozenset('()[],"\\ \t\n\r\v\f')


def _bound_text(text: str) -> str:
    # The server's own conditions for quotes in a bound.
    if not text or any(c in _UNSAFE for c in text):
        escaped = text.replace("\\", "\\\\").replace('"', '""')
        return f'"{escaped}"'
    return text


def _range_text(data: bytes, subtype: Callable[[bytes], str]) -> str:
    """Return the text of a range in send format.

    The format has flags, then each finite bound after its size.
    """
    flags, at = data[0], 1
    if flags & _EMPTY:
        return "empty"
    bounds = []
    for infinite in (_LOWER_INFINITE, _UPPER_INFINITE):
        if flags & infinite:
            bounds.append("")
            continue
        (size,) = _INT.unpack_from(data, at)
        bounds.append(_bound_text(subtype(data[at + 4 : at + 4 + size])))
        at += 4 + size
    opening = "[" if flags & _LOWER_INCLUSIVE else "("
    closing = "]" if flags & _UPPER_INCLUSIVE else ")"
    return f"{opening}{bounds[0]},{bounds[1]}{closing}"


def _subtype_reader(name: str, mapper: TypeMapper) -> Callable[[bytes], str] | None:
    subtype = _SUBTYPES[name]
    oid = BUILTIN_OIDS[subtype]
    data_type = DataType(oid=oid, schema="pg_catalog", name=subtype)
    mapping = mapper.column(Column(name="bound", type_oid=oid, data_type=data_type))
    return None if mapping is None else mapping.from_binary


def multirange_reader(name: str, mapper: TypeMapper) -> Callable[[bytes], str] | None:
    """Return a reader of a built-in multirange type in send format."""
    subtype = _subtype_reader(name, mapper) if name in _SUBTYPES else None
    if subtype is None:
        return None

    def read(data: bytes) -> str:
        (count,) = _INT.unpack_from(data)
        at, ranges = 4, []
        for _ in range(count):
            (size,) = _INT.unpack_from(data, at)
            ranges.append(_range_text(data[at + 4 : at + 4 + size], subtype))
            at += 4 + size
        return f"{{{','.join(ranges)}}}"

    return read


def _build(column: Column, mapper: TypeMapper) -> ColumnMapping:
    assert column.data_type is not None
    subtype = _subtype_reader(builtin_name(column.data_type) or "int4range", mapper)
    reader = None if subtype is None else lambda data: _range_text(data, subtype)
    return text_mapping(column, mapper, from_binary=reader)


RANGE_SPECS = (
    TypeSpec(
        name="range",
        summary="the six built-in range types, as text",
        claims=builtin("int4range", "int8range", "numrange", "tsrange", "tstzrange", "daterange"),
        build=_build,
        order=100,
    ),
)
