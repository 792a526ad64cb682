"""What each server may do to the SQL sink, on PostgreSQL and MariaDB alike: a code, and no change is lost."""

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest

from tests.hunt.proxy import Proxy
from tests.integration.test_sql_dialects import Place, maria
from tests.integration.test_sql_trouble import PEOPLE
from tests.harness.changelog import Database as Model
from tests.harness.changelog import batch, relation
from tests.harness.pipeline import until
from tests.harness.servers.mariadb import MariaDb
from tests.harness.servers.postgres import Cluster, Database
from waltap.errors import Retry
from waltap.source.position import Position, lsn_text
from waltap_sinks.sql import SqlSink
from waltap_sinks.sql.errors import (
    SqlColumnMissing,
    SqlCommitUnknown,
    SqlConflict,
    SqlConstraintViolated,
    SqlNameTaken,
    SqlRefused,
    SqlTableGone,
    SqlTableUnfit,
    SqlUnreachable,
    SqlValueUnfit,
)

__all__ = ["maria"]

ALIKE = relation("other.people", [("id", "int4"), ("name", "text"), ("note", "text")])
PAIRS = relation("public.pairs", [("id", "int4"), ("name", "text")])
LESS = "CREATE TABLE people (id int PRIMARY KEY, {})"


@dataclass
class Ways(Place):
    """A target, and how its server is made to do what it should not."""

    kind: str = ""


@pytest.fixture(params=["postgresql", "mariadb"])
def target(request: pytest.FixtureRequest) -> Ways:
    if request.param == "mariadb":
        found: Place = request.getfixturevalue("maria")
        return Ways(found.url, found.connect, found.text, "mariadb")
    database: Database = request.getfixturevalue("database")
    # the session of the sink looks for deadlocks when both wait, and not before
    database.execute(f"ALTER DATABASE {database.name} SET deadlock_timeout = '10s'")
    return Ways(database.dsn, lambda: psycopg.connect(database.dsn), "text", "postgresql")


def failure(sink: SqlSink, part: Any) -> BaseException:
    try:
        sink.write(batch(part))
    except BaseException as error:
        return error
    return AssertionError("it was written")


def test_a_constraint_and_a_narrow_column(target: Ways, tmp_path: Path) -> None:
    target.execute(LESS.format("name varchar(5) CHECK (name <> 'bad'), note varchar(9)"))
    sink = target.opened(tmp_path, schema_evolution="none")
    source = Model()
    source.insert(PEOPLE, ["1", "good", None], ["2", "bad", None])
    part = source.commit()
    with pytest.raises(SqlConstraintViolated, match=f"{lsn_text(part.commit_lsn)}, change 1"):
        sink.write(batch(part))
    sink.close()
    sink = target.opened(tmp_path, schema_evolution="none")
    source.insert(PEOPLE, ["3", "secretive", None])
    with pytest.raises(SqlValueUnfit) as narrow:
        sink.write(batch(source.commit()))
    assert "secretive" not in str(narrow.value)
    sink.close()
    assert target.rows("people", "id") == []


def test_a_column_that_is_missing_and_one_dropped_under_the_sink(
    target: Ways, tmp_path: Path
) -> None:
    target.execute(LESS.format("name text"))
    source = Model()
    source.insert(PEOPLE, ["1", "a", "n"])
    part = source.commit()
    sink = target.opened(tmp_path, schema_evolution="none")
    with pytest.raises(SqlColumnMissing, match="ALTER TABLE .*people ADD COLUMN .note"):
        sink.write(batch(part))
    sink.close()
    sink = target.opened(tmp_path)
    sink.write(batch(part))
    target.execute("ALTER TABLE people DROP COLUMN note")
    source.insert(PEOPLE, ["2", "b", "m"])
    sink.write(batch(source.commit()))  # nobody knows that the column was there: it has no number
    assert target.rows("people", "id", "note") == [("1", None), ("2", "m")]
    sink.close()


def test_a_table_that_is_a_view_has_no_key_or_has_two_sources(target: Ways, tmp_path: Path) -> None:
    source = Model()
    source.insert(PEOPLE, ["1", "a", None])
    part = source.commit()
    target.execute("CREATE VIEW people AS SELECT 1 AS id")
    with contextlib.closing(target.opened(tmp_path)) as sink:
        assert isinstance(failure(sink, part), SqlTableUnfit)
    target.execute("DROP VIEW people")
    target.execute("CREATE TABLE people (id int, name text, note text)")
    with contextlib.closing(target.opened(tmp_path)) as sink:
        assert isinstance(failure(sink, part), SqlTableUnfit)
    target.execute("DROP TABLE people")
    source.insert(PEOPLE, ["2", "a", None])
    source.insert(ALIKE, ["1", "b", None])
    with contextlib.closing(target.opened(tmp_path, table_name_format="{table}")) as sink:
        assert isinstance(failure(sink, source.commit()), SqlNameTaken)


