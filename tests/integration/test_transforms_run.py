"""Transforms of events and of records, converters of columns, and columns that are read back, in a pipeline: on JSON
lines they are applied alike to snapshot and stream, on the change log refused, and what fails is reported."""

from typing import Any

import pytest
from tests.harness.shop import Shop, install_plugin

CONNECT = "org.apache.kafka.connect.transforms"
ROUTED = {
    "transforms": "route",
    "transforms__route__type": f"{CONNECT}.RegexRouter",
    "transforms__route__regex": r"shop\.public\.(.*)",
    "transforms__route__replacement": "to.$1",
    "transforms__route__predicate": "items",
    "predicates": "items",
    "predicates__items__type": f"{CONNECT}.predicates.TopicNameMatches",
    "predicates__items__pattern": r"shop\.public\.items",
}
FIELDS = """
[[transforms]]
type = "filter"
tables = 'public\\.other'
[[transforms]]
type = "fields"
tables = 'public\\.items'
exclude = "secret"
renames = "name:title"
"""


pytestmark = pytest.mark.shop(
    sql="CREATE TABLE items (id int PRIMARY KEY, name text, secret text);"
    "CREATE TABLE other (id int PRIMARY KEY);"
    "INSERT INTO items VALUES (1, 'bolt', 'x'); INSERT INTO other VALUES (1)",
    variables={"COLUMNS": "400"},
)


def runs(shop: Shop, code: int = 0, **config: str) -> str:
    """Run a connector's file until nothing comes; return what is said."""
    said = shop.says("run", shop.connector(**config), "--until-idle", 0.3, code=code)
    return " ".join(said.replace("│", " ").split())


@pytest.mark.parametrize("kind", ["records", "events"])
def test_a_sink_of_changes_is_refused_before_anything_is_made(shop, kind):
    shop.sink = {"type": "changelog", "path": "out"}
    path, reported = shop.connector(**ROUTED), "WT-3205"
    if kind == "events":
        shop.more, reported = FIELDS, "take the transform fields out of"
        path = shop.path
    for command, code in (("doctor", 1), ("run", 1 if kind == "records" else 2)):
        done = shop.waltap(command, path)
        said = f"{done.stdout}{done.stderr}"
        assert done.returncode != 0
        assert "the sink changelog takes the changes themselves" in said
        assert reported in said or (command == "doctor" and kind == "records")
        assert "Traceback" not in said
    assert shop.made() == []
    assert not (shop.folder / "out").exists()


def test_a_transform_that_fails_confirms_nothing_and_a_predicate_lets_it_go_on(shop):
    key = {
        "transforms": "key",
        "transforms__key__type": f"{CONNECT}.ValueToKey",
        "transforms__key__fields": "op",
    }
    runs(shop, **key)
    assert [r["key"]["payload"] for r in shop.records()] == [{"op": "r"}, {"op": "r"}]
    # a tombstone
    shop.database.psql("INSERT INTO items VALUES (2, 'nut'); DELETE FROM items WHERE id = 1")
    said = runs(shop, code=1, **key)
    for words in (
        "WT-3204", "transform key (value-to-key)", "topic shop.public.items", '{"id":1}', "RecordIsTombstone",
    ):  # fmt: skip
        assert words in said
    live = {
        "transforms__key__predicate": "dead",
        "transforms__key__negate": "true",
        "predicates": "dead",
        "predicates__dead__type": "RecordIsTombstone",
    }
    runs(shop, **key, **live)
    found = [r["key"]["payload"] for r in shop.records()[2:]]
    assert {"op": "c"} in found
    assert found[-2:] == [{"op": "d"}, {"id": 1}]


CHUNKS = """
CREATE SCHEMA _timescaledb_catalog; CREATE SCHEMA _timescaledb_internal; SET search_path = _timescaledb_catalog;
CREATE TABLE hypertable (id int PRIMARY KEY, schema_name name, table_name name);
CREATE TABLE chunk (id int PRIMARY KEY, hypertable_id int, schema_name name, table_name name);
CREATE TABLE continuous_agg (mat_hypertable_id int PRIMARY KEY, user_view_schema name, user_view_name name);
INSERT INTO hypertable VALUES (1, 'public', 'conditions'), (2, '_timescaledb_internal', 'materialized_2');
INSERT INTO chunk VALUES (1, 1, '_timescaledb_internal', 'chunk_1'), (2, 2, '_timescaledb_internal', 'chunk_2');
INSERT INTO continuous_agg VALUES (2, 'public', 'conditions_daily');
SET search_path = _timescaledb_internal;
CREATE TABLE chunk_1 (id int PRIMARY KEY); CREATE TABLE chunk_2 (id int PRIMARY KEY);
CREATE TABLE no_chunk (id int PRIMARY KEY); INSERT INTO chunk_1 VALUES (1);
"""
"""A hypertable and a continuous aggregate with a chunk each, in a catalogue such as TimescaleDB's."""


