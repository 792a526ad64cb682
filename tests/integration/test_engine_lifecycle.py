"""How runs begin and end on a real server, what they leave there, and what is confirmed to it meanwhile."""

import contextlib
import json
import os
from typing import Any

import pytest
from tests.harness.pipeline import WAIT_S, PipelineRig, until

from waltap.changes.transactions.transaction import Batch
from waltap.pipeline import Limits
from waltap.plugins.hookspecs import hookimpl
from waltap_postgres.errors import SlotMissing

CONFIGURED = "configuration_based"

pytestmark = pytest.mark.pipeline(
    sql="CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)"
)


def publications(pipeline: PipelineRig) -> dict[str, list[str]]:
    """Return the publications with what they cover."""
    return dict(
        pipeline.database.execute(
            "SELECT p.pubname::text, coalesce(array_agg(t.tablename::text ORDER BY t.tablename)"
            " FILTER (WHERE t.tablename IS NOT NULL), '{}') FROM pg_publication p"
            " LEFT JOIN pg_publication_tables t USING (pubname) GROUP BY 1"
        )
    )


# --- ready ------------------------------------------------------------------------------------------


def test_the_ready_file_is_there_when_streaming_has_begun_and_not_before(pipeline):
    ready = pipeline.folder / "ready"
    ready.touch()  # of an earlier run
    seen: list[bool] = []
    reading, release = pipeline.destination.hold(lambda _batch: not seen.append(ready.exists()))
    with pipeline.running(ready=False) as run:
        assert reading.wait(WAIT_S)
        release.set()
        run.until(ready.exists, "the ready file")
        assert run.engine.state == "streaming"
        assert pipeline.database.slots() == {pipeline.slot: True}
    assert seen[0] is False


def test_a_run_that_only_reads_is_ready_when_it_has_read(pipeline):
    pipeline.run(**{"snapshot.mode": "initial_only"})
    assert (pipeline.folder / "ready").exists()
    assert pipeline.destination.ids("t") == [1]
    assert pipeline.database.slots() == {}
    assert publications(pipeline) == {}
    pipeline.run(**{"snapshot.mode": "initial_only"})
    assert pipeline.destination.ids("t") == [1]
    with pytest.raises(SlotMissing, match="a snapshot alone"):
        pipeline.run()


def test_a_mode_that_does_not_stream_leaves_a_complete_offset_as_it_is(pipeline):
    """Checks against a restored server compare with it, and it has the queue of signals."""
    pipeline.catch_up()
    raw = json.loads(pipeline.offset_file.read_bytes())
    request = {"schema": "public", "table": "t", "signal": "s"}
    raw["signals"] = {"queue": [request]}
    (partition,) = raw["partitions"].values()
    partition["visible_in"] = {"public.t": "740:745:741@0/2000"}
    pipeline.offset_file.write_text(json.dumps(raw))
    before = pipeline.offset()
    pipeline.run(**{"snapshot.mode": "initial_only"})
    assert pipeline.offset() == before
    reads = {"snapshot.mode.configuration.based.snapshot.data": True, "snapshot.mode": CONFIGURED}
    pipeline.run(**reads)
    assert pipeline.destination.ids("t", "r") == [1, 1]
    after = pipeline.offset().with_sole(slot_created_lsn=before.sole.slot_created_lsn)
    assert after == before


def test_a_mode_that_does_nothing_stores_nothing(pipeline):
    """An offset would say that a snapshot is complete."""
    pipeline.run(**{"snapshot.mode": CONFIGURED})
    assert pipeline.offset() is None
    pipeline.catch_up()
    assert pipeline.destination.ids("t") == [1]


def test_rows_that_a_snapshot_alone_read_after_an_unfinished_one_are_not_streamed_too(pipeline):
    pipeline.run(limits=Limits(max_records=1))
    assert pipeline.offset().snapshot is not None
    pipeline.database.execute("INSERT INTO t VALUES (2)")
    pipeline.destination.events.clear()
    pipeline.run(**{"snapshot.mode": "initial_only"})
    with pytest.raises(SlotMissing, match="a snapshot alone"):
        pipeline.catch_up()
    assert pipeline.destination.ids("t") == [1, 2]


def test_a_run_that_is_stopped_in_its_snapshot_is_not_ready(pipeline):
    pipeline.run(limits=Limits(max_records=1))
    assert pipeline.destination.ids("t") == [1]
    assert not (pipeline.folder / "ready").exists()


