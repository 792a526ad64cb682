"""The SQL sink on SQLite, MariaDB and DuckDB: rows as the source has them, and what these servers refuse."""

import contextlib
import itertools
import os
import random
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pytest

from tests.integration.test_sql_sink import (
    NAMES,
    PAIRS,
    PEOPLE,
    VISITS,
    _transaction,
    after_every_operation,
)
from tests.harness.changelog import Database as Model
from tests.harness.changelog import batch, context, in_parts, relation
from tests.harness.sql import copy_of, model
from tests.harness.servers.mariadb import MariaDb
from waltap.errors import Retry
from waltap.source.position import Position, lsn_text
from waltap_sinks.sql import SqlProperties, SqlSink
from waltap_sinks.sql.errors import (
    SqlColumnMissing,
    SqlConflict,
    SqlConstraintViolated,
    SqlFenced,
    SqlReadOnly,
    SqlRefused,
    SqlUnreachable,
    SqlValueUnfit,
)

_numbers = itertools.count(1)


@dataclass
class Place:
    """A target of the test's own, and a way to it that is not the sink's."""

    url: str
    connect: Callable[[], Any]
    text: str

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        with contextlib.closing(self.connect()) as connection:
            cursor = connection.cursor()
            cursor.execute(statement)
            found = list(cursor.fetchall()) if cursor.description else []
            connection.commit()
            return found

    def rows(self, table: str, *columns: str) -> list[tuple[str | None, ...]]:
        names = ", ".join(f"CAST({column} AS {self.text})" for column in columns)
        return sorted(self.execute(f"SELECT {names} FROM {table}"), key=str)

    def sink(self, folder: Path, **more: Any) -> SqlSink:
        given = {"url": self.url} | {n.replace("_", "."): v for n, v in more.items()}
        return SqlSink(SqlProperties.model_validate(given), context(folder, resumes=True))

    def opened(self, folder: Path, **more: Any) -> SqlSink:
        made = self.sink(folder, **more)
        made.open()
        return made

    def repairing(self, folder: Path) -> SqlSink:
        made = SqlSink(
            SqlProperties.model_validate({"url": self.url}),
            context(folder, resumes=True, repairs=True),
        )
        made.open()
        return made


@pytest.fixture
def file(tmp_path: Path) -> Place:
    path = tmp_path / "rows.db"
    return Place(f"sqlite:///{path}", lambda: sqlite3.connect(path), "TEXT")


@pytest.fixture
def maria(mariadb: MariaDb) -> Iterator[Place]:
    name = f"t{os.getpid()}_{next(_numbers)}"
    mariadb.execute(f"CREATE DATABASE {name}")
    yield Place(mariadb.url(name), lambda: mariadb.connect(name), "CHAR")
    mariadb.execute(f"DROP DATABASE {name}")


@pytest.fixture
def duck(tmp_path: Path) -> Place:
    path = tmp_path / "rows.duckdb"
    return Place(f"duckdb:///{path}", lambda: _Used(path), "VARCHAR")


class _Used:
    """A connection to a DuckDB file, with tables of ``public`` by their names alone."""

    def __init__(self, path: Path) -> None:
        self._raw = duckdb.connect(path)
        self._raw.execute("SET TimeZone = 'UTC'")
        self._raw.execute("CREATE SCHEMA IF NOT EXISTS public")
        self._raw.execute("USE public")
        self.description: Any = None

    def cursor(self) -> "_Used":
        return self

    def execute(self, statement: str) -> None:
        self._raw.execute(statement)
        self.description = self._raw.description

    def fetchall(self) -> list[Any]:
        return self._raw.fetchall()

    def commit(self) -> None:
        pass

    def close(self) -> None:
        self._raw.close()


@pytest.fixture(params=["file", "maria", "duck"], ids=["sqlite", "mariadb", "duckdb"])
def place(request: pytest.FixtureRequest) -> Place:
    found: Place = request.getfixturevalue(request.param)
    return found


def test_every_operation_leads_to_the_rows_of_the_source(place: Place, tmp_path: Path) -> None:
    source = Model()
    after_every_operation(source, place.opened(tmp_path))
    for table in ("people", "visits"):
        assert place.rows(table, *NAMES[table]) == model(source.rows[f"public.{table}"])


