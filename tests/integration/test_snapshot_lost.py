"""The server takes the snapshot away while tables are read: what is kept, what is said, and how it goes on."""

from pathlib import Path

import pytest
from waltap.hookspecs import hookimpl
from waltap.transactions.transaction import Batch, SnapshotRows
from waltap_postgres.snapshot import plan
from waltap_postgres.snapshot.errors import SnapshotTooOld

from tests.harness.pipeline import PipelineRig, until
from tests.harness.servers.postgres import Database

ROWS = 400


@pytest.fixture
def shop(database: Database) -> Database:
    for table in ("a", "b"):
        database.execute(
            f"CREATE TABLE {table} (id int PRIMARY KEY, v text);"
            f"INSERT INTO {table} SELECT g, repeat('v', 300) FROM generate_series(1, {ROWS}) g"
        )
    return database


class Mends:
    """Runs a statement when something failed, before the next try."""

    def __init__(self, database: Database, statement: str) -> None:
        self.database, self.statement = database, statement

    @hookimpl
    def on_failure(self) -> None:
        self.database.execute(self.statement)


@pytest.mark.parametrize("threads", [1, 3])
def test_a_snapshot_that_became_too_old_goes_on_in_a_new_one(
    shop: Database, tmp_path: Path, threads: int
) -> None:
    """The server's own error, raised where a table named ``aged`` is there: an old snapshot cannot be made
    within a test."""
    shop.execute(
        "CREATE FUNCTION read_of(id int) RETURNS int LANGUAGE plpgsql AS $$ BEGIN"
        " IF id > 200 AND to_regclass('aged') IS NOT NULL THEN"
        "   RAISE EXCEPTION 'snapshot too old' USING ERRCODE = '72000'; END IF;"
        " RETURN id; END $$; CREATE TABLE aged ()"
    )
    settings = {
        "snapshot.max.threads": threads,
        "snapshot.fetch.size": 20,
        "table.include.list": r"public\.[ab]",
        "snapshot.select.statement.overrides": "public.b",
        "snapshot.select.statement.overrides.public.b": "SELECT read_of(id) AS id, v FROM b",
    }
    pipeline = PipelineRig(shop, tmp_path, settings)
    pipeline.destination.resumes = True
    with pipeline.running(Mends(shop, "DROP TABLE IF EXISTS aged")) as run:
        ((error, retried),) = run.notices.failures
    assert isinstance(error, SnapshotTooOld)
    assert retried
    assert "public.b could not be read to its end: snapshot too old" in str(error)
    assert "old_snapshot_threshold" in str(error)
    for table in ("a", "b"):
        assert set(pipeline.destination.ids(table, "r")) == set(range(1, ROWS + 1))
    parts = [part for batch in pipeline.destination.batches for part in batch.parts]
    pieces = [part for part in parts if isinstance(part, SnapshotRows)]
    assert [piece.opens for piece in pieces].count(True) == 1, "it was taken anew"
    assert [piece.goes_on for piece in pieces].count(True) == 1


class EndsTheExporter:
    """Ends the connection that made the slot, and with it the snapshot that it exports, the first time."""

    def __init__(self, database: Database) -> None:
        self.database, self.done = database, False

    @hookimpl
    def on_slot(self, event: str) -> None:
        if event != "created" or self.done:
            return
        self.done = True
        of_ours = "backend_type = 'walsender' AND datname = current_database()"
        self.database.execute(
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {of_ours}"
        )
        until(
            lambda: not self.database.execute(f"SELECT 1 FROM pg_stat_activity WHERE {of_ours}"),
            "the end of the connection",
        )


@pytest.mark.parametrize("threads", [1, 3])
def test_an_exported_snapshot_that_is_lost_is_made_anew(
    shop: Database, tmp_path: Path, threads: int
) -> None:
    pipeline = PipelineRig(shop, tmp_path, {"snapshot.max.threads": threads})
    with pipeline.running(EndsTheExporter(shop)) as run:
        ((error, retried),) = run.notices.failures
        shop.execute("INSERT INTO a VALUES (1000, 'streamed')")
        run.until(lambda: 1000 in pipeline.destination.ids("a"), "the change")
    assert "the exported snapshot is gone" in str(error)
    assert retried
    for table in ("a", "b"):
        assert sorted(pipeline.destination.ids(table, "r")) == list(range(1, ROWS + 1))


@pytest.mark.parametrize("sink", ["kept", "changelog"])
def test_a_table_that_is_dropped_between_its_chunks_and_a_kill_leaves_the_others_whole(
    shop: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sink: str
) -> None:
    """Some of its rows were delivered; the start after the kill finds no such table."""
    from waltap_sinks.changelog import ChangeLog

    monkeypatch.setattr(plan, "RANGE_BLOCKS", 4)
    settings = {"snapshot.fetch.size": 20, "sink.type": sink}
    if sink == "changelog":
        settings["sink.path"] = str(tmp_path / "log")
    pipeline = PipelineRig(shop, tmp_path, settings)
    pipeline.destination.resumes = True
    with pytest.raises(Killed):
        pipeline.run(Stops(10))
    stored = pipeline.offset()
    assert stored is not None
    assert stored.snapshot is not None
    shop.execute("DROP TABLE a")
    pipeline.catch_up()
    if sink == "kept":
        assert pipeline.destination.ids("b", "r") == list(range(1, ROWS + 1))
        return
    log = ChangeLog(str(tmp_path / "log"))
    read = [n for part in log.rows("public", "b") for n in part["id"].to_pylist()]
    assert sorted(read) == list(range(1, ROWS + 1))


class Killed(BaseException):
    """The process is gone."""


class Stops:
    """Ends the process, as it were, after so many pieces."""

    def __init__(self, pieces: int) -> None:
        self.left = pieces

    @hookimpl
    def on_batch(self, batch: Batch) -> None:
        self.left -= 1
        if not self.left:
            raise Killed
