"""Orders and their history, kept by a declarative pipeline over a change log of waltap."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

from waltap_spark import pipelines

spark = SparkSession.active()
LOG, TABLE = spark.conf.get("spark.orders.changelog"), spark.conf.get("spark.orders.table")


@dp.table
def orders_history() -> DataFrame:
    """Every change; a run adds those that came since the last one."""
    return pipelines.history(LOG, TABLE)


@dp.materialized_view
def orders() -> DataFrame:
    """The rows as they are now."""
    return pipelines.current(spark.read.table("orders_history"), LOG, TABLE)
