"""``format("waltap")``: a change log as a data source of Spark, for batches and for streams."""

from waltap_spark.source.data_source import ChangeLogSource

__all__ = ["ChangeLogSource"]
