"""Where the rows of a snapshot beside an older slot stand, on a real server: before all that they lack."""

import threading
from pathlib import Path
from typing import Any

import pytest
from waltap.transactions.transaction import SnapshotRows
from waltap_postgres.snapshot.transaction import ReadingTransaction
from waltap_sinks.changelog import ChangeLog
from waltap_spark.applier import Applier, ApplyOptions
from waltap_spark.formats.choice import PARQUET, FormatChoice
from waltap_spark.live import LiveTables
from waltap_spark.modes import ModeRules
from waltap_spark.output import Output
from waltap_spark.session import prepare

from tests.harness.pipeline import PipelineRig, until
from tests.harness.servers.postgres import Cluster, Database


def with_slot(database: Database, folder: Path) -> PipelineRig:
    """Return a pipeline whose slot somebody made before it ran."""
    pipeline = PipelineRig(database, folder, {"slot.adopt": True})
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t VALUES (1, 10), (2, 20);"
        f"CREATE PUBLICATION {pipeline.slot} FOR ALL TABLES"
    )
    database.execute(f"SELECT pg_create_logical_replication_slot('{pipeline.slot}', 'pgoutput')")
    return pipeline


def end_of_wal(database: Database) -> int:
    ((lsn,),) = database.execute("SELECT (pg_current_wal_lsn() - '0/0')::int8")
    return int(lsn)


def positions(pipeline: PipelineRig) -> set[int | None]:
    """Return where the snapshot's rows stand."""
    return {
        part.lsn
        for batch in pipeline.destination.batches
        for part in batch.parts
        if isinstance(part, SnapshotRows)
    }


def change_behind_the_snapshot(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a row changed when the first reading transaction has its snapshot, before it reads a row."""
    seen = ReadingTransaction.seen

    def then_a_commit(transaction: ReadingTransaction) -> str:
        found = seen(transaction)
        database.execute("UPDATE t SET v = 21 WHERE id = 2")
        return found

    monkeypatch.setattr(ReadingTransaction, "seen", then_a_commit)


def test_rows_stand_before_a_change_that_their_snapshot_did_not_see(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = with_slot(database, tmp_path)
    # the slot has it, and the snapshot sees it
    database.execute("UPDATE t SET v = 11 WHERE id = 1")
    before = end_of_wal(database)
    change_behind_the_snapshot(database, monkeypatch)
    pipeline.catch_up()  # it may end before the change, which was made after it began
    pipeline.catch_up()
    told = [(event.op, event.row) for event in pipeline.destination.of("t")]
    assert sorted(told[:2], key=str) == [
        ("r", {"id": "1", "v": "11"}),
        ("r", {"id": "2", "v": "20"}),
    ]
    assert told[2:] == [("u", {"id": "2", "v": "21"})]
    (position,) = positions(pipeline)
    assert position is not None
    # not before what was there when the pipeline came: a destination may have that from an earlier one
    assert before <= position <= pipeline.destination.of("t")[-1].commit_lsn


def test_rows_stand_before_a_commit_that_was_written_and_not_yet_to_be_seen(
    private_server: Cluster, tmp_path: Path
) -> None:
    """A commit that waits for a standby is in the WAL, and streamed; no snapshot sees it."""
    database = private_server.create_database("waits")
    pipeline = with_slot(database, tmp_path)
    private_server.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
    private_server.reload()

    def waits() -> bool:
        return bool(database.execute("SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'"))

    writer = threading.Thread(
        target=database.execute, args=["UPDATE t SET v = 21 WHERE id = 2"], daemon=True
    )
    writer.start()
    try:
        until(waits, "the commit to wait for its standby")
        # others write: the end of the WAL lies far behind the commit
        with database.connect() as other:
            other.execute("SET synchronous_commit = local")
            other.execute("CREATE TABLE more AS SELECT g FROM generate_series(1, 100) g")
        with pipeline.running():
            until(lambda: pipeline.destination.of("t")[2:], "the change")
            assert waits()
    finally:
        private_server.execute("ALTER SYSTEM RESET synchronous_standby_names")
        private_server.reload()
        writer.join(60)
    assert pipeline.destination.table("t")[("2",)] == {"id": "2", "v": "21"}
    (position,) = positions(pipeline)
    assert position is not None
    assert position <= pipeline.destination.of("t")[-1].commit_lsn


def test_a_transaction_that_is_merely_open_holds_no_position_back(
    database: Database, tmp_path: Path
) -> None:
    pipeline = with_slot(database, tmp_path)
    with database.connect(autocommit=False) as other:
        other.execute("UPDATE t SET v = 21 WHERE id = 2")
        before = end_of_wal(database)
        with pipeline.running():
            until(lambda: pipeline.destination.of("t")[1:], "the rows")
            other.commit()
            until(lambda: pipeline.destination.of("t")[2:], "the change")
    (position,) = positions(pipeline)
    assert position is not None
    assert before <= position <= pipeline.destination.of("t")[-1].commit_lsn


def test_versions_in_spark_end_behind_their_beginning(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: Any
) -> None:
    pipeline = with_slot(database, tmp_path)
    pipeline.settings |= {"sink.type": "changelog", "sink.path": str(tmp_path / "log")}
    change_behind_the_snapshot(database, monkeypatch)
    pipeline.catch_up()  # it may end before the change, which was made after it began
    pipeline.catch_up()
    log, output = ChangeLog(str(tmp_path / "log")), Output(str(tmp_path / "out"))
    options = ApplyOptions(modes=ModeRules(modes=("scd2",)))
    applier = Applier(prepare(spark), log, output, options, FormatChoice(PARQUET))
    applier.open()
    for manifest in log.manifests(applier.state.mark):  # the snapshot, then what follows it
        applier.apply([manifest])
    frame = LiveTables(spark, output).current("public.t")
    assert frame.where("_to_lsn <= _from_lsn").collect() == []
    found = {(row["id"], row["v"], row["_current"]) for row in frame.collect()}
    applier.close()
    assert found == {(1, 10, True), (2, 20, False), (2, 21, True)}
