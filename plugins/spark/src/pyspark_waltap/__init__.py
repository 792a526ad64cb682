"""Makes Spark find ``format("waltap")`` by itself: it looks for modules that are called pyspark_…"""

from waltap_spark.source.data_source import ChangeLogSource as DefaultSource

__all__ = ["DefaultSource"]
