"""``waltap status``, ``top``, ``slot list`` and what doctor says of a slot: of pipelines that run, and at rest."""

import signal

import pytest
from tests.harness.pipeline import PipelineRig

from waltap.cli.profile_source import connected
from waltap.pipeline.engine.preflight import checks
from waltap.ports.offsets.offset import Offset

pytestmark = pytest.mark.shop(
    sql="CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1), (2)", sink={"type": "null"}
)


@pytest.fixture
def pipeline(shop) -> PipelineRig:
    made = PipelineRig(shop.database, shop.folder)
    shop.source |= made.settings | {"waltap.state.dir": str(shop.folder / "state")}
    shop.name = "p"
    return made


def test_the_process_that_runs_a_pipeline_is_asked(shop, pipeline):
    with pipeline.running() as run:
        shop.database.execute("INSERT INTO t VALUES (3)")
        run.until(lambda: run.engine.status().transactions == 1, "the change")
        document = shop.json("status FILE --json")
        reported = shop.says("status FILE")
        down = shop.says("status FILE --set database.port=1")
        folder = shop.json("status . --json")
        top = shop.says("top . --once --sort lag")
        states = shop.json("top state --json")
        advised = shop.waltap("doctor FILE").stdout
        pipeline.offset_file.rename(shop.folder / "kept")
        orphans = shop.json("slot list FILE --orphans --json")
        (shop.folder / "kept").rename(pipeline.offset_file)
        shop.database.execute("CREATE TABLE keyless (a int)")  # it cannot join now
        waiting = shop.says("status FILE")
        shown = run.engine.status()
    assert document["offset"]["snapshot"] == "complete"
    found = document["run"]
    assert (found["pipeline"], found["state"], found["events"]) == ("p", "streaming", 3)
    assert found["captured_tables"] == list(shown.captured_tables) == ["public.t"]
    assert "streaming for" in reported
    assert "3 events (2 from snapshots), 1 transaction" in reported
    for words in ("streaming for", "WT-2002"):  # a database that is down hides nothing of the run
        assert words in down
    assert [each["run"]["events"] for each in folder] == [3]
    assert "streaming" in top
    assert [(each["pipeline"], each["run"]["state"]) for each in states] == [("p", "streaming")]
    assert orphans == []
    assert "older rows: public.keyless" in " ".join(waiting.split())
    assert "the pipeline runs as pid" in " ".join(advised.split())
    assert "pg_terminate_backend" not in advised
    (after,) = shop.json("status . --json")
    assert (after["run"], after["stored_ms"] is not None) == (None, True)
    assert shop.waltap("status FILE --set database.port=1").returncode != 0


def test_watching_draws_until_interrupted(shop, pipeline):
    with pipeline.running() as run, shop.process("top . --every 0.2") as watching:
        assert watching.stdout is not None
        seen = 0
        while seen < 3:
            line = watching.stdout.readline()
            assert line, shop.stderr
            assert not run.ended, run.error
            seen += "streaming" in line
        watching.send_signal(signal.SIGINT)
        watching.stdout.read()
        assert watching.wait(120) == 0


def test_status_shows_offset_slot_lag_and_tables_that_are_new(shop):
    before = shop.json("status FILE --json")
    assert (before["offset"], before["slot"], before["resumable"]) == (None, None, True)
    assert before["new_tables"] == []
    shop.run()
    shop.database.execute("INSERT INTO t SELECT generate_series(101, 999)")
    after = shop.json("status FILE --json")
    assert after["slot"]["lag_bytes"] > 10_000
    assert (after["offset"]["snapshot"], after["new_tables"]) == ("complete", [])
    shop.database.execute("CREATE TABLE later (id int PRIMARY KEY)")
    assert shop.json("status FILE --json")["new_tables"] == ["public.later"]
    reported = shop.says("status FILE")
    for words in ("no reader", "public.later", "waltap.new.tables"):
        assert words in reported
    assert "public.later" in shop.run()
    assert shop.json("status FILE --json")["new_tables"] == []


def test_slots_are_listed_with_whose_they_are(shop):
    shop.run()
    left = f"{shop.slot[:55]}_left"
    shop.database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", left)
    found = {each["slot"]: each["pipeline"] for each in shop.json("slot list FILE --json")}
    assert found == {shop.slot: "shop", left: None}
    orphans = shop.json("slot list FILE --orphans --json", code=1)
    assert [each["slot"] for each in orphans] == [left]
    reported = shop.says("slot list FILE --orphans", code=1)
    assert f"SELECT pg_drop_replication_slot('{left}');" in reported
    assert shop.json("status FILE --json")["orphans"] == [left]
    assert left in shop.says("status FILE")
    shop.database.execute("SELECT pg_drop_replication_slot(%s)", left)
    assert shop.json("slot list FILE --orphans --json") == []
    assert "no slot is an orphan" in shop.says("slot list FILE --orphans")


def test_a_slot_that_moves_while_it_is_looked_at_has_lost_nothing(shop, pipeline):
    """The run stores and confirms more between the two readings of doctor: offset, then slot."""
    turns: list[Offset | None] = []
    with pipeline.running() as run:
        run.until(lambda: any(shop.database.slots().values()), "the slot to be read")
        host, _ = pipeline.host()
        with connected(pipeline.profile(host), host) as (connector, stages):
            load = stages.store.load

            def load_and_wait() -> Offset | None:
                offset = load()
                if len(turns) < 2:  # for what is asked of the offset alone, and of offset and slot
                    turns.append(offset)
                    confirmed = pipeline.slot_lsns()[0]
                    shop.database.execute("INSERT INTO t VALUES (%s)", 2 + len(turns))
                    run.until(lambda: pipeline.slot_lsns()[0] > confirmed, "the confirmation")
                return offset

            stages.store.load = load_and_wait  # type: ignore[method-assign]
            found = {each.name: each for each in checks(stages, connector, locked=False)}
    assert len(turns) == 2
    assert "start" not in found or found["start"].verdict == "ok"
    assert "this pipeline, which runs" in found["replication slot"].found
