"""The comparison of a SQL target finds every difference, and none where there is none, also under writers; and what
a target does not hold is told before the run."""

import contextlib
import json
import threading
from pathlib import Path

import psycopg
import pytest
from tests.harness.pipeline import PipelineRig
from tests.harness.servers.mariadb import MariaDb
from tests.harness.servers.postgres import Database
from tests.harness.shop import Shop
from tests.harness.sql import pipeline
from typer.testing import CliRunner

from waltap.cli.application import application
from waltap_sinks.comparison import TableDifferences
from waltap_sinks.comparison.compare import compare
from waltap_sinks.sql import SqlProperties
from waltap_sinks.sql.verification import open_readable

TABLES = """
CREATE TABLE t (id int PRIMARY KEY, a text, n numeric(10, 2), at timestamptz, "odd%s" float8);
INSERT INTO t SELECT g, 'row ' || g, g, now(), g / 3.0 FROM generate_series(1, 500) g;
CREATE TABLE bag (a int, b json);
ALTER TABLE bag REPLICA IDENTITY FULL;
INSERT INTO bag VALUES (1, '{}'), (1, '{}');
"""


def results(
    database: Database, *without: str, patience_s: float = 0.0
) -> dict[str, TableDifferences]:
    properties = SqlProperties.model_validate(
        {"url": database.dsn, "position.table": "replica.waltap_position"}
    )
    with database.connect() as source, contextlib.closing(open_readable(properties, "p")) as target:
        found = compare(source, target, without=without, patience_s=patience_s)
        return {each.table: each for each in found}


@pytest.fixture
def filled(database: Database, tmp_path: Path) -> PipelineRig:
    database.execute(TABLES)
    made = pipeline(database, tmp_path)
    made.catch_up()
    return made


def test_equal_tables_are_equal_and_each_difference_is_found(
    database: Database, filled: PipelineRig
) -> None:
    found = results(database)
    assert {name: each.equal for name, each in found.items()} == {
        "public.t": True,
        "public.bag": True,
    }
    assert (found["public.t"].source_rows, found["public.t"].target_rows) == (500, 500)
    database.execute("UPDATE replica.t SET a = 'wrong' WHERE id = 7")
    database.execute("DELETE FROM replica.t WHERE id = 8")
    database.execute("INSERT INTO replica.t VALUES (999, 'more')")
    database.execute("DELETE FROM replica.bag WHERE ctid = (SELECT min(ctid) FROM replica.bag)")
    found = results(database)
    told = found["public.t"]
    assert not told.equal
    assert (told.missing, told.surplus, told.changed) == (("(id=8)",), ("(id=999)",), ("(id=7)",))
    assert told.columns == ("a",)
    assert not found["public.bag"].equal


def test_a_column_that_the_target_lacks_must_be_named(
    database: Database, filled: PipelineRig
) -> None:
    database.execute("ALTER TABLE replica.t DROP COLUMN a")
    assert results(database)["public.t"].left_out == ("a",)
    assert results(database, "public.t.a")["public.t"].left_out == ()
    assert results(database, "a")["public.t"].equal


def test_a_renamed_column_is_compared_with_itself(database: Database, filled: PipelineRig) -> None:
    database.execute("ALTER TABLE t RENAME a TO b")
    assert results(database)["public.t"].equal  # the target has not heard of it yet


def test_what_is_on_its_way_is_waited_for(database: Database, filled: PipelineRig) -> None:
    """Writers change rows all the time; one difference is real."""
    stop = threading.Event()

    def write() -> None:
        with psycopg.connect(database.dsn, autocommit=True) as connection:
            n = 0
            while not stop.wait(0.005):
                n += 1
                connection.execute("UPDATE t SET n = n + 1 WHERE id = %s", [1 + n % 400])

    writer = threading.Thread(target=write)
    with filled.running() as run:
        writer.start()
        try:
            found = results(database, patience_s=60.0)
            assert found["public.t"].equal, found["public.t"]
            database.execute("UPDATE replica.t SET a = 'wrong' WHERE id = 450")
            told = results(database, patience_s=2.0)["public.t"]
            assert ("450",) in told.keys
        finally:
            stop.set()
            writer.join()
        run.stop()


