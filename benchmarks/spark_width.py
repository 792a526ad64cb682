"""What a change costs by the width of its row, on its way into Spark's tables.

``python -m benchmarks.spark_width``. Changes of one table go into a change log, and from there
into a set of changes as the driver writes it (`waltap_spark.compact.small_sets`). Processor time of this
process and bytes, for each change; no server, no Spark.
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

from tests.harness.changelog import Database, batch, context, relation

from waltap.base.files.store import FileStore
from waltap_sinks.changelog import ChangeLog, ChangeLogProperties, ChangeLogSink
from waltap_spark.compact.small_sets import arrow_types, rows_of, write_rows
from waltap_spark.planning.plan import plan

KINDS = ("text", "int8", "numeric(10,2)", "timestamptz")


def value(kind: str, n: int, at: int) -> str:
    """Return a value that others of its column do not have."""
    if kind == "text":
        return f"value {n} of column {at}"
    if kind == "timestamptz":
        return f"2026-03-{n % 28 + 1:02} 01:02:{n % 60:02}.{n % 1_000_000:06}+00"
    return str(n * 31 + at) if kind == "int8" else f"{n % 100_000}.{at % 100:02}"


def measured(columns: int, rows: int, folder: Path) -> dict[str, float]:
    """Return µs and bytes a change for a table of ``columns``."""
    kinds = [KINDS[at % len(KINDS)] for at in range(columns - 1)]
    listed = [("id", "int8"), *((f"c{at}", kind) for at, kind in enumerate(kinds))]
    table, db = relation("public.wide", listed), Database()
    for n in range(rows):
        db.insert(table, [str(n), *(value(kind, n, at) for at, kind in enumerate(kinds))])
    made = batch(db.commit())
    sink = ChangeLogSink(ChangeLogProperties(path=str(folder / "log")), context(folder))
    sink.open()
    began = time.process_time()
    sink.write(made)
    sink.flush()
    logged = time.process_time() - began
    sink.close()
    log = ChangeLog(str(folder / "log"))
    group = plan(log.manifests(), {})[table.name].groups[0]
    out = FileStore(str(folder / "out"))
    began = time.process_time()
    schema = log.store.parquet_schema(next(iter(group.segments)))
    names = list(arrow_types(schema) or ())
    size = write_rows(out, "set.parquet", rows_of(log.store, group, names))
    applied = time.process_time() - began
    return {
        "columns": columns,
        "change_log_us": round(logged / rows * 1e6, 2),
        "apply_us": round(applied / rows * 1e6, 2),
        "change_log_bytes": round(group.bytes / rows),
        "set_bytes": round(size / rows),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--columns", type=int, nargs="*", default=[4, 12, 48, 192])
    options = parser.parse_args()
    for columns in options.columns:
        with tempfile.TemporaryDirectory() as warm:
            measured(columns, 100, Path(warm))
        with tempfile.TemporaryDirectory() as folder:
            found = measured(columns, options.rows, Path(folder))
        print(json.dumps({**found, "load": round(os.getloadavg()[0], 1)}), flush=True)


if __name__ == "__main__":
    main()
