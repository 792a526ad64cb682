"""Built-in data types by OID or catalogue name.

Source: ``pg_type.dat`` of PostgreSQL.
"""

from collections.abc import Callable

from waltap.decode.relation import DataType

__all__ = ["ARRAY_ELEMENTS", "BUILTIN_OIDS", "builtin", "builtin_name"]

# The OIDs of built-in types never change.
BUILTIN_OIDS: dict[str, int] = {
    "bool": 16,
    "bytea": 17,
    "char": 18,
    "name": 19,
    "int8": 20,
    "int2": 21,
    "int2vector": 22,
    "int4": 23,
    "text": 25,
    "oid": 26,
    "xid": 28,
    "cid": 29,
    "oidvector": 30,
    "json": 114,
    "xml": 142,
    "point": 600,
    "lseg": 601,
    "path": 602,
    "box": 603,
    "polygon": 604,
    "line": 628,
    "cidr": 650,
    "float4": 700,
    "float8": 701,
    "circle": 718,
    "macaddr8": 774,
    "money": 790,
    "macaddr": 829,
    "inet": 869,
    "bpchar": 1042,
    "varchar": 1043,
    "date": 1082,
    "time": 1083,
    "timestamp": 1114,
    "timestamptz": 1184,
    "interval": 1186,
    "timetz": 1266,
    "bit": 1560,
    "varbit": 1562,
    "numeric": 1700,
    "refcursor": 1790,
    "uuid": 2950,
    "pg_lsn": 3220,
    "tsvector": 3614,
    "tsquery": 3615,
    "jsonb": 3802,
    "int4range": 3904,
    "numrange": 3906,
    "tsrange": 3908,
    "tstzrange": 3910,
    "daterange": 3912,
    "int8range": 3926,
    "jsonpath": 4072,
    "int4multirange": 4451,
    "nummultirange": 4532,
    "tsmultirange": 4533,
    "tstzmultirange": 4534,
    "datemultirange": 4535,
    "int8multirange": 4536,
    "xid8": 5069,
}

# OID of a built-in array type → name of its element type.
ARRAY_ELEMENTS: dict[int, str] = {
    22: "int2",
    30: "oid",
    143: "xml",
    199: "json",
    271: "xid8",
    629: "line",
    651: "cidr",
    719: "circle",
    775: "macaddr8",
    791: "money",
    1000: "bool",
    1001: "bytea",
    1002: "char",
    1003: "name",
    1005: "int2",
    1006: "int2vector",
    1007: "int4",
    1009: "text",
    1011: "xid",
    1012: "cid",
    1013: "oidvector",
    1014: "bpchar",
    1015: "varchar",
    1016: "int8",
    1017: "point",
    1018: "lseg",
    1019: "path",
    1020: "box",
    1021: "float4",
    1022: "float8",
    1027: "polygon",
    1028: "oid",
    1040: "macaddr",
    1041: "inet",
    1115: "timestamp",
    1182: "date",
    1183: "time",
    1185: "timestamptz",
    1187: "interval",
    1231: "numeric",
    1270: "timetz",
    1561: "bit",
    1563: "varbit",
    2201: "refcursor",
    2951: "uuid",
    3221: "pg_lsn",
    3643: "tsvector",
    3645: "tsquery",
    3807: "jsonb",
    3905: "int4range",
    3907: "numrange",
    3909: "tsrange",
    3911: "tstzrange",
    3913: "daterange",
    3927: "int8range",
    4073: "jsonpath",
    6150: "int4multirange",
    6151: "nummultirange",
    6152: "tsmultirange",
    6153: "tstzmultirange",
    6155: "datemultirange",
    6157: "int8multirange",
}

_NAMES = {oid: name for name, oid in BUILTIN_OIDS.items()}


def builtin_name(data_type: DataType) -> str | None:
    """Return the ``pg_catalog`` name of a built-in type, or None."""
    name = _NAMES.get(data_type.oid)
    if name is None and data_type.schema == "pg_catalog" and data_type.name in BUILTIN_OIDS:
        return data_type.name
    return name


def builtin(*names: str) -> Callable[[DataType], bool]:
    """Return a `TypeSpec.claims` for these built-in types."""
    wanted = frozenset(names)
    return lambda data_type: builtin_name(data_type) in wanted
