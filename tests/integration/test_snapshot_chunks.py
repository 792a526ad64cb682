"""Chunks of a snapshot are read by other processes, on a real server: each row once, of one moment."""

import json
import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.harness.pipeline import PipelineRig, until
from tests.harness.servers.postgres import Database

from waltap.errors import ConnectionLost
from waltap.pipeline.engine.build import PipelineStages
from waltap.ports.snapshot import SnapshotChunk
from waltap.ports.source.connector import Connector, MadeByRun, SourceLacks
from waltap_postgres import connector as postgres_connector
from waltap_postgres.waiting import pause

READER = """
import json, pickle, sys
chunks = pickle.load(open(sys.argv[1], "rb"))
rows = []
for chunk in chunks:
    pieces = list(chunk.read())
    assert [piece.ends_chunk for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    rows += [[chunk.relation.name, chunk.index, *row] for piece in pieces for row in piece.rows]
json.dump(rows, sys.stdout)
"""


@contextmanager
def connected(pipeline: PipelineRig) -> Iterator[Connector]:
    host, _ = pipeline.host()
    stages = PipelineStages(pipeline.profile(host), host, run_id="chunks")
    connector = stages.open_connector(MadeByRun())
    try:
        yield connector
    finally:
        connector.undo()
        connector.close()


def read_elsewhere(chunks: list[SnapshotChunk], file: Path) -> list[list[str]]:
    """Return (table, chunk, values…) of every row, read by a process of its own."""
    file.write_bytes(pickle.dumps(chunks))
    done = subprocess.run(
        [sys.executable, "-c", READER, str(file)], capture_output=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr.decode()
    found: list[list[str]] = json.loads(done.stdout)
    return found


@pytest.fixture
def shop(database) -> Database:
    database.execute(
        "CREATE TABLE big (id int PRIMARY KEY, v text); CREATE TABLE empty (id int PRIMARY KEY);"
        "INSERT INTO big SELECT g, repeat('v', 200) FROM generate_series(1, 3000) g;"
        "CREATE TABLE small (id int PRIMARY KEY); INSERT INTO small VALUES (1), (2)"
    )
    return database


def test_two_processes_read_what_one_snapshot_shows(shop, pipeline, tmp_path):
    pipeline.settings |= {"snapshot.max.threads": 5}
    with connected(pipeline) as connector:
        start = connector.prepare(None)
        shop.execute(
            "UPDATE big SET v = 'later'; DELETE FROM big WHERE id > 2000; DELETE FROM small"
        )
        chunks = list(connector.chunks(start))
        shop.execute("INSERT INTO empty VALUES (1); UPDATE big SET v = 'later still'")
        assert Counter((c.relation.name, c.count) for c in chunks) == {
            ("public.big", 5): 5,
            ("public.empty", 1): 1,
            ("public.small", 1): 1,
        }
        halves = (
            read_elsewhere(chunks[::2], tmp_path / "a"),
            read_elsewhere(chunks[1::2], tmp_path / "b"),
        )
        again = read_elsewhere(chunks[:1], tmp_path / "a")
    rows = [row for half in halves for row in half]
    assert sorted(int(row[2]) for row in rows if row[0] == "public.big") == list(range(1, 3001))
    assert {row[3] for row in rows if row[0] == "public.big"} == {"v" * 200}
    assert [row[2] for row in rows if row[0] == "public.small"] == ["1", "2"]
    assert again == [row for row in halves[0] if row[:2] == again[0][:2]]


def test_a_snapshot_that_others_cannot_read_is_waited_for_once(shop, tmp_path, monkeypatch):
    waits: list[float] = []

    def noted(seconds: float, *, stopping: Callable[[], bool]) -> None:
        waits.append(seconds)
        pause(seconds, stopping=stopping)

    monkeypatch.setattr(postgres_connector, "pause", noted)
    settings = {"snapshot.mode": "initial_only", "snapshot.isolation.mode": "read_committed"}
    settings["snapshot.delay.ms"] = "20"
    with connected(PipelineRig(shop, tmp_path, settings)) as connector:
        start = connector.prepare(None)
        with pytest.raises(SourceLacks):
            connector.chunks(start)
        assert sum(len(piece.rows) for piece in connector.snapshot(start)) == 3002
        assert waits == [0.02]
        connector.snapshot_ended(completed=True)
        assert sum(len(piece.rows) for piece in connector.snapshot(start)) == 3002
    assert waits == [0.02, 0.02], "each snapshot is waited for"


@pytest.mark.parametrize("place", ["database", "newest_database"])
def test_a_chunk_says_that_its_snapshot_is_gone(place, request, tmp_path):
    shop: Database = request.getfixturevalue(place)
    shop.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with connected(PipelineRig(shop, tmp_path)) as connector:
        chunk, *_ = connector.chunks(connector.prepare(None))
    readers = (
        "SELECT 1 FROM pg_stat_activity WHERE datname = current_database()"
        " AND application_name = 'waltap snapshot'"
    )
    until(lambda: not shop.execute(readers), "the end of who exported it")
    with pytest.raises(ConnectionLost, match="the exported snapshot is gone"):
        list(chunk.read())
