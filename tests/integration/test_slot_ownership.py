"""Whose slot it is: a start makes its own, knows it again, and asks before it takes another's."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import psycopg
import pytest
import waltap as package
from waltap.errors import WaltapError
from waltap.offsets.belongings import Belonging
from waltap.offsets.offset import Offset, PartitionOffset
from waltap.source.position import Position
from waltap_postgres.errors import OtherSlot, SlotNotOurs

from tests.harness.command import waltap
from tests.harness.pipeline import PipelineRig
from tests.harness.servers.postgres import Database


def toml(database: Database, **more: str) -> str:
    source = {"type": "postgres", **database.properties(), **more}
    lines = "\n".join(f'"{key}" = {json.dumps(value)}' for key, value in source.items())
    return f'[source]\n{lines}\n[sink]\ntype = "jsonl"\npath = "out.jsonl"\n'


@pytest.fixture
def folder(database: Database, tmp_path: Path) -> Path:
    """Return a folder with a profile whose name, and nothing else, is its database's."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1), (2)")
    home = tmp_path / "home"
    home.mkdir()
    (home / f"{database.name}.toml").write_text(toml(database))
    return home


def delivered(folder: Path) -> list[tuple[str, int]]:
    values = [json.loads(line)["value"] for line in (folder / "out.jsonl").read_text().splitlines()]
    return [(v["op"], v["after"]["id"]) for v in values if v]


def run(path: Path, cwd: Path, *more: object) -> subprocess.CompletedProcess[str]:
    return waltap("run", path, "--until-idle", 0.3, *more, cwd=cwd)


# --- one pipeline, several directories ------------------------------------------------------------


def test_the_current_directory_changes_nothing(
    folder: Path, database: Database, tmp_path: Path
) -> None:
    path = folder / f"{database.name}.toml"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert run(path, folder).returncode == 0
    database.execute("INSERT INTO t VALUES (3)")
    done = run(path, elsewhere)
    assert done.returncode == 0, done.stderr
    assert run(Path("..") / "home" / path.name, elsewhere).returncode == 0
    assert delivered(folder) == [("r", 1), ("r", 2), ("c", 3)]
    assert list(elsewhere.iterdir()) == []
    ((slot, publication),) = database.execute(
        "SELECT slot_name::text, pubname::text FROM pg_replication_slots, pg_publication"
        " WHERE database = current_database()"
    )
    assert slot == publication == path.stem


def test_the_same_profile_in_another_folder_does_not_take_the_slot(
    folder: Path, database: Database, tmp_path: Path
) -> None:
    path = folder / f"{database.name}.toml"
    assert run(path, folder).returncode == 0
    copy = tmp_path / "copy"
    copy.mkdir()
    shutil.copy(path, copy)
    before = database.execute("SELECT confirmed_flush_lsn FROM pg_replication_slots")
    database.execute("INSERT INTO t VALUES (3)")
    refused = run(copy / path.name, copy)
    assert refused.returncode == 1
    assert "WT-2112" in refused.stderr
    assert database.execute("SELECT confirmed_flush_lsn FROM pg_replication_slots") == before
    assert [child.name for child in copy.iterdir()] == [path.name]
    assert run(path, folder).returncode == 0  # the first goes on without a gap
    assert delivered(folder)[2:] == [("c", 3)]


# --- consent ---------------------------------------------------------------------------------------


pytestmark = pytest.mark.pipeline(
    sql="CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)"
)


def foreign_slot(pipeline: PipelineRig) -> None:
    """Make the publication and a slot, as another pipeline would; a row comes after it."""
    pipeline.database.execute(f"CREATE PUBLICATION {pipeline.slot} FOR TABLE t")
    pipeline.database.execute(
        "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", pipeline.slot
    )
    pipeline.database.execute("INSERT INTO t VALUES (2)")


@pytest.mark.parametrize("mode", ["initial", "no_data", "when_needed", "always"])
def test_a_slot_of_somebody_else_is_refused_and_left_as_it_is(
    pipeline: PipelineRig, mode: str
) -> None:
    foreign_slot(pipeline)
    before = pipeline.slot_lsns()
    with pytest.raises(SlotNotOurs, match="slot.adopt"):
        pipeline.run(**{"snapshot.mode": mode})
    assert pipeline.slot_lsns() == before
    assert pipeline.offset() is None
    assert pipeline.destination.events == []


def test_it_is_taken_over_with_consent_once_and_for_all(pipeline: PipelineRig) -> None:
    foreign_slot(pipeline)
    pipeline.catch_up(**{"slot.adopt": "true", "snapshot.mode": "no_data"})
    assert pipeline.destination.ids("t") == [2]
    pipeline.catch_up(**{"snapshot.mode": "no_data"})  # consent is needed once
    pipeline.offset_file.unlink()
    pipeline.database.execute("INSERT INTO t VALUES (3)")
    pipeline.catch_up(**{"snapshot.mode": "no_data"})
    assert pipeline.destination.ids("t") == [2, 3]


