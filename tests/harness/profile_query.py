"""A driver, run as a process by `test_spark_profiles`: a query over a profile, held in a batch until killed."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def patiently(attempt: Callable[[], Any]) -> Any:
    """Return what ``attempt`` returns. Spark gives a Python worker ten seconds to start, also on a machine that
    is busy with other tests; a query that ended so goes on from its checkpoint."""
    while True:
        try:
            return attempt()
        except Exception as error:
            if "Python worker failed to connect back" not in str(error):
                raise


def small_session() -> Any:
    """Return a Spark session of a process that is soon killed."""
    from pyspark.sql import SparkSession

    return (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "512m")
        .getOrCreate()
    )


def start(spark: Any, profile: str, folder: Path, *, held: int = -1, ends: bool = False) -> Any:
    """Start the query; each batch writes a file of its number, and number ``held`` then waits for ever."""
    frame = (
        spark.readStream.format("waltap")
        .options(profile=profile, table="public.orders", maxRowsPerBatch=2)
        .load()
    )

    def take(rows: Any, number: int) -> None:
        found = sorted([row["_op"], row["id"], row["state"]] for row in rows.collect())
        (folder / f"{number:04d}.json").write_text(json.dumps(found))
        if found:
            print(f"batch {number}", flush=True)
        if number == held:
            print("held", flush=True)
            sys.stdin.read()

    writer = frame.writeStream.foreachBatch(take)
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    return (writer.trigger(availableNow=True) if ends else writer).start()


if __name__ == "__main__":
    session = small_session()
    patiently(lambda: start(session, sys.argv[1], Path(sys.argv[2]), held=2).awaitTermination())
