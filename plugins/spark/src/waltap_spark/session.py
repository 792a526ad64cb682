"""Spark sessions that read and write waltap's tables as they should be read and written."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from waltap_spark.java import require_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["REQUIRED", "prepare", "start_session"]

REQUIRED: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.caseSensitive": "true",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.timeType.enabled": "true",
    "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.inferTimestampNTZ.enabled": "true",
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
}
"""Session settings that the tables' types and names rely on: PostgreSQL tells ``a`` from ``A``, has
``time``, dates of any year, and timestamps of microseconds with and without zone."""

DEFAULTS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "8",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.driver.memory": "1g",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.streaming.minBatchesToRetain": "10",
}
"""Settings of a session of our own with a local master; a profile may set others."""


def start_session(
    name: str, *, master: str = "local[*]", settings: Mapping[str, str] | None = None
) -> "SparkSession":
    """Start a Spark session, or join the one of this process. Raises: JavaMissing."""
    require_java()
    from pyspark.sql import SparkSession

    chosen = {**(DEFAULTS if master.startswith("local") else {}), **(settings or {})}
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in {**chosen, **REQUIRED}.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel(chosen.get("spark.log.level", "ERROR"))
    return session


def prepare(spark: "SparkSession") -> "SparkSession":
    """Return a session beside ``spark`` (same cluster, own settings) with `REQUIRED` set."""
    session = spark.newSession()
    for key, value in REQUIRED.items():
        session.conf.set(key, value)
    return session