def test_a_deadlock_is_undone_and_the_batch_goes_in_again(target: Ways, tmp_path: Path) -> None:
    """The sink holds one table's row and waits for the other's; somebody else the other way about."""
    source, sink = Model(), target.opened(tmp_path)
    source.insert(PEOPLE, ["1", "a", None])
    source.insert(PAIRS, ["1", "a"])
    sink.write(batch(source.commit()))
    target.execute("CREATE TABLE work (n int PRIMARY KEY)")
    source.update(PEOPLE, ["1"], name="b")
    source.update(PAIRS, ["1"], name="b")
    part = source.commit()
    failures: list[BaseException] = []
    with contextlib.closing(target.connect()) as other:
        cursor = other.cursor()
        if target.kind == "postgresql":
            cursor.execute("SET deadlock_timeout = '10min'")
        else:
            other.begin()
        # who has done less is undone in MariaDB
        cursor.execute("INSERT INTO work VALUES " + ", ".join(f"({n})" for n in range(200)))
        cursor.execute("UPDATE pairs SET name = 'theirs' WHERE id = 1")
        writer = threading.Thread(target=lambda: failures.append(failure(sink, part)))
        writer.start()
        until(lambda: waiting(target) > 0, "the sink to wait")
        cursor.execute("UPDATE people SET note = 'theirs' WHERE id = 1")
        writer.join(90)
        other.commit()
    assert isinstance(failures[0], SqlConflict), failures[0]
    assert "eadlock" in str(failures[0])
    assert failures[0].retry is Retry.SAME_BATCH
    sink.write(batch(part))
    assert sink.flush() == Position(part.end_lsn)
    assert target.rows("people", "name", "note") == [("b", None)]
    assert target.rows("pairs", "name") == [("b",)]
    sink.close()


WAITING = {
    "postgresql": "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    " AND wait_event_type = 'Lock' AND application_name LIKE 'waltap%'",
    "mariadb": "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'",
}


def waiting(target: Ways) -> int:
    return int(target.execute(WAITING[target.kind])[0][0])


COMMITTING = "SELECT id FROM information_schema.processlist WHERE state LIKE 'Waiting for backup%'"


def test_a_commit_whose_answer_is_lost_does_not_come_again(
    mariadb: MariaDb, maria: Place, tmp_path: Path
) -> None:
    """The server has committed, and nobody hears of it."""
    armed = threading.Event()

    def heard(data: bytes) -> None:
        if armed.is_set() and b"COMMIT" in data:
            proxy.cut_after(0)

    proxy = Proxy(("127.0.0.1", mariadb.port), heard=heard)
    url = maria.url.replace(str(mariadb.port), str(proxy.port))
    source, sink = Model(), Place(url, maria.connect, "CHAR").opened(tmp_path)
    source.insert(PEOPLE, ["1", "a", None])
    sink.write(batch(source.commit()))

    armed.set()
    source.insert(PEOPLE, ["2", "b", None])
    part = source.commit()
    lost = failure(sink, part)
    assert isinstance(lost, SqlCommitUnknown), lost
    assert lost.retry is Retry.RECONNECT
    sink.close()
    proxy.close()
    again = maria.sink(tmp_path)
    assert again.open() == Position(part.end_lsn)
    again.write(batch(part))
    again.close()
    assert maria.rows("people", "id") == [("1",), ("2",)]


def test_a_commit_that_is_undone_comes_again(
    mariadb: MariaDb, maria: Place, tmp_path: Path
) -> None:
    """The server waits in COMMIT when the connection goes, and then gives up."""
    source, sink = Model(), maria.opened(tmp_path)
    source.insert(PEOPLE, ["1", "a", None])
    first = source.commit()
    sink.write(batch(first))
    source.insert(PEOPLE, ["2", "b", None])
    part = source.commit()
    failures: list[BaseException] = []
    with contextlib.closing(mariadb.connect()) as gate, gate.cursor() as cursor:
        for stage in ("START", "FLUSH", "BLOCK_DDL", "BLOCK_COMMIT"):
            cursor.execute(f"BACKUP STAGE {stage}")
        writer = threading.Thread(target=lambda: failures.append(failure(sink, part)))
        writer.start()
        until(lambda: bool(mariadb.execute(COMMITTING)), "the server to be in COMMIT")
        ((number,),) = mariadb.execute(COMMITTING)
        with socket.socket(fileno=os.dup(sink._target._raw._sock.fileno())) as link:
            link.shutdown(socket.SHUT_RDWR)
        writer.join(90)
        with contextlib.suppress(pymysql.MySQLError):  # it may have noticed by itself
            cursor.execute(f"KILL {number}")
        until(lambda: not mariadb.execute(COMMITTING), "the server to give the COMMIT up")
        cursor.execute("BACKUP STAGE END")
    assert isinstance(failures[0], SqlCommitUnknown), failures[0]
    sink.close()
    again = maria.sink(tmp_path)
    assert again.open() == Position(first.end_lsn)
    again.write(batch(part))
    again.close()
    assert maria.rows("people", "id") == [("1",), ("2",)]


