"""Jars that a Spark session of a test has beside its own; each function that fetches some raises MissingProgram.

``hadoop-aws`` asks for Amazon's bundle of all services, which is 690 MB; those parts of its SDK that S3 needs are 15.
"""

from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.harness.servers.jars import archive, jars

PYSPARK = ".".join(version("pyspark").split(".")[:2])
"""The generation of the pyspark that is there: 4.1, 4.2."""

DELTA_CONF = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.databricks.delta.allFilesInCrc.enabled": "false",
}
HADOOP = "3.4.2" if PYSPARK == "4.1" else "3.5.0"
KAFKA = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.13.1",
    "org.apache.spark:spark-avro_2.13:4.1.1",
)
S3 = (
    f"org.apache.hadoop:hadoop-aws:{HADOOP}",
    "software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3:1.3.1",
)
SDK = tuple(
    f"software.amazon.awssdk:{name}:2.35.4" for name in ("s3", "s3-transfer-manager", "sts")
)
CATALOGUE = (
    "org.apache.spark.sql.connector.catalog.SharedTablesInMemoryRowLevelOperationTableCatalog"
)
"""Spark's own catalogue of its tests, the only one whose tables AUTO CDC of pyspark 4.2 takes as targets."""


def listed(*folders: Path) -> str:
    """Return what ``spark.jars`` names."""
    return ",".join(str(path) for path in sorted(p for each in folders for p in each.glob("*.jar")))


def delta(pyspark: str = PYSPARK) -> str:
    wanted = (f"io.delta:delta-spark_{pyspark}_2.13:4.4.0", "io.delta:delta-storage:4.4.0")
    return listed(jars("delta", wanted, alone=True))


def iceberg() -> str:
    wanted = (
        "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
        "org.xerial:sqlite-jdbc:3.50.3.0",
    )
    return listed(jars("iceberg", wanted, alone=True))


def kafka() -> str:
    """Fetch Spark's Kafka source and its Avro functions."""
    return listed(jars("spark-kafka", KAFKA, alone=True))


def catalogue() -> str:
    artifact = "org.apache.spark:spark-catalyst_2.13:4.2.0:jar:tests"
    return listed(archive("spark-catalogue", artifact))


def s3() -> str:
    return listed(jars(f"spark-s3-{HADOOP}", S3, alone=True), jars("aws-sdk", SDK))


def s3_conf(url: str) -> dict[str, str]:
    """Return settings of a session that reads and writes S3 at ``url``."""
    return {
        "spark.jars": s3(),
        "spark.hadoop.fs.s3a.endpoint": url,
        "spark.hadoop.fs.s3a.path.style.access": "true",
    }


def prepare() -> None:
    """Fetch all of them."""
    for fetch in (delta, iceberg, kafka, s3, catalogue):
        fetch()
    delta("4.1")


def load_delta(spark: Any, folder: Path) -> None:
    """Make a table in ``folder`` and change it, so that the session has Delta Lake's classes and plans."""
    table = f"delta.`{folder}/t`"
    spark.sql(f"create table {table} using delta as select 1 as id")
    spark.sql(
        f"merge into {table} t using (select 1 as id) s on t.id = s.id when matched then delete"
    )
