"""What the catalogue says of tables, and what it costs: a column's number and the value of older rows; few questions
for many relations, and no answer that is older than the transaction it is for; names that mean the same still."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.harness.servers.postgres import Database

from waltap.changes.decode.relation import Column
from waltap_postgres.catalog.catalogue import PostgresCatalogue
from waltap_postgres.catalog.evidence import (
    BURST,
    CHECKS_BURST,
    CHECKS_PER_S,
    PAUSE_S,
    NameResolutionCache,
    TablesAhead,
)
from waltap_postgres.properties import PostgresProperties

TABLES = 120
OUTPUT = "-c timezone=UTC -c datestyle=ISO -c bytea_output=hex"


class Asked(PostgresCatalogue):
    """The catalogue of `TABLES` tables t0, t1, …; it notes how many names are in each question."""

    def __init__(self, database: Database) -> None:
        database.run(";".join(f"CREATE TABLE t{n} (id int PRIMARY KEY)" for n in range(TABLES)))
        self.connection = database.connect(autocommit=True)
        super().__init__(
            self.connection,
            PostgresProperties.model_validate({"database.dbname": database.name}),
        )
        self.names: list[int] = []

    def query(self, sql: str, parameters: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        found = super().query(sql, parameters)
        self.names.append(len(found))
        return found


@pytest.fixture
def catalogue(database) -> Iterator[Asked]:
    made = Asked(database)
    yield made
    made.connection.close()


def xid(database: Database, statement: str = "SELECT 1") -> int:
    return int(database.execute(f"{statement}; SELECT txid_current()")[0][0]) % (1 << 32)


# --- columns ---------------------------------------------------------------------------------------------


def columns(database: Database, table: str) -> dict[str, Column]:
    with database.connect(options=OUTPUT, autocommit=True) as connection:
        catalogue = PostgresCatalogue(connection, PostgresProperties.model_construct())
        relation = catalogue.relation("public", table)
    return {column.name: column for column in relation.columns}


@pytest.mark.parametrize("in_transaction", [False, True])
def test_a_table_that_is_being_altered_is_described_all_the_same(database, in_transaction):
    """Reading a default locks the table; whoever alters it, or has prepared that, may take for ever."""
    database.psql(
        "create table t (id int primary key, v text default 'x');"
        "create table u (id int primary key, v text default 'y')"
    )
    with database.connect(autocommit=True) as other:
        other.execute("BEGIN; ALTER TABLE t ADD w int")
        found = columns(database, "t")
        with database.connect(options=OUTPUT, autocommit=True) as connection:
            if in_transaction:
                connection.execute("BEGIN")
            catalogue = PostgresCatalogue(connection, PostgresProperties.model_construct())
            tables = {table.relation.table: table for table in catalogue.tables()}
            assert connection.execute("SHOW lock_timeout").fetchone() == ("0",)
        other.execute("ROLLBACK")
    assert list(found) == ["id", "v"]
    assert found["v"].nullable
    assert not tables["t"].defaults_known
    assert tables["u"].defaults_known
    assert tables["u"].relation.columns[1].default == "'y'::text"
    assert columns(database, "t")["v"].default == "'x'::text"


def test_tables_that_others_lock_cost_one_wait(database, monkeypatch):
    """Each of them cost several, so a start beside a migration took minutes."""
    names = [f"t{number}" for number in range(8)]
    for name in names:
        database.execute(f"CREATE TABLE {name} (id int DEFAULT 1)")
    asked: list[list[int]] = []
    before = PostgresCatalogue._defaults
    monkeypatch.setattr(
        PostgresCatalogue, "_defaults", lambda self, oids: asked.append(oids) or before(self, oids)
    )
    with database.connect() as other:
        other.execute(f"BEGIN; LOCK TABLE {', '.join(names[::2])}")
        with database.connect(options=OUTPUT, autocommit=True) as connection:
            catalogue = PostgresCatalogue(connection, PostgresProperties.model_construct())
            known = {t.relation.table: t.defaults_known for t in catalogue.tables()}
    assert known == {name: number % 2 == 1 for number, name in enumerate(names)}
    assert [len(oids) for oids in asked] == [8, 4]


@pytest.mark.parametrize(
    ("added", "missing"),
    [
        ("int default 7", "7"),
        ("text default 'a,\"b\" {c} \\'", 'a,"b" {c} \\'),
        ("text default ''", ""),
        ("text[] default '{\"x y\",NULL}'", '{"x y",NULL}'),
        ("bytea default '\\x00ff'", "\\x00ff"),
        ("timestamptz default '2024-01-01 12:00+02'", "2024-01-01 10:00:00+00"),
        ("int default null", None),
        ("float8 default random()", None),
    ],
)
def test_a_constant_default_is_the_value_of_the_rows_before_it(database, added, missing):
    database.psql(f"create table t (id int primary key); insert into t values (1);"
                  f"alter table t add column v {added}; alter table t alter column v drop default")  # fmt: skip
    assert columns(database, "t")["v"].missing == missing


# --- descriptions that are asked for ahead ----------------------------------------------------------------


def names(found: object) -> list[str]:
    return [column.name for column in found.relation.columns]  # type: ignore[attr-defined]


@pytest.mark.parametrize("by", ["oid", "name"])
def test_a_burst_of_questions_is_answered_by_few(database, catalogue, by):
    tables = catalogue.tables()
    before, ahead = xid(database), TablesAhead(catalogue, clock=lambda: 0.0)
    ahead.expect(table.relation.oid for table in tables)
    catalogue.names.clear()
    for table in tables:
        if by == "oid":
            found = ahead.table_of(table.relation.oid, before)
        else:
            found = ahead.table("public", table.relation.table, before)
        assert (found.relation.name, found.relation.oid) == (
            table.relation.name, table.relation.oid,
        )  # fmt: skip
    assert len(catalogue.names) < BURST * 3


def test_an_answer_from_ahead_is_not_for_later_transactions(database, catalogue):
    tables, now = catalogue.tables(), 0.0
    before, ahead = xid(database), TablesAhead(catalogue, clock=lambda: now)
    ahead.expect(table.relation.oid for table in tables)
    oids = [table.relation.oid for table in tables]
    for oid in oids[: BURST + 1]:
        ahead.table_of(oid, before)
    last, gone = tables[-1], tables[-2]
    later = xid(
        database, f"ALTER TABLE {last.relation.table} ADD v int; DROP TABLE {gone.relation.table}"
    )
    found = ahead.table_of(last.relation.oid, later)
    assert names(found) == ["id", "v"]
    assert ahead.table_of(gone.relation.oid, later) is None
    now += PAUSE_S + 1
    for oid in oids[BURST + 1 : -2]:
        assert names(ahead.table_of(oid, later)) == ["id"]


def test_a_stream_that_lags_behind_many_changes_of_a_table_asks_once(database, catalogue):
    ahead, oid = TablesAhead(catalogue), catalogue.tables()[0].relation.oid
    changes = [xid(database, f"ALTER TABLE t0 ADD c{n} int") for n in range(20)]
    catalogue.table_of(oid)  # its types are known
    catalogue.names.clear()
    for change in changes:
        reported = ahead.again(oid, change)
        assert reported is not None
        found, horizon = reported
        assert len(names(found)) == 21
        assert (horizon - change) % (1 << 32) >= 1
    assert len(catalogue.names) == 1
    later = xid(database, "DROP TABLE t0")
    reported = ahead.again(oid, later)
    assert reported[0] is None
    assert len(catalogue.names) == 2


def test_a_change_that_is_not_visible_yet_is_waited_for(database, catalogue):
    ahead, oid = TablesAhead(catalogue), catalogue.tables()[0].relation.oid
    with database.connect(autocommit=False) as open_one:
        open_one.execute("ALTER TABLE t0 ADD v int")
        row = open_one.execute("SELECT txid_current()").fetchone()
        change = int(row[0]) % (1 << 32)
        assert ahead.again(oid, change) is None
        open_one.commit()
        reported = ahead.again(oid, change)
    assert names(reported[0]) == ["id", "v"]


# --- whether names mean the same still --------------------------------------------------------------------


class Rig:
    def __init__(self, catalogue: Asked) -> None:
        self.catalogue, self.now = catalogue, 0.0
        self.name_resolution = NameResolutionCache(catalogue, lambda xid: None, lambda: self.now)

    def of(self, n: int, xid: int) -> object:
        return self.name_resolution.of("public", f"t{n}", xid)


@pytest.fixture
def rig(catalogue) -> Rig:
    return Rig(catalogue)


def test_one_answer_is_for_all_transactions_that_it_saw(database, rig):
    xids = [xid(database) for _ in range(20)]
    stood = {rig.of(1, each) for each in xids}
    assert (len(stood), len(rig.catalogue.names)) == (1, 1)
    assert not rig.name_resolution.due(xids[-1])


def test_a_lagging_stream_sees_each_change_at_its_place(database, rig):
    xids = [xid(database)]
    for ddl in (
        "ALTER TABLE t1 REPLICA IDENTITY FULL",
        "ALTER TABLE t1 DROP CONSTRAINT t1_pkey, ADD PRIMARY KEY (id)",
    ):
        xid(database, ddl)
        xids.append(xid(database))
    stood = [rig.of(1, each) for each in xids]
    assert len(set(stood)) == len(xids)
    assert rig.name_resolution.due(xids[1])
    assert stood == [rig.of(1, each) for each in xids]
    assert rig.catalogue.names == [1]


@pytest.mark.parametrize(
    "ddl",
    [
        "DROP TABLE t1; CREATE TABLE t1 (id int PRIMARY KEY)",
        "ALTER TABLE t1 DROP CONSTRAINT t1_pkey",
        "DROP TABLE t1; CREATE MATERIALIZED VIEW t1 AS SELECT 1 AS id",
        "ALTER TABLE t1 REPLICA IDENTITY FULL",
        "ALTER TABLE t1 REPLICA IDENTITY USING INDEX t1_pkey",
        "ALTER TABLE t1 RENAME TO s; ALTER TABLE t2 RENAME TO t1",
        "ALTER TABLE t1 ADD w text",
        "DROP TABLE t1",
    ],
)
def test_another_value_stands_after_each_change(database, rig, ddl):
    before = rig.of(1, xid(database))
    assert before == rig.of(1, xid(database, "CREATE TEMPORARY TABLE passing (a int)"))
    assert before != rig.of(1, xid(database, ddl))


def test_a_question_names_the_tables_that_were_in_use(database, rig):
    """All of them in a few questions when they come back, and one again when the rest is idle."""
    first = xid(database)
    for n in range(TABLES):
        rig.of(n, first)
    rig.catalogue.names.clear()
    for _ in range(3):
        late = xid(database)
        for n in range(TABLES):
            rig.of(n, late)
    assert rig.catalogue.names == [TABLES] * 3
    for _ in range(3):
        rig.of(1, xid(database))
    assert rig.catalogue.names[-2:] == [1, 1]
    late = xid(database)
    rig.catalogue.names.clear()
    for n in range(TABLES):
        rig.of(n, late)
    assert len(rig.catalogue.names) <= TABLES // 8


def test_transactions_with_rows_are_looked_into_now_and_then(database, rig):
    late = xid(database)
    assert sum(rig.name_resolution.due(late) for _ in range(1000)) == CHECKS_BURST
    rig.now += 1
    assert sum(rig.name_resolution.due(late) for _ in range(1000)) == CHECKS_PER_S
