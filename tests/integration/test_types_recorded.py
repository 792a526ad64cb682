"""The type table against the recorded events: the rows of every corpus, read as text and as binary."""

import json
import re
from typing import Any

import psycopg
import pytest

from tests.differential.corpus import Variant, variants
from tests.harness.servers.postgres import Database
from waltap.decode.relation import Column, Relation
from waltap.json.schema import schema_object, value_json
from waltap.mapping.type_mapping import ColumnMapping, TypeOptions
from waltap.mapping.type_registry import TypeRegistry
from waltap_postgres.catalog.catalogue import PostgresCatalogue
from waltap_postgres.properties import PostgresProperties
from waltap_testing.installed import installed_types

OUTPUT = (
    "-c timezone=UTC -c datestyle=ISO -c intervalstyle=postgres -c bytea_output=hex"
    " -c extra_float_digits=3 -c lc_monetary=C"
)
CORPORA = [
    "types_default",
    "temporal_modes",
    "decimal_modes",
    "encodings",
    "domains_enums_arrays",
    "toast",
    "replica_identity",
    "types_extra",
]
NOT_FOR_ROWS = {"decoderbufs"}  # its own reading of modifiers, which is the decoder's matter
VARIANTS = [
    variant
    for variant in variants()
    if variant.folder.name in CORPORA and variant.name not in NOT_FOR_ROWS
]
DEFAULTS = TypeOptions()


def type_options(variant: Variant) -> TypeOptions:
    """Return the modes that the variant's properties choose."""
    found = variant.properties
    replace = found.get("value.converter.replace.null.with.default", "true")
    placeholder = found.get("unavailable.value.placeholder", "__debezium_unavailable_value")
    return TypeOptions(
        time_precision_mode=found.get("time.precision.mode", "adaptive"),
        decimal_handling_mode=found.get("decimal.handling.mode", "precise"),
        hstore_handling_mode=found.get("hstore.handling.mode", "json"),
        interval_handling_mode=found.get("interval.handling.mode", "numeric"),
        binary_handling_mode=found.get("binary.handling.mode", "bytes"),
        money_fraction_digits=int(found.get("money.fraction.digits", "2")),
        include_unknown_datatypes=found.get("include.unknown.datatypes") == "true",
        unavailable_value_placeholder=placeholder.encode(),
        replace_null_with_default=replace == "true",
    )


def insert_rows(database: Database, variant: Variant) -> None:
    """Run the corpus without what changes or deletes rows."""
    database.psql(variant.setup)
    for workload in variant.workloads:
        script = re.sub(r"select pg_sleep.*\n", "", workload.read_text(encoding="utf-8"))
        kept = [
            statement
            for statement in re.split(r";\n", script)
            if not re.match(r"\s*(update|delete)\b", statement)
        ]
        database.psql(";\n".join(kept) + ";\n")


def mapped(relation: Relation, registry: TypeRegistry) -> list[tuple[Column, ColumnMapping]]:
    """Return the columns that are not left out."""
    pairs = ((column, registry.column(column)) for column in relation.columns)
    return [(column, mapping) for column, mapping in pairs if mapping is not None]


def rows(
    connection: psycopg.Connection[Any], relation: Relation, sendable: set[str], *, binary: bool
) -> list[list[bytes | None]]:
    """Return a table in order of insertion, each value as the server wrote it.

    In binary, columns that are not ``sendable`` are null: some types have no send format.
    """
    columns = ", ".join(
        f'"{column.name}"' if column.name in sendable or not binary else "NULL"
        for column in relation.columns
    )
    sql = f'SELECT {columns} FROM "{relation.schema}"."{relation.table}" ORDER BY ctid'
    result = connection.pgconn.exec_params(sql.encode(), [], result_format=int(binary))
    assert result.status == psycopg.pq.ExecStatus.TUPLES_OK, result.error_message
    return [[result.get_value(r, c) for c in range(result.nfields)] for r in range(result.ntuples)]


def value_of(record: dict[str, Any]) -> Any:
    value = record["value"]
    return value["payload"] if value and set(value) == {"schema", "payload"} else value


def events(variant: Variant, table: str, op: str) -> list[dict[str, Any]]:
    """Return the recorded rows of an operation on a table."""
    side = "before" if op == "d" else "after"
    values = [value_of(r) for r in variant.expected() if r["topic"] == f"t.public.{table}"]
    return [value[side] for value in values if value and value["op"] == op]


