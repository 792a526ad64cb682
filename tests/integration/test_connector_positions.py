"""Where a start goes on, on a real server: slots that went, moved, or belong to others, and offsets
that do not fit. Nothing is ever passed over in silence."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import psycopg
import pytest
from waltap.amounts import size
from waltap.pipeline import Limits
from waltap.errors import Retry, WaltapError
from waltap.offsets.offset import Offset
from waltap.source.position import Position
from waltap_postgres.errors import (
    OtherServer,
    PositionAhead,
    PositionGap,
    SlotActive,
    SlotInvalidated,
    SlotMissing,
    SlotUnfit,
)

from tests.harness.pipeline import PipelineRig, until
from tests.harness.servers.postgres import Cluster, Database


@pytest.fixture
def pipeline(database: Database, tmp_path: Path) -> PipelineRig:
    """Return a pipeline that has delivered row 1 and stopped; row 2 came since."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    made = PipelineRig(database, tmp_path)
    made.catch_up()
    database.execute("INSERT INTO t VALUES (1)")
    made.catch_up()
    database.execute("INSERT INTO t VALUES (2)")
    return made


def drop(pipeline: PipelineRig) -> None:
    pipeline.database.execute("SELECT pg_drop_replication_slot(%s)", pipeline.slot)


def make_anew(pipeline: PipelineRig) -> None:
    drop(pipeline)
    pipeline.database.execute(
        "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", pipeline.slot
    )


def of_another_system(pipeline: PipelineRig) -> None:
    change_offset(pipeline, system_id="6999999999999999999")


def after_the_end(pipeline: PipelineRig) -> None:
    change_offset(pipeline, position=Position(1 << 60))


def change_offset(pipeline: PipelineRig, **fields: object) -> None:
    offset = pipeline.offset()
    assert offset is not None
    changed = offset.with_sole(**fields)
    pipeline.offset_file.write_bytes(msgspec.json.encode(changed))


LOSSES = [
    pytest.param(drop, SlotMissing, "WT-2103", id="slot dropped"),
    pytest.param(make_anew, PositionGap, "WT-6101", id="slot made anew"),
    pytest.param(of_another_system, OtherServer, "WT-6102", id="offset of another server"),
    pytest.param(after_the_end, PositionAhead, "WT-6103", id="offset after the end of WAL"),
]


@pytest.mark.parametrize(("damage", "kind", "code"), LOSSES)
def test_a_position_that_cannot_be_gone_on_from_is_an_error_that_moves_nothing(
    pipeline: PipelineRig,
    damage: Callable[[PipelineRig], None],
    kind: type[WaltapError],
    code: str,
) -> None:
    damage(pipeline)
    before, slots = pipeline.offset(), slot_states(pipeline)
    with pytest.raises(kind) as caught:
        pipeline.catch_up()
    assert str(caught.value).startswith(code)
    assert "snapshot.mode=when_needed" in caught.value.advice()
    assert pipeline.offset() == before
    assert slot_states(pipeline) == slots
    assert pipeline.destination.ids("t") == [1]


@pytest.mark.parametrize(("damage", "kind", "code"), LOSSES)
def test_when_needed_answers_a_lost_position_with_a_new_snapshot(
    pipeline: PipelineRig,
    damage: Callable[[PipelineRig], None],
    kind: type[WaltapError],
    code: str,
) -> None:
    database = pipeline.database
    damage(pipeline)
    database.execute("INSERT INTO t VALUES (3)")
    with pipeline.running(**{"snapshot.mode": "when_needed"}) as run:
        database.execute("INSERT INTO t VALUES (4)")
        run.until(lambda: 4 in pipeline.destination.ids("t"), "the new row")
    assert pipeline.destination.ids("t", "r") == [1, 2, 3]
    assert pipeline.destination.ids("t", "c") == [1, 4]
    pipeline.catch_up()  # and all is well again
    assert pipeline.destination.ids("t") == [1, 1, 2, 3, 4]


def slot_states(pipeline: PipelineRig) -> list[tuple[str, str]]:
    return pipeline.database.execute(
        "SELECT slot_name::text, confirmed_flush_lsn::text FROM pg_replication_slots"
        " WHERE database = current_database() ORDER BY 1"
    )


def test_the_gap_is_named_in_bytes(pipeline: PipelineRig) -> None:
    make_anew(pipeline)
    offset = pipeline.offset()
    assert offset is not None
    gap = pipeline.slot_lsns()[0] - offset.sole.position.end_lsn
    with pytest.raises(PositionGap, match=f" {size(gap)} of WAL after the stored offset"):
        pipeline.catch_up()


