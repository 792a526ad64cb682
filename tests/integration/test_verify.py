"""Whatever can be read back is compared with the source by one command: every type, every difference, while both
are written, captured tables that are not there at all, and rows that only the destination has."""

import contextlib
import itertools
import json
import stat
import threading
from collections.abc import Callable, Iterator

import psycopg
import pytest
from click.testing import Result
from tests.harness.meanwhile import RoundPortions, meanwhile
from tests.harness.pipeline import SIGNALS, PipelineRig, until
from tests.harness.servers.postgres import Database
from tests.harness.shop import Shop
from tests.harness.sql import pipeline as to_replica
from typer.testing import CliRunner

from waltap.cli.application import application
from waltap.errors import ConfigurationError, SinkError, SourceError
from waltap_sinks.comparison.source import ComparisonSource

TABLES = """
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE DOMAIN price AS numeric(8, 2);
CREATE TABLE kinds (
  id bigint PRIMARY KEY, b bool, i2 int2, i4 int4, f4 float4, f8 float8, n numeric, n2 numeric(20, 5),
  t text, v varchar(20), c char(5), bin bytea, d date, ti time, ts timestamp(3), tt timestamptz,
  iv interval, u uuid, j json, jb jsonb, ip inet, a int[], ta text[], e mood, dm price, "odd %% ""name" text
);
INSERT INTO kinds VALUES
 (1, true, -1, 2, 0.1, 1e300, 12.50, 12345.67891, E'a\\t\\\\N"\\'{}\\nü😀', 'v', 'ab', '\\x00ff', '2024-02-29',
  '05:17:00.25', '2024-02-29 12:30:00.123', '1969-12-31 23:59:59.999999+00', '1 year -2 mons 3 days 04:05:06.7',
  '0b5f1a2c-3d4e-4f60-8a7b-000000000001', '{"a" : 1}', '{"b": [1]}', '10.0.0.1', '{1,NULL,3}', '{"a,b",NULL,"c\\"d"}',
  'ok', 5.50, 'odd'),
 (2, false, 0, 0, -0.0, -0.0, 0.00, 0, '', '', '', '\\x', '0001-01-01', '00:00', '0001-01-01 00:00:00',
  '9999-12-31 23:59:59.999999+00', '0', NULL, 'null', '[]', '::1/64', '{}', '{}', 'sad', 0, ''),
 (3, %s);
CREATE TABLE bag (a int, b text);
ALTER TABLE bag REPLICA IDENTITY FULL;
INSERT INTO bag VALUES (1, 'x'), (1, 'x'), (2, NULL);
CREATE TABLE pairs (a int, b varchar(20), n int, PRIMARY KEY (b, a));
INSERT INTO pairs SELECT g, 'k' || g %% 7, g FROM generate_series(1, 300) g;
""" % ", ".join(["NULL"] * 25)

SPOILT = "b i2 i4 f4 f8 n n2 t v c bin d ti ts tt iv u j jb ip a ta e dm".split()

CHANGES = """
UPDATE kinds SET v = 'other', n = 1.10 WHERE id = 1;
INSERT INTO kinds (id, t) SELECT 10, repeat('long ', 10000);
UPDATE kinds SET id = 20, i4 = 7 WHERE id = 10;
DELETE FROM kinds WHERE id = 3;
UPDATE bag SET b = 'y' WHERE ctid = (SELECT min(ctid) FROM bag);
DELETE FROM bag WHERE a = 2;
UPDATE pairs SET n = n + 1 WHERE a % 3 = 0;
DELETE FROM pairs WHERE a > 290;
"""


class Destination:
    """A pipeline from a database of the test's own, and how rows are spoilt in what it filled."""

    def __init__(self, pipeline: PipelineRig, spoil: Callable[[str], object]) -> None:
        self.pipeline, self.database, self.spoil = pipeline, pipeline.database, spoil
        self.transforms = ""

    def command(self, *words: str) -> Result:
        profile = self.pipeline.file()
        profile.write_text(profile.read_text() + self.transforms)
        return CliRunner().invoke(application, [*words, str(profile)], env={"COLUMNS": "300"})

    def verify(
        self, *options: str, patience: float = 0, refused: type[Exception] | None = None
    ) -> tuple[int, str]:
        """Run ``waltap verify``; return exit code and what it printed. Raises: ``refused``."""
        done = self.command("verify", "--patience", str(patience), *options)
        if refused is not None and isinstance(done.exception, refused):
            raise done.exception
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return done.exit_code, " ".join(done.output.replace("│", " ").split())

    def says(self, *options: str, code: int = 0, patience: float = 0) -> str:
        """Run ``waltap verify``, which ends with ``code``; return what it printed."""
        found, output = self.verify(*options, patience=patience)
        assert found == code, output
        return output


