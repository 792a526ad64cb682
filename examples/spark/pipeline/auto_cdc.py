"""The same table kept by AUTO CDC, in a catalogue whose tables have Spark's own MERGE.

No released Delta Lake or Iceberg has it on pyspark 4.2; put this file into transformations/ where yours does.
"""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

from waltap_spark import pipelines

spark = SparkSession.active()
LOG, TABLE = spark.conf.get("spark.orders.changelog"), spark.conf.get("spark.orders.table")


@dp.temporary_view
def orders_changes() -> DataFrame:
    """Changes as they come."""
    return pipelines.changes(LOG, TABLE)


dp.create_streaming_table("orders")
dp.create_auto_cdc_flow(target="orders", source="orders_changes", **pipelines.auto_cdc(LOG, TABLE))
