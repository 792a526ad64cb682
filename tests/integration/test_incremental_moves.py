"""Incremental snapshots of tables whose rows change places under the chunks, and the size of chunks."""

import json
from pathlib import Path
from typing import Any

import pytest
from waltap.transactions.transaction import SnapshotRows

from tests.harness.chunks import around_chunk
from tests.harness.pipeline import PipelineRig, Run
from tests.harness.servers.postgres import Database

CHUNK = "incremental.snapshot.chunk.size"


pytestmark = pytest.mark.pipeline(
    sql="CREATE TABLE signals (id varchar(64) PRIMARY KEY, type varchar(32) NOT NULL, data text)",
    settings={
        "signal.data.collection": "public.signals",
        "snapshot.mode": "no_data",
        CHUNK: 10,
        "publication.autocreate.mode": "all_tables",
    },
)


def signal(database: Database, kind: str, name: str, *tables: str) -> None:
    data = {"data-collections": list(tables)} if tables else {}
    database.execute("INSERT INTO signals VALUES (%s, %s, %s)", name, kind, json.dumps(data))


def over(run: Run) -> bool:
    """Tell whether nothing is to be read any more."""
    assert run.engine.delivery is not None
    state = run.engine.delivery.signals
    return not (state.get("queue") or state.get("settling"))


def table(pipeline: PipelineRig) -> dict[Any, Any]:
    """Return the rows that there are, as `Destination.table` has them."""
    rows = pipeline.database.execute("SELECT id::text, place::text, large FROM t")
    return {(i,): {"id": i, "place": place, "large": large} for i, place, large in rows}


def chunks(pipeline: PipelineRig) -> list[int]:
    return [
        len(part.rows)
        for batch in pipeline.destination.batches
        for part in batch.parts
        if isinstance(part, SnapshotRows)
    ]


@pytest.mark.parametrize("moved_to", ["-id", "id + 1000", "CASE id WHEN 25 THEN -25 ELSE id END"])
@pytest.mark.parametrize(
    ("settings", "request_data"),
    [
        pytest.param({}, {}, id="watermarks"),
        pytest.param({"incremental.snapshot.watermarking.strategy": "insert_delete"}, {}, id="deletion"),
        pytest.param({"read.only": "true", "signal.data.collection": None}, {}, id="read-only"),
        pytest.param({}, {"surrogate-key": "place"}, id="surrogate"),
    ],
)  # fmt: skip
def test_a_row_that_moves_past_the_chunks_keeps_its_large_value(
    pipeline: PipelineRig,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
    request_data: dict[str, str],
    moved_to: str,
) -> None:
    """Its update does not have the value, and no chunk comes to the row any more."""
    database = pipeline.database
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, place int UNIQUE DEFERRABLE, large text);"
        "ALTER TABLE t ALTER large SET STORAGE EXTERNAL;"
        "INSERT INTO t SELECT g, g, repeat(g::text, 3000) FROM generate_series(1, 27) g"
    )
    column = request_data.get("surrogate-key", "id")
    moved = moved_to.replace("id", column)
    around_chunk(
        monkeypatch,
        lambda: database.execute(f"UPDATE t SET {column} = {moved} WHERE {column} > 24"),
    )
    with pipeline.running(**settings) as run:
        data = {"data-collections": ["public.t"], **request_data}
        assert run.engine.signal("execute-snapshot", data).result(90).taken
        run.until(lambda: pipeline.destination.table("t") == table(pipeline), "the table")
        run.until(lambda: over(run), "the end")


def test_a_row_that_moves_past_the_chunks_is_read_over_a_restart(
    pipeline: PipelineRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = pipeline.database
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, place int, large text);"
        "ALTER TABLE t ALTER large SET STORAGE EXTERNAL;"
        "INSERT INTO t SELECT g, g, repeat(g::text, 3000) FROM generate_series(1, 40) g"
    )
    around_chunk(monkeypatch, lambda: database.execute("UPDATE t SET id = -id WHERE id > 35"))
    with pipeline.running() as run:
        signal(database, "execute-snapshot", "s", "public.t")
        run.until(lambda: len(pipeline.destination.of("t")) > 10, "a chunk and the moves")
        signal(database, "pause-snapshot", "p")
        run.until(lambda: run.engine.delivery.signals.get("paused"), "the pause")
    with pipeline.running() as run:
        signal(database, "resume-snapshot", "r")
        run.until(lambda: over(run), "the end")
        run.until(lambda: pipeline.destination.table("t") == table(pipeline), "the table")


def test_chunks_get_smaller_where_they_take_long(
    pipeline: PipelineRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = pipeline.database
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t SELECT generate_series(1, 2000)"
    )
    around_chunk(monkeypatch, lambda: database.execute("SELECT pg_sleep(0.3)"))
    with pipeline.running(**{CHUNK: 1000, "waltap.incremental.chunk.target.ms": 20}) as run:
        signal(database, "execute-snapshot", "s", "public.t")
        run.until(lambda: len(pipeline.destination.ids("t", "r")) == 2000, "all rows")
    assert chunks(pipeline)[:2] == [1000, 250]
