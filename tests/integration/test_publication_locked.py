"""A table that somebody has locked when it is to join the publication: a wait that ends, and is told."""

from pathlib import Path

from tests.harness.pipeline import PipelineRig
from tests.harness.servers.postgres import Database


def test_a_start_waits_for_a_locked_table_and_says_so(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    pipeline = PipelineRig(
        database,
        tmp_path,
        {
            "publication.autocreate.mode": "filtered",
            "snapshot.lock.timeout.ms": 100,
        },
    )
    with database.connect() as other, pipeline.running(ready=False) as run:
        other.execute("BEGIN; LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        run.until(lambda: "WT-2026" in str(run.engine.status().last_failure), "the reason")
        other.execute("INSERT INTO t VALUES (2); COMMIT")
        run.until(lambda: pipeline.destination.ids("t") == [1, 2], "both rows")
