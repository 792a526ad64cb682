"""What Debezium's properties of slot and positions do, on a real server."""

import json
from pathlib import Path

import pytest
from waltap.source.position import lsn_text
from waltap_postgres.errors import FailoverUnavailable, PositionGap

from tests.harness.pipeline import PipelineRig
from tests.harness.servers.postgres import Database


pytestmark = pytest.mark.pipeline(sql="CREATE TABLE t (id int PRIMARY KEY)")


# --- lsn.flush.mode ---------------------------------------------------------------------------------


def test_manual_confirms_nothing_and_repeats_nothing(pipeline: PipelineRig) -> None:
    database, manual = pipeline.database, {"lsn.flush.mode": "manual"}
    pipeline.catch_up(**manual)
    before = pipeline.slot_lsns()[0]
    for number in (1, 2):
        database.execute("INSERT INTO t VALUES (%s)", number)
        pipeline.catch_up(**manual)
        assert pipeline.slot_lsns()[0] == before
    assert pipeline.destination.ids("t") == [1, 2]
    offset = pipeline.offset()
    assert offset is not None
    assert offset.sole.position.end_lsn > before


def test_who_moves_the_slot_up_to_the_offset_loses_nothing(pipeline: PipelineRig) -> None:
    database, manual = pipeline.database, {"lsn.flush.mode": "manual"}
    pipeline.catch_up(**manual)
    database.execute("INSERT INTO t VALUES (1)")
    pipeline.catch_up(**manual)
    offset = pipeline.offset()
    assert offset is not None
    advance = "SELECT pg_replication_slot_advance(%s, %s::pg_lsn)"
    database.execute(advance, pipeline.slot, lsn_text(offset.sole.position.end_lsn))
    database.execute("INSERT INTO t VALUES (2)")
    pipeline.catch_up(**manual)
    assert pipeline.destination.ids("t") == [1, 2]
    database.execute("INSERT INTO t VALUES (3)")
    ((end,),) = database.execute("SELECT pg_current_wal_lsn()::text")
    database.execute(advance, pipeline.slot, end)
    with pytest.raises(PositionGap):
        pipeline.catch_up(**manual)


# --- streaming.delay.ms, xmin.fetch.interval.ms -----------------------------------------------------


def test_the_stream_waits_behind_a_snapshot_and_a_stop_ends_the_wait(pipeline: PipelineRig) -> None:
    database = pipeline.database
    database.execute("INSERT INTO t VALUES (1)")

    def snapshot_is_whole() -> bool:
        offset = pipeline.offset()
        return offset is not None and offset.snapshot is None

    with pipeline.running(ready=False, **{"streaming.delay.ms": 3_600_000}) as run:
        run.until(snapshot_is_whole, "the end of the snapshot")
        assert run.engine.state == "snapshot"
        assert database.slots() == {pipeline.slot: False}
    database.execute("INSERT INTO t VALUES (2)")
    pipeline.catch_up(**{"streaming.delay.ms": 3_600_000})  # no snapshot: nothing to wait for
    assert pipeline.destination.ids("t") == [1, 2]


@pytest.mark.parametrize("interval", [0, 1])
def test_source_xmin_is_the_catalog_xmin_of_the_slot(pipeline: PipelineRig, interval: int) -> None:
    database, path = pipeline.database, pipeline.folder / "out.jsonl"
    database.execute("INSERT INTO t VALUES (1)")
    settings = {"sink.type": "jsonl", "sink.path": str(path), "xmin.fetch.interval.ms": interval}
    pipeline.catch_up(**settings)
    ((xmin,),) = database.execute(
        "SELECT catalog_xmin::text::int8 FROM pg_replication_slots WHERE slot_name = %s",
        pipeline.slot,
    )
    database.execute("INSERT INTO t VALUES (2); DELETE FROM t WHERE id = 1")
    pipeline.catch_up(**settings)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    values = [line["value"] for line in lines if line["value"]]
    sources = {v["op"]: v["source"] for v in (value.get("payload", value) for value in values)}
    assert sources["r"]["xmin"] is None
    for op in ("c", "d"):
        assert sources[op]["origin"] is None
        if interval:
            assert sources[op]["xmin"] >= xmin
        else:
            assert sources[op]["xmin"] is None


# --- slot.failover ----------------------------------------------------------------------------------

FAILOVER = {"slot.failover": True}


def test_a_server_that_copies_no_slots_is_refused_before_anything_is_made(
    pipeline: PipelineRig,
) -> None:
    database = pipeline.database
    if database.server.version >= 170000:
        pytest.skip("this server copies slots")
    with pytest.raises(FailoverUnavailable, match="copies no slots to standbys") as refused:
        pipeline.catch_up(**FAILOVER)
    assert refused.value.code == "WT-2121"
    assert database.slots() == {}
    assert database.execute("SELECT FROM pg_publication") == []


def test_a_temporary_slot_is_not_copied(newest_database: Database, tmp_path: Path) -> None:
    newest_database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    made = PipelineRig(newest_database, tmp_path, FAILOVER | {"slot.temporary": True})
    with pytest.raises(FailoverUnavailable, match=r"slot\.temporary"):
        made.catch_up()


@pytest.mark.parametrize("later", [False, True], ids=["from the start", "later"])
def test_a_slot_is_marked_for_standbys(
    newest_database: Database, tmp_path: Path, later: bool
) -> None:
    newest_database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    made = PipelineRig(newest_database, tmp_path)
    made.catch_up(**({} if later else FAILOVER))
    newest_database.execute("INSERT INTO t VALUES (1)")
    made.catch_up(**FAILOVER)
    query = "SELECT failover FROM pg_replication_slots WHERE slot_name = %s"
    assert newest_database.execute(query, made.slot) == [(True,)]
    assert made.destination.ids("t") == [1]