TARGETS = ("postgres", "file", "maria", "duck")


@pytest.fixture(params=(*TARGETS, "changelog"))
def destination(request, database, tmp_path) -> Destination:
    database.execute(TABLES)
    kind = request.param
    if kind == "postgres":

        def spoil(statement: str) -> None:
            with psycopg.connect(database.dsn, autocommit=True) as connection:
                connection.execute("SET search_path = replica")
                connection.execute(statement.encode())

        return Destination(to_replica(database, tmp_path), spoil)
    settings = {"schema.include.list": "public", "sink.type": "changelog"}
    if kind == "changelog":
        settings["sink.path"] = str(tmp_path / "log")
        return Destination(PipelineRig(database, tmp_path, settings), lambda _statement: None)
    place = request.getfixturevalue(kind)
    settings |= {"sink.type": "sql", "sink.url": place.url}
    return Destination(PipelineRig(database, tmp_path, settings), place.execute)


def test_every_type_is_equal_and_each_difference_is_found(destination):
    database = destination.database
    destination.pipeline.catch_up()
    destination.says()
    database.run(*CHANGES.split(";\n"))
    output = destination.says(code=1)
    for key in ("id=20", "id=3"):
        assert key in output, "rows that only one side has"
    destination.pipeline.catch_up()
    destination.says()
    printed = destination.command("verify", "--patience", "0", "--json").stdout
    assert {each["verdict"] for found in json.loads(printed) for each in found["tables"]} == {
        "equal"
    }
    sets = ", ".join(f"{column} = NULL" for column in SPOILT)
    database.execute(f"UPDATE kinds SET {sets} WHERE id = 1")
    output = destination.says("--table", "public.kinds", code=1)
    assert f"in {', '.join(SPOILT)}" in output
    assert "(id=1)" in output
    for column in SPOILT:
        assert f"{column}: NULL | '" in output
    database.execute("ALTER TABLE pairs ADD more int")  # a column that is not there must be named
    output = destination.says("--table", "public.pairs", code=1)
    assert "--without more" in output
    assert destination.verify("--table", "public.pairs", "--without", "public.pairs.more")[0] == 0
    database.execute("ALTER TABLE pairs RENAME n TO m")  # of which the target has not heard yet
    assert destination.verify("--table", "public.pairs", "--without", "more")[0] == 0
    output = destination.says("--without", "more", "--table", "public.elsewhere", code=1)
    assert "public.elsewhere is not in" in output


def test_one_of_several_sinks_that_cannot_be_read_hides_no_other(database, tmp_path):
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    pipeline, lost = PipelineRig(database, tmp_path), tmp_path / "gone.db"
    pipeline.branches = [
        {"name": "lines", "type": "jsonl", "path": str(tmp_path / "lines.jsonl")},
        {"name": "lost", "type": "sql", "url": f"sqlite:///{lost}"},
        {"name": "log", "type": "changelog", "path": str(tmp_path / "log")},
    ]
    pipeline.catch_up()
    verify = Destination(pipeline, lambda _statement: None).verify
    code, output = verify()
    assert code == 1
    assert "lines was not compared: the rows of sink jsonl cannot be read back" in output
    assert output.count("public.t 1 1") == 2
    assert verify("--sink", "log")[0] == 0
    lost.write_bytes(b"no database" * 100)
    with pytest.raises(SinkError, match="not a database"):
        verify(refused=SinkError)
    output = Destination(pipeline, lambda _statement: None).command("verify").output
    assert "lost was not compared: " in output
    assert "public.t" in output.split("lost was not compared")[1]
    with pytest.raises(ConfigurationError, match="rows of sink jsonl cannot be read back"):
        verify("--sink", "lines", refused=ConfigurationError)


