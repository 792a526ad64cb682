"""A publication dropped under a slot: the way out that the error names works, and loses no row's state."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from waltap_postgres.errors import PublicationGone

from tests.rigs.pipeline import Pipeline
from tests.servers.postgres import Database


@pytest.fixture
def pipeline(database: Database, tmp_path: Path) -> Pipeline:
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    return Pipeline(database, tmp_path)


def command(pipeline: Pipeline, *words: str) -> None:
    chosen = {**pipeline.settings, "waltap.state.dir": str(pipeline.folder / "state")}
    text = "\n".join(f"{json.dumps(k)} = {json.dumps(v)}" for k, v in chosen.items() if k != "type")
    profile = f'[source]\ntype = "postgres"\n{text}\n[sink]\ntype = "null"\n'
    (pipeline.folder / "p.toml").write_text(profile)
    done = subprocess.run(
        [sys.executable, "-m", "waltap", *words, "p.toml", "--yes"],
        cwd=pipeline.folder, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("way", ["clear", "when_needed"])
def test_a_publication_dropped_under_a_slot(pipeline: Pipeline, way: str) -> None:
    database = pipeline.database
    assert database is not None
    pipeline.catch_up()
    database.execute(f"DROP PUBLICATION {pipeline.slot}")
    database.execute("INSERT INTO t VALUES (2)")
    for _ in range(2):  # the first start makes it again, which does not help
        with pytest.raises(PublicationGone, match=r"slot drop FILE.*offsets clear FILE.*Lost are"):
            pipeline.catch_up()
    command(pipeline, "slot", "drop")
    if way == "clear":
        command(pipeline, "offsets", "clear")
        pipeline.catch_up()
    else:
        pipeline.catch_up(**{"snapshot.mode": "when_needed"})
    database.execute("INSERT INTO t VALUES (3)")
    pipeline.catch_up()
    assert pipeline.destination.ids("t", "r") == [1, 1, 2]
    assert pipeline.destination.ids("t", "c") == [3]