def test_a_limit_of_records_loses_no_change_where_others_are_left_out(database, tmp_path):
    database.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE u (id int PRIMARY KEY)")
    pipeline = PipelineRig(database, tmp_path, {"snapshot.mode": "no_data"})
    pipeline.tables = {"transforms": [{"type": "filter", "tables": "public.u"}]}
    pipeline.catch_up()
    database.execute(
        "INSERT INTO t VALUES (1); INSERT INTO u VALUES (1), (2); INSERT INTO t VALUES (2);"
        "INSERT INTO u VALUES (3); INSERT INTO t VALUES (3), (4), (5)"
    )
    for most, ids in ((3, [1, 2, 3]), (1, [1, 2, 3, 4]), (1, [1, 2, 3, 4, 5])):
        pipeline.run(limits=Limits(max_records=most))
        assert pipeline.destination.ids("t") == ids


# --- slots and publications of a run -------------------------------------------------------------------


@pytest.mark.parametrize("fails", [False, True], ids=["stopped", "failed"])
def test_a_temporary_slot_and_its_publication_go_with_the_run(pipeline, fails):
    def write(_batch: Batch) -> None:
        if fails:
            raise RuntimeError("a bug of the sink")

    pipeline.destination.before_write = write
    pipeline.settings |= {
        "slot.temporary": "true", "publication.drop.on.stop": "true", "snapshot.mode": "no_data",
    }  # fmt: skip
    ended = pytest.raises(RuntimeError, match="a bug") if fails else contextlib.nullcontext()
    with ended, pipeline.running() as run:
        assert list(publications(pipeline)) == [pipeline.slot]
        pipeline.database.execute("INSERT INTO t VALUES (2)")
        run.until(lambda: pipeline.destination.ids("t") == [2], "the row")
    until(lambda: pipeline.database.slots() == {}, "the slot to go")
    assert publications(pipeline) == {}
    assert fails or pipeline.offset() is None


def test_a_slot_dropped_on_stop_takes_the_offset_though_its_publication_stays(
    pipeline, database, caplog
):
    settings = {"slot.drop.on.stop": "true", "publication.drop.on.stop": "true"}
    database.psql(
        "CREATE FUNCTION refuse() RETURNS event_trigger LANGUAGE plpgsql AS"
        " $$BEGIN RAISE 'it is wanted'; END$$;"
        "CREATE EVENT TRIGGER refuse ON sql_drop EXECUTE FUNCTION refuse()"
    )
    pipeline.catch_up(**settings)
    assert (database.slots(), pipeline.offset()) == ({}, None)
    assert "publications that this run made stay: WT-2009 it is wanted" in caplog.text
    pipeline.catch_up(**settings)
    assert (database.slots(), publications(pipeline), pipeline.offset()) == (
        {},
        {pipeline.slot: ["t"]},
        None,
    )


def test_a_publication_of_a_run_that_reconnected_is_dropped_too(pipeline, database):
    with pipeline.running(**{"publication.drop.on.stop": "true"}) as run:
        database.execute(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE database = current_database()"
        )
        run.until(lambda: ("reconnecting", "streaming") in [
            (a[0], b[0]) for a, b in zip(run.notices.states, run.notices.states[1:])
        ], "the new stream")  # fmt: skip
        assert list(publications(pipeline)) == [pipeline.slot]
    assert publications(pipeline) == {}


def test_a_publication_that_was_there_is_never_dropped(pipeline, database):
    database.execute(f"CREATE PUBLICATION {pipeline.slot} FOR TABLE t")
    pipeline.catch_up(**{"publication.drop.on.stop": "true"})
    assert publications(pipeline) == {pipeline.slot: ["t"]}


def test_a_publication_follows_the_captured_tables_and_keeps_filters(pipeline, database):
    """Filters of rows and columns are of the tables that stay; others come and go."""
    database.execute(
        "CREATE TABLE u (id int PRIMARY KEY); CREATE TABLE gone (id int PRIMARY KEY);"
        f"CREATE PUBLICATION {pipeline.slot} FOR TABLE t WHERE (id > 10), gone"
    )
    settings = {"table.exclude.list": r"public\.gone"}
    pipeline.catch_up(**settings)
    assert publications(pipeline) == {pipeline.slot: ["t", "u"]}
    database.execute("INSERT INTO t VALUES (5), (15); INSERT INTO u VALUES (6)")
    pipeline.catch_up(**settings)
    assert pipeline.destination.ids("t", "c") == [15]
    assert pipeline.destination.ids("u", "c") == [6]


def test_a_pipeline_runs_in_one_process_at_a_time(pipeline, database):
    """Also in its snapshot, when nobody reads the slot yet: another start would drop it."""
    reading, release = pipeline.destination.hold()
    with pipeline.running(ready=False) as run:
        assert reading.wait(WAIT_S)
        other = pipeline.command("run", "FILE")
        release.set()
        run.until(lambda: run.engine.state == "streaming", "streaming")
        database.execute("INSERT INTO t VALUES (2)")
        run.until(lambda: pipeline.destination.ids("t") == [1, 2], "the rows")
    assert other.returncode == 1
    assert "WT-6004" in other.stderr
    assert f"process {os.getpid()} runs this pipeline already" in other.stderr
    pipeline.catch_up()


