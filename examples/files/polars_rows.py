"""Read the current rows of a table from the Parquet files of the sink `files`, by Polars."""

from glob import glob

import polars as pl

files = glob("lake/orders/table=public.orders/date=*/*.parquet")
parts = [pl.scan_parquet(each, hive_partitioning=True) for each in files]
log = pl.concat(parts, how="diagonal_relaxed").sort("_commit_lsn", "_seq", "_sub")
log = log.with_columns(truncates=(pl.col("_op") == "t").cum_sum())
log = log.filter(pl.col("truncates") == pl.col("truncates").max(), pl.col("_op") != "t")
rows = log.unique("id", keep="last", maintain_order=True).filter(pl.col("_op") != "d")
current = rows.sort("id").collect().to_dicts()
