"""Targets of the SQL sink, of the test's own: PostgreSQL, SQLite, MariaDB and DuckDB, fed by hand."""

import contextlib
import datetime as dt
import itertools
import os
import random
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pytest
from tests.harness.changelog import Database as Model
from tests.harness.changelog import batch, context, relation
from tests.harness.pipeline import PipelineRig
from tests.harness.servers.mariadb import MariaDb
from tests.harness.servers.postgres import Database

from waltap.changes.transactions.transaction import TransactionPart
from waltap.errors import SinkError
from waltap_sinks.sql.properties import SqlProperties
from waltap_sinks.sql.sink import SqlSink

PEOPLE = relation("public.people", [("id", "int4"), ("name", "text"), ("note", "text")])
VISITS = relation("public.visits", [("person", "int4"), ("page", "text")], key=(), identity="f")
PAIRS = relation(
    "public.pairs",
    [("a", "int4"), ("b", "text"), ("price", "numeric(10,2)"), ("doc", "jsonb")],
    key=("a", "b"),
)
_numbers = itertools.count(1)


@dataclass
class Place:
    """A target, and a way to it that is not the sink's. ``text`` is its type of texts; sinks keep their state in
    ``folder``, and are closed by `close`."""

    kind: str
    url: str
    connect: Callable[[], Any]
    folder: Path
    text: str = "text"
    made: list[SqlSink] = field(default_factory=list)

    def close(self) -> None:
        for each in self.made:
            each.close()

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        with contextlib.closing(self.connect()) as connection:
            cursor = connection.cursor()
            cursor.execute(statement)
            found = list(cursor.fetchall()) if cursor.description else []
            connection.commit()
            return found

    def rows(self, table: str, *columns: str) -> list[tuple[str | None, ...]]:
        """Return rows as texts, sorted."""
        names = ", ".join(f"CAST({column} AS {self.text})" for column in columns)
        return sorted(self.execute(f"SELECT {names} FROM {table}"), key=str)

    def sink(
        self, *, repairs: bool = False, tolerant: bool = False, named: str = "test", **more: Any
    ) -> SqlSink:
        """Return the sink, not opened, of the pipeline ``named``. Names of properties are given with _ for the
        dot."""
        given = {"url": self.url} | {n.replace("_", "."): v for n, v in more.items()}
        reported = context(self.folder, has_offset=True, repairs=repairs, tolerant=tolerant)
        reported = replace(reported, pipeline=named)
        self.made.append(SqlSink(SqlProperties.model_validate(given), reported))
        return self.made[-1]

    def opened(self, **more: Any) -> SqlSink:
        made = self.sink(**more)
        try:
            made.open()
        except BaseException:
            made.close()
            raise
        return made

    def deliver(self, *parts: TransactionPart, **more: Any) -> None:
        """Deliver transactions, each by a batch, by a sink of their own."""
        finish(self.opened(**more), *parts)

    def redeliver(self, part: TransactionPart, **more: Any) -> None:
        """Deliver a dead letter by a sink of its own."""
        letters, letter = self.opened(**more), batch(part)
        letter.redelivers = ("1#1",)
        letters.write(letter)
        letters.flush()
        letters.close()

    def refuses(
        self, error: type[SinkError], part: TransactionPart, match: str | None = None, **more: Any
    ) -> SinkError:
        """Have a sink of its own refuse a transaction; return the error."""
        with contextlib.closing(self.opened(**more)) as target:
            with pytest.raises(error, match=match) as refused:
                target.write(batch(part))
        return refused.value


def finish(sink: SqlSink, *parts: TransactionPart) -> None:
    for part in parts:
        sink.write(batch(part))
    sink.flush()
    sink.close()


def in_postgresql(database: Database, folder: Path) -> Place:
    return Place("postgresql", database.dsn, lambda: psycopg.connect(database.dsn), folder)


def in_sqlite(folder: Path) -> Place:
    path = folder / "rows.db"
    return Place("sqlite", f"sqlite:///{path}", lambda: sqlite3.connect(path), folder)


def in_mariadb(server: MariaDb, folder: Path) -> Place:
    """Make a database for it."""
    name = f"t{os.getpid()}_{next(_numbers)}"
    server.execute(f"CREATE DATABASE {name}")
    return Place("mariadb", server.url(name), lambda: server.connect(name), folder, "CHAR")


def in_duckdb(folder: Path) -> Place:
    path = folder / "rows.duckdb"
    return Place("duckdb", f"duckdb:///{path}", lambda: _DuckDb(path), folder, "VARCHAR")


@pytest.fixture
def postgres(database: Database, tmp_path: Path) -> Iterator[Place]:
    with contextlib.closing(in_postgresql(database, tmp_path)) as made:
        yield made


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Place]:
    with contextlib.closing(in_sqlite(tmp_path)) as made:
        yield made


@pytest.fixture
def maria(mariadb: MariaDb, tmp_path: Path) -> Iterator[Place]:
    with contextlib.closing(in_mariadb(mariadb, tmp_path)) as made:
        yield made
    mariadb.execute(f"DROP DATABASE {made.url.rpartition('/')[2]}")


@pytest.fixture
def duck(tmp_path: Path) -> Iterator[Place]:
    with contextlib.closing(in_duckdb(tmp_path)) as made:
        yield made


