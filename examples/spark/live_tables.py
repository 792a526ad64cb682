"""Read waltap's tables in a Spark job: what they hold now, and what happened to them.

    python examples/spark/live_tables.py OUTPUT TABLE

OUTPUT is the folder of the tables (the spark sink's path, and "/tables"); any session will do.
"""

import sys

from pyspark.sql import SparkSession
from waltap_spark import open_tables

output, name = sys.argv[1:]
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
tables = open_tables(spark, output)  # all tables at one commit of the applier

current = tables.current(name)  # a DataFrame: one row per row of the source
print(f"{name} holds {current.count()} rows")

changes = tables.changes(name)  # one row per change, snapshot rows (_op = 'r') included
changes.groupBy("_op").count().orderBy("_op").show()

tables.refresh().register()  # move on; temporary views by the tables' own names
table = name.rpartition(".")[2]
spark.sql(f"SELECT max(_commit_ts) AS last_change FROM `{table}_changes`").show(truncate=False)
spark.stop()
