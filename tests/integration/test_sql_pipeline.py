"""PostgreSQL to PostgreSQL through the whole engine: types, DDL, snapshots, and what was there before."""

import json
from pathlib import Path

import pytest
from tests.harness.pipeline import PipelineRig
from tests.harness.servers.postgres import Database
from tests.harness.sql import pipeline

from waltap_sinks.sql.errors import SqlConstraintViolated

EVERY_TYPE = """
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE DOMAIN price AS numeric(8, 2) CHECK (VALUE >= 0);
CREATE TABLE kinds (
  id bigint PRIMARY KEY, b bool, i2 int2, i4 int4, f4 float4, f8 float8, n numeric, n2 numeric(20, 5),
  m money, t text, v varchar(20), c char(5), n1 name, bin bytea, d date, ti time, tz timetz,
  ts timestamp(3), tt timestamptz, iv interval, u uuid, j json, jb jsonb, x xml, ip inet, ci cidr, mac macaddr,
  bi bit(3), vb varbit, p point, r int4range, tr tstzrange, a int[], ta text[], aa int[][], e mood, ea mood[],
  dm price, ts2 tsvector, "odd ""name%" text
);
"""
ROWS = """
INSERT INTO kinds VALUES
 (1, true, -1, 2, 0.1, 1e300, 'NaN', 12345.67891, '$1,234.56', E'a\\t\\\\N"\\'{}%%\\nü😀', 'v', 'ab', 'n', '\\x00ff',
  'infinity', '24:00', '12:00:00+02', '2024-02-29 12:30:00.123', '4713-01-01 00:00:00+00 BC',
  '1 year -2 mons 3 days 04:05:06.7', '0b5f1a2c-3d4e-4f60-8a7b-000000000001', '{"a" : 1}', '{"b": [1]}',
  '<a>1</a>', '10.0.0.1/8', '10.0.0.0/8', '08:00:2b:01:02:03', '101', '1', '(1,2)', '[1,5)',
  '[2020-01-01 00:00:00+00,)', '{1,NULL,3}', '{"a,b",NULL,"c\\"d"}', '{{1,2},{3,4}}', 'ok', '{sad,ok}', 5.5,
  'cat:1 dog:2', 'odd'),
 (2, %s);
""" % ", ".join(["NULL"] * 39)


def assert_equal(database: Database, *tables: str) -> None:
    """Every column of the source is in the target, with the same rows."""
    for table in tables:
        names = database.execute(
            f"SELECT quote_ident(attname) FROM pg_attribute WHERE attrelid = 'public.{table}'::regclass"
            " AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
        )
        columns = ", ".join(f"{name}::text" for (name,) in names)
        both = [
            sorted(database.execute(f"SELECT {columns} FROM {schema}.{table}"), key=str)
            for schema in ("public", "replica")
        ]
        assert both[0] == both[1]


def types_of(database: Database, table: str) -> dict[str, str]:
    return dict(
        database.execute(
            "SELECT attname::text, format_type(atttypid, atttypmod) FROM pg_attribute"
            f" WHERE attrelid = '{table}'::regclass AND attnum > 0 AND NOT attisdropped"
        )
    )


def begun(database: Database, folder: Path, *statements: str, **settings: str) -> PipelineRig:
    database.run(*statements)
    p = pipeline(database, folder, **settings)
    p.catch_up()
    return p


def follow(p: PipelineRig, tables: str, *statements: str) -> None:
    """Execute statements; the target's tables follow."""
    p.deliver(*statements)
    assert_equal(p.database, *tables.split())


def test_every_type_arrives_by_snapshot_and_by_stream(database, tmp_path):
    p = begun(database, tmp_path, EVERY_TYPE, ROWS)
    assert_equal(database, "kinds")
    made = types_of(database, "replica.kinds")
    source = types_of(database, "public.kinds")
    assert {n for n in made if made[n] != source[n]} == {"dm"}
    assert made["dm"] == "numeric(8,2)"
    database.execute("UPDATE kinds SET id = id + 10, t = repeat('long', 3)")
    database.execute("ALTER TABLE kinds ALTER x SET STORAGE EXTERNAL")
    follow(p, "kinds", ROWS, "UPDATE kinds SET i4 = 7 WHERE id = 1")


