"""Claims of built-in types, and a sample of every type.

The reference page prints the samples, which are as the server prints them.
"""

from collections.abc import Callable

from waltap.changes.decode.builtin_types import BUILTIN_TYPES, builtin_type
from waltap.changes.decode.relation import DataType, TypeKind
from waltap.changes.mapping.type_mapping import TypeSample


def builtin_name(data_type: DataType) -> str | None:
    """Return the ``pg_catalog`` name of a built-in type, or None."""
    found = builtin_type(data_type.oid)
    if found is not None:
        return found.name
    known = data_type.schema == "pg_catalog" and data_type.name in BUILTIN_TYPES
    return data_type.name if known else None


def builtin(*names: str) -> Callable[[DataType], bool]:
    """Return a `TypeSpec.claims` for these built-in types."""
    wanted = frozenset(names)
    return lambda data_type: builtin_name(data_type) in wanted


# From this OID on, types belong to one database; samples need no other.
_USER_OID = 16_384


def _builtin(name: str) -> DataType:
    return DataType(oid=BUILTIN_TYPES[name].oid, schema="pg_catalog", name=name)


def _array(name: str) -> DataType:
    return DataType(
        oid=BUILTIN_TYPES[name].array_oid,
        schema="pg_catalog",
        name=f"_{name}",
        kind=TypeKind.ARRAY,
        element=_builtin(name),
    )


def _numeric(precision: int, scale: int) -> int:
    return ((precision << 16) | (scale & 0x7FF)) + 4


def _sample(
    declaration: str, text: str, *misfits: str, of: str | DataType | None = None, typmod: int = -1
) -> TypeSample:
    """Make a sample. ``of`` is the type, if another."""
    data_type = of if isinstance(of, DataType) else _builtin(of or declaration)
    return TypeSample(
        declaration=declaration, data_type=data_type, typmod=typmod, text=text, misfits=misfits
    )


_MOOD = DataType(
    oid=_USER_OID, schema="public", name="mood", kind=TypeKind.ENUM, labels=("sad", "ok", "happy")
)
_PAIR = DataType(
    oid=_USER_OID,
    schema="public",
    name="pair",
    kind=TypeKind.COMPOSITE,
    attributes=(
        ("n", DataType(oid=23, schema="pg_catalog", name="int4"), -1),
        ("t", DataType(oid=25, schema="pg_catalog", name="text"), -1),
    ),
)
_STAMP = "2024-02-29 12:34:56.789"

# Samples by the name of their spec.
SAMPLES: dict[str, tuple[TypeSample, ...]] = {
    "boolean": (_sample("boolean", "t", of="bool"),),
    "integer": (
        _sample("smallint", "7", of="int2"),
        _sample("integer", "7", of="int4"),
        _sample("bigint", "7", of="int8"),
    ),
    "oid": (_sample("oid", "4294967295"),),
    "floating point": (
        _sample("real", "1e-45", of="float4"),
        _sample("double precision", "1e+16", of="float8"),
    ),
    "numeric": (
        _sample("numeric(10,2)", "10.50", "NaN", of="numeric", typmod=_numeric(10, 2)),
        _sample("numeric(5)", "12345", "NaN", of="numeric", typmod=_numeric(5, 0)),
        _sample("numeric(60,10)", "1.0000000000", of="numeric", typmod=_numeric(60, 10)),
        _sample("numeric", "10.500", "NaN"),
    ),
    "money": (_sample("money", "-$1,234.11"),),
    "text": (
        _sample("text", 'é "q"'),
        _sample("varchar(20)", "word", of="varchar", typmod=24),
        _sample("char(4)", "abcd", of="bpchar", typmod=8),
    ),
    "char": (_sample('"char"', "a", of="char"),),
    "name": (_sample("name", "pg_class"),),
    "citext": (TypeSample.of_extension("citext", "Word"),),
    "isbn": (TypeSample.of_extension("isbn", "0-393-04002-X"),),
    "ltree": (TypeSample.of_extension("ltree", "Top.Science"),),
    "uuid": (_sample("uuid", "0b5f1a2c-3d4e-4f60-8a7b-9c0d1e2f3a4b"),),
    "json": (_sample("json", '{"a":  1}'), _sample("jsonb", '{"a": 1}')),
    "xml": (_sample("xml", "<a/>"),),
    "bytea": (_sample("bytea", "\\xfbff"),),
    "bit string": (
        _sample("bit", "1", typmod=1),
        _sample("bit(10)", "1111100000", of="bit", typmod=10),
        _sample("varbit", "101"),
    ),
    "date": (_sample("date", "2024-02-29", "infinity", "0044-03-15 BC"),),
    "time": (
        _sample("time", "12:34:56.789", "24:00:00"),
        _sample("time(3)", "12:34:56.789", of="time", typmod=3),
    ),
    "timetz": (_sample("timetz", "12:34:56.789+02", "24:00:00+00"),),
    "timestamp": (
        _sample("timestamp", _STAMP, "infinity", "20000-01-01 00:00:00", "0044-03-15 00:00:00 BC"),
        _sample("timestamp(3)", _STAMP, "infinity", of="timestamp", typmod=3),
    ),
    "timestamptz": (
        _sample("timestamptz", f"{_STAMP}+00", "infinity", "20000-01-01 00:00:00+00"),
        _sample("timestamptz(3)", f"{_STAMP}+00", of="timestamptz", typmod=3),
    ),
    "interval": (_sample("interval", "1 year 2 mons 3 days 04:05:06.7", "infinity"),),
    "enum": (_sample("mood", "ok", of=_MOOD),),
    "array": (
        _sample("integer[]", "{1,NULL}", "{{1,2},{3,4}}", of=_array("int4")),
        _sample("text[]", '{a,"b c",NULL}', "{{a,b},{c,d}}", of=_array("text")),
        _sample("numeric[]", "{1.50,NULL}", "{NaN}", of=_array("numeric")),
        _sample("timestamptz[]", '{"2024-02-29 12:34:56+00"}', of=_array("timestamptz")),
    ),
    "network": (
        _sample("inet", "192.168.0.1/24"),
        _sample("cidr", "10.0.0.0/8"),
        _sample("macaddr", "08:00:2b:01:02:03"),
        _sample("macaddr8", "08:00:2b:01:02:03:04:05"),
    ),
    "range": (_sample("int4range", "[1,10)"), _sample("tstzrange", '["2024-01-01 00:00:00+00",)')),
    "tsvector": (_sample("tsvector", "'cat':3B 'fat':2"),),
    "point": (_sample("point", "(1,2)"),),
    "hstore": (TypeSample.of_extension("hstore", '"a"=>"1", "b"=>NULL'),),
    "unknown": (
        _sample("tsquery", "'fat' & 'rat'"),
        _sample("box", "(1,1),(0,0)"),
        _sample("int4multirange", "{[1,3)}"),
        _sample("composite types", "(1,x)", of=_PAIR),
    ),
}
