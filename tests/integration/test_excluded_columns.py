"""Columns that are left out come and go while a table is captured: what is kept stays what it is."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyarrow import dataset
from waltap_sinks.changelog import ChangeLog

from tests.harness.pipeline import PipelineRig
from tests.harness.servers.postgres import Database

CHANGES = """
INSERT INTO t VALUES (1, 'SECRET', 'a', 'SECRET');
ALTER TABLE t DROP s1;
INSERT INTO t VALUES (2, 'b', 'SECRET');
ALTER TABLE t DROP s2;
INSERT INTO t VALUES (3, 'c');
ALTER TABLE t ADD s3 text, ADD s4 text;
INSERT INTO t VALUES (4, 'd', 'SECRET', 'SECRET');
DELETE FROM t WHERE id = 1;
ALTER TABLE t REPLICA IDENTITY FULL;
DELETE FROM t WHERE id = 2;
UPDATE t SET s3 = 'SECRET too' WHERE id = 3;
"""


def of_the_log(folder: Path) -> list[dict[str, Any]]:
    return [row for each in ChangeLog(str(folder)).rows("public", "t") for row in each.to_pylist()]


def of_files(folder: Path) -> list[dict[str, Any]]:
    found: pa.Table = dataset.dataset(folder / "table=public.t", partitioning="hive").to_table()
    return list(found.to_pylist())


def of_the_lake(folder: Path) -> list[dict[str, Any]]:
    return list(DeltaTable(folder / "public" / "t").to_pyarrow_table().to_pylist())


@pytest.mark.parametrize(
    ("sink", "read"),
    [
        ({"type": "changelog"}, of_the_log),
        ({"type": "files", "file.format": "parquet"}, of_files),
        ({"type": "delta"}, of_the_lake),
    ],
    ids=["changelog", "files", "lake"],
)
def test_they_come_and_go_within_one_flush(
    database: Database,
    tmp_path: Path,
    sink: dict[str, str],
    read: Callable[[Path], list[dict[str, Any]]],
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, s1 text, v text, s2 text)")
    settings = {f"sink.{name}": value for name, value in sink.items()}
    folder = tmp_path / "out"
    settings |= {
        "sink.path": str(folder),
        "column.exclude.list": r"public\.t\.s\d",
        "offset.flush.interval.ms": "60000",
    }
    pipeline = PipelineRig(database, tmp_path, settings)
    pipeline.catch_up()
    for statement in CHANGES.strip().split("\n"):
        database.execute(statement)
    pipeline.catch_up()
    rows = read(folder)
    kept = sorted((row["_op"], row["id"], row["v"] if row["_op"] != "d" else None) for row in rows)
    puts = [("c", 1, "a"), ("c", 2, "b"), ("c", 3, "c"), ("c", 4, "d")]
    assert kept == sorted([*puts, ("d", 1, None), ("d", 2, None), ("u", 3, "c")])
    assert "SECRET" not in str(rows)