@pytest.mark.parametrize("destination", ["postgres", "changelog"], indirect=True)
def test_both_sides_are_written_meanwhile(destination):
    """One row is written again and again, others now and then; one that is wrong is found all the same."""
    database, portions = destination.database, RoundPortions(1000)

    def write(stop: threading.Event) -> None:
        with psycopg.connect(database.dsn, autocommit=True) as connection:
            for n, _ in enumerate(portions(stop)):
                connection.execute("UPDATE pairs SET n = n + 1 WHERE a = 1")
                connection.execute("UPDATE pairs SET n = n + 1 WHERE a = %s", [2 + n % 250])

    destination.pipeline.catch_up()
    with destination.pipeline.running() as run, meanwhile(write):
        portions.add()
        destination.says(patience=60.0)
        if destination.pipeline.settings["sink.type"] == "sql":
            destination.spoil("UPDATE pairs SET n = -5 WHERE a = 280")

            def seen() -> bool:  # a pipeline that is behind for these seconds gives no verdict
                portions.add()
                code, output = destination.verify(patience=3.0)
                return code == 1 and "a=280" in output

            until(seen, "the row that is wrong")
        run.stop()


@pytest.mark.parametrize("destination", ["file"], indirect=True)
def test_a_row_that_stays_wrong_while_both_sides_go_on_is_not_waited_for(destination):
    destination.pipeline.catch_up()
    destination.spoil("UPDATE pairs SET n = -5 WHERE a = 280")
    destination.spoil("UPDATE bag SET b = 'z'")
    with destination.pipeline.running() as run:
        output = destination.says(patience=3600.0, code=1)
        run.stop()
    assert "a=280" in output
    assert output.count("DIFFERENT") == 2, output


def test_a_standby_that_is_behind_the_destination_is_waited_for(
    private_server, tmp_path, monkeypatch
):
    private_server.execute("SELECT pg_create_physical_replication_slot('second', true)")
    database = private_server.create_database("shop")
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'old')")
    settings = {"sink.type": "sql", "sink.url": f"sqlite:///{tmp_path}/rows.db"}
    pipeline = PipelineRig(database, tmp_path, settings)
    pipeline.catch_up()
    standby = private_server.standby("second")
    there, asked, position = Database(standby, "shop"), itertools.count(), ComparisonSource.position

    def goes_on(source: ComparisonSource) -> int | None:
        if next(asked) == 9:
            there.execute("SELECT pg_wal_replay_resume()")
        return position(source)

    try:
        there.execute("SELECT pg_wal_replay_pause()")
        pipeline.deliver("UPDATE t SET v = 'new'")
        monkeypatch.setattr(ComparisonSource, "position", goes_on)
        Destination(pipeline, lambda _statement: None).says("--dsn", there.dsn, patience=120.0)
    finally:
        standby.remove()
    assert next(asked) > 9


@pytest.mark.parametrize("destination", ["changelog"], indirect=True)
def test_a_column_that_has_the_name_of_one_that_was_dropped_is_another(destination):
    database = destination.database
    database.execute("CREATE TABLE again (id int PRIMARY KEY, a text)")
    destination.pipeline.deliver("INSERT INTO again VALUES (1, 'of the old one'), (2, NULL)")
    database.execute("ALTER TABLE again DROP a; ALTER TABLE again ADD a text DEFAULT 'new'")
    destination.pipeline.deliver("UPDATE again SET a = 'set' WHERE id = 2")
    destination.says("--table", "public.again")


