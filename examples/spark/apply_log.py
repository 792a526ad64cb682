"""Apply a change log inside a Spark application of your own.

    python examples/spark/apply_log.py CHANGELOG OUTPUT

The pipeline writes the log: [sink] type = "changelog", or type = "spark" with applier = "none".
"""

import sys

from pyspark.sql import SparkSession
from waltap_sinks.changelog import ChangeLog
from waltap_spark.apply.applier import OutputApplier
from waltap_spark.driver.follower import LogFollower
from waltap_spark.session.session import prepare
from waltap_spark.state.output import SparkOutput

log, output = ChangeLog(sys.argv[1]), SparkOutput(sys.argv[2])
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
applier = OutputApplier(prepare(spark), log, output)
applier.open()
try:
    # once: apply the present changes, then end, as a scheduler wants it; follow() continues
    LogFollower(log, applier).once()
    print(f"{applier.state.rows_applied} rows applied, up to {applier.state.log_position}")
finally:
    applier.close()
    spark.stop()
