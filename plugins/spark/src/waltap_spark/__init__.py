"""Apache Spark for waltap: live tables from the change log."""

from waltap_spark.live import LiveTables, open_tables

__all__ = ["LiveTables", "open_tables"]
