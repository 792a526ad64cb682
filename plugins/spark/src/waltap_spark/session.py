"""Spark sessions that read and write waltap's tables as they should be read and written."""

import atexit
import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from waltap_spark.java import require_java, require_pyspark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from waltap_spark.formats.choice import FormatChoice

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
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.driver.memory": "1g",
    "spark.scheduler.mode": "FAIR",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.streaming.minBatchesToRetain": "10",
}
"""Settings of a session of our own with a local master; a profile may set others."""


def start_session(
    name: str,
    *,
    master: str = "local[*]",
    settings: Mapping[str, str] | None = None,
    notes: Path | None = None,
    choice: "FormatChoice | None" = None,
) -> "SparkSession":
    """Start a Spark session, or join the one of this process; with what a table format needs (``choice``).

    ``notes`` takes what the JVM writes to standard error, which is much and seldom of use.
    Raises: JavaMissing, and what the format misses.
    """
    require_java()
    if choice is not None:
        settings = choice.settings(require_pyspark(), settings or {})
    from pyspark.sql import SparkSession

    local = master.startswith("local")
    if local:  # the JVM looks the machine's own name up, which need not resolve
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # its workers need what we need
    chosen = {**(DEFAULTS if local else {}), **(settings or {})}
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in {**chosen, **REQUIRED}.items():
        builder = builder.config(key, value)
    with _standard_error_to(notes):
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel(chosen.get("spark.log.level", "ERROR"))
    return session


@contextlib.contextmanager
def _standard_error_to(path: Path | None) -> Iterator[None]:
    """Let processes that are started meanwhile write their standard error to ``path``."""
    if path is None:
        yield
        return
    sys.stderr.flush()
    before = os.dup(2)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


def prepare(spark: "SparkSession") -> "SparkSession":
    """Return a session beside ``spark`` (same cluster, own settings) with `REQUIRED` set.

    ``spark`` may be a session of Spark Connect, which is cloned: it knows no other way.
    """
    if _is_remote(spark):
        session: Any = cast(Any, spark).cloneSession()
        # a channel that is left open until the interpreter is torn down waits for ever then
        atexit.register(session.client.close)
    else:
        session = spark.newSession()
    for key, value in REQUIRED.items():
        session.conf.set(key, value)
    return cast("SparkSession", session)


def _is_remote(spark: object) -> bool:
    """Tell whether ``spark`` is a session of Spark Connect, whose package need not be installed."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")
