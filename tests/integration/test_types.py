"""Every type and every value of a real server: which are mapped, what becomes null, what other libraries read of formats,
and whether the stream brings what a snapshot reads."""

import io
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import fastavro
import psycopg
import pytest
from jsonschema import Draft7Validator
from psycopg import sql
from tests.harness.json_lines import DECODERS
from tests.harness.pipeline import PipelineRig
from tests.harness.typed_records import typed_records
from tests.harness.typed_values import LITERALS, UNKNOWN, printed_once, typed

from waltap.changes.arrow.out_of_range import ArrowMisfit
from waltap.changes.arrow.tuples import RelationCodec
from waltap.changes.decode.relation import Column, DataType, Relation
from waltap.changes.decode.row_block import RowBlock
from waltap.changes.mapping.connect_schema import ConnectKind, Schema
from waltap.changes.mapping.type_mapping import ColumnMapping, TypeOptions
from waltap.changes.mapping.type_registry import TypeRegistry
from waltap.encoders.format.converter import ConverterContext
from waltap_formats.avro.binary import avro_writer
from waltap_formats.avro.schema import avro_schema, is_map
from waltap_formats.json_schema import JsonSchemaConverter
from waltap_formats.properties import JsonSchemaProperties
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
    counted = Counter[str]()
    options = TypeOptions(arrow_misfits=counted, include_unknown_datatypes=True)
    for name, column, values in columns(typed, EVERY):
        arrow = mapping(column, options).arrow
        for text in values:
            array = arrow.column([text])
            reported = dict(counted)
            counted.clear()
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


# --- in Avro and in JSON Schema, judged by another library; Protobuf: tests/differential/test_converters.py


def plain(schema: Schema, value: object) -> object:
    """Return a Connect value as a reader sees it that knows no Connect: defaults in place of null."""
    if value is None:
        value = schema.default
    if value is None:
        return None
    match schema.kind:
        case ConnectKind.STRUCT:
            return {f.name: plain(f.schema, value.get(f.name)) for f in schema.fields}
        case ConnectKind.ARRAY:
            return [plain(schema.items, each) for each in value]
        case ConnectKind.MAP if is_map(schema):
            return {key: plain(schema.values, each) for key, each in value.items()}
        case ConnectKind.MAP:
            return [
                {"key": plain(schema.keys, key), "value": plain(schema.values, each)}
                for key, each in value.items()
            ]
        case ConnectKind.STRING:
            return value.encode("utf-8", "replace").decode()
    return value


def same(one: object, other: object) -> bool:
    """Return whether two values are equal; NaN equals itself, floats are those of 32 bits where one is."""
    if isinstance(one, float) and isinstance(other, float):
        return (math.isnan(one) and math.isnan(other)) or math.isclose(one, other, rel_tol=1e-6)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


def without_logical_types(schema: object) -> object:
    if isinstance(schema, dict):
        return {k: without_logical_types(v) for k, v in schema.items() if k != "logicalType"}
    return list(map(without_logical_types, schema)) if isinstance(schema, list) else schema


def test_avro_is_read_back_as_it_was(typed):
    count, parsed = 0, dict[int, Any]()
    for name, records in typed_records(typed):
        for record in records:
            if record.value is None:
                continue
            number = id(record.value_schema)
            if number not in parsed:
                schema = without_logical_types(avro_schema(record.value_schema))
                assert json.dumps(schema)
                # the schema itself is kept, so that no other has its number
                parsed[number] = fastavro.parse_schema(schema), record.value_schema
            data = io.BytesIO(avro_writer(record.value_schema)(record.value))
            found = fastavro.schemaless_reader(data, parsed[number][0])
            assert not data.read(), name
            wanted = plain(record.value_schema, record.value)
            assert same(found, wanted), (name, found["after"], wanted["after"])
            count += 1
    assert count > 600


def finite(value: object) -> bool:
    if isinstance(value, dict):
        return all(map(finite, value.values()))
    if isinstance(value, list):
        return all(map(finite, value))
    return not isinstance(value, float) or math.isfinite(value)


class UnregisteredJson(JsonSchemaConverter):
    """JSON Schema without a registry: keeps the text that it would register."""

    registered = ""

    def _registered(self, topic, name, text):
        self.registered = text
        return b""