@pytest.mark.parametrize("destination", ["changelog"], indirect=True)
def test_a_table_is_its_oid_whatever_its_name(destination):
    database, deliver = destination.database, destination.pipeline.deliver
    destination.pipeline.settings["publication.autocreate.mode"] = (
        "all_tables"  # new tables are streamed
    )
    database.execute("DROP TABLE kinds, bag, pairs")
    tables = ("remade", "early", "kept", "x", "y", "empty", "silent")
    for name in tables:
        deliver(
            f"CREATE TABLE {name} (id int PRIMARY KEY, a text); INSERT INTO {name} VALUES (1, '{name}')"
        )
    destination.says()
    deliver(
        "DROP TABLE remade; CREATE TABLE remade (id int PRIMARY KEY); INSERT INTO remade VALUES (2)",
        "ALTER TABLE early RENAME TO late; ALTER TABLE late RENAME a TO b; INSERT INTO late VALUES (2, 'two')",
        "ALTER TABLE kept RENAME TO quiet; CREATE TABLE kept (id int PRIMARY KEY); INSERT INTO kept VALUES (3)",
        "ALTER TABLE x RENAME TO z; ALTER TABLE y RENAME TO x; ALTER TABLE z RENAME TO y",
        "UPDATE x SET a = a || '!'; INSERT INTO y VALUES (2, 'y')",
        "DROP TABLE empty; CREATE TABLE empty (id int PRIMARY KEY)",
        "ALTER TABLE silent RENAME TO hushed; CREATE TABLE silent (id int PRIMARY KEY)",
    )
    output = destination.says()
    names = (
        "public.remade 1 1",
        "public.late 2 2",
        "public.kept 1 1",
        "public.quiet 1 1",
        "public.x 1 1",
        "public.hushed 1 1",
    )
    assert all(each in output for each in (*names, "public.y 2 2")), output
    assert output.count("public.") == len(names) + 1, output


@pytest.mark.parametrize("destination", ["changelog"], indirect=True)
def test_rows_of_before_a_change_of_all_types_are_a_difference(destination):
    deliver = destination.pipeline.deliver
    deliver(
        "CREATE TABLE other (id text PRIMARY KEY, a text, b text, c bigint); "
        "INSERT INTO other VALUES ('x', 'y', 'z', 1000000000000)"
    )
    destination.database.execute(
        "ALTER TABLE other ALTER id TYPE int USING 1, ALTER a TYPE timestamptz USING now(), "
        "ALTER b TYPE bytea USING '', ALTER c TYPE bytea USING ''"
    )
    output = destination.says("--table", "public.other", code=1)
    assert "public.other 1 1" in output
    assert "only in the destination: (id=x)" in output


@pytest.mark.parametrize("destination", ["changelog"], indirect=True)
def test_a_key_of_nan_is_one_key(destination):
    deliver = destination.pipeline.deliver
    deliver(
        "CREATE TABLE f (k float8, l float4, a text, PRIMARY KEY (k, l)); INSERT INTO f VALUES ('nan', 'nan', 'a')"
    )
    deliver(
        "INSERT INTO f VALUES ('nan', 1, 'b')", "UPDATE f SET a = 'c'", "DELETE FROM f WHERE l <> 1"
    )
    assert "public.f 1 1" in destination.says("--table", "public.f")
    assert "public.f 1 1" in destination.says("--table", "public.f", "--without", "public.f.l")


@pytest.mark.parametrize("destination", ["changelog"], indirect=True)
def test_values_that_have_no_common_text_are_named_and_not_different(destination):
    destination.pipeline.deliver(
        "CREATE TYPE pair AS (a int, b int);"
        "CREATE TABLE nested (id int PRIMARY KEY, f float8[], n numeric[], d date[], u uuid[], p pair);"
        "INSERT INTO nested VALUES (1, '{nan,2}', '{1.50}', '{2024-02-29}', '{0b5f1a2c-3d4e-4f60-8a7b-000000000001}', '(1,2)')"
    )
    output = destination.says("--table", "public.nested", code=1)
    assert all(f"--without {name}" in output for name in "fnp"), output
    assert "DIFFERENT" not in output


@pytest.mark.parametrize("destination", ["changelog"], indirect=True)
def test_older_rows_have_a_default_that_the_source_no_longer_knows(destination):
    database, deliver = destination.database, destination.pipeline.deliver
    deliver("CREATE TABLE older (id int PRIMARY KEY)", "INSERT INTO older VALUES (1), (2)")
    deliver("ALTER TABLE older ADD a text DEFAULT 'old'", "INSERT INTO older VALUES (3)")
    database.execute("VACUUM FULL older")
    deliver("ALTER TABLE older RENAME a TO b", "UPDATE older SET b = 'new' WHERE id = 2")
    destination.says("--table", "public.older")
    deliver("CREATE TABLE loose (id int); ALTER TABLE loose REPLICA IDENTITY FULL")
    deliver("INSERT INTO loose VALUES (1), (2)")
    deliver(
        "ALTER TABLE loose ADD t time DEFAULT '10:00', ADD n numeric(9,2) DEFAULT 1.5, "
        "ADD z timestamptz DEFAULT '2024-01-01 10:00+02', ADD b bytea DEFAULT 'x', ADD o bit DEFAULT B'1', "
        "ADD l int[] DEFAULT '{7,NULL}', ADD m money DEFAULT '1.5'",
        "DELETE FROM loose WHERE id = 2",
    )
    assert "public.loose 1 1" in destination.says("--table", "public.loose")


