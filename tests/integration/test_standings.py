"""What it costs to know whether names mean the same still: how often the catalogue is asked, and for what."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.harness.servers.postgres import Database

from waltap_postgres.catalog.catalogue import PostgresCatalogue
from waltap_postgres.catalog.evidence import CHECKS_BURST, CHECKS_PER_S, NameResolutionCache
from waltap_postgres.properties import PostgresProperties

TABLES = 64


class Asked(PostgresCatalogue):
    """The catalogue, which notes the names in each question."""

    def __init__(self, database: Database) -> None:
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


class Rig:
    def __init__(self, database: Database) -> None:
        self.database, self.catalogue, self.now = database, Asked(database), 0.0
        self.standings = NameResolutionCache(self.catalogue, lambda xid: None, lambda: self.now)
        for n in range(TABLES):
            database.execute(f"CREATE TABLE t{n} (id int PRIMARY KEY)")

    def transaction(self, sql: str = "SELECT 1") -> int:
        """Run ``sql`` in a transaction; return its id."""
        with self.database.connect(autocommit=False) as connection:
            connection.execute(sql.encode())
            ((xid,),) = connection.execute("SELECT txid_current() % (2 ^ 32)::int8").fetchall()
        return int(xid)

    def of(self, n: int, xid: int) -> object:
        return self.standings.of("public", f"t{n}", xid)


@pytest.fixture
def rig(database: Database) -> Iterator[Rig]:
    made = Rig(database)
    yield made
    made.catalogue.connection.close()


def test_one_answer_is_for_all_transactions_that_it_saw(rig: Rig) -> None:
    xids = [rig.transaction() for _ in range(20)]
    stood = {rig.of(1, xid) for xid in xids}
    assert (len(stood), len(rig.catalogue.names)) == (1, 1)
    assert not rig.standings.due(xids[-1])


def test_a_lagging_stream_sees_each_change_at_its_place(rig: Rig) -> None:
    xids = [rig.transaction()]
    for ddl in (
        "ALTER TABLE t1 REPLICA IDENTITY FULL",
        "ALTER TABLE t1 DROP CONSTRAINT t1_pkey, ADD PRIMARY KEY (id)",
    ):
        rig.transaction(ddl)
        xids.append(rig.transaction())
    stood = [rig.of(1, xid) for xid in xids]
    assert len(set(stood)) == len(xids)
    assert rig.standings.due(xids[1])
    assert stood == [rig.of(1, xid) for xid in xids]
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
def test_another_value_stands_after_each_change(rig: Rig, ddl: str) -> None:
    before = rig.of(1, rig.transaction())
    assert before == rig.of(1, rig.transaction("CREATE TEMPORARY TABLE passing (a int)"))
    assert before != rig.of(1, rig.transaction(ddl))


def test_a_question_names_the_tables_that_were_in_use(rig: Rig) -> None:
    """All of them in a few questions when they come back, and one again when the rest is idle."""
    first = rig.transaction()
    for n in range(TABLES):
        rig.of(n, first)
    rig.catalogue.names.clear()
    for _ in range(3):
        xid = rig.transaction()
        for n in range(TABLES):
            rig.of(n, xid)
    assert rig.catalogue.names == [TABLES] * 3
    for _ in range(3):
        rig.of(1, rig.transaction())
    assert rig.catalogue.names[-2:] == [1, 1]
    xid = rig.transaction()
    rig.catalogue.names.clear()
    for n in range(TABLES):
        rig.of(n, xid)
    assert len(rig.catalogue.names) <= 8


def test_transactions_with_rows_are_looked_into_now_and_then(rig: Rig) -> None:
    xid = rig.transaction()
    assert sum(rig.standings.due(xid) for _ in range(1000)) == CHECKS_BURST
    rig.now += 1
    assert sum(rig.standings.due(xid) for _ in range(1000)) == CHECKS_PER_S