@pytest.mark.parametrize("decimals", ["BASE64", "NUMERIC"])
def test_json_is_valid_by_the_schema_that_is_registered(typed, decimals):
    """Judged by another library; a value of another type is not valid. JSON has no NaN and no infinity:
    they are texts, as Java's library writes them."""
    given = {"schema.registry.url": "http://nobody", "decimal.format": decimals}
    properties = JsonSchemaProperties.model_validate(given)
    made = UnregisteredJson(properties, ConverterContext(record_part="value"))
    judges: dict[str, Any] = {}
    count = 0
    for name, records in typed_records(typed):
        if decimals == "NUMERIC" and not name.startswith(("numeric", "money")):
            continue
        for record in records:
            if record.value is None or not finite(record.value):
                continue
            data = made.encoder("t", record.value_schema)(record.value)
            text = made.registered
            value = json.loads(data)
            if text not in judges:
                schema = json.loads(text)
                Draft7Validator.check_schema(schema)
                judges[text] = Draft7Validator(schema)
                assert not judges[text].is_valid({**value, "op": 1})
                wrong = {**(value["after"] or {}), "id": "text"}
                assert not judges[text].is_valid({**value, "after": wrong})
            problems = [each.message for each in judges[text].iter_errors(value)]
            assert not problems, (name, problems)
            count += 1
    assert count > (600 if decimals == "BASE64" else 40)


# --- every type that a server has, through every decoder that can carry it -----------------------------


EXTENSIONS = ("citext", "hstore", "ltree", "cube", "intarray", "isn", "seg", "lo")
OWN = """
CREATE TYPE mood AS ENUM ('sad', 'so so');
CREATE TYPE pair AS (a int, b text);
CREATE TYPE odd AS (a int, b tsquery);
CREATE TYPE floatrange AS RANGE (subtype = float8);
CREATE TYPE textrange AS RANGE (subtype = text);
CREATE DOMAIN posint AS int CHECK (value > 0);
CREATE DOMAIN search AS tsquery;
CREATE DOMAIN ints AS int[];
"""
VALUES = (
    "1", "a", "(1,2)", "(1,a)", "[1,2]", "{1,2}", "{1,2,3}", "1 day", "2020-01-01", "12:00:00", "127.0.0.1",
    "08:00:2b:01:02:03", "08:00:2b:01:02:03:04:05", "<a/>", "B01", "[a,b]", "sad", "[2020-01-01,2020-01-03)",
    "0/1A2B3C", "10:20:10,14,15", "$.a", "<(1,2),3>", "[(1,2),(3,4)]", "((1,2),(3,4))", "pg_class", "now",
    "{[1,2)}", "{[a,b]}", "{[2020-01-01,2020-01-03)}", "sum", "978-0-393-04002-9", "0-393-04002-X",
    "ISSN 0317-8471", "M-2306-7118-7", "12345678901", "9780393040029", "9790230671187", "9770317847001", "int4",
    "english", "simple", "+", "postgres", "postgres=r/postgres", "a=>1", "a.b", "*.b", "1&2", "1 .. 2",
    "pg_catalog", "now()", "+(int4,int4)", '"C"', "6f3f2a0e-8c2f-4c59-9d7a-1f52c1d1a001", "POINT(1 2)",
    "abs(int4)", "220500896", "POSIX",
)  # fmt: skip
TYPES_SQL = """
SELECT t.oid::int8, format_type(t.oid, NULL) FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace
 WHERE t.typtype IN ('b', 'd', 'e', 'r', 'm', 'c') AND t.typisdefined AND t.typcategory <> 'A'
   AND n.nspname IN ('pg_catalog', 'public')
   AND (t.typtype <> 'c' OR n.nspname = 'public' AND (SELECT relkind FROM pg_class WHERE oid = typrelid) = 'c')
 ORDER BY 1
"""
NO_VALUE = frozenset(
    {
        "pg_node_tree", "pg_ndistinct", "pg_dependencies", "pg_mcv_list", "pg_brin_bloom_summary",
        "pg_brin_minmax_multi_summary", "pg_ddl_command", "ghstore", "ltree_gist", "intbig_gkey", "gtsvector", "upc",
    }
)  # fmt: skip
"""Types whose input function refuses every text (of upc: all of ours; it is stored as ean13 is)."""

