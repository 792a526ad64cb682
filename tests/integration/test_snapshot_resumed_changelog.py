"""A snapshot into a change log that is killed goes on with the chunks that are missing: what a reader finds in
the log is the source, each row of its snapshot once."""

import os
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from waltap.errors import WaltapError
from waltap.hookspecs import hookimpl
from waltap.transactions.transaction import Batch, SnapshotRows
from waltap_postgres.snapshot import plan
from waltap_sinks.changelog import ChangeLog
from waltap_sinks.changelog.sink import ChangeLogSink

from tests.harness.pipeline import PipelineRig
from tests.harness.servers.postgres import Database

TABLES = ["a", "b", "nokey"]
ROWS = 600


class Killed(BaseException):
    """The process is gone: nothing of it runs any more."""


class Watch:
    """Sees what the sink takes; ``before`` and ``after`` what is written, and a flush, may kill."""

    def __init__(self) -> None:
        self.taken: list[SnapshotRows] = []
        self.kill: Callable[[str], bool] = lambda _place: False
        self.write: Callable[[], None] = lambda: None

    def at(self, place: str) -> None:
        if self.kill(place):
            raise Killed


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    """Return what looks into every change log of the test. Tables of some blocks are cut as large ones."""
    found, write, flush = Watch(), ChangeLogSink.write, ChangeLogSink.flush

    def watched(sink: ChangeLogSink, batch: Batch) -> None:
        found.at("before write")
        write(sink, batch)
        if batch.snapshot:
            found.write()
            found.taken += [part for part in batch.parts if isinstance(part, SnapshotRows)]
        found.at("after write")

    def flushed(sink: ChangeLogSink) -> object:
        found.at("before flush")
        position = flush(sink)
        found.at("after flush")
        return position

    monkeypatch.setattr(ChangeLogSink, "write", watched)
    monkeypatch.setattr(ChangeLogSink, "flush", flushed)
    monkeypatch.setattr(plan, "RANGE_BLOCKS", 4)
    return found


@pytest.fixture
def shop(database: Database) -> Database:
    """Tables of some 30 blocks; nokey has no key."""
    for table in TABLES:
        key = "" if table == "nokey" else "PRIMARY KEY"
        database.execute(
            f"CREATE TABLE {table} (id int {key}, n int NOT NULL, v text, long text);"
            f"ALTER TABLE {table} ALTER long SET STORAGE EXTERNAL;"
            f"INSERT INTO {table} SELECT g, 0, repeat('v', 300), NULL FROM generate_series(1, {ROWS}) g"
        )
    database.execute("ALTER TABLE nokey REPLICA IDENTITY FULL")
    commit(database, "ANALYZE")
    return database


def commit(database: Database, statement: str) -> None:
    with database.connect(autocommit=True) as connection:
        connection.execute(statement.encode())


def pipeline_of(database: Database, folder: Path, **settings: Any) -> PipelineRig:
    chosen = {
        "snapshot.fetch.size": 20,
        "sink.type": "changelog",
        "sink.path": str(folder / "log"),
        "publication.keyless.tables": "publish",
    }
    return PipelineRig(database, folder, chosen | settings)


def kill(pipeline: PipelineRig, watch: Watch, place: str, after: int, **settings: Any) -> bool:
    """Run until ``place`` was come to so often; False when there was not so much to do."""
    left = iter(range(after))
    watch.kill = lambda at: at == place and next(left, None) is None
    try:
        pipeline.catch_up(**settings)
    except Killed:
        return True
    finally:
        watch.kill = lambda _place: False
    return False


def found_in(log: ChangeLog, table: str) -> Counter[tuple[object, ...]]:
    """Return the rows of a table as a reader of the log has them."""
    rows: Counter[tuple[object, ...]] = Counter()
    by_key: dict[object, tuple[object, ...]] = {}
    changes = [row for part in log.rows("public", table, standing=True) for row in part.to_pylist()]
    changes.sort(key=lambda row: (row["_epoch"], row["_commit_lsn"], row["_seq"], row["_sub"]))
    moved: dict[object, tuple[object, ...]] = {}
    for row in changes:
        values = (row["id"], row["n"], row["v"], row["long"])
        if table == "nokey":
            rows[values] += -1 if row["_op"] == "d" else 1
            if row["_op"] == "t":
                rows.clear()
        elif row["_op"] == "t":
            by_key.clear()
        elif row["_op"] == "d":
            gone = by_key.pop(row["id"], None)
            if gone is not None:
                moved[row["_commit_lsn"], row["_seq"]] = gone
        else:
            before = moved.get((row["_commit_lsn"], row["_seq"])) or by_key.get(row["id"])
            names = ("id", "n", "v", "long")
            kept = row["_unchanged"] or ()
            by_key[row["id"]] = tuple(
                before[place] if name in kept and before is not None else value
                for place, (name, value) in enumerate(zip(names, values, strict=True))
            )
    return rows if table == "nokey" else Counter(by_key.values())


