"""No function that another planted runs with the rights of waltap's role: neither by the SQL of signals, nor in any session
of ours, for which others may have planted functions and operators that fit our calls better than the built-in ones."""

import itertools
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.harness.pipeline import PipelineRig
from tests.harness.servers.postgres import Database
from tests.harness.shop import Shop
from tests.harness.sql import pipeline as to_replica
from tests.harness.sql import replica

from waltap.changes.decode.relation import Relation
from waltap.errors import SourceError
from waltap_postgres.catalog.catalogue import PostgresCatalogue
from waltap_postgres.connection import PostgresSession, watch
from waltap_postgres.errors import ConditionRefused
from waltap_postgres.properties import PostgresProperties
from waltap_postgres.snapshot.condition import ConditionCheck, parse_tree

pytestmark = pytest.mark.pipeline(
    signals=True,
    sql="CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a'), (2, 'b')",
    settings={
        "snapshot.mode": "no_data",
        "incremental.snapshot.chunk.size": 10,
        "waltap.new.tables": "snapshot",
    },
)
RAISES = "LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION 'planted'; END$$;"
PLANTED = f"""
CREATE FUNCTION checks(anyelement) RETURNS bool {RAISES}
CREATE DOMAIN checked AS text CHECK (VALUE IS NULL OR VALUE = 'ok' OR public.checks(VALUE));
CREATE DOMAIN reads AS text CHECK (VALUE IS NULL OR query_to_xml(VALUE, true, true, '') IS NOT NULL);
CREATE DOMAIN sleeps AS text CHECK (VALUE IS NULL OR pg_sleep(1000) IS NULL);
CREATE TYPE holds AS (a checked);
CREATE TYPE spans AS RANGE (subtype = checked);
CREATE TYPE plain AS (a int);
CREATE TYPE mood AS ENUM ('low', 'high');
CREATE FUNCTION prints(plain) RETURNS text {RAISES}
CREATE FUNCTION prints(mood) RETURNS json {RAISES}
CREATE CAST (plain AS text) WITH FUNCTION prints(plain);
CREATE CAST (mood AS json) WITH FUNCTION prints(mood);
"""

# --- the check, in a session of its own ------------------------------------------------------------------

BUILT_IN_NAMES = f"""
CREATE TABLE kept (id int PRIMARY KEY, "a b" int, v text);
CREATE TABLE odd (id int, "{{SUBLINK}}" int, ":relid" int, " :relid" int);
CREATE SCHEMA y; CREATE SEQUENCE s;
CREATE FUNCTION pg_catalog.stolen(int) RETURNS bool {RAISES}
CREATE FUNCTION pg_catalog.stolen(int, int) RETURNS bool {RAISES}
CREATE OPERATOR pg_catalog.=== (FUNCTION = pg_catalog.stolen, LEFTARG = int, RIGHTARG = int);
CREATE DOMAIN pg_catalog.checked_there AS text CHECK (VALUE = 'ok');
CREATE TYPE pg_catalog.spans_there AS RANGE (subtype = int4);
"""
"""A superuser may make things under the server's own schema, which words do not show: the tree does."""

NOT_ITS_OWN = [
    "public.steal()", "PUBLIC . steal()", '"public"."steal"()', "public/**/.steal()", "public.--\nsteal()",
    "id OPERATOR(mal.===) 1", "'x'::mal.dom IS NULL", "CAST('x' AS mal.dom) IS NULL", "public.kept '(1)' IS NULL",
    "'(1)'::public.kept IS NULL", "'(1)'::public.kept.id IS NULL", "public.kept(1)",
    "'' || $a$ $b$ $a$ = mal.evil()", "v = 'it''s' OR mal.evil()", "v = E'\\'' OR mal.evil() OR v = ''",
    "ströme.evil()", "'x'::public.checked IS NULL", "id OPERATOR(public.===) 1",
]  # fmt: skip
"""Names that the words show to be neither the table's nor built in."""