def test_random_work_leads_to_the_rows_of_the_source(place: Place, tmp_path: Path) -> None:
    chance = random.Random(7)
    source, target = Model(), place.opened(tmp_path)
    for _ in range(25):
        parts = [_transaction(source, chance) for _ in range(chance.choice((1, 3, 8)))]
        target.write(batch(*parts))
        if chance.random() < 0.2:
            target.close()
            target = place.sink(tmp_path)
            assert target.open() == Position(parts[-1].end_lsn)
            target.write(batch(*map(copy_of, parts)))
        assert place.rows("people", *NAMES["people"]) == model(source.rows["public.people"])
    target.close()
    keys = {row[:2] for row in source.rows["public.pairs"]}
    assert {row[:2] for row in place.rows("pairs", "a", "b")} == keys
    assert PAIRS.primary_key == ("a", "b")


def test_half_of_a_transaction_is_never_seen(place: Place, tmp_path: Path) -> None:
    source, target = Model(), place.opened(tmp_path)
    source.insert(PEOPLE, ["0", "first", None])
    first = source.commit()
    source.insert(PEOPLE, *[[str(n), "x", None] for n in range(1, 7)])
    one, two = in_parts(source.commit(), 3, 3)
    target.write(batch(first, one))
    assert target.flush() == Position(first.end_lsn)
    assert len(place.rows("people", "id")) == 1
    target.write(batch(two))
    assert target.flush() == Position(two.end_lsn)
    assert len(place.rows("people", "id")) == 7
    target.close()


def test_a_column_is_added_and_renamed(place: Place, tmp_path: Path) -> None:
    columns = [("id", "int4"), ("a", "text")]
    before = relation("public.t", columns, numbers=[1, 2], oid=77)
    more = {"c": {"missing": "it's"}}
    after = relation(
        "public.t",
        [("id", "int4"), ("b", "text"), ("c", "text")],
        numbers=[1, 2, 3],
        oid=77,
        more=more,
    )
    source, target = Model(), place.opened(tmp_path)
    source.insert(before, ["1", "x"])
    target.write(batch(source.commit()))
    source.insert(after, ["2", "y", "z"])
    target.write(batch(source.commit()))
    target.close()
    assert place.rows("t", "id", "b", "c") == [("1", "x", "it's"), ("2", "y", "z")]


def test_soft_deletes(place: Place, tmp_path: Path) -> None:
    source, target = Model(), place.opened(tmp_path, delete_mode="soft")
    source.insert(PEOPLE, ["1", "a", None], ["2", "b", None])
    target.write(batch(source.commit()))
    source.delete(PEOPLE, ["1"])
    target.write(batch(source.commit()))
    rows = place.rows("people", "id", "deleted_at")
    assert rows[0][1] is not None
    assert rows[1] == ("2", None)
    source.insert(PEOPLE, ["1", "again", None])
    target.write(batch(source.commit()))
    assert place.rows("people", "id", "deleted_at")[0] == ("1", None)
    target.close()


def test_only_the_instance_that_opened_last_writes(place: Place, tmp_path: Path) -> None:
    source, first = Model(), place.opened(tmp_path)
    second = place.opened(tmp_path)
    source.insert(PEOPLE, ["1", "a", None])
    with pytest.raises(SqlFenced):
        first.write(batch(source.commit()))
    first.close()
    second.close()


def test_a_broken_constraint_names_the_change(place: Place, tmp_path: Path) -> None:
    place.execute(
        "CREATE TABLE people (id int PRIMARY KEY, name varchar(9) UNIQUE, note varchar(9))"
    )
    source, target = Model(), place.opened(tmp_path)
    source.insert(PEOPLE, ["1", "secret", None])
    target.write(batch(source.commit()))
    place.execute("INSERT INTO people VALUES (5, 'mine', 'x')")
    source.insert(PEOPLE, ["2", "mine", None])
    part = source.commit()
    with pytest.raises(SqlConstraintViolated) as found:
        target.write(batch(part))
    assert f"{lsn_text(part.commit_lsn)}, change 0" in str(found.value)
    assert "'mine'" not in str(found.value)
    assert len(place.rows("people", "id")) == 2
    target.close()


def test_a_missing_table_is_told_with_its_statement(place: Place, tmp_path: Path) -> None:
    source, target = Model(), place.opened(tmp_path, schema_evolution="none")
    source.insert(PEOPLE, ["1", "a", None])
    with pytest.raises(SqlColumnMissing, match="CREATE TABLE"):
        target.write(batch(source.commit()))
    target.close()


