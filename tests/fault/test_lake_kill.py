"""``kill -9`` of ``waltap run`` while it writes tables of a lake: each change is there once."""

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from tests.fault.test_engine_kill import Runs, writing
from tests.harness.lakes import catalog_settings, delta_rows, iceberg_rows
from tests.harness.servers.postgres import Database


def delta(folder: Path) -> tuple[str, Callable[[], pa.Table | None]]:
    sink = 'type = "delta"\npath = "lake"\n"memory.max.bytes" = 200000'
    return sink, lambda: delta_rows(folder / "lake" / "public" / "t")


def iceberg(folder: Path) -> tuple[str, Callable[[], pa.Table | None]]:
    settings = catalog_settings(folder).items()
    lines = [f"{json.dumps(f'catalog.{name}')} = {json.dumps(value)}" for name, value in settings]
    sink = "\n".join(['type = "iceberg"', '"memory.max.bytes" = 200000', *lines])
    return sink, lambda: iceberg_rows(folder, "public.t")


@pytest.mark.parametrize("kind", [delta, iceberg])
def test_killed_at_random_each_change_is_there_once(
    database: Database, tmp_path: Path, kind: Callable[..., tuple[str, Callable[[], pa.Table]]]
) -> None:
    """In the snapshot, in the stream, and in a transaction that is committed in pieces."""
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text);"
        "INSERT INTO t SELECT -g, repeat('x', 200) FROM generate_series(1, 20000) g"
    )
    sink, rows = kind(tmp_path)
    runs = Runs(database, tmp_path, sink, **{"snapshot.fetch.size": 1000})
    with writing(database) as writer:
        runs.until_killed(0.3)
        for turn in range(4):
            if turn == 2:
                writer.large()
            runs.until_killed(0.6)
        last = writer.finish()
    runs.to_the_end()
    found = rows()
    by_op = dict(found.group_by("_op").aggregate([("id", "count")]).to_pydict().items())
    seen = sorted(found.column("id").to_pylist())
    assert seen == [*range(-20000, 0), *range(1, last + 1)], f"{by_op}, {len(seen)} rows, {last}"
