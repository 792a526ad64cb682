"""The SQL sink keeps the kit's promises on real databases."""

import contextlib
import datetime as dt
import itertools
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import pytest

from tests.harness.servers.mariadb import MariaDb
from tests.harness.servers.postgres import Database
from waltap_sinks.plugin import register_sinks
from waltap_sinks.sql import SqlProperties
from waltap_testing.sink_suite import Delivered, SinkRig, SinkSuite

SPEC = next(spec for spec in register_sinks() if spec.name == "sql")
TABLES = ("items", "notes", "kinds")

_numbers = itertools.count(1)


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


def rig(database: Database) -> SinkRig:
    schema = f"rig{next(_numbers)}"

    def read_back() -> list[Delivered]:
        found = []
        with database.connect() as connection:
            for table in TABLES:
                name = f"{schema}.{table}"
                if connection.execute("SELECT to_regclass(%s)", [name]).fetchone() == (None,):
                    continue
                cursor = connection.execute(f"SELECT * FROM {name} ORDER BY id")
                names = [column.name for column in cursor.description or ()]
                found += [
                    Delivered(f"public.{table}", "r", dict(zip(names, row, strict=True)))
                    for row in cursor
                ]
        return found

    properties = SqlProperties.model_validate(
        {
            "url": database.dsn,
            "table.name.format": f"{schema}.{{table}}",
            "position.table": f"{schema}.waltap_position",
        }
    )

    def unfit() -> str:
        database.execute(
            f"CREATE SCHEMA {schema}; CREATE TABLE {schema}.items (id int PRIMARY KEY, serial bigint, "
            "name text CHECK (name <> 'unfit'))"
        )
        return "unfit"

    return SinkRig(
        SPEC,
        properties,
        read_back,
        keeps_history=False,
        outage=lambda: shut(database),
        unfit=unfit,
    )


class TestPostgres(SinkSuite):
    @pytest.fixture
    def new_rig(self, database: Database) -> Callable[[Path], SinkRig]:
        return lambda folder: rig(database)


SQLITE_KINDS = {
    "flag": 1,
    "price": 12345.6,
    "day": "2024-02-29",
    "at": "2024-02-29 12:30:00",
}


def in_a_file(folder: Path) -> SinkRig:
    path = folder / "rows.db"

    def read_back() -> list[Delivered]:
        found = []
        with contextlib.closing(sqlite3.connect(path)) as connection:
            there = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
            for table in there.intersection(TABLES):
                cursor = connection.execute(f"SELECT * FROM {table} ORDER BY id")
                names = [column[0] for column in cursor.description]
                found += [
                    Delivered(f"public.{table}", "r", dict(zip(names, row, strict=True)))
                    for row in cursor
                ]
        return found

    properties = SqlProperties(url=f"sqlite:///{path}")
    return SinkRig(SPEC, properties, read_back, keeps_history=False, kinds=SQLITE_KINDS)


class TestSqlite(SinkSuite):
    @pytest.fixture
    def new_rig(self) -> Callable[[Path], SinkRig]:
        return in_a_file


def in_duckdb(folder: Path) -> SinkRig:
    path = folder / "rows.duckdb"

    def read_back() -> list[Delivered]:
        found = []
        with contextlib.closing(duckdb.connect(path)) as connection:
            connection.execute("SET TimeZone = 'UTC'")
            there = connection.execute("SELECT table_name FROM duckdb_tables()").fetchall()
            for table in {table for (table,) in there}.intersection(TABLES):
                cursor = connection.execute(f"SELECT * FROM public.{table} ORDER BY id")
                names = [column[0] for column in cursor.description]
                found += [
                    Delivered(f"public.{table}", "r", dict(zip(names, row, strict=True)))
                    for row in cursor.fetchall()
                ]
        return found

    properties = SqlProperties(url=f"duckdb:///{path}")
    return SinkRig(SPEC, properties, read_back, keeps_history=False)


class TestDuckDb(SinkSuite):
    @pytest.fixture
    def new_rig(self) -> Callable[[Path], SinkRig]:
        return in_duckdb


MARIADB_KINDS = {"flag": 1, "at": dt.datetime(2024, 2, 29, 12, 30)}


def in_mariadb(server: MariaDb) -> SinkRig:
    name = f"rig{os.getpid()}_{next(_numbers)}"
    server.execute(f"CREATE DATABASE {name}")

    def read_back() -> list[Delivered]:
        found = []
        with contextlib.closing(server.connect(name)) as connection, connection.cursor() as cursor:
            cursor.execute("SHOW TABLES")
            for table in {table for (table,) in cursor}.intersection(TABLES):
                cursor.execute(f"SELECT * FROM {table} ORDER BY id")
                names = [column[0] for column in cursor.description]
                found += [
                    Delivered(f"public.{table}", "r", dict(zip(names, row, strict=True)))
                    for row in cursor
                ]
        return found

    @contextlib.contextmanager
    def away() -> Iterator[None]:
        """Take away the table that each transaction writes."""
        with contextlib.closing(server.connect(name)) as connection, connection.cursor() as cursor:
            cursor.execute("RENAME TABLE waltap_position TO away")
            try:
                yield
            finally:
                cursor.execute("RENAME TABLE away TO waltap_position")

    properties = SqlProperties(url=server.url(name))
    return SinkRig(
        SPEC, properties, read_back, keeps_history=False, kinds=MARIADB_KINDS, outage=away
    )


class TestMariaDb(SinkSuite):
    @pytest.fixture
    def new_rig(self, mariadb: MariaDb) -> Callable[[Path], SinkRig]:
        return lambda folder: in_mariadb(mariadb)
