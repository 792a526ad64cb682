"""The second environment, pyspark 4.1: Iceberg, which runs on no later one, Delta Lake, and the data source.

A pytest of its own there for each module: a process has one pyspark.
"""

import os
from pathlib import Path

import pytest
from tests.harness.command import run_program
from tests.harness.servers.iceberg import python
from tests.harness.servers.jars import MissingProgram
from tests.harness.servers.requirement import missing

ROOT = Path(__file__).parents[2]
SUITE = ROOT / "tests" / "spark41"
LOST_SOCKETS = (
    "ignore::ResourceWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
)
"""What collect() of pyspark 4.1 leaves to the garbage collector, which warns."""


@pytest.mark.timeout(1200)  # a whole module, for which one test stands
@pytest.mark.parametrize("module", sorted(path.name for path in SUITE.glob("test_*.py")))
def test_it_runs_on_pyspark_4_1(java, module):
    try:
        interpreter = python()
    except MissingProgram as reason:
        missing(f"no second environment: {reason}")
    kept = {
        k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "SPARK_", "PYSPARK_"))
    }
    options = [word for each in LOST_SOCKETS for word in ("-W", each)]
    command = interpreter, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, SUITE / module
    done = run_program(*command, wait=1100, cwd=ROOT, env=kept)
    reported = done.stdout[-8000:] + done.stderr[-1000:]
    assert "skipped" not in reported, reported
