"""The Parquet change log: a sink for waltap, and what reads it."""
