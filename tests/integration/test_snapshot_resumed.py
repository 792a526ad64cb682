"""A snapshot that breaks off goes on, on a real server: with the chunks that are missing, and nothing is lost of
what was written meanwhile. Each test runs into a destination in memory, a change log, or both in turn."""

import os
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from tests.harness import pipeline as harness
from tests.harness.changelog import replay
from tests.harness.pipeline import PipelineRig

from waltap.changes.transactions.transaction import Batch, SnapshotRows
from waltap.errors import WaltapError
from waltap.plugins.hookspecs import hookimpl
from waltap.ports.offsets.gaps import GapCertificates
from waltap.ports.offsets.offset import Offset
from waltap_postgres.errors import SnapshotTooOld
from waltap_postgres.snapshot import plan
from waltap_sinks.changelog import ChangeLog
from waltap_sinks.changelog.sink import ChangeLogSink

TABLES = ["a", "b", "c", "nokey"]
COLUMNS = ("id", "n", "v", "long")
ROWS = 600
PIECES = ROWS // 20
"""So many pieces has a table."""

ALL = set(range(1, ROWS + 1))
PLACES = ["before write", "after write", "before flush", "after flush"]
SEEDS = range(int(os.environ.get("WALTAP_SNAPSHOT_KILLS", "2")))

pytestmark = pytest.mark.pipeline(
    sql="".join(
        f"CREATE TABLE {table} (id int {'PRIMARY KEY' if table != 'nokey' else ''}, n int NOT NULL, v text, long text);"
        f"ALTER TABLE {table} ALTER long SET STORAGE EXTERNAL;"
        f"INSERT INTO {table} SELECT g, 0, repeat('v', 300), NULL FROM generate_series(1, {ROWS}) g;"
        for table in TABLES
    )
    + "ALTER TABLE nokey REPLICA IDENTITY FULL; ANALYZE",
    settings={"snapshot.fetch.size": 20, "publication.keyless.tables": "publish"},
)


class Killed(BaseException):
    """The process is gone: nothing of it runs any more."""


class World:
    """A pipeline of `TABLES`, which are cut as if they were large, and what its sink took, over all runs."""

    def __init__(self, pipeline: PipelineRig, sink: str) -> None:
        self.pipeline, self.database, self.sink = pipeline, pipeline.database, sink
        self.log = ChangeLog(str(pipeline.folder / "log"))
        self.taken: list[SnapshotRows] = []
        self.kill: Callable[[str], bool] = lambda _place: False
        self.write: Callable[[], None] = lambda: None
        pipeline.destination.resumes = True
        if sink == "changelog":
            pipeline.settings |= {"sink.type": sink, "sink.path": str(pipeline.folder / "log")}

    def at(self, place: str) -> None:
        if self.kill(place):
            raise Killed

    def take(self, batch: Batch, write: Callable[[Batch], None]) -> None:
        pieces = [part for part in batch.parts if isinstance(part, SnapshotRows)]
        self.at("before write")
        if any(piece.opens for piece in pieces):  # it replaces everything
            self.pipeline.destination.events.clear()
            self.taken.clear()
        write(batch)
        self.taken += pieces
        if pieces:
            self.write()
        self.at("after write")

    def run(self, place: str, after: int = 0, **settings: Any) -> bool:
        """Run until ``place`` was come to so often; False when there was not so much to do."""
        left = iter(range(after))
        self.kill = lambda at: at == place and next(left, None) is None
        try:
            self.pipeline.catch_up(**settings)
        except Killed:
            return True
        finally:
            self.kill = lambda _place: False
        return False

    def offset(self) -> Offset:
        offset = self.pipeline.offset()
        assert offset is not None
        return offset

    def read(self, table: str) -> Counter[int]:
        if self.sink == "kept":
            return Counter(self.pipeline.destination.ids(table, "r"))
        rows = self.log.rows("public", table)
        return Counter(n for part in rows for n in part["id"].to_pylist())

    def chunks(self) -> Counter[tuple[str, int]]:
        ended = (p for p in self.taken if p.ends_chunk and p.chunk >= 0)
        return Counter((p.relation.table, p.chunk) for p in ended)

    def assert_equal(self, *tables: str) -> None:
        for table in tables or TABLES:
            source = Counter(self.database.execute(f"SELECT id, n, v, long FROM {table}"))
            found = in_log(self.log, table) if self.sink == "changelog" else self._kept(table)
            assert found == source, table

    def _kept(self, table: str) -> Counter[tuple[object, ...]]:
        rows = self.pipeline.destination.table(table).values()
        return Counter(
            (int(r["id"]), int(r["n"] if "n" in r else r["m"]), r["v"], r["long"]) for r in rows
        )