def test_events_of_chunks_are_those_of_their_hypertable(shop):
    shop.database.psql(CHUNKS)
    config = {
        "schema__include__list": "_timescaledb_internal",
        "transforms": "chunks",
        "transforms__chunks__type": "io.debezium.connector.postgresql.transforms.timescaledb.TimescaleDb",
        "transforms__chunks__database__hostname": "as Debezium wants it",
        "transforms__chunks__target__topic__prefix": "ts",
    }
    runs(shop, **config)
    shop.database.psql(
        "INSERT INTO _timescaledb_internal.chunk_2 VALUES (2);"
        "INSERT INTO _timescaledb_internal.no_chunk VALUES (3);"
        "CREATE TABLE _timescaledb_internal.chunk_3 (id int PRIMARY KEY);"
        "INSERT INTO _timescaledb_catalog.chunk VALUES (3, 1, '_timescaledb_internal', 'chunk_3');"
        "INSERT INTO _timescaledb_internal.chunk_3 VALUES (4);"
        "UPDATE _timescaledb_internal.chunk_1 SET id = 5"
    )
    said = runs(shop, **config)
    assert said.count("_timescaledb_internal.no_chunk is no chunk of a hypertable") == 1
    found = []
    for record in shop.records():
        headers = {
            each["key"]: each["value"] for each in record["headers"] if "timescale" in each["key"]
        }
        event = (record["value"] or {}).get("payload")
        source = event and (event["source"]["schema"], event["source"]["table"])
        found.append((record["topic"], source, {k: v["payload"] for k, v in headers.items()}))
    start, internal = "__debezium_timescaledb_", "_timescaledb_internal"

    def of(number: int) -> dict[str, str]:
        return {f"{start}chunk_table": f"chunk_{number}", f"{start}chunk_schema": internal}

    view = {f"{start}hypertable_table": "materialized_2", f"{start}hypertable_schema": internal}
    conditions = ("public", "conditions")
    assert found == [
        ("ts.public.conditions", conditions, of(1)),
        ("ts.public.conditions_daily", ("public", "conditions_daily"), of(2) | view),
        (f"shop.{internal}.no_chunk", (internal, "no_chunk"), {}),
        ("ts.public.conditions", conditions, of(3)),
        ("ts.public.conditions", conditions, of(1)),
        (f"shop.{internal}.chunk_1", None, {}),
        ("ts.public.conditions", conditions, of(1)),
    ]


def test_rows_without_their_event_are_no_cloudevents(shop):
    """Debezium sends null for each, which deletes the row wherever topics are compacted."""
    unwrap = {
        "value__converter": "io.debezium.converters.CloudEventsConverter",
        "transforms": "unwrap",
        "transforms__unwrap__type": "io.debezium.transforms.ExtractNewRecordState",
    }
    said = runs(shop, code=2, **unwrap)
    assert shop.made() == []
    assert "transform unwrap" in said
    assert "writes change events" in said
    # of some records only: the profile does not show which
    some = {name: value for name, value in ROUTED.items() if name.startswith("predicates")}
    said = runs(shop, code=1, **unwrap, **some, transforms__unwrap__predicate="items")
    assert "cloudevents writes change events" in said
    assert shop.records() == []


def test_events_of_an_outbox_are_cloudevents_with_their_source_in_headers(shop):
    """The router leaves no source block in the value: HeaderFrom keeps it."""
    shop.database.psql(
        "CREATE TABLE outbox (id uuid PRIMARY KEY, aggregatetype text NOT NULL, aggregateid text NOT NULL,"
        " type text NOT NULL, payload jsonb);"
        "INSERT INTO outbox VALUES ('59a42efd-b015-44a9-9dde-cb36d9002425', 'User', '7', 'UserCreated',"
        """ '{"name": "Ä", "n": 7005}')"""
    )
    routed = {
        "table__include__list": "public.outbox",
        "value__converter": "io.debezium.converters.CloudEventsConverter",
        "value__converter__metadata__source": "header",
        "value__converter__json__schemas__enable": "false",
        "transforms": "keep,outbox",
        "transforms__keep__type": f"{CONNECT}.HeaderFrom$Value",
        "transforms__keep__fields": "source,op",
        "transforms__keep__headers": "source,op",
        "transforms__keep__operation": "copy",
        "transforms__outbox__type": "io.debezium.transforms.outbox.EventRouter",
        "transforms__outbox__table__expand__json__payload": "true",
        "transforms__outbox__table__fields__additional__placement": "type:header",
    }
    runs(shop, **routed)
    (record,) = shop.records()
    assert record["topic"] == "outbox.event.User"
    event = record["value"]
    assert {name: event[name] for name in ("id", "type", "source", "data", "iodebeziumop")} == {
        "id": "59a42efd-b015-44a9-9dde-cb36d9002425",
        "type": "UserCreated",
        "source": "/debezium/postgresql/shop",
        "data": {"name": "Ä", "n": 7005},
        "iodebeziumop": "r",
    }
    # an event whose payload stays text has no data
    shop.database.psql(
        "INSERT INTO outbox VALUES (gen_random_uuid(), 'User', '7', 'UserGone', '[1]')"
    )
    said = runs(shop, code=1, **routed)
    assert "WT-3301" in said
    assert "the value must be a struct" in said


