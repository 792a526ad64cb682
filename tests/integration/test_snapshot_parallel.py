"""Several connections read one initial snapshot, on a real server: one snapshot, one order, every row once."""

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from tests.harness.meanwhile import meanwhile
from tests.harness.pipeline import WAIT_S, until
from tests.harness.servers.postgres import Database

from waltap.plugins.hookspecs import hookimpl
from waltap_postgres.snapshot import parallel
from waltap_postgres.snapshot.transaction import ReadingTransaction

ACCOUNTS, TABLES = 4000, 3
MOST_TRANSFERS = 14_000


class When:
    """Does something, once, at an event of a snapshot."""

    def __init__(self, event: str, act: Callable[[], object], table: str = "") -> None:
        self.event, self.act, self.table = event, act, table

    @hookimpl
    def on_snapshot(self, event: str, table: str) -> None:
        if event == self.event and self.table in {"", table}:
            act, self.act = self.act, lambda: None
            act()


def transfer(number: int) -> str:
    """Return SQL that moves money from one account to another, of another table where there is one."""
    (source, target), step = divmod(number, TABLES), number % 7 + 1
    taken, given = f"bank{source % TABLES}", f"bank{(source + target) % TABLES}"
    moves = (taken, number * 37 % ACCOUNTS, -step), (given, number * 91 % ACCOUNTS, step)
    updates = [
        f"UPDATE {table} SET amount = amount + ({by}) WHERE id = {row};"
        for table, row, by in sorted(
            moves
        )  # in one order: two that cross would wait for each other
    ]
    return f"BEGIN; {' '.join(updates)} COMMIT"


@contextmanager
def under_load(database: Database, writers: int = 2) -> Iterator[None]:
    """Move money until the block ends, so often at most that what follows can be caught up with."""
    numbers = itertools.count(10_000)

    def write(over: threading.Event) -> None:
        with database.connect(autocommit=True) as connection:
            while not over.is_set() and (number := next(numbers)) < MOST_TRANSFERS:
                connection.execute(transfer(number).encode())

    with meanwhile(*[write] * writers):
        yield


@pytest.fixture
def bank(database) -> Database:
    for number in range(TABLES):
        database.execute(
            f"CREATE TABLE bank{number} (id int PRIMARY KEY, amount bigint NOT NULL, filler text);"
            f"INSERT INTO bank{number} SELECT g, 1000, repeat('x', 100) FROM generate_series(0, "
            f"{ACCOUNTS - 1}) g"
        )
    return database


@pytest.mark.parametrize("slot", ["new", "old"])
def test_eight_readers_under_load_see_one_moment(bank, pipeline, slot, monkeypatch):
    """The bank's sum is the same at every moment, and of no two: money is moved just before each reader
    begins, and while they read. Beside an old slot there is no snapshot but their own."""
    pipeline.settings |= {"snapshot.max.threads": 8, "snapshot.fetch.size": 500}
    if slot == "old":
        pipeline.settings |= {"slot.takeover": "true"}
        bank.execute(f'CREATE PUBLICATION "{pipeline.slot}" FOR ALL TABLES')
        bank.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", pipeline.slot)

    numbers, begun, join = itertools.count(), [], ReadingTransaction.join

    def later(reader: ReadingTransaction, leader: ReadingTransaction, given: str) -> None:
        with bank.connect() as connection:
            for number in itertools.islice(numbers, 60):
                connection.execute(transfer(number).encode())
        begun.append(given)
        join(reader, leader, given)

    monkeypatch.setattr(ReadingTransaction, "join", later)
    with under_load(bank):
        with pipeline.running():
            pass
    assert len(begun) >= 7, "fewer readers than asked for"
    read = [event for event in pipeline.destination.events if event.op == "r"]
    assert Counter(event.table for event in read) == {
        f"public.bank{number}": ACCOUNTS for number in range(TABLES)
    }
    assert len({(event.table, event.row["id"]) for event in read}) == len(read)
    assert sum(int(event.row["amount"]) for event in read) == 1000 * ACCOUNTS * TABLES
    assert max(piece.chunk for piece in pipeline.destination.pieces()) > 0, "no table was cut"
    pipeline.catch_up()
    for number in range(TABLES):
        assert pipeline.destination.table(f"bank{number}") == bank.rows(f"bank{number}")


def test_tables_come_one_after_the_other_and_whole(bank, pipeline):
    statements = ["CREATE TABLE empty (id int PRIMARY KEY)", "ANALYZE"]
    for number in range(40):
        made = f"CREATE TABLE small{number:03} (id int PRIMARY KEY)"
        statements += [made, f"INSERT INTO small{number:03} VALUES (1), (2)"]
    bank.run(*statements)
    settings = {"snapshot.max.threads": 4, "snapshot.max.threads.multiplier": 3}
    pipeline.settings |= settings
    with pipeline.running():
        pass
    read = pipeline.destination.pieces()
    order = [table for table, _ in itertools.groupby(piece.relation.table for piece in read)]
    small = [f"small{number:03}" for number in range(40)]
    assert order == [*(f"bank{number}" for number in range(TABLES)), "empty", *small]
    for table, mine in itertools.groupby(read, lambda piece: piece.relation.table):
        complete = [piece.complete for piece in mine]
        assert complete == [*[False] * (len(complete) - 1), True], table
    assert Counter(
        p.chunk for p in read if p.relation.table == "bank0" and p.ends_chunk
    ) == dict.fromkeys(range(12), 1)
    markers = Counter(m for p in read if p.rows for m in {p.first_marker, p.last_marker})
    assert markers["first"] == markers["last"] == 1
    assert read[0].first_marker == "first"
    assert read[-1].last_marker == "last"