def in_log(log: ChangeLog, table: str) -> Counter[tuple[object, ...]]:
    """Return the rows of a table as a reader of the log has them."""
    changes = [
        row for part in log.rows("public", table, skip_replaced=True) for row in part.to_pylist()
    ]
    changes.sort(key=lambda row: (row["_epoch"], row["_commit_lsn"], row["_seq"], row["_sub"]))
    rows = replay(changes, () if table == "nokey" else ("id",))
    return Counter(tuple(row[name] for name in COLUMNS) for row in rows)


@pytest.fixture(params=["kept"])
def world(request, pipeline, monkeypatch) -> World:
    found = World(pipeline, request.param)

    def watched(kind: type[Any]) -> None:
        write, flush = kind.write, kind.flush

        def flushes(sink: Any) -> object:
            found.at("before flush")
            position = flush(sink)
            found.at("after flush")
            return position

        monkeypatch.setattr(
            kind, "write", lambda sink, batch: found.take(batch, lambda batch: write(sink, batch))
        )
        monkeypatch.setattr(kind, "flush", flushes)

    watched(harness._KeepingSink)
    watched(ChangeLogSink)
    monkeypatch.setattr(plan, "RANGE_BLOCKS", 4)
    return found


def both(*names: str) -> Any:
    return pytest.mark.parametrize("world", names or ["kept", "changelog"], indirect=True)


@pytest.mark.parametrize(
    ("world", "place"),
    [*(("changelog", place) for place in PLACES), ("kept", "before write")],
    indirect=["world"],
)
def test_chunks_that_are_durable_are_not_read_again(world, place):
    assert world.run(place, PIECES + 20)
    stored = world.offset()
    assert stored.snapshot is not None
    world.pipeline.catch_up()
    assert world.offset().snapshot is None
    assert world.offset().sole.slot_created_lsn == stored.sole.slot_created_lsn, "a new slot"
    # who begins anew at "first" would lose the tables that are complete
    assert [piece.first_marker for piece in world.taken].count("first") == 1
    again = {chunk: times for chunk, times in world.chunks().items() if times > 1}
    assert len(again) <= 1, f"read again: {again}"
    if world.sink == "changelog":
        snapshots = (m.snapshot for m in world.log.manifests() if m.snapshot is not None)
        assert {snapshot.snapshot_id for snapshot in snapshots} == {1}
    for table in TABLES:
        assert set(world.read(table)) == ALL
        assert world.sink == "kept" or set(world.read(table).values()) == {1}
    assert sum(times - 1 for table in TABLES for times in world.read(table).values()) <= 100
    world.assert_equal()


@both()
@pytest.mark.parametrize(
    "statements",
    [
        pytest.param("TRUNCATE b; INSERT INTO b VALUES (7, 7, 'seven'); UPDATE b SET n = 8", id="emptied"),
        pytest.param("VACUUM FULL b; UPDATE b SET n = 5 WHERE id < 400; DELETE FROM b WHERE id > 550", id="rewritten"),
    ],
)  # fmt: skip
def test_a_table_that_cannot_go_on_is_read_anew_and_the_others_go_on(world, statements):
    assert world.run("after flush", PIECES + 10)
    snapshot = world.offset().snapshot
    assert sum(table.complete for table in snapshot.tables.values()) == 1
    world.pipeline.deliver(*statements.split(";"))
    assert {table for (table, _), times in world.chunks().items() if times > 1} <= {"b"}
    assert {p.relation.table for p in world.taken if p.restarts} <= {"b"}
    world.assert_equal()