def test_a_slot_that_is_believed_is_gone_on_from(pipeline: PipelineRig) -> None:
    make_anew(pipeline)
    pipeline.database.execute("INSERT INTO t VALUES (3)")
    pipeline.catch_up(**{"offset.mismatch.strategy": "trust_slot"})
    assert pipeline.destination.ids("t") == [1, 3]


def test_a_slot_that_stands_before_the_offset_gives_no_row_twice(pipeline: PipelineRig) -> None:
    """As after a crash of the server, which forgets what was confirmed since its last checkpoint."""
    database = pipeline.database
    ((lsn,),) = database.execute("SELECT (pg_current_wal_flush_lsn() - '0/0')::int8")
    change_offset(pipeline, position=Position(int(lsn)))  # row 2 counts as delivered
    assert pipeline.slot_lsns()[0] < int(lsn)
    database.execute("INSERT INTO t VALUES (3)")
    pipeline.catch_up()
    assert pipeline.destination.ids("t") == [1, 3]


# --- slots of others --------------------------------------------------------------------------------


def test_a_slot_of_another_plugin_is_refused_and_kept(database: Database, tmp_path: Path) -> None:
    pipeline = PipelineRig(database, tmp_path)
    database.execute(
        f"SELECT pg_create_logical_replication_slot('{pipeline.slot}', 'test_decoding')"
    )
    for mode in ("initial", "no_data", "when_needed", "always"):
        with pytest.raises(SlotUnfit, match="test_decoding.*wanted.*pgoutput") as caught:
            pipeline.catch_up(**{"snapshot.mode": mode})
        assert f"pg_drop_replication_slot('{pipeline.slot}')" in caught.value.advice()
    assert list(database.slots()) == [pipeline.slot]
    assert database.execute("SELECT count(*) FROM pg_publication") == [(0,)]