CONDITIONS: dict[str, str] = {
    **dict.fromkeys(NOT_ITS_OWN, "is neither the table nor built in"),
    # what compares columns
    "id > 1": "",
    "kept.id > 1 AND public.kept.id < 9": "",
    '"kept"."id" > 1 -- public.steal()': "",
    "v = 'public.steal()' OR v = $$ mal.evil() $$": "",
    "id OPERATOR(pg_catalog.>) 1.5e3": "",
    "v ~ E'a\\'b' /* mal.evil() */": "",
    "random() < 0.1": "",
    "\"a b\" BETWEEN 1 AND 2 OR id IN (1, 2) OR v IS DISTINCT FROM coalesce(v, 'x')": "",
    # what the words hide
    'U&"mal".evil()': "write it as it is",
    "v = U&'x'": "write it as it is",
    'U&"\\0070ublic".steal()': "write it as it is",
    # what is no single expression
    "true; DROP TABLE u; --": "syntax error",
    "true, false": "must be type boolean",
    "true /*": "unterminated",
    "EXISTS (SELECT FROM pg_shadow)": "no query of its own",
    "count(*) > 0": "aggregate functions are not allowed",
    "generate_series(1, 9) > 1": "set-returning functions are not",
    "$1": "(PARAM)",
    # what the tree has
    "steal()": "does not exist",
    "stolen(id)": "calls stolen, which is not built in",
    "id === 1": "an operator that is not built in",
    "v::checked_there IS NULL": "COERCETODOMAIN",
    "v::spans_there IS NULL": "the type spans_there",
    "table_to_xml('public.kept', true, true, '') IS NULL": "calls table_to_xml",
    "nextval('public.s') > 0": "calls nextval, which may have side effects",
    "set_config('a.b', '1', false) = '1'": "calls set_config",
    "pg_read_file('PG_VERSION') IS NULL": "calls pg_read_file",
    "domain_in('evil'::cstring, 'checked_there'::regtype, -1) IS NULL": "calls domain_in, which makes values",
    "pg_input_is_valid('evil', 'public.checked')": "pg_input_is_valid",  # of PostgreSQL 16 and later
    "array_in('{evil}'::cstring, 'public.checked'::regtype, -1) IS NULL": "calls array_in, which makes values",
    "record_in('(evil)'::cstring, 'public.holds'::regtype, -1) IS NULL": "calls record_in, which makes values",
}
NO_COLUMN = "no column of public.kept as it is"
STATEMENTS: dict[str, str] = {
    "SELECT x.* FROM public.kept AS x WHERE x.id > 1": "",
    'SELECT id, "a b" FROM ONLY public.kept ORDER BY 1 + id': "",
    "SELECT y.* FROM public.kept AS y WHERE y.id > 1": "is neither the table nor built in",
    'SELECT "a b" AS id FROM public.kept': NO_COLUMN,
    "SELECT kept FROM public.kept": NO_COLUMN,
    "SELECT ctid FROM public.kept": NO_COLUMN,
    "SELECT 1 AS id FROM public.kept": NO_COLUMN,
    'SELECT id AS ":id" FROM public.kept': NO_COLUMN,
    'SELECT id AS ":expr" FROM public.kept': "a name begins with a colon: :expr",
    "SELECT generate_series(1, 2) AS id FROM public.kept": "returns a set",
    "SELECT rolname FROM pg_authid": "another relation than public.kept",
    "SELECT id FROM public.kept, pg_authid": "another relation than public.kept",
    "DELETE FROM ONLY public.kept": "writes",
    "SELECT id FROM public.kept; SELECT 1": "cannot insert multiple commands",
    "VALUES (1)": "another relation than public.kept",
    'SELECT id, v FROM public.kept AS kept(v, "a b", id)': NO_COLUMN,
    "SELECT a.id, b.v FROM public.kept a, ONLY public.kept b": "another relation than public.kept",
    "WITH gone AS (DELETE FROM public.kept RETURNING *) SELECT id FROM public.kept": "no other",
    "SELECT * FROM public.kept WHERE id > ALL (SELECT 1)": "no other",
    "SELECT max(id) AS id FROM public.kept": "(AGGREF)",
    "SELECT row_number() OVER () AS id FROM public.kept": "(WINDOW",
    "": "no query of its own",
}
TYPES = {
    "checked[]": "the domain public.checked, of whose CHECK it calls checks, which is not built in",
    "sleeps": "of whose CHECK it calls pg_sleep, which may have side effects",
    "reads[]": "of whose CHECK it calls query_to_xml",
    "holds[]": "the domain public.checked",
    "spans": "the domain public.checked",
    "plain": "the type public.plain, which has a cast by prints",
    "mood[]": "the type public.mood, which has a cast by prints",
}
"""Columns of a type, and why no condition on their table is parsed at all."""