@pytest.mark.parametrize(
    "statements",
    [
        "ALTER TABLE a ALTER n TYPE bigint; UPDATE a SET n = 5 WHERE id < 400; DELETE FROM a WHERE id > 550",
        "TRUNCATE a, b, c, nokey; INSERT INTO c VALUES (1, 1, 'one')",
    ],
)
def test_ddl_between_two_runs_loses_nothing(world, statements):
    assert world.run("before write", 20)
    world.pipeline.deliver(*statements.split(";"))
    world.assert_equal()


@both()
def test_a_table_that_is_dropped_between_two_runs_leaves_the_others_whole(world):
    """Some of its rows were delivered; the start after the kill finds no such table."""
    assert world.run("before write", 20)
    world.pipeline.deliver("DROP TABLE a")
    world.assert_equal("b", "c", "nokey")


def test_long_values_that_an_update_did_not_touch_arrive(world):
    """The stream does not bring them, and the row's first state is gone."""
    world.pipeline.settings["table.include.list"] = "public.c"
    world.database.run("UPDATE c SET long = repeat(id::text, 2000) WHERE id % 5 = 0", "VACUUM c")
    assert world.run("before write", 20)
    world.pipeline.deliver(
        "UPDATE c SET n = 1", "UPDATE c SET id = id + 1000 WHERE id % 2 = 0", "VACUUM c"
    )
    world.assert_equal("c")


@pytest.mark.parametrize("why", ["the sink", "initial_only"])
def test_a_sink_or_a_mode_that_does_not_go_on_gets_the_snapshot_anew(world, why):
    if why == "the sink":
        world.pipeline.destination.resumes = False
    else:
        world.pipeline.settings["snapshot.mode"] = why
    assert world.run("before write", 20)
    created = world.database.slots() and world.pipeline.slot_lsns()[0]
    (world.pipeline.run if why == "initial_only" else world.pipeline.catch_up)()
    assert set(world.read("a").values()) == {1}, "what came before was not replaced"
    assert why != "the sink" or world.offset().sole.slot_created_lsn > created
    world.assert_equal()


@both("changelog")
def test_a_log_that_lost_what_the_offset_counts_on_is_refused(world):
    assert world.run("after flush", PIECES + 20)
    folder = world.pipeline.folder
    manifests = sorted((folder / "log" / "manifests").rglob("*.json"))
    for path in manifests[len(manifests) // 2 :]:
        path.unlink()
    (folder / "state" / "p" / "changelog.published").unlink()
    with pytest.raises(WaltapError, match="lacks rows of the running snapshot"):
        world.pipeline.catch_up()


END_SQL = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
    " AND pid <> pg_backend_pid() AND application_name LIKE '%snapshot%'"
)


@both("changelog")
def test_a_link_that_breaks_doubles_nothing(world):
    """The sink stays open: of the chunk that was being read it had some rows already."""
    pieces = iter(range(PIECES + 3))
    world.write = lambda: next(pieces, 1) == PIECES + 2 and world.database.execute(END_SQL)
    world.database.run("UPDATE a SET n = 1")
    with world.pipeline.running(**{"offset.flush.interval.ms": 3_600_000}) as run:
        assert run.notices.failures, "no link broke"
    world.assert_equal()
    for table in TABLES:
        assert world.read(table) == Counter(ALL)


@both()
@pytest.mark.parametrize("seed", SEEDS)
def test_kills_at_random_points_leave_the_tables_as_they_are(world, seed):
    """Several kills in one snapshot, writers between them and while it is read."""
    chance = random.Random(seed)
    world.pipeline.settings["snapshot.max.threads"] = chance.choice([1, 2, 4])

    def now_and_then() -> None:
        if chance.random() < 0.1:
            write(world, chance, reading=True)

    for _ in range(chance.randint(1, 4)):
        world.write = now_and_then
        world.run(chance.choice(PLACES), chance.randrange(1, 40))
        write(world, chance, reading=False)
    world.write = lambda: None
    world.pipeline.catch_up()
    world.assert_equal()


