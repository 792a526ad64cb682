"""Every value of every type, from a real server (`tests.harness.typed_values`): which types are mapped, and the list of what
becomes null in JSON, Connect values and Arrow."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import psycopg
from psycopg import sql
from tests.harness.typed_values import LITERALS, UNKNOWN, printed_once, typed

from waltap.changes.arrow.out_of_range import ArrowMisfit, MisfitCount
from waltap.changes.arrow.tuples import RelationCodec
from waltap.changes.decode.relation import Column, DataType, Relation
from waltap.changes.decode.row_block import RowBlock
from waltap.changes.mapping.type_mapping import ColumnMapping, TypeOptions
from waltap.changes.mapping.type_registry import TypeRegistry
from waltap_postgres.snapshot.binary_copy import BinaryRows, field_readers
from waltap_postgres.types.array import parse_array
from waltap_testing.installed import installed_types

__all__ = ["typed"]

EVERY = {**LITERALS, **UNKNOWN}


def columns(
    typed: psycopg.Connection[Any], names: dict[str, list[str]]
) -> Iterator[tuple[str, Column, list[str]]]:
    for name, literals in names.items():
        yield (name, *printed_once(typed, name, literals))


def mapping(column: Column, options: TypeOptions) -> ColumnMapping:
    found = TypeRegistry(installed_types(), options).column(column)
    assert found is not None
    return found


def test_types_that_debezium_does_not_know_are_mapped_where_asked_for(typed):
    registry = TypeRegistry(installed_types())
    for name, column, _ in columns(typed, EVERY):
        found = mapping(column, TypeOptions(include_unknown_datatypes=name in UNKNOWN))
        assert (registry.column(column) is None) == (name in UNKNOWN), name
        if name in UNKNOWN:
            assert found.opaque or column.data_type.element is not None


# --- what becomes null ---------------------------------------------------------------------------

FORMS: dict[str, dict[str, Any]] = {
    f"{kind} {mode}": {option: mode}
    for kind, option, modes in (
        ("time", "time_precision_mode",
         "adaptive adaptive_time_microseconds connect isostring microseconds nanoseconds"),
        ("decimal", "decimal_handling_mode", "precise double string"),
        ("hstore", "hstore_handling_mode", "json map"),
        ("interval", "interval_handling_mode", "numeric string"),
        ("binary", "binary_handling_mode", "bytes base64 base64-url-safe hex"),
        ("arrays", "multidimensional_arrays", "literal"),
        ("dates", "infinite_date", "extreme"),
    )
    for mode in modes.split()
} | {
    "money 0": {"money_fraction_digits": 0},
    "money 4": {"money_fraction_digits": 4},
    "unknown": {"include_unknown_datatypes": True},
}  # fmt: skip
"""Every mode of every type, one at a time."""

PRECISE = frozenset(FORMS) - {"decimal double", "decimal string"}
MICROS = frozenset(FORMS) - {"time connect", "time isostring"}
FINE = frozenset({"time microseconds", "time nanoseconds"})
CONNECT: dict[str, dict[str, frozenset[str]]] = {
    # Connect's Decimal is a whole number and a scale
    "numeric is NaN or infinite": dict.fromkeys(("numeric", "numeric(12,2)", "numeric[]"), PRECISE),
    # microseconds since 1970 in 64 bits end in the year 294247, nanoseconds in 2262
    "timestamp exceeds 64 bits": {"timestamp": MICROS, "timestamp(3)": FINE, "timestamp(0)": FINE},
    # the schema is that of Debezium: an array of numbers
    "an inner array, where the schema has one dimension": {"int4[]": frozenset(FORMS)},
}
"""Reason → type → modes: what the Connect type cannot hold, in JSON as in Connect values."""

MOMENTS = {"date", "timestamp", "timestamp(0)", "timestamp(3)", "timestamptz", "timestamptz(2)"}
ARROW: dict[str, set[str]] = {
    # the calendars of Python and of Spark end there
    "date or timestamp outside years 1 to 9999": MOMENTS,
    "infinite date or timestamp": {*MOMENTS, "date[]"},
    "time 24:00": {"time", "time(3)"},
    "numeric NaN or infinity": {"numeric(12,2)"},
    "array of several dimensions": {"int4[]", "text[]"},
}
"""Reason → types: what the Arrow type cannot hold under ``waltap.arrow.out.of.range=null``."""


def nulls(value: Any) -> int:
    """Count what is null, a field as a whole or an element of an array."""
    return sum(map(nulls, value)) if isinstance(value, list) else value is None


def readings(found: ColumnMapping, text: str) -> Iterator[Callable[[], Any]]:
    """Yield a value's conversions: to JSON and to Connect, streamed and read."""
    for form in (found, found.read):
        if form is not None:
            yield lambda form=form: json.loads(form.json(text))
            yield partial(form.to_connect, text)