Judge = Callable[..., None]


@pytest.fixture(scope="module", params=["server", "newest_server"])
def judge(request) -> Iterator[Judge]:
    """Return what judges a condition on a table, or a statement, in a transaction that reads."""
    server = request.getfixturevalue(request.param)
    database = server.create_database("waltap_judged")
    database.execute(PLANTED + BUILT_IN_NAMES)
    for number, column in enumerate(TYPES):
        database.execute(f"CREATE TABLE c{number} (id int PRIMARY KEY, c {column})")
    properties = PostgresProperties.model_validate(database.properties())
    way = {"role": "test", "watch": watch(properties)}
    with (
        closing(PostgresSession(properties, **way)) as session,
        closing(PostgresSession(properties, **way)) as present,
    ):
        catalogue = PostgresCatalogue(present.connection, properties)

        def judged(table: str, condition: str = "", *, statement: str | None = None) -> None:
            ((oid,),) = database.execute(f"SELECT 'public.{table}'::regclass::oid::int8")
            relation = Relation(oid=oid, schema="public", table=table, columns=())
            check = ConditionCheck(relation, session.parsed, catalogue.query)
            session.execute("BEGIN READ ONLY")
            try:
                if statement is None:
                    check.condition(f"public.{table}", condition)
                else:
                    check.statement(statement)
            finally:
                session.execute("ROLLBACK")

        yield judged
    assert database.drop() == []


def refusal(judge: Judge, *what: str, **more: str) -> str:
    """Return why SQL is refused, which was not because something planted ran; "" where it passes."""
    try:
        judge(*what, **more)
    except SourceError as refused:
        assert "planted" not in refused.problem
        return refused.problem
    return ""


@pytest.mark.parametrize(("kind", "cases"), [("condition", CONDITIONS), ("statement", STATEMENTS)])
def test_a_condition_or_statement_is_of_its_table_and_of_what_is_built_in(judge, kind, cases):
    found = {sql: refusal(judge, "kept", **{kind: sql}) for sql in cases}
    assert not {
        sql: reason
        for sql, reason in found.items()
        if (says := cases[sql]) not in reason or bool(says) != bool(reason)
    }


def test_types_of_columns_that_run_something_are_refused_before_the_sql_is_parsed(judge):
    """What the condition says would be a syntax error."""
    for number, (column, says) in enumerate(TYPES.items()):
        assert says in refusal(judge, f"c{number}", "id >"), column
        assert says in refusal(judge, f"c{number}", statement="SELECT"), column


def test_names_of_columns_are_no_nodes_of_the_tree(judge):
    """The server puts a backslash before what would end a word."""
    assert refusal(judge, "odd", 'id > "{SUBLINK}"') == ""
    with pytest.raises(ConditionRefused, match="cannot be read"):
        parse_tree("}")


# --- in a pipeline ---------------------------------------------------------------------------------------

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


def ask(pipeline: PipelineRig, table: str, condition: str, kind: str) -> None:
    name = f"public.{table}"
    statement = f"SELECT * FROM {name} WHERE {condition}" if kind == "BLOCKING" else condition
    chosen = [{"data-collection": name, "filter": statement}]
    pipeline.signal("execute-snapshot", table, type=kind, additional_conditions=chosen)


@pytest.mark.pipeline(sql=ALLOWED)
@pytest.mark.parametrize("kind", ["BLOCKING", "INCREMENTAL"])
def test_types_that_only_hold_values_are_compared(pipeline, kind):
    with pipeline.running() as run:
        for times, condition in enumerate(COMPARED, 1):
            ask(pipeline, "fine", condition, kind)
            run.until(lambda n=times: pipeline.destination.ids("fine", "r") == [1] * n, condition)


@pytest.mark.pipeline(
    sql=f"{PLANTED}; CREATE TABLE later (id int PRIMARY KEY, c text[]);"
    "INSERT INTO later SELECT n, '{ok}' FROM generate_series(1, 100) n"
)
def test_a_column_that_got_another_type_is_judged_again(pipeline, database, caplog):
    """Between two chunks of a snapshot, whose condition was fine when it began."""
    destination = pipeline.destination

    def harden(_batch: object) -> None:
        if destination.ids("later", "r"):
            destination.before_write = lambda _batch: None
            database.execute("ALTER TABLE later ALTER c TYPE checked[] USING c::text[]::checked[]")

    with pipeline.running() as run:
        destination.before_write = harden
        ask(pipeline, "later", "c <> '{evil}'", "INCREMENTAL")
        run.until(lambda: "later is not read" in caplog.text, "the refusal")
    assert "the domain public.checked, of whose CHECK" in caplog.text
    assert "planted" not in caplog.text
    assert 0 < len(destination.ids("later", "r")) < 100


