"""What a run leaves in its state folder is its owner's alone, whatever the umask is."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.dead_letters import KEEP
from tests.harness.pipeline import PipelineRig
from tests.harness.servers.postgres import Database


@pytest.fixture(autouse=True)
def _umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def test_others_see_nothing_of_what_a_run_keeps(database: Database, tmp_path: Path) -> None:
    """A prepared transaction waits in a file, and the change log lies in the state folder, too."""
    state = tmp_path / "state"
    (state / "p/spill").mkdir(parents=True)  # as an earlier version made it
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    settings = {"pgoutput.two_phase": "true", "two.phase.policy": "commit"} | KEEP
    log = {"sink.type": "changelog", "sink.path": str(state / "p/log")}
    pipeline = PipelineRig(database, tmp_path, settings | log)
    gid = f"{database.name} waits"
    pipeline.catch_up()
    with database.connect(autocommit=True) as connection:
        try:
            for statement in ("BEGIN", "INSERT INTO t VALUES (1)", f"PREPARE TRANSACTION '{gid}'"):
                connection.execute(statement.encode())
            database.execute("INSERT INTO t VALUES (2)")
            pipeline.catch_up()
            found = {path: path.stat().st_mode & 0o777 for path in (state, *state.rglob("*"))}
            assert any(path.suffix == ".record" for path in found)
            assert any(path.suffix == ".parquet" for path in found)
            for path, mode in found.items():
                assert mode == (0o700 if path.is_dir() else 0o600), path
        finally:
            connection.execute(f"ROLLBACK PREPARED '{gid}'".encode())