# --- converters of columns -------------------------------------------------------------------------------

PLUGIN = """
from waltap.plugins.hookspecs import hookimpl
from waltap.changes.mapping import ColumnConversion, ConnectKind, Schema
from waltap.config import Properties, declare
from waltap.ports.specs import ColumnConverterSpec

WALTAP_API = 1


class Chosen(Properties):
    column: str = declare("column", summary="Column.")
    kind: str = declare("kind", default="string", summary="What it becomes.")


def strict(text):
    if text == "bad":
        raise ValueError("no code")
    return text


def made(properties):
    ways = {
        "string": (ConnectKind.STRING, lambda text: None if text is None else "<" + strict(text) + ">"),
        "null": (ConnectKind.STRING, lambda text: "nothing" if text is None else text),
        "int32": (ConnectKind.INT32, lambda text: None if text is None else len(text)),
        "bytes": (ConnectKind.BYTES, lambda text: None if text is None else text.encode()),
    }
    kind, convert = ways[properties.kind]
    schema = Schema(kind=kind, optional=True, name="acme." + kind.name.title(), parameters=(("a", "b"),))

    def converter(relation, column):
        if properties.column != f"{relation.name}.{column.name}":
            return None
        return ColumnConversion(schema=schema, values=lambda texts: [convert(text) for text in texts])

    return converter


@hookimpl
def register_converters():
    yield ColumnConverterSpec(
        name="acme", aliases=("com.acme.Converter",), summary="Acme.", properties=Chosen, factory=made
    )
"""


@pytest.fixture
def books(database, tmp_path) -> Shop:
    database.psql(
        "CREATE TYPE mood AS ENUM ('calm', 'wild');"
        "CREATE TABLE books (id int, code text, mood mood, size numeric, place point, raw text,"
        " PRIMARY KEY (id, code));"
        "ALTER TABLE books REPLICA IDENTITY FULL;"
        "INSERT INTO books VALUES (1, 'a', 'calm', 1.5, '(1,2)', 'good'), (2, 'b', NULL, NULL, NULL, NULL)"
    )
    install_plugin(tmp_path, PLUGIN)
    made = Shop(tmp_path, database)
    made.variables = {"COLUMNS": "400"}
    return made


def converting(**columns: str) -> dict[str, str]:
    """Return properties by which columns of `books` become what is said."""
    found = {"converters": ", ".join(f"c_{name}" for name in columns)}
    for name, kind in columns.items():
        given = {"type": "com.acme.Converter", "column": f"public.books.{name}", "kind": kind}
        found |= {f"c_{name}__{what}": value for what, value in given.items()}
    return found


def payload(record: dict[str, Any]) -> dict[str, Any]:
    value: dict[str, Any] = record["value"]["payload"]
    return value


COLUMNS = converting(code="bytes", mood="string", size="int32", place="string", raw="null")


def test_snapshot_and_stream_give_the_same_values_and_schemas(books):
    runs(books, **COLUMNS)
    books.database.psql("INSERT INTO books SELECT id + 10, code, mood, size, place, raw FROM books")
    books.database.psql("UPDATE books SET mood = 'wild', code = 'c' WHERE id = 11")
    runs(books, **COLUMNS)
    read, null_read, new, null_new, gone, _, moved = books.records()
    wanted = {"code": "YQ==", "mood": "<calm>", "size": 3, "place": "<(1,2)>", "raw": "good"}
    nothing = {"code": "Yg==", "mood": None, "size": None, "place": None, "raw": "nothing"}
    assert payload(read)["after"] == {"id": 1, **wanted}
    assert payload(new)["after"] == {"id": 11, **wanted}
    assert payload(null_read)["after"] == {"id": 2, **nothing}
    assert payload(null_new)["after"] == {"id": 12, **nothing}
    assert new["key"]["payload"] == {"id": 11, "code": "YQ=="}
    assert new["value"]["schema"] == read["value"]["schema"]
    assert new["key"]["schema"] == read["key"]["schema"]
    row = read["value"]["schema"]["fields"][1]["fields"]
    assert {field["field"]: field["type"] for field in row} == {
        "id": "int32", "code": "bytes", "mood": "string", "size": "int32", "place": "string",
        "raw": "string",
    }  # fmt: skip
    assert row[2] == {
        "type": "string", "optional": True, "name": "acme.String", "parameters": {"a": "b"},
        "field": "mood",
    }  # fmt: skip
    assert payload(gone)["before"] == {"id": 11, **wanted}
    assert payload(moved)["after"] == {"id": 11, **wanted, "code": "Yw==", "mood": "<wild>"}