@pytest.fixture(
    params=["postgres", "file", "maria", "duck"], ids=["postgresql", "sqlite", "mariadb", "duckdb"]
)
def place(request: pytest.FixtureRequest) -> Place:
    """Return one target of each kind; a test that wants some of them says so, ``indirect``."""
    found: Place = request.getfixturevalue(request.param)
    return found


class _DuckDb:
    """A connection to a DuckDB file, with tables of ``public`` by their names alone."""

    def __init__(self, path: Path) -> None:
        self._raw = duckdb.connect(path)
        self._raw.execute("SET TimeZone = 'UTC'")
        self._raw.execute("CREATE SCHEMA IF NOT EXISTS public")
        self._raw.execute("USE public")
        self.description: Any = None

    def cursor(self) -> "_DuckDb":
        return self

    def execute(self, statement: str) -> None:
        self._raw.execute(statement)
        self.description = self._raw.description

    def fetchall(self) -> list[Any]:
        return self._raw.fetchall()

    def commit(self) -> None:
        pass

    def rollback(self) -> None:
        pass

    def close(self) -> None:
        self._raw.close()


def model(rows: Any) -> list[tuple[str | None, ...]]:
    """Return the rows that the hand-made server has, sorted as `Place.rows` gives them."""
    return sorted(map(tuple, rows), key=str)


def failure(sink: SqlSink, part: Any) -> BaseException:
    """Return what writing ``part`` raises."""
    try:
        sink.write(batch(part))
    except BaseException as error:
        return error
    return AssertionError("it was written")


def micros(moment: Any) -> int | None:
    """Return a moment as a target gives it in microseconds."""
    if moment is None:
        return None
    given = dt.datetime.fromisoformat(moment) if isinstance(moment, str) else moment
    given = given if given.tzinfo else given.replace(tzinfo=dt.UTC)
    return (given - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)


def some_of_everything(source: Model, chance: random.Random) -> Any:
    """Return a transaction with changes of every kind, on people and pairs."""
    for _ in range(chance.choice((1, 2, 5, 90))):
        rows = source.rows.setdefault("public.people", [])
        free = [str(n) for n in range(60) if str(n) not in {row[0] for row in rows}]
        kind = chance.random()
        if free and (kind < 0.4 or not rows):
            source.insert(PEOPLE, [chance.choice(free), f"n{chance.random()}", "x" * 50])
        elif kind < 0.5 and free:
            unsent = ["note"] if chance.random() < 0.5 else []
            source.update(PEOPLE, [chance.choice(rows)[0]], unsent, id=chance.choice(free))
        elif kind < 0.75:
            unsent = ["note"] if chance.random() < 0.5 else []
            source.update(PEOPLE, [chance.choice(rows)[0]], unsent, name=f"m{chance.random()}")
        elif kind < 0.98 or len(rows) < 20:
            source.delete(PEOPLE, [chance.choice(rows)[0]])
        else:
            source.truncate(PEOPLE)
    key = (str(chance.randrange(5)), chance.choice("äß'%\""))
    if not any(row[:2] == key for row in source.rows.setdefault("public.pairs", [])):
        source.insert(PAIRS, [*key, f"{chance.randrange(99)}.50", '{"a": [1, "x"]}'])
    else:
        source.update(PAIRS, key, price=f"{chance.randrange(99)}.25", unsent=["doc"])
    return source.commit()


_WAITING = {
    "postgresql": "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    " AND wait_event_type = 'Lock' AND application_name LIKE 'waltap%'",
    "mariadb": "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'",
}


def waiting(place: Place) -> int:
    return int(place.execute(_WAITING[place.kind])[0][0])


def mended(
    place: Place, sink: SqlSink, kind: type[SinkError], match: str, *parts: Any
) -> SinkError:
    """See the sink refuse ``parts`` with ``kind``; carry out the statement that the error names, and see a new
    sink take them."""
    with pytest.raises(kind, match=match) as refused:
        sink.write(batch(*parts))
        sink.flush()
    sink.close()
    place.execute(str(refused.value.fields["statement"]))
    again = place.opened()
    again.write(batch(*parts))
    again.flush()
    return refused.value


@contextlib.contextmanager
def lesser(database: Database, place: Place) -> Iterator[tuple[str, Place]]:
    """Give a role that may nothing, and the target as it."""
    name = f"lesser_{database.name}"
    database.execute(f"CREATE ROLE {name} LOGIN")
    dsn = database.dsn.replace("//postgres", f"//{name}", 1)
    try:
        yield name, replace(place, url=dsn)
        place.close()
    finally:
        database.execute(f"DROP OWNED BY {name}")
        database.execute(f"DROP ROLE {name}")


def replica(database: Database, **more: object) -> dict[str, Any]:
    place = {"table.name.format": "replica.{table}", "position.table": "replica.waltap_position"}
    return {"type": "sql", "url": database.dsn, **place, **more}


def pipeline(database: Database, folder: Path, **settings: object) -> PipelineRig:
    sink = {f"sink.{name}": value for name, value in replica(database).items()}
    return PipelineRig(database, folder, {"schema.include.list": "public", **sink, **settings})
