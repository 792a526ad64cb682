"""Whatever can be read back is compared with the source by one command: every type, every difference, and
while both are written."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.harness.pipeline import PipelineRig, until
from tests.harness.servers.postgres import Database
from typer.testing import CliRunner

from waltap.cli.application import application

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

    def __init__(
        self, database: Database, folder: Path, settings: dict[str, Any], spoil: Callable[..., Any]
    ) -> None:
        settings = {"schema.include.list": "public", **settings}
        self.database, self.settings, self.spoil = database, settings, spoil
        self.pipeline = PipelineRig(database, folder, settings)
        self.transforms: list[str] = []
        self._profile = folder / "profile.toml"

    def verify(
        self, *options: str, patience: float = 0, refused: type[Exception] | None = None
    ) -> tuple[int, str]:
        """Run ``waltap verify``; return exit code and what it printed. Raises: ``refused``."""
        lines = ['name = "p"', "[source]", 'type = "postgres"']
        source = self.database.properties() | {
            name: value for name, value in self.settings.items() if name[:5] != "sink."
        }
        lines += [f'"{name}" = "{value}"' for name, value in source.items()]
        lines += ["[sink]"]
        lines += [
            f'"{name.removeprefix("sink.")}" = "{value}"'
            for name, value in self.settings.items()
            if name.startswith("sink.")
        ]
        lines += self.transforms
        self._profile.write_text("\n".join(lines))
        command = ["verify", str(self._profile), "--patience", str(patience), *options]
        done = CliRunner().invoke(application, command, env={"COLUMNS": "300"})
        if refused is not None and isinstance(done.exception, refused):
            raise done.exception
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return done.exit_code, " ".join(done.output.replace("│", " ").split())


@pytest.fixture
def postgres(database: Database) -> Iterator[dict[str, Any]]:
    yield {
        "sink.type": "sql",
        "sink.url": database.dsn,
        "sink.table.name.format": "replica.{table}",
        "sink.position.table": "replica.waltap_position",
    }


EVERY = ("postgres", "file", "maria", "duck", "changelog")


@pytest.fixture(params=EVERY)
def destination(request: pytest.FixtureRequest, database: Database, tmp_path: Path) -> Destination:
    database.execute(TABLES)
    kind = request.param
    if kind == "postgres":
        settings = request.getfixturevalue("postgres")

        def spoil(statement: str) -> None:
            with psycopg.connect(database.dsn, autocommit=True) as connection:
                connection.execute("SET search_path = replica")
                connection.execute(statement.encode())

        return Destination(database, tmp_path, settings, spoil)
    if kind == "changelog":
        log = {"sink.type": "changelog", "sink.path": str(tmp_path / "log")}
        return Destination(database, tmp_path, log, lambda _statement: None)
    place = request.getfixturevalue(kind)
    return Destination(
        database, tmp_path, {"sink.type": "sql", "sink.url": place.url}, place.execute
    )


def test_every_type_is_equal_and_each_difference_is_found(destination: Destination) -> None:
    database = destination.database
    destination.pipeline.catch_up()
    code, output = destination.verify()
    assert code == 0, output
    for statement in CHANGES.strip().split(";\n"):
        database.execute(statement)
    code, output = destination.verify()
    assert code == 1, "nothing of it is there yet"
    assert "DIFFERENT" in output
    destination.pipeline.catch_up()
    code, output = destination.verify()
    assert code == 0, output
    sets = ", ".join(f"{column} = NULL" for column in SPOILT)
    database.execute(f"UPDATE kinds SET {sets} WHERE id = 1")
    code, output = destination.verify("--table", "public.kinds")
    assert code == 1
    assert f"in {', '.join(SPOILT)}" in output
    assert "(id=1)" in output
    for column in SPOILT:
        assert f"{column}: NULL | '" in output
    database.execute("ALTER TABLE pairs ADD more int")  # a column that is not there must be named
    code, output = destination.verify("--table", "public.pairs")
    assert code == 1
    assert "--without more" in output
    assert destination.verify("--table", "public.pairs", "--without", "public.pairs.more")[0] == 0
    code, output = destination.verify("--without", "more", "--table", "public.elsewhere")
    assert code == 1
    assert "public.elsewhere is not in" in output


@pytest.mark.parametrize("destination", ["postgres", "file", "maria", "duck"], indirect=True)
def test_rows_of_the_target_that_differ_and_tables_that_it_lost_are_shown(
    destination: Destination,
) -> None:
    brief = "CREATE TABLE brief (id int PRIMARY KEY); INSERT INTO brief VALUES (1)"
    destination.database.execute(brief)
    destination.pipeline.catch_up()
    destination.spoil("UPDATE pairs SET n = 1000 WHERE a = 7")
    destination.spoil("DELETE FROM pairs WHERE a = 8")
    destination.spoil("INSERT INTO pairs VALUES (999, 'new', 1)")
    destination.spoil("DELETE FROM bag WHERE a = 2")
    code, output = destination.verify()
    assert code == 1
    for told in ("b=k0, a=7", "n: '7' | '1000'", "b=k1, a=8", "b=new, a=999"):
        first, _, second = told.partition(", ")
        swapped = f"{second}, {first}" if second else told
        assert told in output or swapped in output, output
    assert output.count("DIFFERENT") == 2
    destination.spoil("DROP TABLE pairs")
    destination.spoil("DROP TABLE brief")
    destination.database.execute("DELETE FROM brief")
    code, output = destination.verify()
    assert code == 1
    assert "public.pairs 300 0 DIFFERENT" in output
    assert output.count("DIFFERENT") == 2
    assert "public.brief" not in output


# no other process may have a DuckDB file open
@pytest.mark.parametrize("destination", ["postgres", "file", "maria", "changelog"], indirect=True)
def test_both_sides_are_written_meanwhile(destination: Destination) -> None:
    """One row is written again and again, others now and then; one that is wrong is found all the same."""
    database, stop = destination.database, threading.Event()

    def write() -> None:
        with psycopg.connect(database.dsn, autocommit=True) as connection:
            n = 0
            while not stop.wait(0.002):  # a pipeline on a busy machine must keep up
                n += 1
                connection.execute("UPDATE pairs SET n = n + 1 WHERE a = 1")
                connection.execute("UPDATE pairs SET n = n + 1 WHERE a = %s", [2 + n % 250])

    destination.pipeline.catch_up()
    writer = threading.Thread(target=write)
    with destination.pipeline.running() as run, contextlib.ExitStack() as stack:
        writer.start()
        stack.callback(writer.join)
        stack.callback(stop.set)
        code, output = destination.verify(patience=60.0)
        assert code == 0, output
        if destination.settings["sink.type"] == "sql":
            destination.spoil("UPDATE pairs SET n = -5 WHERE a = 280")

            def seen() -> bool:  # a pipeline that is behind for these seconds gives no verdict
                code, output = destination.verify(patience=3.0)
                return code == 1 and "a=280" in output

            until(seen, "the row that is wrong")
        stop.set()
        run.stop()


@pytest.mark.parametrize("destination", ["changelog"], indirect=True)
def test_a_column_that_has_the_name_of_one_that_was_dropped_is_another(
    destination: Destination,
) -> None:
    database = destination.database
    database.execute("CREATE TABLE again (id int PRIMARY KEY, a text)")
    database.execute("INSERT INTO again VALUES (1, 'of the old one'), (2, NULL)")
    destination.pipeline.catch_up()
    database.execute("ALTER TABLE again DROP a; ALTER TABLE again ADD a text DEFAULT 'new'")
    database.execute("UPDATE again SET a = 'set' WHERE id = 2")
    destination.pipeline.catch_up()
    code, output = destination.verify("--table", "public.again")
    assert code == 0, output


@pytest.mark.parametrize("destination", ["file"], indirect=True)
def test_rows_and_columns_that_are_not_published_are_not_missed(destination: Destination) -> None:
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
    destination.settings |= {
        "publication.name": "part",
        "publication.autocreate.mode": "disabled",
        "table.include.list": "public.f,public.nothing,public.pairs",
    }
    destination.pipeline.catch_up(**destination.settings)
    code, output = destination.verify()
    assert code == 0, output
    destination.spoil('UPDATE f SET name = NULL WHERE "I d" = 4')
    destination.spoil("INSERT INTO f VALUES (3, 'n%3')")
    code, output = destination.verify()
    assert code == 1
    assert "I d=4" in output
    assert "I d=3" in output
    assert "I d=5" not in output