def test_unique_values_change_places_in_mariadb(maria: Place, tmp_path: Path) -> None:
    """There an upsert goes by any unique index: it must not take another row for the one of the key."""
    maria.execute("CREATE TABLE people (id int PRIMARY KEY, name varchar(9) UNIQUE, note text)")
    source, target = Model(), maria.opened(tmp_path)
    source.insert(PEOPLE, ["1", "a", None], ["2", "b", None])
    target.write(batch(source.commit()))
    source.update(PEOPLE, ["1"], name="between")
    source.update(PEOPLE, ["2"], name="a")
    source.update(PEOPLE, ["1"], name="b")
    target.write(batch(source.commit()))
    assert maria.rows("people", "id", "name") == [("1", "b"), ("2", "a")]
    target.close()


def test_a_value_too_long_and_a_lock_in_mariadb(maria: Place, tmp_path: Path) -> None:
    maria.execute("CREATE TABLE people (id int PRIMARY KEY, name varchar(3), note text)")
    source = Model()
    source.insert(PEOPLE, ["1", "secret", None])
    part = source.commit()
    narrow = maria.opened(tmp_path, schema_evolution="none")
    with pytest.raises(SqlValueUnfit) as found:
        narrow.write(batch(part))
    assert "secret" not in str(found.value)
    narrow.close()
    target = maria.opened(tmp_path, lock_timeout_ms=1000)
    target.write(batch(part))
    assert maria.rows("people", "name") == [("secret",)]
    source.update(PEOPLE, ["1"], name="next")
    part = source.commit()
    with contextlib.closing(maria.connect()) as other:
        other.begin()
        other.cursor().execute("SELECT * FROM people FOR UPDATE")
        with pytest.raises(SqlConflict) as locked:
            target.write(batch(part))
        assert locked.value.retry is Retry.SAME_BATCH
        other.rollback()
    target.write(batch(part))
    assert maria.rows("people", "name") == [("next",)]
    target.close()


def test_a_file_that_is_locked_and_a_folder_that_is_not_there(file: Place, tmp_path: Path) -> None:
    source, target = Model(), file.opened(tmp_path, lock_timeout_ms=50)
    source.insert(PEOPLE, ["1", "a", None])
    part = source.commit()
    with contextlib.closing(file.connect()) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(SqlConflict):
            target.write(batch(part))
        other.rollback()
    target.write(batch(part))
    assert len(file.rows("people", "id")) == 1
    target.close()
    away = Place(f"sqlite:///{tmp_path}/nowhere/x.db", file.connect, "TEXT")
    with pytest.raises(SqlUnreachable):
        away.sink(tmp_path).open()


def test_a_database_that_is_not_there_is_told(mariadb: MariaDb, tmp_path: Path) -> None:
    url = mariadb.url("not_there")
    with pytest.raises(SqlRefused):
        Place(url, mariadb.connect, "CHAR").sink(tmp_path).check()
    nobody = url.replace(str(mariadb.port), "1")
    with pytest.raises(SqlUnreachable):
        Place(nobody, mariadb.connect, "CHAR").sink(tmp_path).check()


def test_a_target_that_is_read_only_is_told(file: Place, maria: Place, tmp_path: Path) -> None:
    source = Model()
    source.insert(PEOPLE, ["1", "a", None])
    first = source.commit()
    source.insert(PEOPLE, ["2", "b", None])
    second = source.commit()
    for place, words in (
        (file, "PRAGMA query_only = ON"),
        (maria, "SET SESSION TRANSACTION READ ONLY"),
    ):
        target = place.opened(tmp_path)
        target.write(batch(first))
        target._target.run(words)
        with pytest.raises(SqlReadOnly) as found:
            target.write(batch(second))
        assert found.value.retry is Retry.RECONNECT
        target.close()
        target = place.sink(tmp_path)
        assert target.open() == Position(first.end_lsn)
        target.write(batch(second))
        assert len(place.rows("people", "id")) == 2
        target.close()


def test_a_connection_that_mariadb_ends_is_made_again(maria: Place, tmp_path: Path) -> None:
    source, target = Model(), maria.opened(tmp_path)
    source.insert(PEOPLE, ["1", "a", None])
    first = source.commit()
    target.write(batch(first))
    ((number,),) = target._target.run("SELECT connection_id()")
    maria.execute(f"KILL {number}")
    source.insert(PEOPLE, ["2", "b", None])
    second = source.commit()
    with pytest.raises(SqlUnreachable) as found:
        target.write(batch(second))
    assert found.value.retry is Retry.RECONNECT
    target.close()
    target = maria.sink(tmp_path)
    assert target.open() == Position(first.end_lsn)
    target.write(batch(second))
    assert len(maria.rows("people", "id")) == 2
    target.close()
