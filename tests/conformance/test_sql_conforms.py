"""The SQL sink keeps the kit's promises on real databases."""

import contextlib
import datetime as dt
import itertools
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pymysql
import pytest
from tests.harness.servers.postgres import Database
from tests.harness.sql import Place, in_duckdb, in_mariadb, in_postgresql, in_sqlite

from waltap_sinks.plugin import register_sinks
from waltap_sinks.sql.properties import SqlProperties
from waltap_testing.sinks.losses import keeping
from waltap_testing.suites.sink import DeliveredChange, SinkRig, SinkSuite

SPEC = next(spec for spec in register_sinks() if spec.name == "sql")
TABLES = ("items", "notes", "kinds")
KINDS: Mapping[str, Mapping[str, object]] = {
    "sqlite": {
        "flag": 1,
        "price": 12345.6,
        "day": "2024-02-29",
        "at": "2024-02-29 12:30:00",
    },
    "mariadb": {"flag": 1, "at": dt.datetime(2024, 2, 29, 12, 30)},
}
"""Values that a kind of target has in another way."""
NO_TABLE = (
    psycopg.errors.UndefinedTable,
    sqlite3.OperationalError,
    pymysql.ProgrammingError,
    duckdb.CatalogException,
)
_numbers = itertools.count(1)


def rig(place: Place, schema: str = "", **more: Any) -> SinkRig:
    """Return a rig whose tables are in ``schema``, where one is given."""
    prefix = f"{schema}." if schema else ""

    def read_back() -> list[DeliveredChange]:
        found = []
        with contextlib.closing(place.connect()) as connection:
            for table in TABLES:
                cursor = connection.cursor()
                try:
                    cursor.execute(f"SELECT * FROM {prefix}{table} ORDER BY id")
                except NO_TABLE:
                    connection.rollback()
                    continue
                names = [column[0] for column in cursor.description]
                found += [
                    DeliveredChange(f"public.{table}", "r", dict(zip(names, row, strict=True)))
                    for row in cursor.fetchall()
                ]
        return found

    given = {"url": place.url}
    if schema:
        given |= {
            "table.name.format": f"{schema}.{{table}}",
            "position.table": f"{schema}.waltap_position",
        }
    properties = SqlProperties.model_validate(given)
    kinds = KINDS.get(place.kind, {})
    return SinkRig(SPEC, properties, read_back, stores_history=False, kinds=kinds, **more)


@contextlib.contextmanager
def shut(database: Database) -> Iterator[None]:
    """Let nobody into the database, and throw out who is there."""
    server, name = database.server, database.name
    server.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
    server.execute(
        f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
    )
    try:
        yield
    finally:
        server.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')


def kept(place: Place, schema: str, prefix: str = "") -> Callable[[], None]:
    """Keep the tables of ``schema``, SQL, as tables beside them; one that was not there goes aside."""
    number = next(_numbers)

    def there() -> list[str]:
        found = place.execute(
            f"SELECT table_name FROM information_schema.tables WHERE table_schema = {schema}"
        )
        return [str(name) for (name,) in found if not str(name).startswith(("kept", "aside"))]

    tables = there()
    for table in tables:
        place.execute(f"CREATE TABLE {prefix}kept{number}_{table} AS SELECT * FROM {prefix}{table}")

    def put_back() -> None:
        now = there()
        for table in now:
            if table not in tables:
                place.execute(f"ALTER TABLE {prefix}{table} RENAME TO aside_{table}")
        for table in tables:
            if table not in now:
                place.execute(f"ALTER TABLE {prefix}aside_{table} RENAME TO {table}")
            place.execute(f"DELETE FROM {prefix}{table}")
            place.execute(f"INSERT INTO {prefix}{table} SELECT * FROM {prefix}kept{number}_{table}")

    return put_back


class TestPostgres(SinkSuite):
    @pytest.fixture
    def new_rig(self, database) -> Callable[[Path], SinkRig]:
        def make(folder: Path) -> SinkRig:
            schema = f"rig{next(_numbers)}"

            def unfit() -> str:
                database.execute(
                    f"CREATE SCHEMA {schema}; CREATE TABLE {schema}.items (id int PRIMARY KEY, "
                    "serial bigint, name text CHECK (name <> 'unfit'))"
                )
                return "unfit"

            place = in_postgresql(database, folder)
            return rig(
                place,
                schema,
                outage=lambda: shut(database),
                unfit=unfit,
                keep=lambda: kept(place, f"'{schema}'", f"{schema}."),
            )

        return make


class TestSqlite(SinkSuite):
    @pytest.fixture
    def new_rig(self) -> Callable[[Path], SinkRig]:
        return lambda folder: rig(in_sqlite(folder), keep=keeping(folder / "rows.db"))


class TestDuckDb(SinkSuite):
    @pytest.fixture
    def new_rig(self) -> Callable[[Path], SinkRig]:
        return lambda folder: rig(in_duckdb(folder), keep=keeping(folder / "rows.duckdb"))


@contextlib.contextmanager
def without_position(place: Place) -> Iterator[None]:
    """Take away the table that each transaction writes."""
    place.execute("RENAME TABLE waltap_position TO away")
    try:
        yield
    finally:
        place.execute("RENAME TABLE away TO waltap_position")


class TestMariaDb(SinkSuite):
    @pytest.fixture
    def new_rig(self, mariadb) -> Callable[[Path], SinkRig]:
        def make(folder: Path) -> SinkRig:
            place = in_mariadb(mariadb, folder)
            return rig(
                place,
                outage=lambda: without_position(place),
                keep=lambda: kept(place, "DATABASE()"),
            )

        return make