@pytest.mark.parametrize("destination", ["changelog"], indirect=True)
def test_changes_count_by_the_key_that_the_table_had(destination):
    deliver = destination.pipeline.deliver
    deliver("CREATE TABLE rekeyed (id int PRIMARY KEY, k text NOT NULL)")
    deliver("INSERT INTO rekeyed VALUES (1, 'a'), (2, 'b')", "UPDATE rekeyed SET k = 'c'||id")
    deliver(
        "ALTER TABLE rekeyed DROP CONSTRAINT rekeyed_pkey, ADD PRIMARY KEY (k)",
        "INSERT INTO rekeyed VALUES (3, 'd')",
    )
    assert "public.rekeyed 3 3" in destination.says("--table", "public.rekeyed")
    deliver(
        "ALTER TABLE rekeyed DROP COLUMN k, REPLICA IDENTITY FULL", "UPDATE rekeyed SET id = id + 1"
    )
    assert "public.rekeyed 3 3" in destination.says("--table", "public.rekeyed")


@pytest.mark.parametrize("destination", ["file"], indirect=True)
def test_rows_and_columns_that_are_not_published_are_not_missed(destination):
    database = destination.database
    ((version,),) = database.execute("SHOW server_version_num")
    if int(version) < 150000:
        pytest.skip("publications have no row filters")
    database.execute(
        'CREATE TABLE f ("I d" int PRIMARY KEY, name text, secret text, v text);'
        "INSERT INTO f SELECT n, 'n%%' || n, 's' FROM generate_series(1, 9) n;"
        "CREATE TABLE nothing (id int PRIMARY KEY); INSERT INTO nothing VALUES (1);"
        """CREATE PUBLICATION part FOR TABLE f ("I d", name) WHERE (name LIKE '%n%' AND "I d" > 3),"""
        " nothing WHERE (id > 1), pairs"
    )
    destination.pipeline.settings |= {
        "publication.name": "part",
        "publication.autocreate.mode": "disabled",
        "table.include.list": "public.f,public.nothing,public.pairs",
    }
    destination.pipeline.catch_up()
    destination.says()
    destination.spoil('UPDATE f SET name = NULL WHERE "I d" = 4')
    destination.spoil("INSERT INTO f VALUES (3, 'n%3')")
    output = destination.says(code=1)
    assert "I d=4" in output
    assert "I d=3" in output
    assert "I d=5" not in output


# --- captured tables that the destination lacks ------------------------------------------------------------

LATER = """
CREATE TABLE later (id int PRIMARY KEY); INSERT INTO later VALUES (1), (2);
CREATE TABLE empty (id int PRIMARY KEY);
CREATE SCHEMA other; CREATE TABLE other.t (id int PRIMARY KEY); INSERT INTO other.t VALUES (1);
CREATE TEMP TABLE passing (id int); INSERT INTO passing VALUES (1);
CREATE UNLOGGED TABLE unlogged (id int); INSERT INTO unlogged VALUES (1);
"""


@pytest.mark.parametrize("destination", ["file", "changelog"], indirect=True)
def test_a_captured_table_with_rows_that_the_destination_never_saw_is_a_difference(destination):
    destination.database.execute(SIGNALS)
    destination.pipeline.settings |= {"signal.data.collection": "public.signals"}
    destination.pipeline.catch_up()
    destination.database.execute(LATER + "INSERT INTO signals VALUES ('1', 'log', '{}')")
    output = destination.says(code=1)
    assert output.count("DIFFERENT") == 1
    assert "public.later 2 0 DIFFERENT" in output
    assert "has no such table" in output
    assert "--without public.later" in output
    for name in ("public.empty", "other.t", "passing", "unlogged", "public.signals"):
        assert name not in output, "it has no rows, or is not captured"
    output = destination.says("--without", "public.later")
    assert "public.later" not in output
    assert destination.verify("--table", "public.later")[0] == 1
    assert destination.verify("--table", "public.empty")[0] == 0
    code, output = destination.verify("--table", "public.pairs")
    assert (code, "public.later" in output) == (0, False)
    output = destination.says("--table", "other.t", code=1)
    assert "other.t is not in" in output
    none = [f"--without=public.{name}" for name in ("kinds", "pairs", "bag", "later")]
    assert "no table of this pipeline is in" in destination.says(*none, code=1)