# --- functions that fit our calls ----------------------------------------------------------------------


SOURCES = Path(__file__).parents[2]
CALLED = re.compile(r"\b([a-z_][a-z0-9_]+)\(")
ARGUMENTS = (
    "text", "name", "oid", "int2", "int4", "int8", "bool", '"char"', "jsonb", "regclass", "timestamptz",
    "numeric", "bytea", "text[]", "name[]", "oid[]", "int2[]", "int4[]", "int8[]", "int2vector", "pg_lsn",
    "pg_node_tree", "regtype", "regproc", "varchar", "unknown",
)  # fmt: skip
OPERATORS = "= <> < > <= >= || ->> -> ~ !~ + - * / @>".split()
MOST_ARGUMENTS = 3

PLANT = """
CREATE FUNCTION plant(name text, kinds text, sets bool) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  EXECUTE format('CREATE FUNCTION public.%I(%s) RETURNS %s text LANGUAGE plpgsql AS %L', name, kinds,
    CASE WHEN sets THEN 'SETOF' ELSE '' END, 'BEGIN RAISE EXCEPTION ''planted ' || name || '''; END');
EXCEPTION WHEN OTHERS THEN NULL;  -- a signature that cannot be
END $$;
"""


def names() -> set[str]:
    """Return every name that stands before a parenthesis in what is sent to servers, and much besides."""
    files = [*SOURCES.glob("framework/src/**/*.py"), *SOURCES.glob("plugins/*/src/**/*.py")]
    return {name for path in files for name in CALLED.findall(path.read_text())}


def plant(database: Database) -> None:
    """Plant what a plain owner of a database, or up to PostgreSQL 14 anybody, may make."""
    database.execute(PLANT)
    rows = database.execute(
        "SELECT DISTINCT proname::text, pronargs::int, proretset FROM pg_proc"
        " WHERE pronamespace = 'pg_catalog'::regnamespace AND prokind = 'f'"
    )
    wanted = names()
    calls = [
        (name, ", ".join(chosen), sets)
        for name, count, sets in rows
        if name in wanted and 0 < count <= MOST_ARGUMENTS
        for chosen in (itertools.product(ARGUMENTS, repeat=count) if count == 1 else _alike(count))
    ]
    pairs = [*itertools.permutations([t for t in ARGUMENTS if t != "unknown"], 2)]
    raises = "RETURNS bool LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'planted operator'; END $$"
    with database.connect() as connection:
        # thousands of statements: in a pipeline, they need no round trip each
        planting = connection.cursor()
        planting.executemany("SELECT plant(%s, %s, %s)", calls)
        planting.execute(f"CREATE FUNCTION planted(anyelement, anyelement) {raises}")
        planting.execute(";".join(f"CREATE FUNCTION planted({a}, {b}) {raises}" for a, b in pairs))
        made = "CREATE OPERATOR public.{} (FUNCTION = planted, LEFTARG = {}, RIGHTARG = {})"
        each = (made.format(symbol, *pair) for pair in pairs for symbol in OPERATORS)
        planting.execute(";".join(each))
        ((found,),) = connection.execute(
            "SELECT count(*) FROM pg_proc WHERE pronamespace = 'public'::regnamespace"
        )
        assert found > 500
        connection.commit()


def _alike(count: int) -> Iterator[tuple[str, ...]]:
    """Yield the same type for all arguments, and for all but the first with a text or a number behind."""
    for kind in ARGUMENTS:
        for last in dict.fromkeys((kind, "text", "int4", "bool")):
            yield (kind, *([last] * (count - 1)))