def test_a_debezium_file_takes_it_over_with_a_warning(
    folder: Path, database: Database, tmp_path: Path
) -> None:
    name = database.name[:60]
    database.execute(f"CREATE PUBLICATION {name} FOR TABLE t")
    database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", name)
    database.execute("INSERT INTO t VALUES (3)")
    flat = {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "topic.prefix": "t", "plugin.name": "pgoutput", "snapshot.mode": "no_data",
        "slot.name": name, "publication.name": name, "publication.autocreate.mode": "filtered",
        "waltap.sink.type": "jsonl", "waltap.sink.path": "dbz.jsonl", **database.properties(),
    }  # fmt: skip
    (folder / "c.json").write_text(json.dumps(flat))
    done = run(folder / "c.json", tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"slot {name} was there before and is taken over" in done.stderr
    assert (folder / "dbz.jsonl").read_text().count("\n") == 1


def test_a_loop_in_python_asks_too(
    folder: Path, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / f"{database.name}.toml"
    assert run(path, folder).returncode == 0
    monkeypatch.chdir(tmp_path)
    source = {"type": "postgres", **database.properties()}
    tables = {"name": path.stem, "source": source}
    with pytest.raises(SlotNotOurs):
        list(package.stream(tables, limits=package.Limits(until_idle=0.2)))
    database.execute("INSERT INTO t VALUES (3)")
    batches = list(package.stream(path, limits=package.Limits(until_idle=0.2)))
    assert sum(batch.events for batch in batches) == 1


def test_an_offset_of_another_slot_is_no_claim_to_this_one(pipeline: PipelineRig) -> None:
    """Also not in a mode that answers a lost position by a new snapshot."""
    pipeline.catch_up()
    foreign = PipelineRig(pipeline.database, pipeline.folder)
    name = f"{pipeline.slot}_x"[-60:]
    foreign.settings |= {"slot.name": name, "publication.name": name}
    foreign_slot(foreign)
    with pytest.raises(SlotNotOurs):
        pipeline.run(
            **{"slot.name": name, "publication.name": name, "snapshot.mode": "when_needed"}
        )
    assert pipeline.offset() is not None


def test_an_offset_of_another_slot_of_the_database_says_how_to_go_on(pipeline: PipelineRig) -> None:
    """As after an update from a version that named slot and publication otherwise."""
    pipeline.catch_up()
    old, new = pipeline.slot, f"n_{pipeline.slot}"[:60]
    with pytest.raises(OtherSlot) as caught:
        pipeline.run(**{"slot.name": new, "publication.name": new})
    assert f'slot.name = "{old}"' in str(caught.value)
    assert list(pipeline.database.slots()) == [old]


# --- our own slot, known again ---------------------------------------------------------------------


def test_a_slot_of_ours_is_known_without_an_offset(pipeline: PipelineRig) -> None:
    """`waltap offsets clear` forgets a position, not whose slot it is."""
    pipeline.catch_up()
    pipeline.offset_file.unlink()
    pipeline.database.execute("INSERT INTO t VALUES (2)")
    pipeline.catch_up()
    assert pipeline.destination.ids("t", "r") == [1, 1, 2]


def test_a_start_that_is_killed_after_it_made_the_slot_recovers_by_itself(
    folder: Path, database: Database
) -> None:
    """Killed between the slot and the first stored offset: the next start knows the slot for its own."""
    path = folder / f"{database.name}.toml"
    state = folder / ".waltap" / path.stem
    code = (
        "import os, signal, sys\n"
        "from waltap.offsets.file_store import FileOffsetStore\n"
        "FileOffsetStore.store = lambda self, offset: os.kill(os.getpid(), signal.SIGKILL)\n"
        "from waltap.__main__ import main\n"
        "main()\n"
    )
    killed = subprocess.run(
        [sys.executable, "-c", code, "run", str(path), "--until-idle", "0.3"],
        cwd=folder, capture_output=True, text=True, timeout=180,
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert list(database.slots()) == [path.stem]
    assert not (state / "offset.json").exists()
    database.execute("INSERT INTO t VALUES (3)")
    done = run(path, folder)
    assert done.returncode == 0, done.stderr
    database.execute("INSERT INTO t VALUES (4)")
    assert run(path, folder).returncode == 0
    assert sorted(number for _, number in delivered(folder)) == [1, 2, 3, 4]


def test_a_refused_start_leaves_no_claim_to_a_slot_that_comes_later(pipeline: PipelineRig) -> None:
    database = pipeline.database
    with pytest.raises(WaltapError):
        pipeline.run(**{"plugin.name": "no_such_plugin_here"})
    with pytest.raises(WaltapError):
        pipeline.run(**{"database.user": "nobody_of_that_name"})
    foreign_slot(pipeline)
    with pytest.raises(SlotNotOurs):
        pipeline.run()


def test_state_of_a_version_that_kept_no_list_is_understood(pipeline: PipelineRig) -> None:
    pipeline.catch_up()
    listed = pipeline.offset_file.parent / "belongings.json"
    listed.unlink()
    pipeline.catch_up()
    offset = pipeline.offset()
    assert offset is not None
    slot = msgspec.json.decode(listed.read_bytes(), type=list[Belonging])[0]
    assert (slot.kind, slot.name, slot.made) == ("slot", pipeline.slot, True)


# --- temporary slots -------------------------------------------------------------------------------


def test_a_temporary_slot_of_a_killed_run_is_waited_out_and_its_offset_counts_no_more(
    pipeline: PipelineRig,
) -> None:
    database = pipeline.database
    temporary = {"slot.temporary": "true"}
    with psycopg.connect(database.dsn, autocommit=True) as last:
        last.execute(
            "SELECT pg_create_logical_replication_slot(%s, 'pgoutput', true)", (pipeline.slot,)
        )
        ((system,),) = database.execute("SELECT system_identifier::text FROM pg_control_system()")
        slot = PartitionOffset(
            position=Position(1), slot=pipeline.slot, database=database.name,
            system_id=system, timeline=1, slot_created_lsn=1,
        )  # fmt: skip
        offset = Offset.of(slot)
        pipeline.offset_file.parent.mkdir(parents=True)
        pipeline.offset_file.write_bytes(msgspec.json.encode(offset))
    pipeline.catch_up(**temporary)
    assert pipeline.destination.ids("t") == [1]
    assert database.slots() == {}
    assert pipeline.offset() is None
