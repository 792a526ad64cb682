"""Delta Lake for the Spark session of the tests: two jars are enough."""

from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.harness.servers.jars import jars

CONF = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.databricks.delta.allFilesInCrc.enabled": "false",
}


def snapshot_id() -> str:
    """Return the generation of the pyspark that is there: 4.1, 4.2."""
    return ".".join(version("pyspark").split(".")[:2])


def prepare(spark: str = "") -> Path:
    """Fetch the jars for a generation of pyspark (default: the one that is there); return their folder.

    Raises: MissingProgram.
    """
    spark = spark or snapshot_id()
    wanted = (f"io.delta:delta-spark_{spark}_2.13:4.4.0", "io.delta:delta-storage:4.4.0")
    return jars("delta", wanted, alone=True)


def spark_jars() -> str:
    """Return what ``spark.jars`` names. Raises: MissingProgram."""
    return ",".join(str(path) for path in sorted(prepare().glob("*.jar")))


def load(spark: Any, folder: Path) -> None:
    """Make a table in ``folder`` and change it, so that the session has Delta Lake's classes and plans."""
    table = f"delta.`{folder}/t`"
    spark.sql(f"create table {table} using delta as select 1 as id")
    spark.sql(
        f"merge into {table} t using (select 1 as id) s on t.id = s.id when matched then delete"
    )