def source(database: Database, table: str) -> Counter[tuple[object, ...]]:
    return Counter(database.execute(f"SELECT id, n, v, long FROM {table}"))


def assert_equal(database: Database, folder: Path) -> None:
    log = ChangeLog(str(folder / "log"))
    for table in TABLES:
        assert +found_in(log, table) == source(database, table), table


def chunks(watch: Watch) -> Counter[tuple[str, int]]:
    """Return how often each chunk was delivered to its end."""
    return Counter(
        (p.relation.table, p.chunk) for p in watch.taken if p.ends_chunk and p.chunk >= 0
    )


@pytest.mark.parametrize("place", ["before write", "after write", "before flush", "after flush"])
def test_chunks_that_are_durable_are_not_read_again(
    shop: Database, tmp_path: Path, watch: Watch, place: str
) -> None:
    pipeline = pipeline_of(shop, tmp_path)
    assert kill(pipeline, watch, place, 50)
    stored = pipeline.offset()
    assert stored is not None
    assert stored.snapshot is not None
    created = stored.sole.slot_created_lsn
    pipeline.catch_up()
    stored = pipeline.offset()
    assert stored is not None
    assert stored.sole.slot_created_lsn == created, "the slot was made again"
    again = {chunk: times for chunk, times in chunks(watch).items() if times > 1}
    assert len(again) <= 1, f"read again: {again}"
    log = ChangeLog(str(tmp_path / "log"))
    generations = {m.snapshot.generation for m in log.manifests() if m.snapshot is not None}
    assert generations == {1}
    for table in TABLES:
        read = Counter(n for part in log.rows("public", table) for n in part["id"].to_pylist())
        assert read == Counter(range(1, ROWS + 1))


@pytest.mark.parametrize("threads", [1, 4])
def test_what_was_written_meanwhile_counts_once(
    shop: Database, tmp_path: Path, watch: Watch, threads: int
) -> None:
    pipeline = pipeline_of(shop, tmp_path, **{"snapshot.max.threads": threads})
    assert kill(pipeline, watch, "after flush", 70)
    for table in TABLES:
        shop.execute(f"UPDATE {table} SET n = n + 1 WHERE id % 3 = 0")
        shop.execute(f"DELETE FROM {table} WHERE id % 7 = 0")
        shop.execute(f"INSERT INTO {table} SELECT g, 1, 'new' FROM generate_series(601, 650) g")
        shop.execute(f"UPDATE {table} SET id = id + 1000, n = n + 1 WHERE id % 11 = 0")
        commit(shop, f"VACUUM {table}")
    pipeline.catch_up()
    assert_equal(shop, tmp_path)


@pytest.mark.parametrize(
    "statements",
    [
        pytest.param("TRUNCATE {t}; INSERT INTO {t} VALUES (7, 7, 'seven'); UPDATE {t} SET n = 8", id="emptied"),
        pytest.param("VACUUM FULL {t}; UPDATE {t} SET n = 5 WHERE id < 400", id="rewritten"),
        pytest.param("UPDATE {t} SET long = repeat('x', 9000) WHERE id < 9; UPDATE {t} SET n = 1", id="long"),
    ],
)  # fmt: skip
def test_a_table_that_cannot_go_on_is_read_anew_and_the_others_go_on(
    shop: Database, tmp_path: Path, watch: Watch, statements: str
) -> None:
    pipeline = pipeline_of(shop, tmp_path)
    assert kill(pipeline, watch, "after flush", 65)
    stored = pipeline.offset()
    assert stored is not None
    assert stored.snapshot is not None
    complete = {oid for oid, table in stored.snapshot.tables.items() if table.complete}
    assert len(complete) == 2
    for statement in statements.split(";"):
        commit(shop, statement.format(t="nokey"))
    pipeline.catch_up()
    again = {table for (table, _), times in chunks(watch).items() if times > 1}
    assert again <= {"nokey"}
    assert {piece.relation.table for piece in watch.taken if piece.restarts} == {"nokey"}
    assert_equal(shop, tmp_path)