TABLES = """
CREATE TYPE mood AS ENUM ('low', 'high');
CREATE TABLE people (id int PRIMARY KEY, name text, mood mood, tags text[], at timestamptz,
  amount numeric(9, 2) DEFAULT 1, doc jsonb);
INSERT INTO people SELECT n, 'n' || n, 'low', '{a,b}', now(), n, '{}' FROM generate_series(1, 300) n;
CREATE TABLE keyless (a int, b text);
ALTER TABLE keyless REPLICA IDENTITY FULL;
INSERT INTO keyless VALUES (1, 'a'), (1, 'a');
CREATE TABLE signals (id text PRIMARY KEY, type text, data text);
CREATE SCHEMA replica;
"""
CHANGES = """
INSERT INTO people VALUES (1001, 'new', 'high', '{c}', '2026-01-01', 2, '{"a": 1}');
UPDATE people SET name = 'changed' WHERE id IN (1, 2, 3);
UPDATE people SET id = 2001 WHERE id IN (4);
DELETE FROM people WHERE id IN (5, 6);
DELETE FROM keyless WHERE ctid IN ('(0,1)');
"""
SIGNAL = (
    "INSERT INTO signals VALUES ('1', 'execute-snapshot',"
    """ '{"data-collections": ["public.people"], "additional-conditions":"""
    """ [{"data-collection": "public.people", "filter": "id < 100"}]}')"""
)


def test_no_session_finds_what_was_planted(database, tmp_path):
    """Source and target are one database here: plan, snapshot, stream, signals, verify, doctor."""
    database.execute(TABLES)
    plant(database)
    shop = Shop(tmp_path, database)
    shop.source |= {
        "signal.data.collection": "public.signals",
        "table.include.list": "public.people,public.keyless",
        "read.only": False,
    }
    shop.sink = replica(database)

    def done(line: str) -> str:
        said = shop.says(line)
        assert "planted" not in said
        return said

    done("plan FILE")
    done("run FILE --until-idle 1")
    database.run(*CHANGES.split("\n"))
    database.execute(SIGNAL)
    assert "snapshot" in done("run FILE --until-idle 1")
    done("verify FILE")
    database.execute("CREATE SEQUENCE replica.numbers OWNED BY replica.people.id")
    database.execute(
        "ALTER TABLE replica.people ALTER id SET DEFAULT pg_catalog.nextval('replica.numbers')"
    )
    assert "replica.numbers: 2001" in done("sql sequences FILE")
    done("status FILE")
    done("doctor FILE")


ODD = {
    "DateStyle": "German, YMD", "IntervalStyle": "sql_standard", "TimeZone": "Asia/Kathmandu",
    "bytea_output": "escape", "extra_float_digits": "-10", "array_nulls": "off",
    "standard_conforming_strings": "off", "quote_all_identifiers": "on", "transform_null_equals": "on",
    "default_transaction_read_only": "on", "default_transaction_isolation": "serializable",
    "statement_timeout": "2000", "lock_timeout": "2000", "idle_in_transaction_session_timeout": "1",
    "client_encoding": "LATIN1", "search_path": "pg_temp, odd, public",
}  # fmt: skip
VALUES = """
CREATE TABLE kept (id int PRIMARY KEY, d date, t timestamptz, i interval, b bytea, f float8, a text[], s text);
INSERT INTO kept VALUES (1, '2026-02-03', '2026-02-03 04:05:06Z', '1 day 2 hours', '\\xff00', 1::float8 / 3,
  '{NULL,a}', 'a\\b é');
"""


def test_settings_of_a_database_change_no_event(database, tmp_path):
    """Snapshot, stream and target have the values that they have in a database without any."""
    database.execute(VALUES + "CREATE SCHEMA replica")
    with database.connect() as connection:  # one that began before they hold
        for name, value in ODD.items():
            place = value if name in ("search_path", "DateStyle") else f"'{value}'"
            connection.execute(f"ALTER DATABASE {database.name} SET {name} = {place}")
        connection.commit()
    pipeline = to_replica(database, tmp_path, **{"table.include.list": "public.kept"})
    for change in (None, "INSERT INTO public.kept SELECT 2, d, t, i, b, f, a, s FROM public.kept"):
        if change is not None:
            with database.connect() as connection:
                connection.autocommit = True
                connection.execute("SET default_transaction_read_only = off")
                connection.execute(change)
        pipeline.catch_up()
    with database.connect() as connection:
        connection.autocommit = True
        ((equal,),) = connection.execute(
            "SELECT count(*) FROM public.kept p JOIN replica.kept r ON p::text = r::text"
        )
    assert equal == 2
