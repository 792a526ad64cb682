"""What a commit of Spark's tables costs, and how that grows: ``python -m benchmarks.spark_commits WHAT``.

``tables``: so many tables with one change each a commit, and a commit every ``--every`` seconds, while
files are maintained beside them; the time of a commit, and the size of the file with the tables' state,
early and late. ``versions``: one table whose schema is another with every transaction, in one commit.
Both without a server: a change log is written by hand, and applied in this process. ``latency``: a
PostgreSQL with ``--rate`` transactions a second over ``--spread`` tables, `waltap run` with the sink
spark; from when COMMIT returned until a reader of the tables sees the transaction. ``growth``: the
same at each of ``--rates``,
each for ``--seconds`` (900: a quarter of an hour). Both say how long it takes, and how large what says
that file is, early and late.
"""

import argparse
import json
import os
import shutil
import statistics
import tempfile
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

from tests.harness.changelog import Database, batch, context, relation
from tests.harness.servers.postgres import Cluster

from benchmarks.scale import WAIT_S, Run
from benchmarks.spark_trial import settings_of
from waltap_sinks.changelog import ChangeLog, ChangeLogProperties, ChangeLogSink
from waltap_spark.apply.applier import OutputApplier
from waltap_spark.formats.choice import FormatChoice
from waltap_spark.session.session import prepare, start_session
from waltap_spark.state.output import SparkOutput

EACH = 5
"""One of so many transactions is measured: what tells its position costs the writer time."""

WRITERS = 3
"""Connections that write, for one alone waits for its commits."""

COLUMNS = [("id", "int4"), ("name", "text"), ("n", "int8"), ("at", "timestamptz")]
AT = "2026-01-01 00:00:00+00"


class Lake:
    """A change log and the tables that follow it."""

    def __init__(self, folder: Path, spark: object, choice: FormatChoice) -> None:
        self.db = Database()
        self.folder = folder
        settings = ChangeLogProperties(path=str(folder / "log"))
        self.sink = ChangeLogSink(settings, context(folder, has_offset=True))
        self.sink.open()
        self.log = ChangeLog(str(folder / "log"))
        self.output = SparkOutput(str(folder / "out"))
        self.applier = OutputApplier(prepare(spark), self.log, self.output, choice=choice)
        self.applier.open()

    def flush(self) -> None:
        self.sink.write(batch(self.db.commit()))
        self.sink.flush()

    def apply(self) -> float:
        started = time.monotonic()
        self.applier.apply(list(self.log.manifests(self.applier.state.log_position)))
        return time.monotonic() - started

    def said(self) -> int:
        """Return the bytes of the newest file of the tables' state."""
        return self._commits()[-1].stat().st_size

    def said_whole(self) -> int:
        """Return the bytes of the newest such file that is whole: all that is known of the tables."""
        return _whole(self.folder / "out")

    def _commits(self) -> list[Path]:
        return sorted((self.folder / "out" / "_waltap" / "commits").glob("*.json"))