def test_the_target_follows_what_becomes_of_tables(database, tmp_path):
    """Columns added, with and without default, widened, renamed, swapped, dropped and made again; a table
    that joins, and one that gets another name."""
    p = begun(
        database, tmp_path,
        "CREATE TABLE t (id int PRIMARY KEY, a varchar(5), b int2, n numeric(6, 2))",
        "INSERT INTO t VALUES (1, 'a', 1, 1.5), (2, 'b', 2, 2.5)",
    )  # fmt: skip
    follow(
        p, "t", "ALTER TABLE t ADD c text DEFAULT 'it''s', ADD d int", "UPDATE t SET d = 4 WHERE id = 2"
    )  # fmt: skip
    follow(
        p, "t",
        "ALTER TABLE t ALTER a TYPE varchar(50), ALTER b TYPE bigint, ALTER n TYPE numeric",
        "INSERT INTO t VALUES (3, repeat('a', 50), 9007199254740993, 123456.789, 'c', 5)",
    )  # fmt: skip
    assert types_of(database, "replica.t")["a"] == "character varying(50)"
    renames = (("a", "z"), ("c", "between"), ("d", "c"), ("between", "d"))
    exchanged = [f"ALTER TABLE t RENAME {old} TO {new}" for old, new in renames]
    follow(p, "t", *exchanged, "UPDATE t SET b = 0 WHERE id = 1")
    again = "ALTER TABLE t DROP b", "ALTER TABLE t ADD b text"
    follow(p, "t", *again, "UPDATE t SET b = 'new' WHERE id = 1")
    p.deliver("CREATE TABLE joined (k text PRIMARY KEY, v json)", "ALTER TABLE t RENAME TO u")
    follow(p, "u joined", "INSERT INTO joined VALUES ('x', '{}')", "UPDATE u SET z = 'last'")


@pytest.mark.parametrize("decoder", ["pgoutput", "wal2json", "decoderbufs"])
def test_rows_pass_a_deferrable_key_on(database, tmp_path, decoder):
    p = begun(
        database, tmp_path,
        "CREATE TABLE t (id int PRIMARY KEY DEFERRABLE, v float8, note text, large text)",
        "ALTER TABLE t REPLICA IDENTITY FULL; ALTER TABLE t ALTER large SET STORAGE EXTERNAL",
        "INSERT INTO t SELECT n, n / 3.0, NULLIF('x', repeat('x', n % 2)), repeat(n::text, 3000) FROM generate_series(1, 9) n",
        **{"plugin.name": decoder},
    )  # fmt: skip
    follow(
        p,
        "t",
        "UPDATE t SET id = id + 1",
        "UPDATE t SET id = 12 - id, note = id",
        "UPDATE t SET v = 1",
    )
    follow(p, "t", "UPDATE t SET id = id % 9 + 1", "DELETE FROM t WHERE id = 1")


def test_tables_without_keys_and_with_others(database, tmp_path):
    p = begun(
        database, tmp_path,
        "CREATE TABLE bag (a int, j json, c char(4), l json[])",
        "ALTER TABLE bag REPLICA IDENTITY FULL",
        "CREATE TABLE by_index (a int NOT NULL, b text NOT NULL, v int)",
        "CREATE UNIQUE INDEX by_b ON by_index (b, a)",
        "ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_b",
        "CREATE TABLE parted (id int, y int, PRIMARY KEY (id, y)) PARTITION BY LIST (y)",
        "CREATE TABLE parted_1 PARTITION OF parted FOR VALUES IN (1)",
        **{"publish.via.partition.root": "true"},
    )  # fmt: skip
    follow(
        p, "bag by_index",
        "INSERT INTO bag VALUES (1, '{\"a\":1}', 'x', '{1,NULL}')",
        "INSERT INTO bag TABLE bag",
        "INSERT INTO bag VALUES (2, NULL, NULL, NULL)",
        "INSERT INTO by_index VALUES (1, 'a', 1), (2, 'b', 2)",
        "INSERT INTO parted VALUES (1, 1)",
        "UPDATE bag SET c = 'y' WHERE ctid = (SELECT min(ctid) FROM bag WHERE a = 1)",
        "DELETE FROM bag WHERE a = 2",
        "UPDATE by_index SET b = 'c' WHERE a = 1",
        "DELETE FROM by_index WHERE a = 2",
    )  # fmt: skip
    added = "ALTER TABLE parted ADD z int DEFAULT 7"  # which its partitions alone remember
    follow(p, "parted", added, "INSERT INTO parted VALUES (2, 1, 8)")


def test_a_table_without_a_column_of_a_mapped_type_stops_no_other(database, tmp_path, caplog):
    p = begun(
        database, tmp_path,
        "CREATE TABLE areas (shape polygon)", "CREATE TABLE empty ()",
        "ALTER TABLE areas REPLICA IDENTITY FULL; ALTER TABLE empty REPLICA IDENTITY FULL",
        "CREATE TABLE t (id int PRIMARY KEY)",
        "INSERT INTO areas VALUES ('((0,0),(1,1),(2,0))'); INSERT INTO empty DEFAULT VALUES",
    )  # fmt: skip
    area = "INSERT INTO areas VALUES ('((0,0),(1,1),(3,0))')"
    others = "UPDATE areas SET shape = NULL", "DELETE FROM areas", "TRUNCATE areas, t"
    follow(p, "t", area, "INSERT INTO t VALUES (1)", *others, "INSERT INTO t VALUES (2)")
    assert "public.areas has no column that is captured" in caplog.text
    p.deliver("TRUNCATE empty", "ALTER TABLE empty ADD id int")
    follow(p, "t empty", "INSERT INTO empty VALUES (1)")


