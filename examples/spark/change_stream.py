"""Read the changes of a table as a stream, by Spark's own means: no class of waltap is imported.

    python examples/spark/change_stream.py CHANGELOG TABLE FOLDER

Applies nothing: every change becomes a row of the Parquet files in FOLDER/history.
"""

import os
import sys

from pyspark.sql import SparkSession

changelog, table, folder = sys.argv[1:]
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers need waltap-spark, too
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
changes = (
    spark.readStream.format("waltap")
    .option("path", changelog)
    .option("table", table)
    .option("maxRowsPerBatch", 100_000)  # a batch ends between two transactions all the same
    .option("reader", "history")  # the log keeps what this query has not read yet
    .load()
)
query = (
    changes.writeStream.format("parquet")
    .option("path", f"{folder}/history")
    .option("checkpointLocation", f"{folder}/checkpoint")
    .trigger(availableNow=True)  # all there is, then end; leave it out to go on
    .start()
)
query.awaitTermination()
history = spark.read.parquet(f"{folder}/history")
history.groupBy("_op").count().orderBy("_op").show()

# the same without a stream: what happened, up to now, to one table
now = spark.read.format("waltap").options(path=changelog, table=table).load()
print(f"{now.count()} changes in the log, {history.count()} in the history")
spark.stop()
