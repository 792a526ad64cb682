"""PostgreSQL's built-in data types.

A decoder needs the widths, the type table the array types, and both the OIDs. The OIDs of
built-in types never change. Source: ``pg_type.dat`` of PostgreSQL.
"""

from typing import Final, NamedTuple


class BuiltinType(NamedTuple):
    """Hold one row of ``pg_type``."""

    name: str
    oid: int
    # OID of the array type, 0 where no mapping needs it.
    array_oid: int
    # Bytes of a value on disk; None: values differ in length, and a long one is stored out of line.
    width: int | None = None


_ROWS: Final = (
    BuiltinType("bool", 16, 1000, 1),
    BuiltinType("bytea", 17, 1001),
    BuiltinType("char", 18, 1002, 1),
    BuiltinType("name", 19, 1003, 64),
    BuiltinType("int8", 20, 1016, 8),
    BuiltinType("int2", 21, 1005, 2),
    BuiltinType("int2vector", 22, 1006),
    BuiltinType("int4", 23, 1007, 4),
    BuiltinType("regproc", 24, 0, 4),
    BuiltinType("text", 25, 1009),
    BuiltinType("oid", 26, 1028, 4),
    BuiltinType("tid", 27, 0, 6),
    BuiltinType("xid", 28, 1011, 4),
    BuiltinType("cid", 29, 1012, 4),
    BuiltinType("oidvector", 30, 1013),
    BuiltinType("json", 114, 199),
    BuiltinType("xml", 142, 143),
    BuiltinType("point", 600, 1017, 16),
    BuiltinType("lseg", 601, 1018, 32),
    BuiltinType("path", 602, 1019),
    BuiltinType("box", 603, 1020, 32),
    BuiltinType("polygon", 604, 1027),
    BuiltinType("line", 628, 629, 24),
    BuiltinType("cidr", 650, 651),
    BuiltinType("float4", 700, 1021, 4),
    BuiltinType("float8", 701, 1022, 8),
    BuiltinType("circle", 718, 719, 24),
    BuiltinType("macaddr8", 774, 775, 8),
    BuiltinType("money", 790, 791, 8),
    BuiltinType("macaddr", 829, 1040, 6),
    BuiltinType("inet", 869, 1041),
    BuiltinType("bpchar", 1042, 1014),
    BuiltinType("varchar", 1043, 1015),
    BuiltinType("date", 1082, 1182, 4),
    BuiltinType("time", 1083, 1183, 8),
    BuiltinType("timestamp", 1114, 1115, 8),
    BuiltinType("timestamptz", 1184, 1185, 8),
    BuiltinType("interval", 1186, 1187, 16),
    BuiltinType("timetz", 1266, 1270, 12),
    BuiltinType("bit", 1560, 1561),
    BuiltinType("varbit", 1562, 1563),
    BuiltinType("numeric", 1700, 1231),
    BuiltinType("refcursor", 1790, 2201),
    BuiltinType("regclass", 2205, 0, 4),
    BuiltinType("uuid", 2950, 2951, 16),
    BuiltinType("pg_lsn", 3220, 3221, 8),
    BuiltinType("tsvector", 3614, 3643),
    BuiltinType("tsquery", 3615, 3645),
    BuiltinType("jsonb", 3802, 3807),
    BuiltinType("int4range", 3904, 3905),
    BuiltinType("numrange", 3906, 3907),
    BuiltinType("tsrange", 3908, 3909),
    BuiltinType("tstzrange", 3910, 3911),
    BuiltinType("daterange", 3912, 3913),
    BuiltinType("int8range", 3926, 3927),
    BuiltinType("jsonpath", 4072, 4073),
    BuiltinType("int4multirange", 4451, 6150),
    BuiltinType("nummultirange", 4532, 6151),
    BuiltinType("tsmultirange", 4533, 6152),
    BuiltinType("tstzmultirange", 4534, 6153),
    BuiltinType("datemultirange", 4535, 6155),
    BuiltinType("int8multirange", 4536, 6157),
    BuiltinType("xid8", 5069, 271, 8),
)
BUILTIN_TYPES: Final = {row.name: row for row in _ROWS}

# OID of a built-in array type → name of its element type. The two vectors are arrays of their own.
ARRAY_ELEMENTS: Final = {row.array_oid: row.name for row in _ROWS if row.array_oid} | {
    BUILTIN_TYPES["int2vector"].oid: "int2",
    BUILTIN_TYPES["oidvector"].oid: "oid",
}

# OID → built-in type, or None.
builtin_type: Final = {row.oid: row for row in _ROWS}.get
