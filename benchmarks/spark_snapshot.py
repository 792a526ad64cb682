"""A first snapshot into Spark's tables, by who reads: ``python -m benchmarks.spark_snapshot [--rows N]``.

A PostgreSQL of its own with the table of `benchmarks.dataset`, and `waltap run` with ``snapshot.mode =
initial_only`` into an empty output, once with ``snapshot.readers = engine``, once with ``executors``. The
time goes from the start of the command to its end, when all rows are committed; of it, how long Spark took
to start, and the rest by the rows. With processor time of all processes of the run together, and the bytes
of the change log and the tables.
"""

import argparse
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.harness.servers.postgres import Cluster, Database, server_programs

from benchmarks.dataset import TABLE, fill, make_tables
from benchmarks.machine import stamp
from benchmarks.report import RESULTS
from waltap_spark.state.output import SparkOutput

READERS = ("engine", "executors")
STAMPED = re.compile(
    r"^(\S+ \d\d:\d\d:\d\d),(\d{3}) INFO (spark is ready|starting spark)$", re.MULTILINE
)


def profile(database: Database, folder: Path, readers: str, options: argparse.Namespace) -> Path:
    """Write the profile of one run, and return its path."""
    source = {
        **database.properties(),
        "slot.name": f"snapshot_{readers}",
        "publication.name": f"snapshot_{readers}",
        "table.include.list": re.escape(TABLE),
        "snapshot.mode": "initial_only",
        "snapshot.max.threads": options.threads,
        "waltap.state.dir": str(folder / "state"),
    }
    sink = {
        "path": str(folder / "lake"),
        "snapshot.readers": readers,
        "spark.master": options.master,
        "drain.timeout.ms": 3_600_000,
    }
    lines = ['name = "snapshot"', "[source]", 'type = "postgres"', *map(_line, source.items())]
    lines += ["[sink]", 'type = "spark"', *map(_line, sink.items())]
    (folder / "snapshot.toml").write_text("\n".join(lines))
    return folder / "snapshot.toml"


def _line(pair: tuple[str, object]) -> str:
    return f"{json.dumps(pair[0])} = {json.dumps(pair[1])}"


def run(
    database: Database, folder: Path, readers: str, options: argparse.Namespace
) -> dict[str, Any]:
    """Take a snapshot, and return what it took."""
    file = profile(database, folder, readers, options)
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    with (folder / "run.log").open("wb") as out:
        command = [sys.executable, "-m", "waltap", "run", str(file)]
        subprocess.run(command, stdout=out, stderr=out, check=True)
    took = time.monotonic() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    state = SparkOutput(str(folder / "lake" / "tables")).state()
    assert state is not None, (folder / "run.log").read_text()
    rows = sum(part.rows for part in state.tables[TABLE].base)
    assert rows == options.rows, f"{rows} rows in the table, {options.rows} in the source"
    start = _spark_start(folder / "state" / "snapshot" / "spark.log")
    return {
        "readers": readers,
        "rows": rows,
        "seconds": round(took, 1),
        "spark_start_s": round(start, 1),
        "rows_per_s": round(rows / (took - start)),
        "cpu_s": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1),
        "log_mb": round(_size(folder / "lake" / "changelog") / 1e6, 1),
        "tables_mb": round(_size(folder / "lake" / "tables") / 1e6, 1),
        "load": [round(each, 1) for each in os.getloadavg()],
    }


def _spark_start(log: Path) -> float:
    reported = {what: (day, int(ms)) for day, ms, what in STAMPED.findall(log.read_text())}
    moments = [
        datetime.fromisoformat(day).timestamp() + ms / 1000
        for day, ms in (reported["starting spark"], reported["spark is ready"])
    ]
    return moments[1] - moments[0]


def _size(folder: Path) -> int:
    return sum(each.stat().st_size for each in folder.rglob("*") if each.is_file())


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--threads", type=int, default=4, help="snapshot.max.threads")
    parser.add_argument("--master", default="local[2]", help="where tasks run (%(default)s)")
    options = parser.parse_args()
    cluster = Cluster.create(wal_level="logical", max_wal_size="4GB")
    folder = Path(tempfile.mkdtemp(prefix="waltap-snapshot-"))
    try:
        database = cluster.create_database("bench")
        with database.connect(autocommit=True) as connection:
            make_tables(connection)
            fill(connection, 1, options.rows, per_transaction=100_000)
            connection.execute(f"VACUUM ANALYZE {TABLE}")
        found = []
        for readers in READERS:
            (folder / readers).mkdir()
            found.append(run(database, folder / readers, readers, options))
            print(json.dumps(found[-1]), flush=True)
    finally:
        cluster.remove()
        shutil.rmtree(folder, ignore_errors=True)
    at = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    result = {"machine": stamp(server_programs()), "options": vars(options), "runs": found}
    (RESULTS / f"spark-snapshot-{at}.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
