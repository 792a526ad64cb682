"""Questions about many relations become few, and no answer is older than the transaction it is for."""

from collections.abc import Iterator

import pytest
from tests.harness.servers.postgres import Database

from waltap_postgres.catalog.catalogue import PostgresCatalogue
from waltap_postgres.catalog.evidence import BURST, PAUSE_S, TablesAhead
from waltap_postgres.properties import PostgresProperties

TABLES = 120


class Counting(PostgresCatalogue):
    """A catalogue that counts questions."""

    asked = 0

    def query(self, sql: str, parameters: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
        self.asked += 1
        return super().query(sql, parameters)


@pytest.fixture
def catalogue(database: Database) -> Iterator[Counting]:
    database.execute("".join(f"CREATE TABLE t{n} (id int PRIMARY KEY);" for n in range(TABLES)))
    with database.connect(autocommit=True) as connection:
        yield Counting(connection, PostgresProperties.model_construct())


def xid(database: Database, statement: str = "") -> int:
    """Return the id of a transaction that has just committed."""
    return int(database.execute(f"{statement}; SELECT txid_current()")[0][0]) % (1 << 32)


def names(found: object) -> list[str]:
    return [column.name for column in found.relation.columns]  # type: ignore[attr-defined]


def test_a_burst_of_questions_is_answered_by_few(database: Database, catalogue: Counting) -> None:
    tables = catalogue.tables()
    before, ahead = xid(database), TablesAhead(catalogue, clock=lambda: 0.0)
    ahead.expect(table.relation.oid for table in tables)
    catalogue.asked = 0
    for table in tables:
        found = ahead.table_of(table.relation.oid, before)
        assert found is not None
        assert found.relation.name == table.relation.name
    assert catalogue.asked < BURST * 3


def test_by_name_as_well(database: Database, catalogue: Counting) -> None:
    tables = catalogue.tables()
    before, ahead = xid(database), TablesAhead(catalogue, clock=lambda: 0.0)
    ahead.expect(table.relation.oid for table in tables)
    catalogue.asked = 0
    for table in tables:
        found = ahead.table("public", table.relation.table, before)
        assert found is not None
        assert found.relation.oid == table.relation.oid
    assert catalogue.asked < BURST * 3


def test_an_answer_from_ahead_is_not_for_later_transactions(
    database: Database, catalogue: Counting
) -> None:
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


def test_a_stream_that_lags_behind_many_changes_of_a_table_asks_once(
    database: Database, catalogue: Counting
) -> None:
    ahead, oid = TablesAhead(catalogue), catalogue.tables()[0].relation.oid
    changes = [xid(database, f"ALTER TABLE t0 ADD c{n} int") for n in range(20)]
    catalogue.table_of(oid)  # its types are known
    catalogue.asked = 0
    for change in changes:
        told = ahead.again(oid, change)
        assert told is not None
        found, horizon = told
        assert len(names(found)) == 21
        assert (horizon - change) % (1 << 32) >= 1
    assert catalogue.asked == 1
    later = xid(database, "DROP TABLE t0")
    told = ahead.again(oid, later)
    assert told is not None
    assert told[0] is None
    assert catalogue.asked == 2


def test_a_change_that_is_not_visible_yet_is_waited_for(
    database: Database, catalogue: Counting
) -> None:
    ahead, oid = TablesAhead(catalogue), catalogue.tables()[0].relation.oid
    with database.connect(autocommit=False) as open_one:
        open_one.execute("ALTER TABLE t0 ADD v int")
        row = open_one.execute("SELECT txid_current()").fetchone()
        assert row is not None
        change = int(row[0]) % (1 << 32)
        assert ahead.again(oid, change) is None
        open_one.commit()
        told = ahead.again(oid, change)
    assert told is not None
    assert names(told[0]) == ["id", "v"]
