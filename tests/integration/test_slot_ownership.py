"""Whose slot it is: a start makes its own, knows it again, and asks before it takes another's. What `waltap slot list`,
`doctor` and `status` say of slots, also beside pipelines that start and run."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Event
from typing import Any

import msgspec
import pytest
from tests.harness.command import run_program, waltap
from tests.harness.pipeline import WAIT_S, PipelineRig, until
from tests.harness.shop import Shop

import waltap as package
from waltap.changes.transactions.position import Position
from waltap.cli.profile_source import connected
from waltap.errors import WaltapError
from waltap.pipeline.engine.preflight import orphan_slots
from waltap.ports.offsets.offset import Offset, PartitionOffset
from waltap.ports.offsets.owned_objects import OwnedObject
from waltap_postgres.errors import PublicationLocked, SlotNotOurs

CREATE_SLOT = "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')"

pytestmark = pytest.mark.pipeline(
    sql="CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)"
)


# --- one pipeline, several directories: a profile whose name, and nothing else, is its database's -----------------


@pytest.fixture
def shop(database, tmp_path) -> Shop:
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1), (2)")
    (tmp_path / "home").mkdir()
    made = Shop(tmp_path / "home", database)
    made.name = database.name
    del made.source["slot.name"], made.source["publication.name"]
    return made


def run(path: Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return waltap("run", path, "--until-idle", 0.3, cwd=cwd)


def test_the_current_directory_changes_nothing(shop, database, tmp_path, monkeypatch):
    """Nor does it for a loop in Python, which asks like any start before it takes the slot of another profile."""
    elsewhere, path = tmp_path / "elsewhere", shop.path
    elsewhere.mkdir()
    shop.run()
    database.execute("INSERT INTO t VALUES (3)")
    done = run(path, elsewhere)
    assert done.returncode == 0, done.stderr
    assert run(Path("..") / "home" / path.name, elsewhere).returncode == 0
    assert shop.operations() == [("r", 1), ("r", 2), ("c", 3)]
    assert list(elsewhere.iterdir()) == []
    assert shop.made() == [database.name] * 2
    monkeypatch.chdir(elsewhere)
    tables = {"name": database.name, "source": shop.source}
    with pytest.raises(SlotNotOurs):
        list(package.stream(tables, limits=package.Limits(until_idle=0.2)))
    database.execute("INSERT INTO t VALUES (4)")
    batches = list(package.stream(path, limits=package.Limits(until_idle=0.2)))
    assert sum(batch.events for batch in batches) == 1


def test_a_start_that_is_killed_after_it_made_the_slot_recovers_by_itself(shop, database):
    """Killed between the slot and the first stored offset: the next start knows the slot for its own."""
    code = (
        "import os, signal, sys\n"
        "from waltap.ports.offsets.file_store import FileOffsetStore\n"
        "FileOffsetStore.store = lambda self, offset: os.kill(os.getpid(), signal.SIGKILL)\n"
        "from waltap.__main__ import main\n"
        "main()\n"
    )
    run = sys.executable, "-c", code, "run", shop.path, "--until-idle", 0.3
    run_program(*run, code=-signal.SIGKILL, cwd=shop.folder)
    assert list(database.slots()) == [database.name]
    assert not (shop.folder / ".waltap" / database.name / "offset.json").exists()
    for number in (3, 4):
        database.execute("INSERT INTO t VALUES (%s)", number)
        shop.run()
    assert sorted(number for _, number in shop.operations()) == [1, 2, 3, 4]


def test_a_debezium_file_takes_a_slot_over_with_a_warning(shop, database, tmp_path):
    name = database.name[:60]
    database.execute(f"CREATE PUBLICATION {name} FOR TABLE t")
    database.execute(CREATE_SLOT, name)
    database.execute("INSERT INTO t VALUES (3)")
    names = {"slot.name": name, "publication.name": name, "publication.autocreate.mode": "filtered"}
    done = run(shop.connector(snapshot__mode="no_data", **names), tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"slot {name} was there before and is taken over" in done.stderr
    assert len(shop.records()) == 1


# --- consent ---------------------------------------------------------------------------------------------


def foreign_slot(pipeline: PipelineRig) -> None:
    """Make the publication and a slot, as another pipeline would; a row comes after it."""
    pipeline.database.execute(f"CREATE PUBLICATION {pipeline.slot} FOR TABLE t")
    pipeline.database.execute(CREATE_SLOT, pipeline.slot)
    pipeline.database.execute("INSERT INTO t VALUES (2)")


def test_a_slot_of_somebody_else_is_refused_and_taken_over_with_consent_once_and_for_all(pipeline):
    """Starts that were refused before, for other reasons, are no claim to a slot that comes later."""
    for wrong in ({"plugin.name": "no_such_plugin_here"}, {"database.user": "nobody_of_that_name"}):
        with pytest.raises(WaltapError):
            pipeline.run(**wrong)
    foreign_slot(pipeline)
    before = pipeline.slot_lsns()
    for mode in ("initial", "no_data", "when_needed", "always"):
        with pytest.raises(SlotNotOurs, match="slot.takeover"):
            pipeline.run(**{"snapshot.mode": mode})
    assert (pipeline.slot_lsns(), pipeline.offset(), pipeline.destination.events) == (
        before, None, [],
    )  # fmt: skip
    pipeline.settings["snapshot.mode"] = "no_data"
    pipeline.catch_up(**{"slot.takeover": "true"})
    assert pipeline.destination.ids("t") == [2]
    pipeline.catch_up()
    pipeline.offset_file.unlink()
    pipeline.deliver("INSERT INTO t VALUES (3)")
    assert pipeline.destination.ids("t") == [2, 3]


def test_the_refusal_of_a_slot_names_its_reader(pipeline, tmp_path):
    with (
        pipeline.running(),
        pytest.raises(SlotNotOurs, match=r"elsewhere; pid \d+ reads it now"),
    ):
        pipeline.run(**{"waltap.state.dir": str(tmp_path / "elsewhere")})


def test_an_offset_of_another_slot_is_no_claim_to_this_one(pipeline):
    """Also not in a mode that answers a lost position by a new snapshot."""
    pipeline.catch_up()
    foreign = PipelineRig(pipeline.database, pipeline.folder)
    name = f"{pipeline.slot}_x"[-60:]
    there = {"slot.name": name, "publication.name": name}
    foreign.settings |= there
    foreign_slot(foreign)
    with pytest.raises(SlotNotOurs):
        pipeline.run(**there, **{"snapshot.mode": "when_needed"})
    assert pipeline.offset() is not None


# --- our own slot, known again ---------------------------------------------------------------------------


def test_a_slot_of_ours_is_known_without_an_offset_or_a_list(pipeline):
    """`waltap offsets clear` forgets a position, not whose slot it is; an earlier version kept no list."""
    pipeline.catch_up()
    listed = pipeline.offset_file.parent / "belongings.json"
    listed.unlink()
    pipeline.catch_up()
    slot = msgspec.json.decode(listed.read_bytes(), type=list[OwnedObject])[0]
    assert (slot.kind, slot.name, slot.made) == ("slot", pipeline.slot, True)
    pipeline.offset_file.unlink()
    pipeline.deliver("INSERT INTO t VALUES (2)")
    assert pipeline.destination.ids("t", "r") == [1, 1, 2]


def test_a_publication_that_a_lock_kept_from_being_made_is_not_ours(pipeline, database):
    """A DBA may make it meanwhile, and `waltap drop` must leave it."""
    with database.connect() as other:
        other.execute("BEGIN; LOCK TABLE t IN SHARE MODE")
        with pytest.raises(PublicationLocked):
            pipeline.run(**{"snapshot.lock.timeout.ms": 100, "errors.max.retries": 0})
    listed = pipeline.offset_file.parent / "belongings.json"
    assert msgspec.json.decode(listed.read_bytes(), type=list[OwnedObject]) == []


def test_a_temporary_slot_of_a_killed_run_is_waited_out_and_its_offset_counts_no_more(
    pipeline, database
):
    with database.connect() as last:
        last.execute(
            "SELECT pg_create_logical_replication_slot(%s, 'pgoutput', true)", (pipeline.slot,)
        )
        ((system,),) = database.execute("SELECT system_identifier::text FROM pg_control_system()")
        slot = PartitionOffset(
            position=Position(1), slot=pipeline.slot, database=database.name,
            system_id=system, timeline=1, slot_created_lsn=1,
        )  # fmt: skip
        pipeline.offset_file.parent.mkdir(parents=True)
        pipeline.offset_file.write_bytes(msgspec.json.encode(Offset.of(slot)))
    pipeline.catch_up(**{"slot.temporary": "true"})
    assert pipeline.destination.ids("t") == [1]
    until(lambda: database.slots() == {}, "the server to end the session of the slot")
    assert pipeline.offset() is None


# --- what is said of slots -------------------------------------------------------------------------------


def test_status_says_that_the_slot_is_of_another_plugin_or_owner(pipeline):
    foreign_slot(pipeline)
    done = pipeline.command("status")
    assert (done.returncode, "WT-2112" in done.stdout) == (1, True)
    assert "begins as" not in done.stdout
    assert json.loads(pipeline.command("status", "--json").stdout)["resumable"] is False
    pipeline.catch_up(**{"slot.takeover": "true"})
    done = pipeline.command("status", **{"plugin.name": "wal2json"})
    assert (done.returncode, "WT-2105" in done.stdout) == (1, True)
    assert pipeline.command("status").returncode == 0


@pytest.fixture
def other(pipeline) -> Iterator[PipelineRig]:
    """Another pipeline in the same folder of states."""
    made = PipelineRig(
        pipeline.database, pipeline.folder, {"slot.name": f"{pipeline.slot[:55]}_other"}
    )
    made.tables = {"name": "other"}
    return made


def test_a_pipeline_that_starts_while_slots_are_listed_has_no_orphan(pipeline, other):
    """It is in its snapshot, in which nobody reads the slot, when the list is asked for."""
    release, (host, _) = Event(), pipeline.host()
    other.destination.before_write = lambda _batch: release.wait(WAIT_S)
    with connected(pipeline.profile(host), host) as (connector, stages), ExitStack() as stack:
        slots = connector.slots

        def late() -> Any:
            run = stack.enter_context(other.running(ready=False))
            stack.callback(release.set)
            run.until(lambda: run.engine.state == "snapshot", "the snapshot")
            run.until(lambda: other.database.slots().get(other.slot) is False, "its slot")
            return slots()

        connector.slots = late  # type: ignore[method-assign]
        assert orphan_slots(stages.profile, connector, stages.store) == []
