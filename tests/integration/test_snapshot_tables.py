"""What an initial snapshot reads, on a real server: every kind of table, whole and in order; by other processes, and by
several connections: one snapshot, one order, every row once."""

import itertools
import json
import pickle
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.harness.changelog import logged
from tests.harness.command import run_program
from tests.harness.meanwhile import meanwhile
from tests.harness.pipeline import WAIT_S, PipelineRig, until
from tests.harness.servers.postgres import Database

from waltap.errors import ConnectionLost, SourceError
from waltap.pipeline.engine.build import PipelineStages
from waltap.plugins.hookspecs import hookimpl
from waltap.ports.snapshot import SnapshotChunk
from waltap.ports.source.connector import Connector, MadeByRun, SourceLacks
from waltap.ports.source.published import EVERYTHING
from waltap_postgres import connector as postgres_connector
from waltap_postgres.catalog.catalogue import PostgresCatalogue
from waltap_postgres.connection import watch
from waltap_postgres.properties import PostgresProperties
from waltap_postgres.snapshot import parallel
from waltap_postgres.snapshot.binary_copy import BinaryRows
from waltap_postgres.snapshot.transaction import (
    ONE_SNAPSHOT,
    ReadingTransaction,
    SnapshotTable,
)
from waltap_postgres.waiting import pause


def test_tables_are_read_whole_whatever_their_size_and_kind(database, pipeline):
    database.execute(
        "CREATE TABLE a_large (id int PRIMARY KEY, v text);"
        "INSERT INTO a_large SELECT g, repeat('x', g % 50) FROM generate_series(1, 2500) g;"
        "CREATE TABLE b_empty (id int PRIMARY KEY);"
        "CREATE TABLE c_single (id int PRIMARY KEY, v text); INSERT INTO c_single VALUES (1, E'\\t\\n\\\\N');"
        "CREATE TABLE d_no_columns ();"
        "INSERT INTO d_no_columns DEFAULT VALUES; INSERT INTO d_no_columns DEFAULT VALUES;"
        "CREATE TABLE e_parent (id int PRIMARY KEY, v text); INSERT INTO e_parent VALUES (1, 'p');"
        "CREATE TABLE f_child (PRIMARY KEY (id)) INHERITS (e_parent); INSERT INTO f_child VALUES (2, 'c');"
        'CREATE SCHEMA "Odd.Schema";'
        'CREATE TABLE "Odd.Schema"."the ""table""" ("a b" int PRIMARY KEY, "select" text);'
        'INSERT INTO "Odd.Schema"."the ""table""" VALUES (7, NULL)'
    )
    pipeline.settings |= {"snapshot.fetch.size": 1000, "publication.keyless.tables": "publish"}
    pipeline.catch_up()
    read = pipeline.destination.pieces()
    assert [(p.relation.table, len(p.rows), p.first_marker, p.last_marker) for p in read] == [
        ('the "table"', 1, "first", "first"),
        ("a_large", 1000, "first_in_data_collection", "true"),
        ("a_large", 1000, "true", "true"),
        ("a_large", 500, "true", "last_in_data_collection"),
        ("b_empty", 0, "true", "true"),
        ("c_single", 1, "last_in_data_collection", "last_in_data_collection"),
        ("d_no_columns", 2, "first_in_data_collection", "last_in_data_collection"),
        ("e_parent", 1, "last_in_data_collection", "last_in_data_collection"),
        ("f_child", 1, "last", "last"),
    ]
    assert pipeline.destination.ids("a_large") == list(range(1, 2501))
    assert [e.row for e in pipeline.destination.of("c_single")] == [{"id": "1", "v": "\t\n\\N"}]
    odd = [e.row for e in pipeline.destination.events if e.table.startswith("Odd")]
    assert odd == [{"a b": "7", "select": None}]


