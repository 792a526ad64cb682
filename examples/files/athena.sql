-- A table of Amazon Athena over the Parquet files of one table, with the days as a projection.
CREATE EXTERNAL TABLE orders_log (
  id int, total decimal(10, 2), note string, paid boolean,
  `_op` string, `_commit_lsn` bigint, `_seq` int, `_sub` tinyint, `_lsn` bigint, `_commit_ts` timestamp,
  `_xid` bigint, `_unchanged` array<string>
)
PARTITIONED BY (`date` date)
STORED AS PARQUET
LOCATION 's3://lake/orders/table=public.orders/'
TBLPROPERTIES (
  'projection.enabled' = 'true', 'projection.date.type' = 'date',
  'projection.date.format' = 'yyyy-MM-dd', 'projection.date.range' = '2026-01-01,NOW'
);
