"""A client of Spark Connect, run as a process by `test_spark_source`: applies a log, reads the tables."""

import sys
from typing import Any

from pyspark.sql import SparkSession
from tests.harness.profile_query import patiently

from waltap_sinks.changelog import ChangeLog
from waltap_spark import open_tables
from waltap_spark.apply.applier import OutputApplier
from waltap_spark.session.session import REQUIRED, prepare
from waltap_spark.state.output import SparkOutput


def run_to_its_end(query: Any) -> None:
    patiently(lambda: query.start().awaitTermination())


address, changelog, location, profile = sys.argv[1:]
spark = SparkSession.builder.remote(address).getOrCreate()
spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
session = prepare(spark)
assert all(session.conf.get(name) == value for name, value in REQUIRED.items())
assert spark.conf.get("spark.sql.session.timeZone") == "Asia/Tokyo", "the user's stays as it is"

log = ChangeLog(changelog)
applier = OutputApplier(session, log, SparkOutput(location))
applier.open()
applier.apply(list(log.manifests(applier.state.log_position)))
applier.close()
print("applied", applier.state.rows_applied)

tables = open_tables(session, location)
print("views", tables.register())
for row in session.sql("SELECT id, name FROM people ORDER BY id").collect():
    print("row", row.id, row.name)

source = spark.read.format("waltap").options(path=changelog, table="public.people").load()
print("changes", [row._op for row in source.orderBy("_seq").collect()])
stream = spark.readStream.format("waltap").options(path=changelog, table="public.people").load()
run_to_its_end(
    stream.writeStream.format("parquet")
    .options(path=f"{location}-history", checkpointLocation=f"{location}-checkpoint")
    .trigger(availableNow=True)
)
print("streamed", spark.read.parquet(f"{location}-history").count())

shop = spark.read.format("waltap").options(profile=profile, table="public.orders").load()
print("captured", sorted((row._op, row.id, row._source) for row in shop.collect()))
stream = spark.readStream.format("waltap").options(profile=profile, table="public.orders").load()
run_to_its_end(
    stream.writeStream.format("parquet")
    .options(path=f"{location}-orders", checkpointLocation=f"{location}-orders-checkpoint")
    .trigger(availableNow=True)
)
print("streamed", spark.read.parquet(f"{location}-orders").count())
spark.stop()
