"""Prepared transactions on a real server: whenever they were prepared, none is lost and none stops us."""

from collections.abc import Iterator

import pytest
from tests.harness.pipeline import SIGNALS, PipelineRig
from tests.harness.servers.postgres import Database

from waltap.errors import SinkError
from waltap_postgres.errors import SlotMissing

TWO_PHASE = {"pgoutput.two_phase": "true"}


@pytest.fixture
def pipeline(database, tmp_path) -> Iterator[PipelineRig]:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    yield PipelineRig(database, tmp_path)
    for (gid,) in database.execute(
        "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
    ):
        database.run(f"ROLLBACK PREPARED '{gid}'")


def prepare(database: Database, gid: str, rows: str) -> None:
    database.run("BEGIN", f"INSERT INTO t {rows}", f"PREPARE TRANSACTION '{database.name} {gid}'")


def decide(database: Database, gid: str, how: str = "COMMIT") -> None:
    database.run(f"{how} PREPARED '{database.name} {gid}'")


@pytest.mark.parametrize(
    ("policy", "running"), [("commit", True), ("prepare", True), ("prepare", False)]
)
def test_prepared_before_the_slot_decoded_two_phase(pipeline, database, policy, running):
    """The property is switched on later: the server sends the whole transaction at COMMIT PREPARED."""
    pipeline.catch_up()
    prepare(database, "early", "VALUES (1), (2)")
    pipeline.catch_up()
    pipeline.settings |= TWO_PHASE | {"two.phase.policy": policy}
    pipeline.catch_up()
    database.execute("INSERT INTO t VALUES (3)")
    if running:
        with pipeline.running() as run:
            run.until(lambda: pipeline.destination.ids("t") == [3], "the row between")
            decide(database, "early")
            run.until(lambda: pipeline.destination.ids("t") == [3, 1, 2], "the rows")
            prepare(database, "late", "VALUES (4)")
            decide(database, "late")
            run.until(lambda: pipeline.destination.ids("t") == [3, 1, 2, 4], "the next")
            assert run.notices.failures == []
    else:
        decide(database, "early")
        database.execute("INSERT INTO t VALUES (4)")
    pipeline.catch_up()
    pipeline.catch_up()
    assert pipeline.destination.ids("t") == [3, 1, 2, 4]


@pytest.mark.parametrize("kind", ["incremental", "blocking"])
def test_a_snapshot_waits_for_what_was_delivered_at_prepare(pipeline, database, kind):
    """Over a restart, too: the rows that an undecided transaction deleted are still to be seen."""
    pipeline.settings |= TWO_PHASE | {
        "two.phase.policy": "prepare",
        "snapshot.mode": "no_data",
        "signal.data.collection": "public.signals",
    }
    database.execute(f"{SIGNALS}; INSERT INTO t VALUES (1), (2)")
    gid = f"{database.name} gone"
    with pipeline.running() as run:
        database.run("BEGIN", "DELETE FROM t WHERE id = 1", f"PREPARE TRANSACTION '{gid}'")
        run.until(lambda: pipeline.destination.ids("t", "d") == [1], "the delete")
    with pipeline.running() as run:
        pipeline.signal("execute-snapshot", "t", type=kind)
        run.until(lambda: run.notices.signals, "the signal")
        database.execute("INSERT INTO t VALUES (3)")
        run.until(lambda: pipeline.destination.ids("t", "c") == [3], "the row behind it")
        assert pipeline.destination.ids("t", "r") == []
        decide(database, "gone")
        run.until(lambda: 2 in pipeline.destination.ids("t", "r"), "the chunk")
    assert set(pipeline.destination.table("t")) == {("2",), ("3",)}
    assert 1 not in pipeline.destination.ids("t", "r")


@pytest.mark.parametrize("fate", ["COMMIT", "ROLLBACK"])
def test_a_policy_that_changes_before_the_position_is_behind_prepare(
    pipeline, database, fate, caplog
):
    """The server sends the PREPARE again: its rows come once, and hold up no snapshot once they are decided."""
    pipeline.settings |= TWO_PHASE | {
        "snapshot.mode": "no_data",
        "signal.data.collection": "public.signals",
    }
    pipeline.deliver(SIGNALS)
    prepare(database, "g", "VALUES (1)")
    database.execute("INSERT INTO t VALUES (2)")

    def refuse(_batch: object) -> None:
        raise SinkError("no")

    pipeline.destination.before_write = refuse
    with pytest.raises(SinkError):
        pipeline.run(**{"two.phase.policy": "commit", "status.update.interval.ms": 10_000})
    assert list((pipeline.folder / "state" / "p" / "spill").glob("*.record"))
    pipeline.destination.before_write = lambda _batch: None
    pipeline.settings["two.phase.policy"] = "prepare"
    with pipeline.running() as run:
        run.until(lambda: pipeline.destination.ids("t") == [1, 2], "the rows")
        decide(database, "g", fate)
        pipeline.signal("execute-snapshot", "t", type="incremental")
        run.until(lambda: pipeline.destination.ids("t", "r"), "the snapshot")
    assert pipeline.destination.ids("t", "c") == [1, 2]
    assert ("rolled back" in caplog.text) is (fate == "ROLLBACK")


def test_repair_after_a_decision_that_no_slot_has_shown(pipeline, database, caplog):
    pipeline.settings |= TWO_PHASE | {"two.phase.policy": "prepare"}
    pipeline.catch_up()
    with pipeline.running() as run:
        prepare(database, "g", "VALUES (1)")
        run.until(lambda: pipeline.destination.ids("t") == [1], "the row")
    database.execute("SELECT pg_drop_replication_slot(%s)", pipeline.slot)
    decide(database, "g")
    with pytest.raises(SlotMissing):
        pipeline.run()
    assert pipeline.repair()["public.t"].rows == 1
    assert "was decided before the slot began" in caplog.text
    assert not (pipeline.folder / "state" / "p" / "spill" / "delivered-at-prepare.json").exists()
