"""The PostgreSQL type table: each type's form in Connect, JSON and Arrow.

There is one module per family; the plugin registers `TYPE_SPECS`.
`waltap.changes.mapping.type_mapping.TypeOptions` selects the rows of the table.
``docs/reference/types.md`` is printed from it.
"""

from collections.abc import Callable

from waltap.changes.decode.relation import Column, DataType
from waltap.changes.mapping.type_mapping import ColumnMapping, TypeMapper, types_named
from waltap.ports.specs import TypeSpec
from waltap_postgres.types import number, temporal, text
from waltap_postgres.types.array import build_array, is_array
from waltap_postgres.types.binary import build_bits, build_bytea
from waltap_postgres.types.builtin import SAMPLES, builtin
from waltap_postgres.types.geometry import build_point
from waltap_postgres.types.hstore import build_hstore
from waltap_postgres.types.interval import build_interval
from waltap_postgres.types.numeric import build_money, build_numeric
from waltap_postgres.types.user_defined import build_unknown

__all__ = ["TYPE_SPECS"]

PLAIN = text.text_mapping
RANGES = ("int4range", "int8range", "numrange", "tsrange", "tstzrange", "daterange")


def _spec(
    name: str,
    summary: str,
    claims: Callable[[DataType], bool],
    build: Callable[[Column, TypeMapper], ColumnMapping | None],
    order: int = 100,
) -> TypeSpec:
    samples = SAMPLES[name]
    examples = tuple(sample.declaration for sample in samples)
    return TypeSpec(
        name=name,
        summary=summary,
        claims=claims,
        build=build,
        examples=examples,
        order=order,
        samples=samples,
    )


TYPE_SPECS: tuple[TypeSpec, ...] = (
    _spec("boolean", "true and false", builtin("bool"), number.build_bool),
    _spec(
        "integer",
        "smallint, integer, bigint and the serial types",
        builtin("int2", "int4", "int8"),
        number.build_integer,
    ),
    _spec("oid", "object identifiers, unsigned 32 bits", builtin("oid"), number.build_integer),
    _spec(
        "floating point",
        "real and double precision",
        builtin("float4", "float8"),
        number.build_float,
    ),
    _spec(
        "numeric", "exact decimals, with and without precision", builtin("numeric"), build_numeric
    ),
    _spec("money", "currency amounts", builtin("money"), build_money),
    _spec(
        "text",
        "text, varchar and blank-padded char",
        builtin("text", "varchar", "bpchar"),
        text.build_text,
    ),
    _spec("char", 'the one-byte type "char"', builtin("char"), PLAIN),
    _spec("name", "identifiers of the catalogue", builtin("name"), text.build_name),
    _spec("citext", "case-insensitive text", types_named("citext"), PLAIN),
    _spec("isbn", "book numbers of isn", types_named("isbn"), PLAIN),
    _spec("ltree", "label paths", types_named("ltree"), text.build_ltree),
    _spec("uuid", "universally unique identifiers", builtin("uuid"), text.build_uuid),
    _spec("json", "json and jsonb", builtin("json", "jsonb"), text.build_json),
    _spec("xml", "XML documents", builtin("xml"), text.build_xml),
    _spec(
        "network",
        "inet, cidr, macaddr, macaddr8",
        builtin("inet", "cidr", "macaddr", "macaddr8"),
        PLAIN,
    ),
    _spec("range", "the six built-in range types, as text", builtin(*RANGES), PLAIN),
    _spec("tsvector", "text search vectors, as text", builtin("tsvector"), text.build_tsvector),
    _spec("bytea", "byte strings", builtin("bytea"), build_bytea),
    _spec(
        "bit string",
        "bit(n) and bit varying(n), little-endian",
        builtin("bit", "varbit"),
        build_bits,
    ),
    _spec("date", "calendar days", builtin("date"), temporal.build_date),
    _spec("time", "time of day", builtin("time"), temporal.build_time),
    _spec("timetz", "time of day with zone offset", builtin("timetz"), temporal.build_timetz),
    _spec(
        "timestamp", "date and time without zone", builtin("timestamp"), temporal.build_timestamp
    ),
    _spec("timestamptz", "instants", builtin("timestamptz"), temporal.build_timestamptz),
    _spec("interval", "spans of time", builtin("interval"), build_interval),
    _spec("enum", "enumerated types", text.is_enum, text.build_enum),
    _spec("array", "arrays; one dimension, as Debezium", is_array, build_array, order=90),
    _spec("point", "points of the plane", builtin("point"), build_point),
    _spec("hstore", "key-value pairs of the hstore extension", types_named("hstore"), build_hstore),
    _spec(
        "unknown",
        "everything else: left out unless include.unknown.datatypes",
        lambda _: True,
        build_unknown,
        order=1000,
    ),
)