@pytest.fixture
def clerk(mariadb: MariaDb, maria: Place) -> Iterator[Callable[[str], SqlSink]]:
    """Return a way to the target for a user with a password, who is dropped in the end."""
    name = maria.url.rpartition("/")[2]
    mariadb.execute(f"CREATE USER '{name}'@'%' IDENTIFIED BY 'first'")
    mariadb.execute(f"GRANT ALL ON {name}.* TO '{name}'@'%'")

    def sink(password: str, folder: Path = Path()) -> SqlSink:
        address = f"mariadb://{name}:{password}@127.0.0.1:{mariadb.port}/{name}"
        return Place(address, maria.connect, "CHAR").sink(folder)

    yield sink
    mariadb.execute(f"DROP USER '{name}'@'%'")


def test_credentials_that_expire_in_mariadb(
    mariadb: MariaDb, maria: Place, clerk: Callable[[str], SqlSink]
) -> None:
    """The session stays; the next one is refused, with what is to be done, and goes on where it was."""
    name = maria.url.rpartition("/")[2]
    source, sink = Model(), clerk("first")
    sink.open()
    source.insert(PEOPLE, ["1", "a", None])
    first = source.commit()
    sink.write(batch(first))
    mariadb.execute(f"ALTER USER '{name}'@'%' PASSWORD EXPIRE")
    ((number,),) = sink._target.run("SELECT connection_id()")
    mariadb.execute(f"KILL {number}")
    source.insert(PEOPLE, ["2", "b", None])
    second = source.commit()
    assert isinstance(failure(sink, second), SqlUnreachable)
    sink.close()
    with pytest.raises(SqlRefused, match="Check user and password"):
        clerk("first").open()
    mariadb.execute(f"ALTER USER '{name}'@'%' IDENTIFIED BY 'second' ACCOUNT LOCK")
    for password in ("first", "second"):
        with pytest.raises(SqlRefused) as refused:
            clerk(password).open()
        assert password not in str(refused.value)
    mariadb.execute(f"ALTER USER '{name}'@'%' ACCOUNT UNLOCK")
    sink = clerk("second")
    assert sink.open() == Position(first.end_lsn)
    sink.write(batch(second))
    sink.close()
    assert len(maria.rows("people", "id")) == 2


def test_credentials_that_expire_in_postgresql(private_server: Cluster, tmp_path: Path) -> None:
    private_server.execute("CREATE ROLE clerk LOGIN PASSWORD 'first'")
    ((hba,),) = private_server.execute("SHOW hba_file")
    Path(hba).write_text("host all clerk all scram-sha-256\n" + Path(hba).read_text())
    private_server.reload()
    database = private_server.create_database("expiry")
    database.execute(
        "GRANT ALL ON SCHEMA public TO clerk; GRANT CREATE ON DATABASE expiry TO clerk"
    )
    dsn = database.dsn.replace("//postgres", "//clerk:first", 1)
    place = Place(dsn, lambda: psycopg.connect(database.dsn), "text")
    source, sink = Model(), place.opened(tmp_path)
    source.insert(PEOPLE, ["1", "a", None])
    first = source.commit()
    sink.write(batch(first))
    assert sink.flush() == Position(first.end_lsn)
    private_server.execute("ALTER ROLE clerk VALID UNTIL '2001-01-01'")
    private_server.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'clerk'"
    )
    source.insert(PEOPLE, ["2", "b", None])
    second = source.commit()
    assert isinstance(failure(sink, second), SqlUnreachable)
    sink.close()
    with pytest.raises(SqlRefused, match="Check user and password") as refused:
        place.opened(tmp_path)
    assert "first" not in str(refused.value)
    private_server.execute("ALTER ROLE clerk VALID UNTIL 'infinity'")
    sink = place.sink(tmp_path)
    assert sink.open() == Position(first.end_lsn)
    sink.write(batch(second))
    sink.close()
    assert len(place.rows("people", "id")) == 2


def test_a_table_dropped_under_the_sink_is_told(target: Ways, tmp_path: Path) -> None:
    source, sink = Model(), target.opened(tmp_path)
    source.insert(PEOPLE, ["1", "a", None])
    sink.write(batch(source.commit()))
    target.execute("DROP TABLE people")
    source.insert(PEOPLE, ["2", "b", None])
    part = source.commit()
    assert isinstance(failure(sink, part), SqlTableGone)
    sink.close()
    with contextlib.closing(target.repairing(tmp_path)) as repairing:
        repairing.write(batch(part))
        assert repairing.flush() == Position(part.end_lsn)
    assert target.rows("people", "id") == [("2",)]