def test_a_log_that_lost_what_the_offset_counts_on_is_refused(
    shop: Database, tmp_path: Path, watch: Watch
) -> None:
    pipeline = pipeline_of(shop, tmp_path)
    assert kill(pipeline, watch, "after flush", 50)
    manifests = sorted((tmp_path / "log" / "manifests").rglob("*.json"))
    for path in manifests[len(manifests) // 2 :]:
        path.unlink()
    (tmp_path / "state" / "p" / "changelog.published").unlink()
    with pytest.raises(WaltapError, match="lacks rows of the snapshot that goes on"):
        pipeline.catch_up()


class Breaks:
    """Breaks the link once, after so many pieces of a snapshot."""

    def __init__(self, database: Database, after: int) -> None:
        self.database, self.left = database, after

    @hookimpl
    def on_batch(self, batch: Batch) -> None:
        if batch.snapshot:
            self.left -= 1
        if not self.left:
            self.database.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
                " AND pid <> pg_backend_pid() AND application_name LIKE %s",
                "%snapshot%",
            )


def test_a_link_that_breaks_doubles_nothing(shop: Database, tmp_path: Path, watch: Watch) -> None:
    """The sink stays open: of the chunk that was being read it had some rows already."""
    pipeline = pipeline_of(shop, tmp_path, **{"offset.flush.interval.ms": 3_600_000})
    shop.execute("UPDATE a SET n = 1")
    ((lsn,),) = shop.execute("SELECT pg_current_wal_lsn()::text")
    with pipeline.running(Breaks(shop, 33)) as run:
        run.until(lambda: run.engine.state == "streaming", "streaming")
        assert run.notices.failures, f"no link broke behind {lsn}"
    assert_equal(shop, tmp_path)
    log = ChangeLog(str(tmp_path / "log"))
    for table in TABLES:
        read = Counter(n for part in log.rows("public", table) for n in part["id"].to_pylist())
        assert read == Counter(range(1, ROWS + 1))


@pytest.mark.parametrize("seed", range(int(os.environ.get("WALTAP_SNAPSHOT_KILLS", "4"))))
def test_kills_at_random_points_leave_the_tables_as_they_are(
    shop: Database, tmp_path: Path, watch: Watch, seed: int
) -> None:
    """Several kills in one snapshot, writers between them and while it is read."""
    chance = random.Random(seed)
    threads = chance.choice([1, 2, 4])
    pipeline = pipeline_of(shop, tmp_path, **{"snapshot.max.threads": threads})

    def now_and_then() -> None:
        if chance.random() < 0.1:
            write(shop, chance, reading=True)

    for _ in range(chance.randint(1, 4)):
        watch.write = now_and_then
        place = chance.choice(["before write", "after write", "before flush", "after flush"])
        kill(pipeline, watch, place, chance.randrange(1, 40))
        write(shop, chance, reading=False)
    watch.write = lambda: None
    pipeline.catch_up()
    assert_equal(shop, tmp_path)


def write(database: Database, chance: random.Random, *, reading: bool) -> None:
    """Commit some changes of every kind; while tables are being read, none that waits for that."""
    for _ in range(chance.randint(1, 3)):
        table, at = chance.choice(TABLES), chance.randint(1, ROWS)
        span = f"id BETWEEN {at} AND {at + chance.choice([1, 40])}"
        free = "" if table == "nokey" else " ON CONFLICT DO NOTHING"
        commit(
            database,
            chance.choice(
                [
                    f"UPDATE {table} SET n = n + 1 WHERE {span}",
                    f"UPDATE {table} SET long = repeat('l' || n, 3), n = n + 1 WHERE {span}",
                    f"UPDATE {table} SET long = repeat('l' || n, 1500), n = n + 1 WHERE id = {at}",
                    f"DELETE FROM {table} WHERE {span}",
                    f"INSERT INTO {table} SELECT g, 0, 'again', 'x' FROM "
                    f"generate_series({at}, {at + 9}) g{free}",
                    f"UPDATE {table} SET id = id + 10000 WHERE {span} AND id % 3 = 0 AND NOT EXISTS "
                    f"(SELECT FROM {table} o WHERE o.id = {table}.id + 10000)",
                    f"BEGIN; UPDATE {table} SET n = n + 1 WHERE {span}; SAVEPOINT s; DELETE FROM {table} "
                    f"WHERE {span}; ROLLBACK TO s; UPDATE {table} SET v = 'w' WHERE {span}; COMMIT",
                    f"VACUUM {table}",
                    f"VACUUM {'' if reading else 'FULL '}{table}",
                ]
            ),
        )