def test_a_snapshot_holds_up_no_other_slot_and_no_other_writer(database, pipeline):
    """Nothing that the snapshot's transaction holds keeps the server waiting, however long it takes."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1), (2)")
    reading, release = pipeline.destination.hold()
    with pipeline.running(ready=False) as run:
        assert reading.wait(WAIT_S)
        with database.connect() as other:
            other.execute("SET statement_timeout = '100s'")
            name = f"{database.name[:50]}_other"
            other.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [name])
            other.execute("INSERT INTO t VALUES (3)")
        release.set()
        run.until(lambda: 3 in pipeline.destination.ids("t"), "the new row")
    assert pipeline.destination.ids("t") == [1, 2, 3]


@pytest.mark.pipeline(
    sql="""CREATE TABLE large (id int PRIMARY KEY, v text, amount numeric(9,2), made timestamptz, due date, secret text);
        INSERT INTO large SELECT g, repeat('d', g % 300), CASE WHEN g % 7 = 0 THEN 'NaN' ELSE g / 100.0 END,
          CASE WHEN g % 5 <> 0 THEN timestamptz '2020-02-29 01:02:03.004+05' + g * interval '1 hour' END,
          CASE WHEN g = 9 THEN 'infinity' ELSE date '2020-01-01' + g % 9 END, 's' || g FROM generate_series(1, 21000) g;
        ANALYZE large""",
    settings={"column.mask.with.4.chars": "public.large.secret"},
)
def test_a_large_table_reaches_a_change_log_alike_in_both_formats_of_copy(
    pipeline, database, tmp_path, monkeypatch
):
    """A sink of lines beside it takes text, and so the server sends text."""
    read: list[int] = []
    pieces = BinaryRows.pieces

    def counted(self: BinaryRows, *given: Any) -> Any:
        for rows, size in pieces(self, *given):
            read.append(len(rows))
            yield rows, size

    monkeypatch.setattr(BinaryRows, "pieces", counted)
    logs: list[list[dict[str, Any]]] = []
    for others in ([], [{"name": "lines", "type": "jsonl", "path": str(tmp_path / "lines")}]):
        folder = str(tmp_path / f"log{len(others)}")
        rig = PipelineRig(database, tmp_path / f"run{len(others)}", pipeline.settings)
        rig.branches = [{"name": "log", "type": "changelog", "path": folder}, *others]
        before = sum(read)
        rig.catch_up(**{"snapshot.mode": "initial_only"})
        assert sum(read) - before == (0 if others else 21_000)
        every = logged(Path(folder), "large")
        logs.append([{k: v for k, v in row.items() if k[0] != "_"} for row in every])
    assert logs[0] == logs[1]
    assert [row["secret"] for row in logs[0][:2]] == ["****", "****"]
    assert logs[0][8]["due"] is None and logs[0][6]["amount"] is None


# --- chunks that other processes read ------------------------------------------------------------------


READER = """
import json, pickle, sys
chunks = pickle.load(open(sys.argv[1], "rb"))
rows = []
for chunk in chunks:
    pieces = list(chunk.read())
    assert [piece.ends_chunk for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    rows += [[chunk.relation.name, chunk.index, *row] for piece in pieces for row in piece.rows]
json.dump(rows, sys.stdout)
"""


@contextmanager
def connected(pipeline: PipelineRig) -> Iterator[Connector]:
    host, _ = pipeline.host()
    stages = PipelineStages(pipeline.profile(host), host, run_id="chunks")
    connector = stages.open_connector(MadeByRun())
    try:
        yield connector
    finally:
        connector.undo()
        connector.close()


def read_elsewhere(chunks: list[SnapshotChunk], file: Path) -> list[list[str]]:
    """Return (table, chunk, values…) of every row, read by a process of its own."""
    file.write_bytes(pickle.dumps(chunks))
    found: list[list[str]] = json.loads(run_program(sys.executable, "-c", READER, file).stdout)
    return found


@pytest.fixture
def large_and_small(database) -> Database:
    database.execute(
        "CREATE TABLE big (id int PRIMARY KEY, v text); CREATE TABLE empty (id int PRIMARY KEY);"
        "INSERT INTO big SELECT g, repeat('v', 200) FROM generate_series(1, 3000) g;"
        "CREATE TABLE small (id int PRIMARY KEY); INSERT INTO small VALUES (1), (2)"
    )
    return database


def test_two_processes_read_what_one_snapshot_shows(large_and_small, pipeline, tmp_path):
    pipeline.settings |= {"snapshot.max.threads": 5}
    with connected(pipeline) as connector:
        start = connector.prepare(None)
        large_and_small.execute(
            "UPDATE big SET v = 'later'; DELETE FROM big WHERE id > 2000; DELETE FROM small"
        )
        chunks = list(connector.chunks(start))
        large_and_small.execute("INSERT INTO empty VALUES (1); UPDATE big SET v = 'later still'")
        assert Counter((c.relation.name, c.count) for c in chunks) == {
            ("public.big", 5): 5,
            ("public.empty", 1): 1,
            ("public.small", 1): 1,
        }
        halves = (
            read_elsewhere(chunks[::2], tmp_path / "a"),
            read_elsewhere(chunks[1::2], tmp_path / "b"),
        )
        again = read_elsewhere(chunks[:1], tmp_path / "a")
    rows = [row for half in halves for row in half]
    assert sorted(int(row[2]) for row in rows if row[0] == "public.big") == list(range(1, 3001))
    assert {row[3] for row in rows if row[0] == "public.big"} == {"v" * 200}
    assert [row[2] for row in rows if row[0] == "public.small"] == ["1", "2"]
    assert again == [row for row in halves[0] if row[:2] == again[0][:2]]


def test_a_snapshot_that_others_cannot_read_is_waited_for_once(
    large_and_small, tmp_path, monkeypatch
):
    waits: list[float] = []

    def noted(seconds: float, *, stopping: Callable[[], bool]) -> None:
        waits.append(seconds)
        pause(seconds, stopping=stopping)

    monkeypatch.setattr(postgres_connector, "pause", noted)
    settings = {"snapshot.mode": "initial_only", "snapshot.isolation.mode": "read_committed"}
    settings["snapshot.delay.ms"] = "20"
    with connected(PipelineRig(large_and_small, tmp_path, settings)) as connector:
        start = connector.prepare(None)
        with pytest.raises(SourceLacks):
            connector.chunks(start)
        assert sum(len(piece.rows) for piece in connector.snapshot(start)) == 3002
        assert waits == [0.02]
        connector.snapshot_ended(completed=True)
        assert sum(len(piece.rows) for piece in connector.snapshot(start)) == 3002
    assert waits == [0.02, 0.02], "each snapshot is waited for"


@pytest.mark.parametrize("place", ["database", "newest_database"])
def test_a_chunk_says_that_its_snapshot_is_gone(place, request, tmp_path):
    large_and_small: Database = request.getfixturevalue(place)
    large_and_small.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with connected(PipelineRig(large_and_small, tmp_path)) as connector:
        chunk, *_ = connector.chunks(connector.prepare(None))
    readers = (
        "SELECT 1 FROM pg_stat_activity WHERE datname = current_database()"
        " AND application_name = 'waltap snapshot'"
    )
    until(lambda: not large_and_small.execute(readers), "the end of who exported it")
    with pytest.raises(ConnectionLost, match="the exported snapshot is gone"):
        list(chunk.read())


# --- several connections -------------------------------------------------------------------------------


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
def under_load(database: Database) -> Iterator[None]:
    """Move money until the block ends, so often at most that what follows can be caught up with."""
    numbers = itertools.count(10_000)

    def write(over: threading.Event) -> None:
        with database.connect(autocommit=True) as connection:
            while not over.is_set() and (number := next(numbers)) < MOST_TRANSFERS:
                connection.execute(transfer(number).encode())

    with meanwhile(write, write):
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

    def later(reader: ReadingTransaction, given: str, *leaders: Any) -> None:
        with bank.connect() as connection:
            for number in itertools.islice(numbers, 60):
                connection.execute(transfer(number).encode())
        begun.append(given)
        join(reader, given, *leaders)

    monkeypatch.setattr(ReadingTransaction, "join", later)
    with under_load(bank), pipeline.running():
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
    pipeline.settings |= {"snapshot.max.threads": 4, "snapshot.max.threads.multiplier": 3}
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
    pipeline.settings |= {
        "snapshot.tables.order.by.row.count": order,
        "snapshot.max.threads": threads,
    }
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
    pipeline.settings |= {"snapshot.max.threads": 4, "publish.via.partition.root": "true"}
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
    pipeline.settings |= {"snapshot.max.threads": 4, "snapshot.fetch.size": 50}

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


def test_the_savepoint_of_a_table_ends_with_its_reading(database, tmp_path):
    """Thousands of them would nest for as long as the snapshot lasts."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    properties = PostgresProperties.model_validate(database.properties())
    with database.connect(autocommit=True) as connection:
        now = PostgresCatalogue(connection, properties)
        with closing(ReadingTransaction(now, watch(properties))) as transaction:
            transaction.begin(None, ONE_SNAPSHOT)
            (table,) = transaction.catalogue.tables()
            target = SnapshotTable.of(table, EVERYTHING, deep=False)
            transaction.expect([target])
            transaction.hold([target])
            transaction.release_tables()
            with pytest.raises(SourceError, match='"waltap_tables" does not exist'):
                transaction.session.execute("RELEASE SAVEPOINT waltap_tables")


def test_an_isolation_that_lasts_for_one_statement_is_read_by_one(bank, pipeline, caplog):
    settings = {"snapshot.max.threads": 4, "snapshot.isolation.mode": "read_committed"}
    pipeline.settings |= settings | {"snapshot.mode": "initial_only"}
    pipeline.run()
    assert sorted(pipeline.destination.ids("bank2", "r")) == list(range(ACCOUNTS))
    assert "snapshot.isolation.mode leaves nothing for several to share" in caplog.text
