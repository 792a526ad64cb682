"""Spark's Kafka source and its Avro functions, for the Spark session of the tests."""

from pathlib import Path

from tests.harness.servers.jars import jars

COORDINATES = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.13.1",
    "org.apache.spark:spark-avro_2.13:4.1.1",
)


def prepare() -> Path:
    """Fetch the jars; return their folder. Raises: MissingProgram."""
    return jars("spark-kafka", COORDINATES, alone=True)


def spark_jars() -> str:
    """Return what ``spark.jars`` names. Raises: MissingProgram."""
    return ",".join(str(path) for path in sorted(prepare().glob("*.jar")))
