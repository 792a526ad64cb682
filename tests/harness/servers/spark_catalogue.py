"""Spark's own catalogue of its tests, the only one whose tables AUTO CDC of pyspark 4.2 takes as targets."""

from pathlib import Path

from tests.harness.servers.jars import archive

ARTIFACT = "org.apache.spark:spark-catalyst_2.13:4.2.0:jar:tests"
CATALOGUE = (
    "org.apache.spark.sql.connector.catalog.SharedTablesInMemoryRowLevelOperationTableCatalog"
)


def prepare() -> Path:
    """Fetch the jar; return its folder. Raises: MissingProgram."""
    return archive("spark-catalogue", ARTIFACT)


def spark_jars() -> str:
    """Return what ``spark.jars`` names. Raises: MissingProgram."""
    return ",".join(str(path) for path in sorted(prepare().glob("*.jar")))