def test_a_table_gets_other_keys_in_the_transaction_that_makes_it(database, tmp_path):
    every = {"publication.autocreate.mode": "all_tables"}
    p = begun(database, tmp_path, "CREATE TABLE other (id int PRIMARY KEY)", **every)
    for _ in range(2):  # the name comes back
        database.run("DROP TABLE IF EXISTS v; CREATE TABLE v (id int PRIMARY KEY, k int NOT NULL)")
        for key in ("k", "id, k"):
            database.run(
                f"INSERT INTO v SELECT g, g * {len(key)} FROM generate_series(1, 3) g",
                f"ALTER TABLE v DROP CONSTRAINT v_pkey; ALTER TABLE v ADD PRIMARY KEY ({key})",
                "UPDATE v SET id = id + 10",
            )
        p.catch_up()
    follow(p, "v", "DELETE FROM v WHERE k = 2")


def test_a_column_that_the_source_computes_is_never_out_of_date(database, tmp_path):
    """A snapshot reads it and the stream has it not: it is left out, or the target computes its own."""
    table = "(id int PRIMARY KEY, n int, twice int GENERATED ALWAYS AS (n * 2) STORED, after text)"
    made = "CREATE SCHEMA replica", *(f"CREATE TABLE {n} {table}" for n in ("plain", "ready", "replica.ready"))  # fmt: skip
    rows = (f"INSERT INTO {n} (id, n, after) VALUES (1, 1, 'a'), (2, 2, 'b')" for n in ("plain", "ready"))  # fmt: skip
    p = begun(database, tmp_path, *made, *rows)
    follow(p, "ready", *(f"UPDATE {n} SET n = 7, after = 'c' WHERE id = 1" for n in ("plain", "ready")))  # fmt: skip
    assert list(types_of(database, "replica.plain")) == ["id", "n", "after"]
    assert sorted(database.execute("SELECT * FROM replica.plain")) == [(1, 7, "c"), (2, 2, "b")]


