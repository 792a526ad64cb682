"""A snapshot that breaks off goes on, on a real server: with what is missing, and nothing is lost of what was
written meanwhile."""

import contextlib
import os
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from waltap.offsets.offset import Offset
from waltap.transactions.transaction import Batch, SnapshotRows
from waltap_postgres.snapshot import plan

from tests.harness.pipeline import PipelineRig
from tests.harness.servers.postgres import Database

TABLES = ["a", "b", "c"]
ROWS = 600


class Killed(BaseException):
    """The process is gone: nothing of it runs any more."""


@pytest.fixture(autouse=True)
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut tables of some blocks as if they were large."""
    monkeypatch.setattr(plan, "RANGE_BLOCKS", 4)


@pytest.fixture
def shop(database: Database) -> Database:
    """Three tables of some 30 blocks; c has values that lie out of line."""
    for table in TABLES:
        database.execute(
            f"CREATE TABLE {table} (id int PRIMARY KEY, n int NOT NULL, v text, long text);"
            f"ALTER TABLE {table} ALTER long SET STORAGE EXTERNAL;"
            f"INSERT INTO {table} SELECT g, 0, repeat('v', 300), NULL FROM generate_series(1, {ROWS}) g"
        )
    database.execute("UPDATE c SET long = repeat(id::text, 2000) WHERE id % 5 = 0")
    commit(database, "VACUUM c")
    commit(database, "ANALYZE")
    return database


def commit(database: Database, statement: str) -> None:
    """Run a statement outside of a transaction."""
    with database.connect(autocommit=True) as connection:
        connection.execute(statement.encode())


def pipeline_of(database: Database, folder: Path, **settings: Any) -> PipelineRig:
    chosen = {"snapshot.fetch.size": 20, "snapshot.isolation.mode": "read_committed"} | settings
    pipeline = PipelineRig(database, folder, chosen)
    pipeline.destination.resumes = True
    return pipeline


def opened(pipeline: PipelineRig, batch: Batch) -> None:
    """Forget what came before a snapshot that begins: it replaces everything."""
    if any(isinstance(part, SnapshotRows) and part.opens for part in batch.parts):
        pipeline.destination.events.clear()
        pipeline.destination.batches.clear()


def killed_at(pipeline: PipelineRig, stop: Callable[[Batch], bool]) -> None:
    """Run until ``stop`` says so of a batch of the snapshot, or to its end; the batch is not taken."""

    def look(batch: Batch) -> None:
        opened(pipeline, batch)
        if batch.snapshot and stop(batch):
            raise Killed

    pipeline.destination.before_write = look
    with pytest.raises(Killed):
        pipeline.run()
    pipeline.destination.before_write = lambda batch: opened(pipeline, batch)


def after(pieces: int) -> Callable[[Batch], bool]:
    """Stop before the piece behind that many."""
    seen = iter(range(pieces))
    return lambda _batch: next(seen, None) is None


def source(database: Database, table: str) -> dict[tuple[str], dict[str, Any]]:
    """Return the rows of a table as an upserting consumer has them."""
    found = database.execute(f"SELECT id::text, n::text, v, long FROM {table}")
    return {(row[0],): dict(zip(("id", "n", "v", "long"), row, strict=True)) for row in found}


def of_short_values(database: Database) -> None:
    database.execute("TRUNCATE c")
    database.execute(f"INSERT INTO c SELECT g, 0, 'c', NULL FROM generate_series(1, {ROWS}) g")


def read(pipeline: PipelineRig, table: str) -> Counter[int]:
    return Counter(pipeline.destination.ids(table, "r"))


def chunks(pipeline: PipelineRig, table: str) -> Counter[int]:
    """Return how often each chunk of a table was delivered to its end."""
    found = (
        p for b in pipeline.destination.batches for p in b.parts if isinstance(p, SnapshotRows)
    )
    return Counter(
        p.chunk for p in found if p.relation.table == table and p.ends_chunk and p.chunk >= 0
    )


def known(pipeline: PipelineRig) -> Offset:
    offset = pipeline.offset()
    assert offset is not None
    return offset


def test_a_snapshot_goes_on_with_the_chunks_that_are_missing(
    shop: Database, tmp_path: Path
) -> None:
    of_short_values(shop)
    pipeline = pipeline_of(shop, tmp_path)
    killed_at(pipeline, after(50))
    before = pipeline.slot_lsns()[0]
    assert known(pipeline).snapshot is not None
    pipeline.catch_up()
    assert known(pipeline).snapshot is None
    assert known(pipeline).sole.slot_created_lsn == before, "the slot was made again"
    for table in TABLES:
        assert sorted(read(pipeline, table)) == list(range(1, ROWS + 1))
        twice = [number for number, times in chunks(pipeline, table).items() if times > 1]
        assert not twice, f"chunks {twice} of {table} were read again"
    assert sum(times - 1 for table in TABLES for times in read(pipeline, table).values()) <= 100
    for table in TABLES:
        assert pipeline.destination.table(table) == source(shop, table)


def openings(pipeline: PipelineRig) -> dict[str, list[str]]:
    """Return the markers other than "true" of each table's rows, as they were delivered, without the ends."""
    found: dict[str, list[str]] = {table: [] for table in TABLES}
    for batch in pipeline.destination.batches:
        for part in batch.parts:
            if isinstance(part, SnapshotRows) and part.rows and part.first_marker != "true":
                found[part.relation.table].append(part.first_marker)
    return found


