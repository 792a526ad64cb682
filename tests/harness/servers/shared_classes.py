"""Spark's classes as a JVM has them when it has loaded them: an archive that JVMs of tests start from.

Tests start dozens of JVMs, each of which loads some thousand classes of Spark's: a third of the
processor time of its start. `prepare` writes the archive into the virtual environment, once; `options`
are those of a JVM that uses it. One that cannot (another Java, other jars) starts as without.

Spark's Python workers load PySpark from a zip file of sources, which each of them compiles again: 1.4 s
of processor time instead of 0.6 s, and Spark gives a worker 10 s to start. `prepare` adds the compiled
modules to that file.
"""

import os
import py_compile
import subprocess
import sys
import tempfile
import zipfile
from importlib.metadata import distribution, version
from pathlib import Path

from tests.harness.servers.java import OLDEST, java_version

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=128m"
"""A JVM that lives as long as a test compiles once, quickly: a quarter of the processor time of Spark's."""

FOLDER = Path(sys.prefix)

WORK = """
from pyspark.sql import SparkSession

spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.sql.shuffle.partitions", "2")
    .getOrCreate()
)
spark.range(1000).selectExpr("id", "id % 7 AS k", "string(id) AS s").write.parquet("rows")
rows = spark.read.parquet("rows")
counts = rows.groupBy("k").count()
assert rows.join(counts, "k").selectExpr("sum(count) AS c").first().c > 1000
rows.createOrReplaceTempView("rows")
spark.sql("SELECT *, row_number() OVER (PARTITION BY k ORDER BY id DESC) AS n FROM rows").collect()
spark.newSession().range(1).collect()
spark.stop()
"""


def _archive() -> Path:
    return FOLDER / f"spark-{version('pyspark')}-java-{java_version()}.jsa"


def options() -> str:
    """Return the options of a JVM of Spark's that lives as long as a test, for SPARK_SUBMIT_OPTS."""
    for archive in FOLDER.glob("spark-*.jsa"):  # asking Java for its version takes a while
        return f"{QUICK} -XX:SharedArchiveFile={archive} -Xshare:auto -Xlog:disable"
    return QUICK


def prepare() -> None:
    """Make the archive and the compiled modules where they are missing."""
    for sources in Path(str(distribution("pyspark").locate_file("pyspark/python/lib"))).glob(
        "*.zip"
    ):
        compile_modules(sources)
    archive_classes()


def compile_modules(sources: Path) -> None:
    """Add the compiled modules to a zip file of ``sources``, unless it has them."""
    with zipfile.ZipFile(sources) as old:
        names = old.namelist()
        if any(name.endswith(".pyc") for name in names):
            return
        with tempfile.TemporaryDirectory(dir=FOLDER) as scratch:
            old.extractall(scratch)
            made = Path(scratch) / "made"
            with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as new:
                for name in names:
                    path = Path(scratch) / name
                    if path.is_file():
                        new.write(path, name)
                    if path.suffix == ".py":
                        # the zip's times are not the files', so the loader must not compare them
                        mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
                        module = py_compile.compile(
                            str(path), f"{path}c", f"{sources}/{name}", invalidation_mode=mode
                        )
                        if module is not None:
                            new.write(module, f"{name}c")
            made.rename(sources)


def archive_classes() -> None:
    """Make the archive where it is missing. Nothing is the worse for it when that fails, only slower."""
    java = java_version()
    if java is None or java < OLDEST or _archive().exists():
        return
    for older in FOLDER.glob("spark-*.jsa"):
        older.unlink()
    with tempfile.TemporaryDirectory(dir=FOLDER) as scratch:
        made = Path(scratch) / "classes.jsa"
        given = f"{QUICK} -XX:ArchiveClassesAtExit={made} -Xlog:disable"
        environment = os.environ | {"SPARK_SUBMIT_OPTS": given, "SPARK_LOCAL_IP": "127.0.0.1"}
        done = subprocess.run(
            [sys.executable, "-c", WORK],
            cwd=scratch, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode == 0 and made.exists():
            made.rename(_archive())
        else:
            print(f"no archive of Spark's classes: {done.stderr.strip()[-200:]}", file=sys.stderr)
