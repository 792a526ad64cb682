"""Apply a change log by a streaming query inside a Spark application of your own.

    python examples/spark/streaming_query.py CHANGELOG OUTPUT

The pipeline writes the log: [sink] type = "changelog", or type = "spark" with applier = "none".
"""

import sys

from pyspark.sql import SparkSession
from waltap_sinks.changelog import ChangeLog
from waltap_spark.apply.applier import OutputApplier
from waltap_spark.state.output import SparkOutput
from waltap_spark.session.session import prepare
from waltap_spark.driver.streaming import start_query

log, output = ChangeLog(sys.argv[1]), SparkOutput(sys.argv[2])
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
applier = OutputApplier(prepare(spark), log, output)
applier.open()
try:
    # available_now: apply what there is, then end, as a scheduler wants it; leave it out to go on
    checkpoint = f"{sys.argv[2]}/_waltap/checkpoint"
    query = start_query(prepare(spark), log, applier, checkpoint, available_now=True)
    query.awaitTermination()
    print(f"{applier.state.rows_applied} rows applied, up to {applier.state.log_position}")
finally:
    applier.close()
    spark.stop()