NOT_STREAMED = frozenset({"name", "name[]"})
"""Null while streaming, as Debezium writes them (`waltap.streamed.names`)."""


def accepted(connection: psycopg.Connection[Any], query: str) -> bool:
    try:
        connection.execute(query.encode())
    except psycopg.Error:
        return False
    return True


@pytest.fixture
def every_type(database) -> dict[str, str]:
    """Make a table of each type; return table → type."""
    tables: dict[str, str] = {}
    with database.connect() as connection:
        for extension in EXTENSIONS:
            connection.execute(f"CREATE EXTENSION {extension}")
        connection.execute(OWN)
        for oid, name in connection.execute(TYPES_SQL).fetchall():
            works = (v for v in VALUES if accepted(connection, f"SELECT '{v}'::{name}::text"))
            value = next(works, None)
            if value is None:
                assert name in NO_VALUE, f"a value for {name} is wanted"
                continue
            literal = f"'{value}'::{name}"
            columns, values = f"v {name}", literal
            if accepted(connection, f"SELECT ARRAY[{literal}]"):
                columns, values = f"v {name}, a {name}[]", f"{literal}, ARRAY[{literal}]"
            connection.execute(f"CREATE TABLE t{oid} (id int PRIMARY KEY, {columns})")
            connection.execute(f"INSERT INTO t{oid} VALUES (1, {values})")
            tables[f"t{oid}"] = name
    assert len(tables) > 90
    return tables


def differing(pipeline: PipelineRig, tables: dict[str, str], **settings: Any) -> list[str]:
    """Capture a snapshot of the tables, then each row again while streaming; return differences."""
    records = pipeline.folder / "records.jsonl"
    pipeline.settings |= {
        "include.unknown.datatypes": True,
        "replica.identity.autoset.values": None,
        "sink.type": "jsonl",
        "sink.path": str(records),
        "table.include.list": ",".join(f"public.{table}" for table in tables),
        **settings,
    }
    pipeline.catch_up()
    with pipeline.database.connect() as connection:
        for table in tables:
            names = [
                c.name for c in connection.execute(f"SELECT * FROM {table}").description or ()
            ][1:]
            connection.execute(
                f"INSERT INTO {table} SELECT 2, {', '.join(names)} FROM {table} WHERE id = 1"
            )
    pipeline.catch_up()
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for line in records.read_text().splitlines():
        value = json.loads(line)["value"]
        value = value.get("payload", value)
        row = dict(value["after"])
        del row["id"]
        rows[value["source"]["table"], value["op"]] = row
    assert len(rows) == 2 * len(tables)
    found = []
    for table, name in tables.items():
        read, streamed = rows[table, "r"], rows[table, "c"]
        for column in read:
            shown = name if column == "v" else f"{name}[]"
            if read[column] != streamed[column] and shown not in NOT_STREAMED:
                found.append(f"{shown}: {read[column]!r} was read, {streamed[column]!r} streamed")
            if read[column] is None:
                found.append(f"{shown}: null was read")
    return found


@pytest.mark.parametrize("decoder", DECODERS)
def test_every_type_is_streamed_as_it_is_read(every_type, database, tmp_path, decoder):
    assert differing(PipelineRig(database, tmp_path), every_type, **DECODERS[decoder]) == []


@pytest.mark.parametrize("decoder", DECODERS)
def test_values_of_a_type_that_was_dropped_before_they_are_decoded_are_text(
    database, tmp_path, decoder, caplog
):
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    pipeline = PipelineRig(database, tmp_path, {"topic.prefix": "x", **DECODERS[decoder]})
    out = tmp_path / "out"
    pipeline.settings |= {"sink.type": "jsonl", "sink.path": str(out)}
    pipeline.catch_up()
    pipeline.deliver(
        "CREATE TYPE mood AS ENUM ('fine')",
        "ALTER TABLE t ADD m mood, ADD ms mood[]",
        "INSERT INTO t VALUES (1, 'fine', '{fine}')",
        "ALTER TABLE t DROP m, DROP ms",
        "DROP TYPE mood",
    )
    values = [json.loads(line)["value"] for line in out.read_text().splitlines()]
    (after,) = [value["after"] for value in values if value["op"] == "c"]
    assert (after["id"], after["m"]) == (1, "fine")
    assert after["ms"] == "{fine}"
    assert "type of a column was dropped" in caplog.text