@contextlib.contextmanager
def delivering(pipeline: PipelineRig) -> Iterator[None]:
    """Deliver until the block ends: the position that is waited for may be taken at any moment."""

    def deliver(ended: threading.Event) -> None:
        while not ended.wait(0.5):
            pipeline.catch_up()

    with meanwhile(deliver):
        yield


@pytest.mark.parametrize("destination", ["file", "changelog"], indirect=True)
def test_a_column_that_is_on_its_way_is_waited_for(destination):
    destination.pipeline.catch_up()
    destination.database.execute(
        "ALTER TABLE pairs ADD more int DEFAULT 2; UPDATE pairs SET n = n + 1 WHERE a = 1"
    )
    late = destination.verify(patience=0.3)
    assert late[0] != 0, late
    with delivering(destination.pipeline):
        code, output = destination.verify(patience=120.0)
    assert (code, "without" in output) == (0, False), output


@pytest.mark.parametrize("destination", ["file"], indirect=True)
def test_a_table_whose_first_rows_are_on_their_way_is_waited_for(destination):
    destination.pipeline.deliver("CREATE TABLE empty (id int PRIMARY KEY)")
    destination.database.execute("INSERT INTO empty VALUES (1)")
    output = destination.says(patience=0.3, code=5)
    assert "public.empty" in output
    with delivering(destination.pipeline):
        code, output = destination.verify(patience=120.0)
    assert code == 0, output
    assert "public.empty 1 1" in output


PARTS = """
CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE part_a PARTITION OF parts FOR VALUES FROM (0) TO (10);
CREATE TABLE part_b PARTITION OF parts FOR VALUES FROM (10) TO (20);
CREATE TABLE part_c PARTITION OF parts FOR VALUES FROM (20) TO (30) PARTITION BY RANGE (id);
CREATE TABLE part_d PARTITION OF part_c FOR VALUES FROM (20) TO (30);
INSERT INTO parts VALUES (1), (11), (21);
"""


@pytest.mark.parametrize("destination", ["changelog"], indirect=True)
@pytest.mark.parametrize("whole", [True, False], ids=["via root", "by partition"])
def test_rows_of_partitions_are_there_under_the_name_that_they_are_sent_by(destination, *, whole):
    settings = {"publish.via.partition.root": str(whole).lower()}
    destination.pipeline.settings |= settings
    destination.pipeline.deliver(PARTS)
    output = destination.says()
    assert ("public.parts " in output) is whole
    assert ("public.part_d " in output) is not whole
    destination.database.execute(PARTS.replace("part", "piece"))
    output = destination.says(code=1)
    reported = ["public.pieces 3 0"] if whole else [f"public.piece_{n} 1 0" for n in "abd"]
    assert all(each in output for each in reported), output
    assert output.count("DIFFERENT") == len(reported)


@contextlib.contextmanager
def role(database: Database, *tables: str) -> Iterator[str]:
    """Make a role that may read ``tables`` alone; give how to connect as it."""
    name = f"narrow_{database.name}"[:63]
    database.execute(f'CREATE ROLE "{name}"; GRANT SELECT ON {", ".join(tables)} TO "{name}"')
    try:
        yield f"{database.dsn}?options=-c%20role%3D{name}"
    finally:
        database.execute(f'DROP OWNED BY "{name}"; DROP ROLE "{name}"')


@pytest.mark.parametrize("destination", ["file"], indirect=True)
def test_what_may_be_missing_on_purpose_or_may_not_be_read_is_reported_and_does_not_count(
    destination,
):
    destination.pipeline.catch_up()
    destination.database.execute(LATER)
    with role(destination.database, "kinds", "bag", "pairs") as dsn:
        code, output = destination.verify("--dsn", dsn)
    assert code == 0, output
    assert "public.later" in output
    assert "may not read" in output
    denied = pytest.raises(SourceError, match="permission denied for table pairs")
    with role(destination.database, "kinds", "bag") as dsn, denied as refused:
        destination.verify("--dsn", dsn, refused=SourceError)
    assert str(refused.value).startswith("WT-2000")
    destination.transforms = '[[transforms]]\ntype = "filter"\ntables = "public.later"\n'
    output = destination.says()
    assert "public.later" in output
    assert "not compared" in output
    assert "DIFFERENT" not in output


