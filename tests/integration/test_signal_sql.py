"""Who owns a captured table, and writes signals, has no function run with the rights of waltap's role.

Types of columns run functions where nobody names any: a domain's CHECK as soon as the server parses a
literal, a cast where a built-in function prints a value. Each planted function raises.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.harness.pipeline import PipelineRig, Run
from tests.harness.servers.postgres import Database

SETTINGS = {
    "signal.data.collection": "public.signals",
    "snapshot.mode": "no_data",
    "incremental.snapshot.chunk.size": 10,
    "waltap.new.tables": "snapshot",
}
SIGNALS = (
    "CREATE TABLE signals (id varchar(64) PRIMARY KEY, type varchar(32) NOT NULL, data text);"
    "CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a'), (2, 'b')"
)
RAISES = "LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION 'planted'; END$$;"
PLANTED = f"""
CREATE FUNCTION checks(anyelement) RETURNS bool {RAISES}
CREATE DOMAIN checked AS text CHECK (VALUE IS NULL OR VALUE = 'ok' OR public.checks(VALUE));
CREATE DOMAIN reads AS text CHECK (VALUE IS NULL OR query_to_xml(VALUE, true, true, '') IS NOT NULL);
CREATE TYPE holds AS (a checked);
CREATE TYPE spans AS RANGE (subtype = checked);
CREATE TYPE plain AS (a int);
CREATE TYPE mood AS ENUM ('low', 'high');
CREATE FUNCTION prints(plain) RETURNS text {RAISES}
CREATE FUNCTION prints(mood) RETURNS json {RAISES}
CREATE CAST (plain AS text) WITH FUNCTION prints(plain);
CREATE CAST (mood AS json) WITH FUNCTION prints(mood);
"""
ATTACKS = [
    ("checked[]", "c = '{evil}'"),
    ("checked[]", "array_cat(c, '{evil}') IS NULL"),
    ("reads[]", "c @> '{SELECT 1}'"),
    ("holds", "coalesce(c, '(evil)') IS NULL"),
    ("holds", '(json_populate_record(c, \'{"a": "evil"}\')) IS NULL'),
    ("holds[]", "c = '{(evil)}'"),
    ("spans", "c = '[evil,evil]'"),
    ("plain", "'x' || c = ''"),
    ("mood", "json_build_object('a', c) IS NULL"),
    ("mood[]", "to_jsonb(c) IS NULL"),
    ("text", "domain_in('evil'::cstring, 'public.checked'::regtype, -1) IS NULL"),
    ("text", "array_in('{evil}'::cstring, 'public.checked'::regtype, -1) IS NULL"),
    ("text", "record_in('(evil)'::cstring, 'public.holds'::regtype, -1) IS NULL"),
]
ALLOWED = """
CREATE EXTENSION hstore; CREATE EXTENSION citext;
CREATE TYPE level AS ENUM ('low', 'high');
CREATE DOMAIN email AS citext CHECK (VALUE::text ~ '^[^@]+@[^@]+$');
CREATE DOMAIN count AS int CHECK (VALUE >= 0) CHECK (VALUE < 1000) NOT NULL;
CREATE TYPE part AS (n count, at email);
CREATE TYPE counts AS RANGE (subtype = int4);
CREATE TABLE fine (id int PRIMARY KEY, l level, ls level[], e email, ns count[], p part, ps part[], r counts, h hstore);
INSERT INTO fine VALUES (1, 'low', '{low}', 'a@b', '{1}', '(1,a@b)', '{"(1,a@b)"}', '[1,2)', 'a=>1');
INSERT INTO fine (id) VALUES (2);
"""
COMPARED = [
    "l = 'low'",
    "ls @> '{low}'",
    "ns[1] = 1",
    "ps IS NOT NULL AND ps = ps",
    "r @> 1",
    "coalesce(l, 'high') = 'low'",
]


@pytest.fixture
def database(database: Database) -> Iterator[Database]:
    database.execute(SIGNALS)
    yield database


def ask(run: Run, table: str, condition: str, kind: str) -> None:
    name = f"public.{table}"
    statement = f"SELECT * FROM {name} WHERE {condition}" if kind == "BLOCKING" else condition
    data: dict[str, Any] = {"type": kind, "data-collections": [name]}
    data["additional-conditions"] = [{"data-collection": name, "filter": statement}]
    assert run.engine.signal("execute-snapshot", data).result(120).accepted


def refused(
    run: Run, table: str, condition: str, kind: str, caplog: pytest.LogCaptureFixture
) -> str:
    """Ask for a table that is not read; return what the log says of it."""
    caplog.clear()
    ask(run, table, condition, kind)

    def reported() -> list[str]:
        messages = [record.getMessage() for record in caplog.records]
        return [message for message in messages if f"{table} is not read" in message]

    run.until(reported, f"the refusal of {condition}")
    return reported()[0]


@pytest.mark.parametrize("kind", ["BLOCKING", "INCREMENTAL"])
def test_types_of_columns_run_nothing(
    database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    database.execute(PLANTED)
    for number, (column, _) in enumerate(ATTACKS):
        database.execute(
            f"CREATE TABLE a{number} (id int PRIMARY KEY, c {column});"
            f"INSERT INTO a{number} (id) VALUES (1)"
        )
    database.execute("UPDATE a7 SET c = '(1)'; UPDATE a8 SET c = 'low'; UPDATE a9 SET c = '{low}'")
    pipeline = PipelineRig(database, tmp_path, SETTINGS)
    with pipeline.running() as run:
        for number, (column, condition) in enumerate(ATTACKS):
            said = refused(run, f"a{number}", condition, kind, caplog)
            assert "planted" not in said, (column, condition)
            assert pipeline.destination.ids(f"a{number}", "r") == []


@pytest.mark.parametrize("kind", ["BLOCKING", "INCREMENTAL"])
def test_types_that_only_hold_values_are_compared(
    database: Database, tmp_path: Path, kind: str
) -> None:
    database.execute(ALLOWED)
    pipeline = PipelineRig(database, tmp_path, SETTINGS)
    with pipeline.running() as run:
        for times, condition in enumerate(COMPARED, 1):
            ask(run, "fine", condition, kind)
            run.until(lambda n=times: pipeline.destination.ids("fine", "r") == [1] * n, condition)


def test_a_column_that_got_another_type_is_judged_again(
    database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Between two chunks of a snapshot, whose condition was fine when it began."""
    database.execute(PLANTED)
    database.execute(
        "CREATE TABLE later (id int PRIMARY KEY, c text[]);"
        "INSERT INTO later SELECT n, '{ok}' FROM generate_series(1, 100) n"
    )
    pipeline = PipelineRig(database, tmp_path, SETTINGS)
    destination = pipeline.destination

    def harden(_batch: object) -> None:
        if destination.ids("later", "r"):
            destination.before_write = lambda _batch: None
            database.execute("ALTER TABLE later ALTER c TYPE checked[] USING c::text[]::checked[]")

    with pipeline.running() as run:
        destination.before_write = harden
        said = refused(run, "later", "c <> '{evil}'", "INCREMENTAL", caplog)
        assert "the domain public.checked, of whose CHECK" in said
        assert "planted" not in said
    assert 0 < len(destination.ids("later", "r")) < 100