@pytest.mark.parametrize(
    ("order", "expected", "threads"),
    [
        ("ascending", ["c", "a", "d", "b"], 3),
        ("descending", ["b", "d", "a", "c"], 3),
        ("disabled", ["a", "b", "c", "d"], 1),
    ],
)
def test_tables_come_in_the_order_of_their_row_counts(database, pipeline, order, expected, threads):
    for table, count in {"a": 20, "b": 900, "c": 3, "d": 400}.items():
        database.execute(f"CREATE TABLE {table} (id int PRIMARY KEY)")
        database.execute(f"INSERT INTO {table} SELECT generate_series(1, {count})")
    settings = {"snapshot.tables.order.by.row.count": order, "snapshot.max.threads": threads}
    pipeline.settings |= settings
    with pipeline.running():
        pass
    found = [p.relation.table for p in pipeline.destination.pieces()]
    assert [table for table, _ in itertools.groupby(found)] == expected


def test_a_table_that_is_cut_by_its_key_is_read_whole(database, pipeline):
    """Partitions read as their root lie in no one file. Its key is of two columns, one of them text with
    the comma of a list in its name."""
    database.execute(
        'CREATE TABLE p ("k, l" text, n int, v text, PRIMARY KEY ("k, l", n)) PARTITION BY HASH (n);'
        "CREATE TABLE p0 PARTITION OF p FOR VALUES WITH (MODULUS 2, REMAINDER 0);"
        "CREATE TABLE p1 PARTITION OF p FOR VALUES WITH (MODULUS 2, REMAINDER 1);"
        "INSERT INTO p SELECT chr(65 + g % 26) || '''\\', g, 'v' || g FROM generate_series(1, 3000) g"
    )
    settings = {"snapshot.max.threads": 4, "publish.via.partition.root": "true"}
    pipeline.settings |= settings
    with pipeline.running():
        pass
    assert sorted(pipeline.destination.ids("p", "r", column="n")) == list(range(1, 3001))
    assert {p.chunk for p in pipeline.destination.pieces("p")} == {0, 1, 2, 3}


def test_ddl_waits_for_the_last_range_of_a_table(bank, pipeline):
    """What empties a table comes before its first range or after its last, and never between."""
    waiting = threading.Thread(target=lambda: bank.execute("TRUNCATE bank0"))
    settings = {"snapshot.max.threads": 3, "snapshot.fetch.size": 100}
    pipeline.settings |= settings | {"snapshot.max.threads.multiplier": 4}
    with pipeline.running(When("progress", waiting.start, "public.bank0")) as run:
        run.until(lambda: pipeline.destination.of("bank0")[-1].op == "t", "the truncate")
    waiting.join(WAIT_S)
    assert sorted(pipeline.destination.ids("bank0", "r")) == list(range(ACCOUNTS))
    assert pipeline.destination.table("bank0") == {}


@pytest.mark.parametrize("statement", ["TRUNCATE bank1", "VACUUM FULL bank1", "DROP TABLE bank1"])
def test_a_table_that_was_rewritten_before_is_read_in_a_later_snapshot(bank, pipeline, statement):
    pipeline.settings |= {"snapshot.max.threads": 4}
    with pipeline.running(When("started", lambda: bank.execute(statement))):
        pass
    left = ACCOUNTS if "VACUUM" in statement else 0
    assert len(pipeline.destination.ids("bank1", "r")) == left
    assert sum(p.complete for p in pipeline.destination.pieces("bank1")) == 1
    for table in ("bank0", "bank2"):
        assert sorted(pipeline.destination.ids(table, "r")) == list(range(ACCOUNTS))


def test_a_reader_that_is_cut_off_ends_the_others_and_the_snapshot_is_taken_again(
    bank, pipeline, monkeypatch
):
    for name in ("CURRENT_BYTES", "AHEAD_BYTES"):  # no reader is done before its pieces are taken
        monkeypatch.setattr(parallel, name, 1)
    settings = {"snapshot.max.threads": 4, "snapshot.fetch.size": 50}
    pipeline.settings |= settings

    def cut() -> None:
        bank.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = 'waltap snapshot'"
        )

    with pipeline.running(When("progress", cut, "public.bank0")) as run:
        assert run.engine.status().reconnects >= 1
    assert {f"bank{number}" for number in range(TABLES)} == {
        p.relation.table for p in pipeline.destination.pieces() if p.complete
    }
    pipeline.catch_up()
    assert pipeline.destination.table("bank2") == bank.rows("bank2")


def test_a_stop_ends_every_reader(bank, pipeline):
    pipeline.settings |= {"snapshot.max.threads": 8, "snapshot.fetch.size": 50}
    seen = threading.Event()
    with pipeline.running(When("progress", seen.set), ready=False) as run:
        assert seen.wait(WAIT_S)
        run.stop()
    mine = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    until(lambda: not bank.execute(mine), "the end of every connection")
    assert not [t for t in threading.enumerate() if t.name.startswith("waltap snapshot")]


def test_an_isolation_that_lasts_for_one_statement_is_read_by_one(bank, pipeline, caplog):
    settings = {"snapshot.max.threads": 4, "snapshot.isolation.mode": "read_committed"}
    pipeline.settings |= settings | {"snapshot.mode": "initial_only"}
    pipeline.run()
    assert sorted(pipeline.destination.ids("bank2", "r")) == list(range(ACCOUNTS))
    assert "snapshot.isolation.mode leaves nothing for several to share" in caplog.text
