"""Register ``format("waltap")`` with Spark.

Spark imports modules with names that begin with pyspark_.
"""

from waltap_spark.read.data_source import ChangeLogSource as DefaultSource

__all__ = ["DefaultSource"]
