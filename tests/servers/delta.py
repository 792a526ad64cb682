"""Delta Lake for the Spark session of the tests: two jars are enough."""

from pathlib import Path

from tests.servers.jars import jars

__all__ = ["CONF", "prepare", "spark_jars"]

COORDINATES = ("io.delta:delta-spark_4.2_2.13:4.4.0", "io.delta:delta-storage:4.4.0")
CONF = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "2",
}


def prepare() -> Path:
    """Fetch the jars; return their folder. Raises: MissingProgram."""
    return jars("delta", COORDINATES, alone=True)


def spark_jars() -> str:
    """Return what ``spark.jars`` names. Raises: MissingProgram."""
    return ",".join(str(path) for path in sorted(prepare().glob("*.jar")))
