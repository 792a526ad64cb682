"""What a commit of Spark's tables costs, and how that grows: ``python -m benchmarks.spark_commits WHAT``.

``tables``: so many tables with one change each a commit; the time of each commit, and the size of what
says where the tables stand. ``versions``: one table whose schema is another with every transaction, in
one commit. No server: a change log is written by hand, and applied in this process.
"""

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from tests.rigs.changelog import Database, batch, context, relation

from waltap_sinks.changelog import ChangeLog, ChangeLogProperties, ChangeLogSink
from waltap_spark.applier import Applier
from waltap_spark.formats.choice import FormatChoice
from waltap_spark.output import Output
from waltap_spark.session import prepare, start_session

COLUMNS = [("id", "int4"), ("name", "text"), ("n", "int8"), ("at", "timestamptz")]
AT = "2026-01-01 00:00:00+00"


class Lake:
    """A change log and the tables that follow it."""

    def __init__(self, folder: Path, spark: object, choice: FormatChoice) -> None:
        self.db = Database()
        self.folder = folder
        settings = ChangeLogProperties(path=str(folder / "log"))
        self.sink = ChangeLogSink(settings, context(folder, resumes=True))
        self.sink.open()
        self.log = ChangeLog(str(folder / "log"))
        self.output = Output(str(folder / "out"))
        self.applier = Applier(prepare(spark), self.log, self.output, choice=choice)
        self.applier.open()

    def flush(self) -> None:
        self.sink.write(batch(self.db.commit()))
        self.sink.flush()

    def apply(self) -> float:
        started = time.monotonic()
        self.applier.apply(list(self.log.manifests(self.applier.state.mark)))
        return time.monotonic() - started

    def said(self) -> int:
        """Return the bytes of the newest file that says where the tables stand."""
        found = sorted((self.folder / "out" / "_waltap").rglob("*.json"), key=os.path.getmtime)
        return found[-1].stat().st_size


def tables(options: argparse.Namespace, lake: Lake) -> None:
    """One change of every table a commit."""
    made = [relation(f"public.t{n:04}", COLUMNS) for n in range(options.tables)]
    seconds, said = [], []
    for number in range(options.commits):
        for table in made:
            if number and number % 2:
                lake.db.update(table, [str(number - 1)], name="changed")
            else:
                lake.db.insert(table, [str(number), "new", "1", AT])
        lake.flush()
        seconds.append(lake.apply())
        said.append(lake.said())
        print(f"commit {number}: {seconds[-1]:.2f} s, {said[-1]:,} bytes", flush=True)
    tail = seconds[1:] or seconds
    _told(
        tables=options.tables,
        commits=options.commits,
        first_s=round(seconds[0], 2),
        p50_s=round(statistics.median(tail), 3),
        most_s=round(max(tail), 3),
        said_bytes=said[-1],
        said_most=max(said),
    )


def versions(options: argparse.Namespace, lake: Lake) -> None:
    """One table that gets a column with every transaction."""
    columns = list(COLUMNS)
    for number in range(options.commits):
        columns = [*columns, (f"more{number}", "int4")]
        table = relation("public.grows", columns)
        lake.db.insert(table, [str(number), "new", "1", AT, *["7"] * (number + 1)])
        lake.flush()
    took = lake.apply()
    _told(versions=options.commits, seconds=round(took, 2), each=round(took / options.commits, 3))


def _told(**found: object) -> None:
    load = " ".join(f"{each:.1f}" for each in os.getloadavg())
    print(json.dumps({**found, "load": load, "cores": os.cpu_count()}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["tables", "versions"])
    parser.add_argument("--tables", type=int, default=300)
    parser.add_argument("--commits", type=int, default=20)
    parser.add_argument("--format", default="parquet")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="waltap-spark-commits-"))
    choice = FormatChoice(options.format)
    spark = start_session("benchmarks", master="local[2]", choice=choice, notes=folder / "notes")
    try:
        lake = Lake(folder, spark, choice)
        {"tables": tables, "versions": versions}[options.what](options, lake)
        lake.applier.close()
        lake.sink.close()
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