def test_sequences_are_moved_on_request(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE t (id serial PRIMARY KEY, n int GENERATED ALWAYS AS IDENTITY)")
    database.execute("CREATE SCHEMA replica")
    database.execute(
        "CREATE TABLE replica.t (id serial PRIMARY KEY, n int GENERATED ALWAYS AS IDENTITY)"
    )
    database.execute("INSERT INTO t SELECT FROM generate_series(1, 40)")
    made = pipeline(database, tmp_path)
    made.catch_up()
    command = ["sql", "sequences", str(profile_of(database, made))]
    done = CliRunner().invoke(application, command)
    assert done.exit_code == 0, done.output
    assert sorted(done.output.split("\n"))[1:] == ["replica.t_id_seq: 40", "replica.t_n_seq: 40"]
    assert database.execute("INSERT INTO replica.t DEFAULT VALUES RETURNING id, n") == [(41, 41)]
    assert "is where its rows are" in CliRunner().invoke(application, command).output


def profile_of(database: Database, filled: PipelineRig) -> Path:
    """Write a profile with the same target."""
    profile = filled.folder / "shop.toml"
    lines = ['name = "p"', "[source]", 'type = "postgres"']
    properties = {**database.properties(), "schema.include.list": "public"}
    lines += [f'"{name}" = "{value}"' for name, value in properties.items()]
    lines += ["[sink]", 'type = "sql"', f'url = "{database.dsn}"']
    lines += ['"position.table" = "replica.waltap_position"']
    profile.write_text("\n".join(lines))
    return profile


def test_the_command_tells_by_its_exit_code(database: Database, filled: PipelineRig) -> None:
    profile = profile_of(database, filled)
    command = ["sql", "verify", str(profile), "--dsn", database.dsn, "--patience", "0"]
    done = CliRunner().invoke(application, command)
    assert done.exit_code == 0, done.output
    assert "public.bag" in done.output
    database.execute("UPDATE replica.t SET a = 'wrong' WHERE id = 7")
    done = CliRunner().invoke(application, command)
    assert done.exit_code == 1
    assert "(id=7)" in done.output
    done = CliRunner().invoke(application, [*command, "--table", "public.bag"])
    assert done.exit_code == 0, done.output
    done = CliRunner().invoke(application, [*command, "--without", "a", "--table", "public.t"])
    assert done.exit_code == 0, done.output


def test_what_a_target_does_not_hold_is_told_before_the_run_with_what_ends_it(
    database: Database, mariadb: MariaDb, tmp_path: Path
) -> None:
    """`doctor` and `plan` tell of it."""
    shop = Shop(tmp_path, database)
    name = f"held_{database.name}"
    mariadb.execute(f"CREATE DATABASE {name}")
    database.execute(
        "CREATE TABLE words (a text, b text, v text, PRIMARY KEY (a, b));"
        "CREATE TABLE short (a varchar(256), b varchar(9), n int, PRIMARY KEY (a, b, n))"
    )
    shop.source["table.include.list"] = "public.words,public.short"
    shop.sink = {"type": "sql", "url": mariadb.url(name)}

    def told(command: str, verdict: str) -> list[dict[str, str]]:
        found = json.loads(shop.waltap(f"{command} FILE --json").stdout)
        checks = found["problems"] if command == "plan" else found
        return [c for c in checks if c["name"].startswith("target") and c["verdict"] == verdict]

    for command in ("doctor", "plan"):
        (keys,) = told(command, "warning")
        assert "384 characters of a, b, of the key of public.words (768 by 2" in keys["found"]
    limit = keys["remedy"].partition("ALTER TABLE")[2].partition("; or")[0]
    database.execute("ALTER TABLE" + limit)
    mariadb.execute(
        f"CREATE TABLE {name}.words (a varchar(99) COLLATE latin1_swedish_ci, b varchar(99) COLLATE"
        " utf8mb4_nopad_bin, v text CHARACTER SET latin1, PRIMARY KEY (a, b))"
    )
    (refused,) = told("doctor", "error")
    assert "compares keys in a" in refused["found"]
    (narrow,) = [c for c in told("plan", "warning") if c["name"] == "target words"]
    assert "column v is latin1" in narrow["found"]
    for remedy in (refused["remedy"], narrow["remedy"]):  # they suffice as they stand
        statement = remedy[remedy.index("ALTER TABLE") :].partition(";")[0]
        with contextlib.closing(mariadb.connect(name)) as connection:
            connection.cursor().execute(statement)
            connection.commit()
    found = json.loads(shop.waltap("doctor FILE --json").stdout)
    left = {c["name"]: c["verdict"] for c in found if c["name"].startswith("target")}
    assert "error" not in left.values()
    assert left.get("target words", "ok") == "ok"
    database.execute("INSERT INTO words VALUES ('k', 'K', '\U0001f600')")
    shop.run()
    mariadb.execute(f"DROP DATABASE {name}")