def test_a_refused_change_behind_others_of_its_batch_is_named(database, tmp_path):
    """The sink has committed what precedes a large transaction."""
    p = begun(database, tmp_path, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    database.run(
        "ALTER TABLE replica.t ADD CHECK (id < 7)",
        "INSERT INTO t VALUES (2)",
        "INSERT INTO t SELECT generate_series(6, 20)",
    )
    with pytest.raises(SqlConstraintViolated):
        p.catch_up(**{"max.batch.size": 4})
    assert database.execute("SELECT max(id) FROM replica.t") == [(2,)]
    database.execute("ALTER TABLE replica.t DROP CONSTRAINT t_id_check")
    follow(p, "t")


def test_masked_and_left_out_columns(database, tmp_path):
    """Masks hold, and what is excluded, or of a type that nobody maps, is not in the target."""
    table = "CREATE TABLE t (id int PRIMARY KEY, secret text, name text, gone text, lsn pg_lsn)"
    less = {"column.mask.with.3.chars": "public.t.secret", "column.exclude.list": "public.t.gone"}
    p = begun(database, tmp_path, table, **less)
    p.deliver("INSERT INTO t SELECT g, 'hidden', 'n', 'x' FROM generate_series(1, 99) g")
    p.deliver("INSERT INTO t VALUES (100, 'hidden', 'n', 'x')")
    assert list(types_of(database, "replica.t")) == ["id", "secret", "name"]
    rows = database.execute("SELECT DISTINCT secret, name FROM replica.t")
    assert rows == [("***", "n")]


def test_a_type_that_changed_marks_its_table_until_a_snapshot_replaces_it(
    database, tmp_path, caplog
):
    database.execute(
        "CREATE TABLE shifted (id int PRIMARY KEY, v int, w varchar(5), n numeric(6, 2));"
        "INSERT INTO shifted VALUES (1, 1, 'a', 1.5), (2, 2, 'b', 2.5)"
    )
    p = begun(database, tmp_path)
    p.deliver(
        "ALTER TABLE shifted ALTER w TYPE varchar(9), ALTER n TYPE numeric(9, 3);"
        "INSERT INTO shifted VALUES (3, 3, 'longer', 1.123)"
    )
    assert "new snapshot" not in caplog.text  # no value can have changed
    p.deliver(
        "ALTER TABLE shifted ALTER v TYPE text USING 'v' || v * 2;"
        "INSERT INTO shifted VALUES (4, 'v8', 'd', 4)"
    )
    assert "replica.shifted needs a new snapshot: the type of v changed" in caplog.text
    caplog.clear()
    database.execute("INSERT INTO shifted VALUES (5, 'v10', 'e', 5)")
    p.catch_up()  # it is kept, and the start reports it
    assert "the type of v changed" in caplog.text
    assert "snapshot.mode=always" in caplog.text
    p.catch_up(**{"snapshot.mode": "always"})  # the remedy
    caplog.clear()
    p.catch_up()
    assert "new snapshot" not in caplog.text
    assert_equal(database, "shifted")


def test_a_column_of_a_type_of_the_users_follows_its_next_type(database, tmp_path):
    p = begun(
        database, tmp_path,
        "CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE TYPE \"odd mood\" AS ENUM ('x')",
        "CREATE TABLE t (id int PRIMARY KEY, a mood, b mood[], c int[], d \"odd mood\")",
        "INSERT INTO t VALUES (1, 'ok', '{sad}', '{1}', 'x')",
    )  # fmt: skip
    p.deliver(
        "ALTER TABLE t ALTER a TYPE int USING 7, ALTER b TYPE date USING NULL, ALTER c TYPE mood USING NULL,"
        " ALTER d TYPE int USING 7",
        "INSERT INTO t VALUES (2, 8, '2024-02-29', 'sad', 8)",
    )
    p.catch_up(**{"snapshot.mode": "always"})
    assert_equal(database, "t")


def test_rows_whose_columns_are_in_doubt_are_read_again(database, tmp_path, caplog):
    """Nothing shows whether a change came before or after a column like the dropped one was added; the next
    run reads the rows, since the first one ends at once."""
    p = begun(
        database, tmp_path,
        "CREATE TABLE t (id int PRIMARY KEY, v int)", "INSERT INTO t VALUES (1, 1), (2, 2)",
    )  # fmt: skip
    database.execute(
        "BEGIN; UPDATE t SET v = 3 WHERE id = 2; ALTER TABLE t DROP v; ALTER TABLE t ADD v int; COMMIT"
    )

    def rows(schema: str) -> list[tuple[object, ...]]:
        return database.execute(f"SELECT id, v FROM {schema}.t ORDER BY id")

    p.catch_up()
    with p.running() as run:
        run.until(lambda: rows("replica") == rows("public"), "the rows that are read again")
        assert caplog.text.count("are read again (waltap snapshot FILE public.t)") == 1
        database.execute("UPDATE t SET v = 4 WHERE id = 1")
        run.until(lambda: rows("replica") == rows("public"), "the next change")


# --- columns whose values have parts, in targets that have no such types ---------------------------------


NESTED = """
CREATE EXTENSION hstore;
CREATE TYPE pair AS (a int, b text, c numeric(20,9), d date[]);
CREATE TABLE t (id int PRIMARY KEY, p point, h hstore, hs hstore[], c pair, cs pair[], n int[],
                f float8[]);
INSERT INTO t VALUES (1, '(1.5,-2)', 'a=>1, "q u"=>NULL', '{"b=>2",NULL}',
                      '(7,"x,""y",0,"{2020-01-01,NULL}")', '{"(,,,)",NULL}', '{1,NULL}', '{NaN,Infinity,-Infinity,1.5}')
"""
PARTS = {
    "p": {"x": 1.5, "y": -2.0},
    "h": {"a": "1", "q u": None},
    "hs": [{"b": "2"}, None],
    "c": {"a": 7, "b": 'x,"y', "c": "0.000000000", "d": ["2020-01-01", None]},
    "cs": [{"a": None, "b": None, "c": None, "d": None}, None],
    "n": [1, None],
    "f": ["NaN", "Infinity", "-Infinity", 1.5],  # JSON has no such numbers
}


@pytest.mark.parametrize("place", ["file", "maria", "duck"], indirect=True)
def test_values_with_parts_are_read_and_streamed_alike(database, place, tmp_path):
    database.execute(NESTED)
    parts = {"hstore.handling.mode": "map", "waltap.composite.types": "struct"}
    p = PipelineRig(database, tmp_path, {"sink.type": "sql", "sink.url": place.url, **parts})
    p.catch_up()
    p.deliver(
        "INSERT INTO t SELECT 2, p, h, hs, c, cs, n, f FROM t", "INSERT INTO t (id) VALUES (3)"
    )
    read, streamed, empty = place.rows("t", "id", *PARTS)
    assert read[1:] == streamed[1:]
    assert empty[1:] == (None,) * len(PARTS)
    if place.kind != "duckdb":  # which writes lists and structs in its own way
        assert [json.loads(text or "") for text in read[1:]] == list(PARTS.values())