def test_what_becomes_null_in_json_and_connect_is_listed(typed):
    """What comes out null although it was none is reported, and there is nothing else of the kind."""
    listed: dict[str, dict[str, set[str]]] = {}
    reported: list[str] = []
    registries = {
        form: TypeRegistry(
            installed_types(), TypeOptions(**modes, on_misfit=lambda _, why: reported.append(why))
        )
        for form, modes in FORMS.items()
    }
    for name, column, values in columns(typed, EVERY):
        for form, registry in registries.items():
            found = registry.column(column)
            if found is None:
                assert name in UNKNOWN
                continue
            for text in values:
                array = name.endswith("[]")
                given = nulls(parse_array(text, column.data_type.delimiter)) if array else 0
                for read in readings(found, text):
                    reported.clear()
                    value = read()
                    assert (value is None or nulls(value) > given) == bool(reported), (
                        name,
                        text,
                        form,
                    )
                    for why in reported:
                        listed.setdefault(why, {}).setdefault(name, set()).add(form)
    assert listed == CONNECT


def test_what_becomes_null_in_arrow_is_listed(typed):
    listed: dict[str, set[str]] = {}
    counted = MisfitCount()
    options = TypeOptions(arrow_misfits=counted, include_unknown_datatypes=True)
    for name, column, values in columns(typed, EVERY):
        arrow = mapping(column, options).arrow
        for text in values:
            array = arrow.column([text])
            reported = counted.take()
            assert reported or not array.null_count, (name, text)
            for reason in reported:
                listed.setdefault(reason, set()).add(name)
    assert listed == ARROW


# --- pgvector, which the package of the newest server carries --------------------------------------

VECTORS: list[tuple[str, str, Any]] = [
    ("vector", "[1,2.5,-3]", [1.0, 2.5, -3.0]),
    ("vector", "[0.1]", [0.1]),
    ("vector", "[3e38,1e-45]", None),
    ("halfvec", "[1,2.5,-0.000061]", None),
    ("halfvec", "[65504,0]", [65504.0, 0.0]),
    ("sparsevec", "{1:201,9:209.5}/3000", {"dimensions": 3000, "vector": [[1, 201.0], [9, 209.5]]}),
    ("sparsevec", "{}/5", {"dimensions": 5, "vector": []}),
]


def test_vectors_are_read_as_the_server_prints_them(newest_database):
    newest_database.execute("CREATE EXTENSION vector")
    for name, literal, expected in VECTORS:
        query = f"SELECT '{name}'::regtype::oid::int8, ('{literal}'::{name})::text"
        ((oid, text),) = newest_database.execute(query)
        data_type = DataType(oid=oid, schema="public", name=name)
        found = mapping(Column(name="v", type_oid=oid, data_type=data_type), TypeOptions())
        value = json.loads(found.json(text))
        assert expected is None or value == expected, literal


# --- COPY's binary format ------------------------------------------------------------------------


def binary_block(typed: psycopg.Connection[Any], relation: Relation, query: str) -> RowBlock | None:
    """Return the query's rows as COPY's binary format gives them, None where text is read."""
    readers = field_readers(relation)
    if readers is None:
        return None
    with typed.cursor().copy(f"COPY ({query}) TO STDOUT (FORMAT binary)".encode()) as copy:
        data = b"".join(bytes(part) for part in copy)
    pieces = [piece for piece, _ in BinaryRows(readers).pieces(iter([data]), 1 << 20)]
    (block,) = pieces
    assert isinstance(block, RowBlock)
    return block


def test_values_in_binary_are_the_values_in_text(typed):
    """Both forms of COPY make the same text, the same Arrow columns, and the same misfits."""
    read = set()
    for name, column, texts in columns(typed, LITERALS):
        relation = Relation(oid=1, schema="public", table="t", identity="d", columns=(column,))
        query = sql.SQL(
            "SELECT x::{} FROM unnest({}::text[]) WITH ORDINALITY u (x, n) ORDER BY n"
        ).format(sql.SQL(name), sql.Literal(LITERALS[name]))
        block = binary_block(typed, relation, query.as_string(typed))
        if block is None:
            continue
        read.add(name)
        assert [value for (value,) in block] == texts, name
        for policy in ("null", "error"):
            options = TypeOptions(arrow_misfit=policy)
            outcomes = []
            for rows in (block, [(text,) for text in texts]):
                codec = RelationCodec(relation, TypeRegistry(installed_types(), options))
                try:
                    values = codec.batch(rows).to_pydict()
                    outcomes.append((codec.schema, repr(values), codec.misfits))  # NaN is not NaN
                except ArrowMisfit as misfit:
                    outcomes.append(str(misfit))
            assert outcomes[0] == outcomes[1], (name, policy)
    assert read >= {"bool", "int2", "int8", "float4", "float8", "numeric(12,2)", "text", "char(12)"}
    assert read >= {"uuid", "json", "jsonb", "bytea", "date", "time", "timestamp", "timestamptz"}
