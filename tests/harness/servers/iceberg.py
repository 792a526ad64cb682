"""Apache Iceberg for a Spark session of the tests, and the second environment, whose pyspark it runs on.

The environment ``.venv-spark41`` has pyspark 4.1 and nothing else of its own: all other packages are those
of the interpreter's that runs the tests. `scripts/setup test` makes it.
"""

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from tests.harness.servers.jars import FETCH_SECONDS, MissingProgram, cache_folder, locked

ROOT = Path(__file__).parents[3]
PINNED = Path(__file__).with_name("pyspark41.txt")
PYSPARK = PINNED.read_text(encoding="utf-8").partition("==")[2].split()[0]
FOLDER = ROOT / ".venv-spark41"
EXTENSION = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
CONF = {
    "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.lake.cache-enabled": "false",
    "spark.sql.catalog.lake.type": "jdbc",
    "spark.sql.catalog.lake.jdbc.schema-version": "V1",
}
"""A JDBC catalogue called ``lake``; where it is says the session."""


def runs_here() -> bool:
    return version("pyspark").startswith("4.1.")


def python() -> Path:
    """Return the interpreter of the environment. Raises: MissingProgram."""
    made = FOLDER / "made"
    if not made.exists() or made.read_text() != _stamp():
        raise MissingProgram(f"{FOLDER.name} is not there, or is old; scripts/setup test makes it")
    return FOLDER / "bin/python"


def make_environment() -> None:
    """Make the environment, unless it is there. Raises: MissingProgram."""
    made = FOLDER / "made"
    if made.exists() and made.read_text() == _stamp():
        return
    with locked(cache_folder() / "venv-spark41.lock"):
        _call(sys.executable, "-m", "venv", "--clear", "--without-pip", FOLDER)
        inside = FOLDER / "bin/python"
        pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "--python", inside)
        constraints = ROOT / "constraints.txt"
        _call(
            *pip,
            "install",
            "--no-deps",
            "--require-hashes",
            "-r",
            PINNED,
            "--build-constraint",
            constraints,
        )
        own = next(FOLDER.glob("lib/python*/site-packages"))
        shared = next(Path(sys.prefix).glob("lib/python*/site-packages"))
        # behind its own packages; addsitedir reads the files by which our distributions are found
        (own / "shared.pth").write_text(f"import site; site.addsitedir({str(shared)!r})\n")
        made.write_text(_stamp())


def _stamp() -> str:
    return f"{PYSPARK} {sys.prefix} {sys.version}"


def _call(*command: object) -> None:
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=FETCH_SECONDS)
    if done.returncode:
        said = (done.stdout + done.stderr)[-2000:]
        raise MissingProgram(f"pyspark {PYSPARK} for Iceberg cannot be had: {said}")