# --- heartbeats -------------------------------------------------------------------------------------


@pytest.mark.parametrize("around", ["{}", "BEGIN; {}; COMMIT"])
def test_a_heartbeat_query_that_fails_is_a_warning(pipeline, database, caplog, around):
    """A transaction that it began ends with it."""
    settings = {
        "heartbeat.interval.ms": 20,
        "heartbeat.action.query": around.format("INSERT INTO beats VALUES (now())"),
    }
    with pipeline.running(**settings) as run:
        database.execute("INSERT INTO t VALUES (2)")
        run.until(lambda: "beats" in caplog.text, "the warning")
        assert 'relation "beats" does not exist' in caplog.text
        database.execute("CREATE TABLE beats (at timestamptz PRIMARY KEY)")
        run.until(lambda: database.execute("SELECT count(*) FROM beats")[0][0] > 1, "heartbeats")
        assert run.notices.failures == []


# --- observers --------------------------------------------------------------------------------------


def test_observers_are_reported_transactions_and_of_the_slot(pipeline, database):
    class Watching:
        def __init__(self) -> None:
            self.transactions: list[tuple[int, bool]] = []
            self.slots: list[tuple[str, str, int]] = []

        @hookimpl
        def on_transaction(self, part: Any) -> None:
            self.transactions.append((part.first_index + len(part.changes), part.complete))

        @hookimpl
        def on_slot(self, event: str, slot: str, lsn: int) -> None:
            self.slots.append((event, slot, lsn))

    watching = Watching()
    with pipeline.running(watching, **{"slot.drop.on.stop": "true"}) as run:
        database.execute("INSERT INTO t VALUES (2), (3)")
        database.execute("INSERT INTO t SELECT generate_series(10, 30000)")
        run.until(lambda: len(pipeline.destination.ids("t")) == 29_994, "the rows")
        run.until(lambda: len(watching.transactions) == 2, "both transactions")
        run.until(lambda: pipeline.slot_lsns()[0] == watching.slots[-1][2], "the confirmation")
    assert watching.transactions == [(2, True), (29_991, True)]
    events = [event for event, _, _ in watching.slots]
    assert events[0] == "created"
    assert set(events[1:-1]) == {"confirmed"}
    assert events[-1] == "dropped"
    lsns = [lsn for _, _, lsn in watching.slots]
    assert lsns == sorted(lsns)


# --- what is confirmed, and when: never more than is stored, never less for long -----------------------


@pytest.fixture
def quiet(database, tmp_path) -> PipelineRig:
    """Return a pipeline of ``quiet``; changes of ``busy`` are not captured."""
    database.execute("CREATE TABLE quiet (id int PRIMARY KEY); CREATE TABLE busy (a int)")
    return PipelineRig(database, tmp_path, {"table.include.list": r"public\.quiet"})


def test_a_quiet_table_beside_busy_ones_holds_no_wal(quiet, database):
    with quiet.running():
        before = quiet.slot_lsns()
        for _ in range(3):
            database.execute("INSERT INTO busy SELECT generate_series(1, 3000)")
        goal = database.wal_end()
        until(lambda: quiet.slot_lsns()[0] >= goal, "confirmed_flush_lsn to follow")
        # restart_lsn follows as soon as the server has written what running transactions there are
        database.execute("CHECKPOINT")
        until(lambda: quiet.slot_lsns()[1] > before[1], "restart_lsn to follow")
    offset = quiet.offset()
    assert offset.sole.position.end_lsn >= quiet.slot_lsns()[0]


def test_a_clean_stop_confirms_what_the_server_has_read(quiet, database):
    """Also when the next idle progress is far away."""
    with quiet.running():
        pass
    database.execute("INSERT INTO quiet VALUES (1)")
    database.execute("INSERT INTO busy SELECT generate_series(1, 3000)")
    goal = database.wal_end()
    quiet.catch_up(**{"status.update.interval.ms": 600_000})
    assert quiet.destination.ids("quiet") == [1]
    until(lambda: quiet.slot_lsns()[0] >= goal, "the server to take what was confirmed last")


def test_a_clean_stop_confirms_what_was_written(quiet, database):
    """Flushes are far apart: only the end itself can have stored and confirmed it."""
    with quiet.running(**{"offset.flush.interval.ms": 3_600_000}) as run:
        database.execute("INSERT INTO quiet VALUES (1)")
        run.until(lambda: quiet.destination.ids("quiet") == [1], "the row")
    stored = quiet.offset().sole.position.end_lsn
    until(lambda: quiet.slot_lsns()[0] >= stored, "the server to take what was confirmed last")