def test_a_value_that_cannot_be_converted_stops_where_that_is_asked_for(books):
    config = converting(raw="string") | {"snapshot__mode": "no_data"}
    mode = "event__converting__failure__handling__mode"
    runs(books, **config, **{mode: "fail"})
    books.database.psql("INSERT INTO books VALUES (3, 'c', NULL, NULL, NULL, 'bad')")
    said = runs(books, code=1, **config, **{mode: "fail"})
    assert "WT-3207" in said
    assert "the converter c_raw (acme) of column raw of public.books at LSN " in said
    assert books.records() == []
    said = runs(books, **config, **{mode: "warn"})
    assert "column raw of public.books: the converter c_raw (acme) " in said
    (record,) = books.records()
    assert payload(record)["after"]["raw"] is None


def test_converters_that_nobody_can_apply_are_refused(books):
    java = {"converters": "isbn", "isbn.type": "com.example.IsbnConverter", "isbn.prefix": "x"}
    said = runs(books, code=2, **java)
    for words in ("isbn.type", "names a Java class", "register_converters"):
        assert words in said
    books.sink = {"type": "changelog", "path": "out"}
    done = books.waltap("run", books.connector(**COLUMNS))
    assert (done.returncode != 0, "WT-3208" in done.stderr) == (True, True)


# --- columns that the server did not send are read back ---------------------------------------------------

LONG = "long " * 800


@pytest.fixture
def docs(database, tmp_path) -> Shop:
    database.psql(
        "CREATE TABLE docs (id numeric(9,2) PRIMARY KEY, body text, spare text, note text);"
        "ALTER TABLE docs ALTER body SET STORAGE EXTERNAL, ALTER spare SET STORAGE EXTERNAL;"
        f"INSERT INTO docs SELECT n + 0.5, '{LONG}' || n, '{LONG}', 'first' FROM generate_series(1, 3) AS n"
    )
    reselect = "io.debezium.processors.reselect.ReselectColumnsPostProcessor"
    made = Shop(tmp_path, database, **{"snapshot.mode": "no_data", "post.processors": "again"})
    made.source |= {"post.processors.again.type": reselect, "decimal.handling.mode": "string"}
    made.variables = {"COLUMNS": "300"}
    runs(made)
    return made


def updated(shop: Shop) -> list[dict[str, Any]]:
    events = [payload(record) for record in shop.records() if record["value"]]
    return [event["after"] for event in events if event["op"] == "u"]


def test_values_are_read_of_the_table_and_columns_that_had_the_names(docs):
    """Not of one that has its name now, nor of one that inherits."""
    docs.database.psql(
        "UPDATE docs SET note = 'second' WHERE id < 3; ALTER TABLE docs RENAME body TO b;"
        "ALTER TABLE docs RENAME spare TO body; ALTER TABLE docs RENAME b TO spare;"
        "ALTER TABLE docs RENAME TO former; CREATE TABLE docs AS TABLE former WITH NO DATA;"
        "INSERT INTO docs SELECT id, 'another', 'another' FROM former;"
        "CREATE TABLE heir () INHERITS (former); INSERT INTO heir SELECT id, 'another', 'another' FROM docs"
    )
    runs(docs)
    found = {row["id"]: (row["body"], row["spare"]) for row in updated(docs)}
    assert found == {"1.50": (f"{LONG}1", LONG), "2.50": (f"{LONG}2", LONG)}


def test_a_row_or_a_column_that_is_gone_stops_the_pipeline_or_leaves_placeholders(docs):
    docs.database.psql(
        "BEGIN; UPDATE docs SET note = 'x' WHERE id < 2; DELETE FROM docs WHERE id < 2; COMMIT"
    )
    said = runs(docs, code=1, post__processors__again__reselect__error__handling__mode="fail")
    assert "WT-3206" in said
    assert "1 rows of public.docs are gone" in said
    docs.database.psql("UPDATE docs SET note = 'x' WHERE id = 2.5; ALTER TABLE docs DROP spare")
    assert "cannot be read back" in runs(docs)
    assert [row["body"] for row in updated(docs)] == ["__debezium_unavailable_value"] * 2