def recorded_schema(variant: Variant, table: str) -> dict[str, Any] | None:
    """Return field name → schema object, None where schemas are off."""
    for record in variant.expected():
        value = record["value"]
        if record["topic"] == f"t.public.{table}" and value and "schema" in value:
            (after,) = (f for f in value["schema"]["fields"] if f["field"] == "after")
            return {f.pop("field"): f for f in after["fields"]}
    return None


def comparable(value: Any) -> Any:
    """Replace what Java prints for an inner array, and keep integers apart from floats."""
    if isinstance(value, list):
        return [comparable(item) for item in value]
    if isinstance(value, dict):
        return {key: comparable(item) for key, item in value.items()}
    if isinstance(value, str):
        return re.sub(r"\[Ljava\.lang\.String;@0", "<java array>", value)
    return (type(value), value)


def kept_items(
    schema: dict[str, Any], *, of: dict[str, Any] | None = None
) -> dict[str, dict[str, Any]]:
    """Return a schema whose arrays have optional items: Debezium forgets that for some, and writes null for
    an array with a NULL. Arrays of bit strings are those ``of`` ours: it calls them bit strings."""
    found = {}
    for name, field in schema.items():
        ours = field if of is None else of[name]
        bits = ours.get("type") == "array" and ours["items"].get("name", "").endswith(".Bits")
        field = ours if bits else field  # noqa: PLW2901
        if field.get("type") == "array":
            field = {**field, "items": {**field["items"], "optional": True}}  # noqa: PLW2901
        found[name] = field
    return found


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.id)
def test_rows_equal_the_recorded_events(variant: Variant, database: Database) -> None:
    options = type_options(variant)
    registry = TypeRegistry(installed_types(), options)
    insert_rows(database, variant)
    compared = 0
    with database.connect(options=OUTPUT, autocommit=True) as connection:
        catalogue = PostgresCatalogue(connection, PostgresProperties.model_construct())
        for table in catalogue.tables():
            relation = table.relation
            columns = mapped(relation, registry)
            names = [column.name for column in relation.columns]
            schema = recorded_schema(variant, relation.table)
            if schema is not None:
                ours = {c.name: json.loads(json.dumps(schema_object(m.schema))) for c, m in columns}
                grown = ours.get("m", {}).get("parameters", {}).get("allowed", "").startswith("new")
                if not grown:  # the label came after the schema was recorded
                    assert kept_items(ours) == kept_items(schema, of=ours)
            sendable = {column.name for column, mapping in columns if mapping.from_binary}
            texts = rows(connection, relation, sendable, binary=False)
            binaries = rows(connection, relation, sendable, binary=True)
            for text, binary, event in zip(
                texts, binaries, events(variant, relation.table, "c"), strict=False
            ):
                for column, mapping in columns:
                    at = names.index(column.name)
                    compared += 1
                    check_value(column, mapping, text[at], binary[at], event[column.name])
            for event in events(variant, relation.table, "d"):
                if relation.identity == "d":
                    for column, mapping in columns:
                        if column.name not in (relation.primary_key or ()):
                            found = json.loads(mapping.fallback_json)
                            assert comparable(found) == comparable(event[column.name]), column
    assert compared > 20


def check_value(
    column: Column,
    mapping: ColumnMapping,
    text: bytes | None,
    binary: bytes | None,
    recorded: Any,
) -> None:
    where = (column.name, column.data_type and column.data_type.name, text)
    if text is None or mapping.streamed_as_null:
        assert comparable(json.loads(mapping.null_json)) == comparable(recorded), where
        return
    plain = text.decode()
    found = mapping.json(plain)
    if recorded is None and plain.startswith("{"):  # what Debezium loses of an array
        assert isinstance(json.loads(found), list), where
    else:
        assert comparable(json.loads(found)) == comparable(recorded), where
    if mapping.json_expression is not None:
        source = f"f'''{{{mapping.json_expression.source('v')}}}'''"
        inlined = eval(source, {**mapping.json_expression.names, "v": plain})
        assert inlined == found, where
    value = mapping.to_connect(plain)
    if value is not None:
        assert json.loads(value_json(mapping.schema, value)) == json.loads(found), where
    if mapping.from_binary is not None:
        assert mapping.from_binary(binary or b"") == plain, where