def write(world: World, chance: random.Random, *, reading: bool) -> None:
    """Commit some changes of every kind; while tables are being read, none that waits for that."""
    for _ in range(chance.randint(1, 3)):
        table, at = chance.choice(TABLES), chance.randint(1, ROWS)
        span = f"id BETWEEN {at} AND {at + chance.choice([1, 40])}"
        free = "" if table == "nokey" else " ON CONFLICT DO NOTHING"
        kinds = [
            f"UPDATE {table} SET n = n + 1 WHERE {span}",
            f"UPDATE {table} SET long = repeat('l' || n, 3), n = n + 1 WHERE {span}",
            f"UPDATE {table} SET long = repeat('l' || n, 1500), n = n + 1 WHERE id = {at}",
            f"DELETE FROM {table} WHERE {span}",
            f"INSERT INTO {table} SELECT g, 0, 'again', 'x' FROM generate_series({at}, {at + 9}) g{free}",
            f"UPDATE {table} SET id = id + 10000 WHERE {span} AND id % 3 = 0 AND NOT EXISTS "
            f"(SELECT FROM {table} o WHERE o.id = {table}.id + 10000)",
            f"BEGIN; UPDATE {table} SET n = n + 1 WHERE {span}; SAVEPOINT s; DELETE FROM {table} "
            f"WHERE {span}; ROLLBACK TO s; UPDATE {table} SET v = 'w' WHERE {span}; COMMIT",
            f"VACUUM {table}",
            f"VACUUM {'' if reading else 'FULL '}{table}",
        ]
        if table == "nokey" and world.sink == "kept":  # its rows are distinguished by their id here
            del kinds[4:6]
        world.database.run(chance.choice(kinds))


# --- the server takes the snapshot away ------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 3])
def test_a_snapshot_that_became_too_old_goes_on_in_a_new_one(world, threads):
    """The server's own error, raised where a table named ``aged`` is there: an old snapshot cannot be made
    within a test."""
    database, pipeline = world.database, world.pipeline
    database.execute(
        "CREATE FUNCTION read_of(id int) RETURNS int LANGUAGE plpgsql AS $$ BEGIN"
        " IF id > 200 AND to_regclass('aged') IS NOT NULL THEN"
        "   RAISE EXCEPTION 'snapshot too old' USING ERRCODE = '72000'; END IF;"
        " RETURN id; END $$; CREATE TABLE aged ()"
    )
    pipeline.settings |= {
        "snapshot.max.threads": threads,
        "table.include.list": r"public\.[ab]",
        "snapshot.select.statement.overrides": "public.b",
        "snapshot.select.statement.overrides.public.b": "SELECT read_of(id) AS id, n, v, long FROM b",
    }

    class Mends:
        @hookimpl
        def on_failure(self) -> None:
            database.execute("DROP TABLE IF EXISTS aged")

    with pipeline.running(Mends()) as run:
        ((error, retried),) = run.notices.failures
    assert isinstance(error, SnapshotTooOld)
    assert retried
    assert "public.b could not be read to its end: snapshot too old" in str(error)
    assert "old_snapshot_threshold" in str(error)
    assert {table: set(world.read(table)) for table in "ab"} == {"a": ALL, "b": ALL}
    assert [piece.opens for piece in world.taken].count(True) == 1, "it was taken anew"
    assert [piece.resumed for piece in world.taken].count(True) == 1


def test_what_a_publication_lacked_while_a_snapshot_was_broken_off_is_a_gap(world):
    world.database.execute("CREATE PUBLICATION p FOR TABLE a, b, c, nokey")
    world.pipeline.settings |= {
        "publication.autocreate.mode": "disabled",
        "publication.name": "p",
    }
    assert world.run("after flush", 2)
    world.database.run(
        "ALTER PUBLICATION p DROP TABLE a; INSERT INTO a VALUES (9999, 1)",
        "ALTER PUBLICATION p ADD TABLE a",
    )
    world.run("nowhere")
    assert any(piece.resumed for piece in world.taken)
    (gap,) = GapCertificates(world.pipeline.offset_file.parent).open()
    assert gap.tables == ("public.a",)