def test_a_pipeline_whose_decoder_changed_is_told_both_ways_out(
    database: Database, tmp_path: Path
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    pipeline = PipelineRig(database, tmp_path)
    pipeline.catch_up()
    with pytest.raises(SlotUnfit, match=r"plugin.name back.*lose what.*offsets clear FILE"):
        pipeline.catch_up(**{"plugin.name": "wal2json"})
    database.execute("INSERT INTO t VALUES (1)")
    pipeline.catch_up()
    assert pipeline.destination.ids("t", "c") == [1]


def test_a_slot_of_another_database_is_refused_and_kept(database: Database, tmp_path: Path) -> None:
    other = database.server.create_database(f"{database.name}_b")
    try:
        pipeline = PipelineRig(database, tmp_path)
        other.execute(f"SELECT pg_create_logical_replication_slot('{pipeline.slot}', 'pgoutput')")
        with pytest.raises(SlotUnfit, match=other.name):
            pipeline.catch_up(**{"snapshot.mode": "when_needed"})
        assert list(other.slots()) == [pipeline.slot]
    finally:
        other.drop()


@pytest.fixture
def reader(pipeline: PipelineRig) -> Iterator[psycopg.pq.PGconn]:
    """Return another consumer that reads the slot."""
    connection = psycopg.pq.PGconn.connect(f"{pipeline.database.dsn}?replication=database".encode())
    connection.exec_(
        f"START_REPLICATION SLOT {pipeline.slot} LOGICAL 0/0"
        f" (proto_version '1', publication_names '{pipeline.slot}')".encode()
    )
    yield connection
    connection.finish()


def test_a_slot_in_use_is_told_at_once_and_refused_when_patience_ends(
    pipeline: PipelineRig, reader: psycopg.pq.PGconn, caplog: pytest.LogCaptureFixture
) -> None:
    before = pipeline.offset()
    settings = {"slot.max.retries": 2, "slot.retry.delay.ms": 1000}
    with pytest.raises(SlotActive) as caught:
        pipeline.catch_up(**settings)
    assert caught.value.retry is Retry.RECONNECT  # exit status 3
    assert f"pid {reader.backend_pid}" in str(caught.value)
    assert f"pg_terminate_backend({reader.backend_pid})" in caught.value.advice()
    warnings = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    waiting = f"slot {pipeline.slot} is read by pid {reader.backend_pid}: waiting up to 2 s for it"
    assert warnings.count(waiting) == 1
    assert pipeline.offset() == before
    (ends,) = re.findall(r"SELECT pg_terminate_backend\(\d+\)", caught.value.advice())
    pipeline.database.execute(ends)
    pipeline.catch_up()


def test_no_retries_means_no_wait(
    pipeline: PipelineRig, reader: psycopg.pq.PGconn, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(SlotActive):
        pipeline.catch_up(**{"slot.max.retries": 0, "slot.retry.delay.ms": 60_000})
    assert "waiting" not in caplog.text


def test_a_slot_is_taken_as_soon_as_its_reader_leaves(
    pipeline: PipelineRig, reader: psycopg.pq.PGconn, caplog: pytest.LogCaptureFixture
) -> None:
    """However long the wait between two tries is said to be."""
    with pipeline.running(ready=False, **{"slot.retry.delay.ms": 60_000}) as run:
        until(lambda: "is read by pid" in caplog.text, "the warning")
        reader.finish()
        run.until(lambda: pipeline.destination.ids("t") == [1, 2], "the row", within=30)


def test_a_stop_ends_the_wait_for_a_slot(
    pipeline: PipelineRig, reader: psycopg.pq.PGconn, caplog: pytest.LogCaptureFixture
) -> None:
    with pipeline.running(ready=False, **{"slot.retry.delay.ms": 60_000}) as run:
        until(lambda: "is read by pid" in caplog.text, "the warning")
        run.stop()
    assert run.notices.states[-1][0] == "stopped"


def test_the_end_of_max_seconds_ends_the_wait_for_a_slot(
    pipeline: PipelineRig, reader: psycopg.pq.PGconn
) -> None:
    run = pipeline.run(limits=Limits(max_seconds=1.0), **{"slot.retry.delay.ms": 60_000})
    assert run.notices.states[-1][0] == "stopped"


def test_the_end_of_max_seconds_ends_the_wait_for_open_transactions(
    database: Database, tmp_path: Path
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with database.connect() as connection:
        connection.execute("INSERT INTO t VALUES (1)")  # holds up every new slot
        run = PipelineRig(database, tmp_path).run(limits=Limits(max_seconds=1.0))
        connection.rollback()
    assert run.notices.states[-1][0] == "stopped"
    assert not database.execute(
        "SELECT FROM pg_replication_slots WHERE database = current_database()"
    )


def test_a_stop_ends_the_wait_for_open_transactions_and_leaves_nothing_behind(
    database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A slot can be made only when all open transactions have ended: who holds it up is told."""
    pipeline = PipelineRig(database, tmp_path)
    with database.connect(autocommit=False) as open_transaction:
        open_transaction.execute("CREATE TABLE forgotten (id int)")
        pid = open_transaction.info.backend_pid
        with pipeline.running(ready=False) as run:
            until(lambda: f"pid {pid} of postgres since" in caplog.text, "the warning")
            run.stop()
        assert run.notices.states[-1][0] == "stopped"
    until(lambda: database.slots() == {}, "the slot to be gone")
    assert database.execute("SELECT count(*) FROM pg_publication") == [(0,)]
    assert pipeline.offset() is None


# --- WAL that is gone -----------------------------------------------------------------------------------


def test_an_invalidated_slot_is_refused_and_replaced_when_needed(tmp_path: Path) -> None:
    cluster = Cluster.create(
        max_slot_wal_keep_size="1MB", wal_keep_size="0", max_wal_size="32MB", min_wal_size="32MB"
    )
    try:
        database = cluster.create_database("invalid")
        database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
        pipeline = PipelineRig(database, tmp_path, {"table.include.list": r"public\.t"})
        pipeline.catch_up()

        def lost() -> bool:
            database.execute(
                "CREATE TABLE IF NOT EXISTS filler (v text);"
                "INSERT INTO filler SELECT repeat('x', 1000) FROM generate_series(1, 20000);"
                "TRUNCATE filler"
            )
            database.execute("SELECT pg_switch_wal()")
            database.execute("CHECKPOINT")
            return database.execute("SELECT wal_status FROM pg_replication_slots") == [("lost",)]

        until(lost, "the slot to be lost")
        stored = pipeline.offset()
        with pytest.raises(SlotInvalidated) as caught:
            pipeline.catch_up()
        assert str(caught.value).startswith("WT-2104")
        assert "max_slot_wal_keep_size" in caught.value.advice()
        # the same without an offset: the slot is not of this pipeline's making
        pipeline.offset_file.unlink()
        with pytest.raises(SlotInvalidated):
            pipeline.catch_up()
        assert isinstance(stored, Offset)
        pipeline.offset_file.write_bytes(msgspec.json.encode(stored))
        pipeline.catch_up(**{"snapshot.mode": "when_needed"})
        assert pipeline.destination.ids("t") == [1, 1]
        ((status,),) = database.execute("SELECT wal_status FROM pg_replication_slots")
        assert status == "reserved"
    finally:
        cluster.remove()
