"""A Spark job reads the topics that Debezium and waltap wrote, and makes the same tables of both.

    python -m tests.hunt.both_products --rows 20000

One schema for ``from_json``; each product's records are folded to current rows by themselves, and then all of
them together, as a job does that reads a topic whose writer was exchanged.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.harness.both_products import BothProducts
from tests.harness.servers.jars import jars
from tests.harness.servers.kafka import Kafka
from tests.harness.servers.postgres import Cluster

COORDINATES = (  # Spark itself brings the rest
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.13.1",
)
ROWS = {
    "account": "id INT, owner STRING, balance BINARY, rate DOUBLE, mood STRING, tags ARRAY<STRING>, "
    "seen STRING, born INT, photo BINARY, about STRING, token STRING",
    "line": "shop STRING, number BIGINT, amount STRUCT<scale: INT, value: BINARY>, at BIGINT",
}
KEYS = {"account": "id INT", "line": "shop STRING, number BIGINT"}


def session(folder: Path) -> Any:
    """Return a Spark session with the Kafka source."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    found = ",".join(map(str, sorted(jars("spark-kafka", COORDINATES, alone=True).glob("*.jar"))))
    made = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", found)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .getOrCreate()
    )
    made.sparkContext.setLogLevel("ERROR")
    return made


class Reader:
    """The job: it knows topics and one schema, and no product."""

    def __init__(self, spark: Any, kafka: Kafka, story: BothProducts) -> None:
        self._spark, self._kafka, self._story = spark, kafka, story

    def records(self, table: str, start: object, end: object) -> Any:
        """Return key and event of a topic's records between offsets, as Spark's options have them."""
        import pyspark.sql.functions as f

        row = ROWS[table]
        event = (
            f"STRUCT<payload: STRUCT<before: STRUCT<{row}>, after: STRUCT<{row}>, op: STRING, "
            "source: STRUCT<snapshot: STRING, schema: STRING, `table`: STRING>>>"
        )
        return (
            self._spark.read.format("kafka")
            .option("kafka.bootstrap.servers", self._kafka.bootstrap)
            .option("subscribe", self._story.topics[table])
            .option("startingOffsets", start)
            .option("endingOffsets", end)
            .load()
            .select(
                "offset",
                f.from_json(
                    f.col("key").cast("string"), f"STRUCT<payload: STRUCT<{KEYS[table]}>>"
                ).alias("k"),
                f.from_json(f.col("value").cast("string"), event).alias("v"),
            )
            .selectExpr("offset", "k.payload AS key", "v.payload.after AS after")
        )

    def of(self, table: str, *, debezium: bool) -> Any:
        """Return the records of one product."""
        topic, parts = self._story.topics[table], []
        for start, end in self._story.ranges(table, debezium=debezium):
            parts.append(self.records(table, json.dumps({topic: start}), json.dumps({topic: end})))
        whole = parts[0]
        for part in parts[1:]:
            whole = whole.unionAll(part)
        return whole

    @staticmethod
    def current(records: Any) -> Any:
        """Return the rows that are: of each key what its last record says. A key has one partition."""
        import pyspark.sql.functions as f

        last = records.groupBy("key").agg(f.max_by("after", "offset").alias("after"))
        return last.where("after IS NOT NULL").select("after.*")


def differences(reader: Reader, story: BothProducts, table: str) -> tuple[list[str], int, int]:
    """Return what is not equal, the number of records, and of rows in the end."""
    theirs, ours = (reader.of(table, debezium=debezium).cache() for debezium in (True, False))
    one, other, both = map(reader.current, (theirs, ours, theirs.unionAll(ours)))
    ((expected,),) = story.database.execute(f"SELECT count(*) FROM {table}")
    found = [
        f"{table}: {count} rows only in the table of {who}"
        for who, a, b in (("Debezium", one, other), ("waltap", other, one), ("both", both, one))
        if (count := a.exceptAll(b).count())
    ]
    found += [
        f"{table}: {rows} rows, {expected} in the database"
        for frame in (one, other, both)
        if (rows := frame.count()) != expected
    ]
    unread = one.where(f"{ROWS[table].split()[0]} IS NULL").count()
    found += [f"{table}: {unread} rows without a key: the schema does not fit"] if unread else []
    if theirs.count() != ours.count():
        found.append(f"{table}: {theirs.count()} records of Debezium, {ours.count()} of waltap")
    return found, theirs.count() + ours.count(), expected


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=20_000)
    given = parser.parse_args()
    wrong: list[str] = []
    converters = {f"{part}.converter.schemas.enable": "true" for part in ("key", "value")}
    server, kafka = Cluster.create(), Kafka.create(heap_mb=512)
    with tempfile.TemporaryDirectory(prefix="waltap-both-") as folder:
        try:
            database = server.create_database("both")
            story = BothProducts(database, kafka, Path(folder), converters, rows=given.rows)
            story.play()
            began = time.monotonic()
            spark = session(Path(folder))
            reader = Reader(spark, kafka, story)
            for table in ROWS:
                found, records, rows = differences(reader, story, table)
                wrong += found
                print(f"{table}: {records:,} records of both products, {rows:,} rows in the end")
            spark.stop()
        finally:
            kafka.remove()
            server.remove()
    print(
        f"Spark {time.monotonic() - began:.0f} s: " + ("; ".join(wrong) or "equal tables of both")
    )
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