def test_only_a_snapshot_that_is_taken_anew_has_a_first_row(shop: Database, tmp_path: Path) -> None:
    """A consumer that begins anew at "first" would lose the tables that are complete."""
    of_short_values(shop)
    pipeline = pipeline_of(shop, tmp_path)
    killed_at(pipeline, after(ROWS // 20 + 15))  # in the middle of b
    assert openings(pipeline) == {"a": ["first"], "b": ["first_in_data_collection"], "c": []}
    seen = len(pipeline.destination.batches)
    pipeline.catch_up()
    assert pipeline.destination.ids("c", "r")
    del pipeline.destination.batches[:seen]
    assert openings(pipeline) == {"a": [], "b": [], "c": ["first_in_data_collection"]}


@pytest.mark.parametrize("threads", [1, 4])
def test_what_was_written_meanwhile_comes_once_and_in_order(
    shop: Database, tmp_path: Path, threads: int
) -> None:
    """Per key the counter never goes back, rows of a table that was not begun come as they are now."""
    pipeline = pipeline_of(shop, tmp_path, **{"snapshot.max.threads": threads})
    killed_at(pipeline, after(30))
    for table in ("a", "b"):
        shop.execute(f"UPDATE {table} SET n = n + 1 WHERE id % 3 = 0")
        shop.execute(f"DELETE FROM {table} WHERE id % 7 = 0")
        shop.execute(f"INSERT INTO {table} SELECT g, 1, 'new' FROM generate_series(601, 650) g")
        shop.execute(f"UPDATE {table} SET id = id + 1000, n = n + 1 WHERE id % 11 = 0")
        commit(shop, f"VACUUM {table}")
        shop.execute(f"UPDATE {table} SET n = n + 1 WHERE id % 6 = 0")
    pipeline.catch_up()
    for table in ("a", "b"):
        assert pipeline.destination.table(table) == source(shop, table)
        counters: dict[str, int] = {}
        for event in pipeline.destination.of(table):
            if event.op != "d":
                assert int(event.row["n"]) >= counters.get(event.row["id"], 0), event
                counters[event.row["id"]] = int(event.row["n"])


@pytest.mark.parametrize(
    "statements",
    [
        "TRUNCATE a; INSERT INTO a VALUES (7, 7, 'seven'); UPDATE a SET n = 8",
        "VACUUM FULL a; UPDATE a SET n = 5 WHERE id < 400; DELETE FROM a WHERE id > 550",
        "ALTER TABLE a ALTER n TYPE bigint; UPDATE a SET n = 5 WHERE id < 400; DELETE FROM a WHERE id > 550",
        "UPDATE a SET n = 4; ALTER TABLE a ADD extra int DEFAULT 9; UPDATE a SET n = 5 WHERE id < 9;"
        "ALTER TABLE a DROP extra",
        "ALTER TABLE a RENAME n TO m; UPDATE a SET m = 5 WHERE id < 400; ALTER TABLE a RENAME m TO n",
        "TRUNCATE a, b, c; INSERT INTO c VALUES (1, 1, 'one')",
    ],
)
def test_ddl_between_two_runs_loses_nothing(
    shop: Database, tmp_path: Path, statements: str
) -> None:
    pipeline = pipeline_of(shop, tmp_path)
    killed_at(pipeline, after(20))
    for statement in statements.split(";"):
        commit(shop, statement)
    pipeline.catch_up()
    for table in TABLES:
        found = pipeline.destination.table(table)
        kept = {
            key: {n: row.get(n, row.get("m")) for n in ("id", "n", "v", "long")}
            for key, row in found.items()
        }
        assert kept == source(shop, table)


def test_a_table_that_is_dropped_between_two_runs_does_not_stop_the_snapshot(
    shop: Database, tmp_path: Path
) -> None:
    pipeline = pipeline_of(shop, tmp_path)
    killed_at(pipeline, after(20))
    shop.execute("DROP TABLE a")
    pipeline.catch_up()
    for table in ("b", "c"):
        assert pipeline.destination.table(table) == source(shop, table)


def test_long_values_that_an_update_did_not_touch_arrive(shop: Database, tmp_path: Path) -> None:
    """The stream does not bring them, and the row's first state is gone."""
    pipeline = pipeline_of(shop, tmp_path, **{"table.include.list": "public.c"})
    killed_at(pipeline, after(20))
    shop.execute("UPDATE c SET n = 1")
    shop.execute("UPDATE c SET id = id + 1000 WHERE id % 2 = 0")
    commit(shop, "VACUUM c")
    pipeline.catch_up()
    assert pipeline.destination.table("c") == source(shop, "c")


def test_a_sink_that_does_not_take_it_gets_the_snapshot_anew(
    shop: Database, tmp_path: Path
) -> None:
    pipeline = pipeline_of(shop, tmp_path)
    pipeline.destination.resumes = False
    killed_at(pipeline, after(20))
    before = pipeline.slot_lsns()[0]
    pipeline.destination.before_write = lambda _batch: None
    pipeline.catch_up()
    assert known(pipeline).sole.slot_created_lsn > before
    assert [
        p.opens
        for b in pipeline.destination.batches
        for p in b.parts
        if isinstance(p, SnapshotRows)
    ].count(True) == 2


@pytest.mark.parametrize("mode", ["always", "initial_only"])
def test_a_mode_that_reads_everything_at_each_start_begins_anew(
    shop: Database, tmp_path: Path, mode: str
) -> None:
    pipeline = pipeline_of(shop, tmp_path, **{"snapshot.mode": mode})
    killed_at(pipeline, after(20))
    pipeline.destination.before_write = lambda _batch: None
    if mode == "always":
        pipeline.catch_up()
    else:
        pipeline.run()
    assert min(read(pipeline, "a").values()) >= 1
    assert read(pipeline, "a")[1] == 2


@pytest.mark.parametrize("seed", range(int(os.environ.get("WALTAP_SNAPSHOT_KILLS", "4"))))
def test_kills_at_random_points_of_a_snapshot_leave_the_tables_as_they_are(
    shop: Database, tmp_path: Path, seed: int
) -> None:
    """Several kills in one snapshot, writers between them and while it is read."""
    chance = random.Random(seed)
    if seed % 4:
        of_short_values(shop)
    pipeline = pipeline_of(shop, tmp_path, **{"snapshot.max.threads": chance.choice([1, 2, 4])})
    write(shop, chance, long=not seed % 4)
    for _ in range(chance.randint(1, 4)):
        last = chance.randrange(1, 40)
        counted = iter(range(last))

        def stop(_batch: Batch, counted: Any = counted) -> bool:
            if chance.random() < 0.3:
                write(shop, chance, long=not seed % 4)
            return next(counted, None) is None

        place = chance.choice(["write", "flush", "flushed"])
        kill(pipeline, stop, place)
        write(shop, chance, long=not seed % 4)
        if known(pipeline).snapshot is None:
            break
    pipeline.catch_up()
    for table in TABLES:
        assert pipeline.destination.table(table) == source(shop, table)


def kill(pipeline: PipelineRig, stop: Callable[[Batch], bool], place: str) -> None:
    """Kill before a batch is taken, before a flush, or when it is durable and not yet stored as such."""
    destination, due = pipeline.destination, False

    def write_(batch: Batch) -> None:
        nonlocal due
        opened(pipeline, batch)
        due = due or (batch.snapshot and stop(batch))
        if due and place == "write":
            raise Killed

    def flush() -> None:
        if due:
            raise Killed

    destination.before_write, destination.before_flush = write_, flush
    try:
        with contextlib.suppress(Killed):  # what was left may have been less
            pipeline.catch_up()
    finally:
        destination.before_write = lambda batch: opened(pipeline, batch)
        destination.before_flush = lambda: None


def write(database: Database, chance: random.Random, *, long: bool) -> None:
    """Commit some changes of every kind."""
    for _ in range(chance.randint(1, 4)):
        table, at = chance.choice(TABLES), chance.randint(1, ROWS)
        span = f"id BETWEEN {at} AND {at + chance.choice([1, 40])}"
        commit(
            database,
            chance.choice(
                [
                    f"UPDATE {table} SET n = n + 1 WHERE {span}",
                    f"UPDATE {table} SET long = repeat('l' || n, {1500 if long else 3}), n = n + 1 WHERE {span}",
                    f"DELETE FROM {table} WHERE {span}",
                    f"INSERT INTO {table} SELECT g, 0, 'again', repeat('x', {9000 if long else 9}) FROM "
                    f"generate_series({at}, {at + 9}) g ON CONFLICT DO NOTHING",
                    f"UPDATE {table} SET id = id + 10000 WHERE {span} AND id % 3 = 0 AND NOT EXISTS "
                    f"(SELECT FROM {table} o WHERE o.id = {table}.id + 10000)",
                    f"BEGIN; UPDATE {table} SET n = n + 1 WHERE {span}; SAVEPOINT s; DELETE FROM {table} "
                    f"WHERE {span}; ROLLBACK TO s; UPDATE {table} SET v = 'w' WHERE {span}; COMMIT",
                    f"VACUUM {table}",
                ]
            ),
        )