def test_a_select_leaves_out_what_is_not_published(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE PUBLICATION narrow FOR TABLE signals, t (id, v) WHERE (id <> 2)")
    settings = SETTINGS | {
        "publication.name": "narrow",
        "publication.autocreate.mode": "disabled",
    }
    pipeline = PipelineRig(database, tmp_path, settings)
    with pipeline.running() as run:
        ask(run, "t", "id > 0", "BLOCKING")
        run.until(lambda: pipeline.destination.ids("t", "r"), "the rows")
        database.execute("INSERT INTO t VALUES (3, 'c')")
        run.until(lambda: pipeline.destination.ids("t", "c") == [3], "what is behind the rows")
    assert pipeline.destination.ids("t", "r") == [1]


def test_a_name_of_a_type_in_text_is_no_way_around(
    newest_database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Functions of PostgreSQL 16 and later."""
    newest_database.execute(SIGNALS)
    newest_database.execute(PLANTED)
    pipeline = PipelineRig(newest_database, tmp_path, SETTINGS)
    with pipeline.running() as run:
        said = refused(run, "t", "pg_input_is_valid('evil', 'public.checked')", "BLOCKING", caplog)
        assert "planted" not in said
        assert "calls pg_input_is_valid" in said
    assert pipeline.destination.ids("t", "r") == []
