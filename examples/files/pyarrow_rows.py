"""Read the current rows of a table from the Parquet files of the sink `files`, by pyarrow."""

import pyarrow as pa
from pyarrow import dataset

place = "lake/orders/table=public.orders"
found = dataset.dataset(place, partitioning="hive")
schemas = [found.schema, *(each.physical_schema for each in found.get_fragments())]
log = dataset.dataset(place, partitioning="hive", schema=pa.unify_schemas(schemas)).to_table()
rows = {}
for row in log.sort_by(
    [(name, "ascending") for name in ("_commit_lsn", "_seq", "_sub")]
).to_pylist():
    if row["_op"] == "t":
        rows.clear()
    elif row["_op"] == "d":
        rows.pop(row["id"], None)
    else:
        rows[row["id"]] = row
current = [rows[each] for each in sorted(rows)]
