"""Sinks for waltap: JSON lines and the Parquet change log."""
