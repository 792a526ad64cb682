"""Spark's data source ``format("waltap")``: batches and streams."""

from waltap_spark.source.data_source import ChangeLogSource

__all__ = ["ChangeLogSource"]
