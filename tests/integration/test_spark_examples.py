"""The examples for Spark run as they stand."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pyarrow import dataset
from tests.harness.changelog import Database, batch, context, relation

from waltap_sinks.changelog import ChangeLogProperties, ChangeLogSink

EXAMPLES = Path(__file__).parents[2] / "examples" / "spark"
PEOPLE = relation("public.people", [("id", "int4"), ("name", "text")])


@pytest.mark.needs_java
def test_a_streaming_query_applies_and_a_job_reads(java: Path, tmp_path: Path) -> None:
    db = Database()
    log = ChangeLogSink(ChangeLogProperties(path=str(tmp_path / "log")), context(tmp_path))
    log.open()
    db.insert(PEOPLE, ["1", "Ann"], ["2", "Bob"])
    db.delete(PEOPLE, ["2"])
    log.write(batch(db.commit()))
    log.flush()
    log.close()
    said = _run("streaming_query.py", tmp_path / "log", tmp_path / "out")
    assert "3 rows applied" in said
    assert "0 rows applied" not in said
    said = _run("live_tables.py", tmp_path / "out", "public.people")
    assert "public.people holds 1 rows" in said
    assert "|  c|    2|" in said
    said = _run("change_stream.py", tmp_path / "log", "public.people", tmp_path / "stream")
    assert "3 changes in the log, 3 in the history" in said
    said = _pipeline(tmp_path)
    assert "Flow spark_catalog.default.orders has COMPLETED." in said
    assert "Run is COMPLETED." in said
    files = tmp_path / "pipeline" / "spark-warehouse" / "orders"
    assert dataset.dataset(files).to_table().to_pylist() == [{"id": 1, "name": "Ann"}]


def _pipeline(folder: Path) -> str:
    """Run the declarative pipeline as its users do, over the log in ``folder``."""
    copy = shutil.copytree(EXAMPLES / "pipeline", folder / "pipeline")
    spec = copy / "spark-pipeline.yml"
    text = spec.read_text().replace("/lake/changelog", str(folder / "log"))
    text = text.replace("/lake/pipeline", str(folder / "progress"))
    spec.write_text(text.replace("public.orders", "public.people"))
    done = subprocess.run(
        [Path(sys.executable).with_name("spark-pipelines"), "run", "--spec", spec],
        cwd=copy,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout + done.stderr


def _run(name: str, *arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