# --- rows that only the destination has: all are named in a file, with SQL that removes them --------------------

KEYS = ["it''s", r"back\slash", "line\nend", "ü😀", "-- no; comment", "g", "h", "i", "j", "k", "l"]


TYPED = {
    "boolean": ("false", "true"),
    "double precision": ("3", "1.5"),
    "real": ("3", "0.1"),
    "bytea": (r"'\x30'", r"'\x00ff27'"),
    "numeric(20,4)": ("3", "1.5000"),
    "date": ("'2024-01-01'", "'2024-02-29'"),
    "time": ("'10:00'", "'10:00:00.25'"),
    "timestamp": ("'2024-01-01 00:00'", "'2024-02-29 10:00:00.25'"),
    "timestamptz": ("'2024-01-01 00:00+00'", "'2024-02-29 10:00:00.25+02'"),
    "uuid": (
        "'00000000-0000-0000-0000-000000000003'",
        "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'",
    ),
    "interval": ("'3 days'", "'1 month 2 days 00:00:01.5'"),
    "character(5)": ("'a'", "'b'"),
    "inet": ("'10.0.0.1'", "'10.0.0.0/8'"),
}
"""Types of keys: a key that stays, and one whose row goes at the source."""


@pytest.mark.parametrize("destination", TARGETS, indirect=True)
def test_the_file_names_all_and_its_sql_removes_them_and_no_other(destination, tmp_path):
    database = destination.database
    for number, key in enumerate(KEYS):
        database.execute(f"INSERT INTO pairs VALUES ({1000 + number}, '{key}', 1)")
    columns = ", ".join(f"k{number} {type_}" for number, type_ in enumerate(TYPED))
    names = ", ".join(f"k{number}" for number in range(len(TYPED)))
    rows = [f"({', '.join(values)})" for values in zip(*TYPED.values(), strict=True)]
    database.execute(
        f"CREATE TABLE keyed ({columns}, PRIMARY KEY ({names})); INSERT INTO keyed VALUES {', '.join(rows)}"
    )
    for name in ('"a b"', "a_b"):  # of which two files are made
        database.execute(f"CREATE TABLE {name} (id int PRIMARY KEY); INSERT INTO {name} VALUES (1)")
    destination.pipeline.catch_up()
    database.execute("SELECT pg_drop_replication_slot(%s)", destination.pipeline.slot)
    database.execute('DELETE FROM "a b"; DELETE FROM a_b')
    database.execute("DELETE FROM pairs WHERE a >= 1000")
    database.execute(f"DELETE FROM keyed WHERE k0 = {TYPED['boolean'][1]}")
    output = destination.says(code=1)
    assert f"all {len(KEYS)} rows of public.pairs that only the destination has" in output
    heads = []
    for place in tmp_path.rglob("differences/*.sql"):
        assert stat.S_IMODE(place.stat().st_mode) == 0o600
        head, _, statements = place.read_text().partition("\n")
        heads.append((statements.count("DELETE FROM"), head.partition(" of ")[0]))
        for statement in filter(None, statements.split(";\n")):
            destination.spoil(statement)
    assert max(heads) == (len(KEYS), f"-- {len(KEYS)} rows")
    destination.says()
    assert not list(tmp_path.rglob("differences/*"))


# --- targets ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("destination", TARGETS, indirect=True)
def test_rows_that_are_marked_as_deleted_are_no_difference(destination):
    destination.pipeline.settings["sink.delete.mode"] = "soft"
    destination.pipeline.catch_up()
    destination.pipeline.deliver("DELETE FROM pairs WHERE a > 290")
    assert "pairs 290 290" in destination.says()
    destination.spoil("UPDATE pairs SET deleted_at = NULL WHERE a = 300")
    assert "a=300" in destination.says(code=1)


