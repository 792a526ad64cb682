"""A schema that others may write to holds functions and operators that fit our calls better than the built-in
ones do. No session of ours may find them: whoever calls them runs them with the rights of its role.

Each planted one raises: a command that found one would fail.
"""

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

from tests.harness.servers.postgres import Database
from tests.harness.shop import Shop
from tests.harness.sql import pipeline as to_replica
from tests.harness.sql import replica

SOURCES = Path(__file__).parents[2]
CALLED = re.compile(r"\b([a-z_][a-z0-9_]+)\(")
TYPES = (
    "text", "name", "oid", "int2", "int4", "int8", "bool", '"char"', "jsonb", "regclass", "timestamptz",
    "numeric", "bytea", "text[]", "name[]", "oid[]", "int2[]", "int4[]", "int8[]", "int2vector", "pg_lsn",
    "pg_node_tree", "regtype", "regproc", "varchar", "unknown",
)  # fmt: skip
OPERATORS = (
    "=",
    "<>",
    "<",
    ">",
    "<=",
    ">=",
    "||",
    "->>",
    "->",
    "~",
    "!~",
    "+",
    "-",
    "*",
    "/",
    "@>",
)
MOST_ARGUMENTS = 3

PLANT = """
CREATE FUNCTION plant(name text, kinds text, sets bool) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  EXECUTE format('CREATE FUNCTION public.%I(%s) RETURNS %s text LANGUAGE plpgsql AS %L', name, kinds,
    CASE WHEN sets THEN 'SETOF' ELSE '' END, 'BEGIN RAISE EXCEPTION ''planted ' || name || '''; END');
EXCEPTION WHEN OTHERS THEN NULL;  -- a signature that cannot be
END $$;
CREATE FUNCTION plant_operator(symbol text, a text, b text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  EXECUTE format('CREATE OPERATOR public.%s (FUNCTION = planted, LEFTARG = %s, RIGHTARG = %s)', symbol, a, b);
EXCEPTION WHEN OTHERS THEN NULL;
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
        for chosen in (itertools.product(TYPES, repeat=count) if count == 1 else _alike(count))
    ]
    pairs = [*itertools.permutations([t for t in TYPES if t != "unknown"], 2)]
    raises = "RETURNS bool LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'planted operator'; END $$"
    with database.connect() as connection:
        # thousands of statements: in a pipeline, they need no round trip each
        planting = connection.cursor()
        planting.executemany("SELECT plant(%s, %s, %s)", calls)
        planting.execute(f"CREATE FUNCTION planted(anyelement, anyelement) {raises}")
        planting.execute(";".join(f"CREATE FUNCTION planted({a}, {b}) {raises}" for a, b in pairs))
        planting.executemany(
            "SELECT plant_operator(%s, %s, %s)",
            [(symbol, *pair) for pair in pairs for symbol in OPERATORS],
        )
        ((found,),) = connection.execute(
            "SELECT count(*) FROM pg_proc WHERE pronamespace = 'public'::regnamespace"
        )
        assert found > 500
        connection.commit()


def _alike(count: int) -> Iterator[tuple[str, ...]]:
    """Yield the same type for all arguments, and for all but the first with a text or a number behind."""
    for kind in TYPES:
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
    """Source and target are one database here: doctor, plan, snapshot, stream, signals, verify."""
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
    done("doctor FILE")
    done("run FILE --until-idle 1")
    database.run(*CHANGES.split("\n"))
    database.execute(SIGNAL)
    assert "snapshot" in done("run FILE --until-idle 3")
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