def tables(options: argparse.Namespace, lake: Lake) -> None:
    """One change of every table a commit."""
    made = [relation(f"public.t{n:04}", COLUMNS) for n in range(options.tables)]
    seconds, cpu, said, whole = [], [], [], []
    lake.applier.keep_up()
    for number in range(options.commits):
        began = time.monotonic()
        for table in made:
            if number and number % 2:
                lake.db.update(table, [str(number - 1)], name="changed")
            else:
                lake.db.insert(table, [str(number), "new", "1", AT])
        lake.flush()
        used = time.process_time()
        seconds.append(lake.apply())
        cpu.append(time.process_time() - used)  # and what the thread beside it used meanwhile
        said.append(lake.said())
        whole.append(lake.said_whole())
        if number % 20 == 0:
            print(f"commit {number}: {seconds[-1]:.2f} s, {said[-1]:,} bytes", flush=True)
        time.sleep(max(0.0, began + options.every - time.monotonic()))
    part = max(1, (options.commits - 1) // 4)
    _report(
        tables=options.tables,
        commits=options.commits,
        first_s=round(seconds[0], 2),
        **_spread("", seconds[1:] or seconds),
        **_spread("cpu_", cpu[1:] or cpu),
        **_spread("early_", seconds[1 : part + 1] or seconds),
        **_spread("late_", seconds[-part:]),
        commit_file_bytes=round(statistics.median(said)),
        whole_file_bytes_early=whole[part],
        whole_file_bytes_late=whole[-1],
    )


def _spread(name: str, seconds: list[float]) -> dict[str, float]:
    """Return the half, and the 95th hundredth, of ``seconds``."""
    found = sorted(seconds)
    return {
        f"{name}p50_s": round(statistics.median(found), 3),
        f"{name}p95_s": round(found[int(len(found) * 0.95)], 3),
    }


def versions(options: argparse.Namespace, lake: Lake) -> None:
    """One table that gets a column with every transaction."""
    columns = list(COLUMNS)
    for number in range(options.commits):
        columns = [*columns, (f"more{number}", "int4")]
        table = relation("public.grows", columns)
        lake.db.insert(table, [str(number), "new", "1", AT, *["7"] * (number + 1)])
        lake.flush()
    took = lake.apply()
    _report(versions=options.commits, seconds=round(took, 2), each=round(took / options.commits, 3))


def latency(options: argparse.Namespace, folder: Path) -> None:
    """A steady stream of transactions: how long each takes until readers of the tables see it."""
    cluster = Cluster.create()
    try:
        database = cluster.create_database("latency")
        for number in range(options.spread):
            database.execute(f"CREATE TABLE stream{number} (id int PRIMARY KEY, v text)")
            database.execute(
                f"INSERT INTO stream{number} SELECT -n, 'first' FROM generate_series(1, 1000) n"
            )
        sink = {"format": options.format, **settings_of(options.format)}
        settings = {f"waltap.sink.{name}": value for name, value in sink.items()}
        run = Run(database, folder / "run", "spark", "initial", settings)
        began = time.monotonic()
        run.start()
        try:
            place = folder / "run" / "output" / "tables"
            _report(**_follow(options, database, SparkOutput(str(place)), place, began))
            run.stop()
        finally:
            run.kill()
    finally:
        cluster.remove()


def growth(options: argparse.Namespace, folder: Path) -> None:
    """Latency, and what is kept of the commits, at several rates."""
    for rate in options.rates:
        options.rate = rate
        latency(options, folder / f"at-{rate:g}")


def _follow(
    options: argparse.Namespace, database: Any, output: SparkOutput, place: Path, began: float
) -> dict[str, Any]:
    """Write, and return the latencies; ``began`` is when the pipeline was started."""
    committed: deque[tuple[int, float]] = deque()
    written: list[float] = []
    ends = threading.Event()

    def write(which: int) -> None:
        with database.connect() as connection:
            number, due = 0, time.monotonic()
            while not ends.is_set():
                table = f"stream{(number // 2 * WRITERS + which) % options.spread}"
                if number % 2:
                    query = f"UPDATE {table} SET v = 'changed' WHERE id = %s RETURNING 1"
                else:
                    query = f"INSERT INTO {table} VALUES (%s, 'new') RETURNING 1"
                connection.execute(query, [number // 2 * WRITERS + which])
                at = time.monotonic()
                if number % EACH == 0:
                    lsn = connection.execute("SELECT pg_current_wal_lsn() - '0/0'").fetchone()
                    committed.append((int(lsn[0]), at))
                number += 1
                written.append(at)
                due += WRITERS / options.rate
                time.sleep(max(0.0, due - time.monotonic()))

    writers = [threading.Thread(target=write, args=[which]) for which in range(WRITERS)]
    for writer in writers:
        writer.start()
    seconds: list[float] = []
    minutes: dict[int, list[float]] = {}
    sizes: list[int] = []
    commits, last, first = 0, 0, 0.0
    try:
        limit = unbegun = time.monotonic() + WAIT_S
        while time.monotonic() < limit:
            state, now = output.state(), time.monotonic()
            if state is None or state.number == last:
                time.sleep(0.01)
                continue
            last = state.number
            if limit == unbegun:  # Spark runs now; what it found when it began does not count
                first = now - began
                limit = now + options.warm_up + options.seconds
            counts = limit - now < options.seconds
            commits += counts
            if counts:
                sizes.append(_whole(place))
            while committed and committed[0][0] <= state.log_position.end_lsn:
                _lsn, at = committed.popleft()
                if counts:
                    seconds.append(now - at)
                    minute = int((options.seconds - (limit - now)) / 60)
                    minutes.setdefault(minute, []).append(now - at)
    finally:
        ends.set()
        for writer in writers:
            writer.join()
    return {
        "transactions_a_second": round(len(written) / (written[-1] - written[0])),
        "of_which_measured": len(seconds),
        "left": len(committed),
        "commits": commits,
        "first_commit_s": round(first, 1),
        **_spread("", seconds),
        "most_s": round(max(seconds), 3),
        "p95_and_most_by_minute_s": [
            [_spread("", each)["p95_s"], round(max(each), 3)] for each in minutes.values()
        ],
        **_spread("early_", seconds[: len(seconds) // 4 + 1]),
        **_spread("late_", seconds[-(len(seconds) // 4 + 1) :]),
        "whole_file_bytes_early": sizes[len(sizes) // 4],
        "whole_file_bytes_late": sizes[-1],
    }


def _whole(place: Path) -> int:
    """Return the bytes of the newest commit file below ``place`` that is whole."""
    named = sorted((place / "_waltap" / "commits").glob("*.json"))
    return next((each.stat().st_size for each in reversed(named) if "-" not in each.name), 0)


def _report(**found: object) -> None:
    load = " ".join(f"{each:.1f}" for each in os.getloadavg())
    print(json.dumps({**found, "load": load, "cores": os.cpu_count()}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["tables", "versions", "latency", "growth"])
    parser.add_argument("--tables", type=int, default=300)
    parser.add_argument("--commits", type=int, default=20)
    parser.add_argument("--every", type=float, default=1.0, help="seconds from commit to commit")
    parser.add_argument("--rate", type=float, default=200.0, help="transactions a second")
    parser.add_argument("--spread", type=int, default=1, help="tables of latency and growth")
    parser.add_argument("--rates", type=float, nargs="*", default=[1.0, 10.0, 100.0])
    parser.add_argument(
        "--warm-up",
        type=float,
        default=20.0,
        help="seconds after the first commit that do not count",
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="seconds that do")
    parser.add_argument("--format", default="parquet")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="waltap-spark-commits-"))
    try:
        if options.what in ("latency", "growth"):
            {"latency": latency, "growth": growth}[options.what](options, folder)
        else:
            _by_hand(options, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _by_hand(options: argparse.Namespace, folder: Path) -> None:
    choice = FormatChoice(options.format)
    spark = start_session(
        "benchmarks",
        master="local[2]",
        settings=settings_of(options.format),
        more=choice.settings,
        notes=folder / "notes",
    )
    try:
        lake = Lake(folder, spark, choice)
        {"tables": tables, "versions": versions}[options.what](options, lake)
        lake.applier.close()
        lake.sink.close()
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