def test_a_table_with_more_columns_than_a_function_has_arguments(database, tmp_path):
    """Both sides hash rows in SQL. A table has up to 1,600 columns, a function of PostgreSQL 100 arguments."""
    columns = ", ".join(f"c{n} int" for n in range(250))
    database.execute(f"CREATE TABLE wide (id int PRIMARY KEY, {columns})")
    database.execute("INSERT INTO wide (id, c0, c249) VALUES (1, 1, 1), (2, 2, 2)")
    wide = Destination(to_replica(database, tmp_path), lambda _statement: None)
    wide.pipeline.catch_up()
    wide.says()
    database.execute("UPDATE replica.wide SET c249 = 7 WHERE id = 2")
    output = wide.says(code=1)
    assert "c249: 2 | 7" in output.replace("'", "")


@pytest.mark.parametrize("pattern", ["replica.{table}", "{table}"])
def test_sequences_are_moved_on_request(database, tmp_path, pattern):
    database.execute("CREATE TABLE t (id serial PRIMARY KEY, n int GENERATED ALWAYS AS IDENTITY)")
    database.execute("CREATE SCHEMA replica")
    database.execute(
        "CREATE TABLE replica.t (id serial PRIMARY KEY, n int GENERATED ALWAYS AS IDENTITY)"
    )
    database.execute("INSERT INTO t SELECT FROM generate_series(1, 40)")
    target = Destination(to_replica(database, tmp_path), database.execute)
    target.pipeline.settings["sink.table.name.format"] = pattern
    target.pipeline.settings["sink.url"] = f"{database.dsn}?options=-csearch_path%3Dreplica"
    target.pipeline.catch_up()
    done = target.command("sql", "sequences")
    assert done.exit_code == 0, done.output
    assert sorted(done.output.split("\n"))[1:] == ["replica.t_id_seq: 40", "replica.t_n_seq: 40"]
    assert database.execute("INSERT INTO replica.t DEFAULT VALUES RETURNING id, n") == [(41, 41)]
    assert "is where its rows are" in target.command("sql", "sequences").output
    compared = target.command("sql", "verify", "--dsn", database.dsn, "--patience", "0")
    assert (compared.exit_code, "DIFFERENT" in compared.output) == (1, True), "a row of its own"


def test_what_a_target_does_not_hold_is_reported_before_the_run_with_what_ends_it(
    database, mariadb, tmp_path
):
    """`doctor` and `plan` report it."""
    shop = Shop(tmp_path, database)
    name = f"held_{database.name}"
    mariadb.execute(f"CREATE DATABASE {name}")
    database.execute(
        "CREATE TABLE words (a text, b text, v text, PRIMARY KEY (a, b));"
        "CREATE TABLE short (a varchar(256), b varchar(9), n int, PRIMARY KEY (a, b, n))"
    )
    shop.source["table.include.list"] = "public.words,public.short"
    shop.sink = {"type": "sql", "url": mariadb.url(name)}

    def reported(command: str, verdict: str) -> list[dict[str, str]]:
        found = json.loads(shop.waltap(f"{command} FILE --json").stdout)
        checks = found["problems"] if command == "plan" else found
        return [c for c in checks if c["name"].startswith("target") and c["verdict"] == verdict]

    for command in ("doctor", "plan"):
        (keys,) = reported(command, "warning")
        assert "384 characters of a, b, of the key of public.words (768 by 2" in keys["found"]
    limit = keys["remedy"].partition("ALTER TABLE")[2].partition("; or")[0]
    database.execute("ALTER TABLE" + limit)
    mariadb.execute(
        f"CREATE TABLE {name}.words (a varchar(99) COLLATE latin1_swedish_ci, b varchar(99) COLLATE"
        " utf8mb4_nopad_bin, v text CHARACTER SET latin1, PRIMARY KEY (a, b))"
    )
    (refused,) = reported("doctor", "error")
    assert "compares keys in a" in refused["found"]
    (narrow,) = [c for c in reported("doctor", "warning") if c["name"] == "target words"]
    assert "column v is latin1" in narrow["found"]
    for remedy in (refused["remedy"], narrow["remedy"]):  # they suffice as they stand
        statement = remedy[remedy.index("ALTER TABLE") :].partition(";")[0]
        with contextlib.closing(mariadb.connect(name)) as connection:
            connection.cursor().execute(statement)
            connection.commit()
    database.execute("INSERT INTO words VALUES ('k', 'K', '\U0001f600')")
    shop.run()
    mariadb.execute(f"DROP DATABASE {name}")
