"""Mixed load into Spark's tables while everything is killed: ``python -m benchmarks.spark_trial``.

    python -m benchmarks.spark_trial --format parquet --minutes 10 --kills 20
    .venv-spark41/bin/python -m benchmarks.spark_trial --format iceberg --minutes 10 --kills 20

A PostgreSQL of its own with twenty tables; writers insert, update, delete, move and swap keys, write large
values, truncate, add, drop, rename and widen columns. `waltap run` with the sink spark follows, and its
processes get SIGKILL: the engine, the Python of the driver, its JVM, and with ``--master
local-cluster[1,2,1024]`` the executor. A supervisor starts the engine again.

In the end: `waltap spark verify` over all tables; the rows of each table, and its history, by queries of
this program's own; versions (scd2) against those that plain Python makes of the change log.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
from tests.harness.servers import spark_jars
from tests.harness.servers.postgres import Cluster, Database
from tests.harness.versions import versions

from benchmarks.trial_load import Load, Table, tables_of
from waltap_sinks.changelog import ChangeLog
from waltap_spark.read.live import LiveTables
from waltap_spark.state.output import SparkOutput

WAIT_S = 900.0
COMPARED = ("id", "v", "large", "price", "day")
"""Columns whose text is the same in Python, in Spark and in PostgreSQL; ``note`` besides."""

VICTIMS = ("engine", "driver", "jvm", "engine and jvm")


def settings_of(table_format: str) -> dict[str, str]:
    """Return what a session of Spark needs for the format."""
    if table_format == "delta":
        return {"spark.jars": spark_jars.delta()}
    if table_format == "iceberg":
        return {"spark.jars": spark_jars.iceberg()}
    return {}


class Pipeline:
    """`waltap run` under a supervisor, and its processes, to be killed."""

    def __init__(self, database: Database, folder: Path, options: argparse.Namespace) -> None:
        self.folder, self.lake = folder, folder / "lake"
        self.ended: Counter[str] = Counter()
        self.kills: Counter[str] = Counter()
        self._chance = random.Random(options.seed)
        self._log = folder / "engine.log"
        self._stopping = threading.Event()
        self._engine: subprocess.Popen[bytes] | None = None
        source = {
            **database.properties(),
            "slot.name": "trial",
            "publication.name": "trial",
            "publication.autocreate.mode": "all_tables",
            "offset.flush.interval.ms": 200,
            "slot.retry.delay.ms": 500,
            "waltap.state.dir": str(folder / "state"),
        }
        kept = [
            f"public\\.{t.name}:{t.kept}" for t in options.tables if t.kept in ("scd2", "append")
        ]
        soft = [f"public\\.{t.name}:soft" for t in options.tables if t.kept == "soft"]
        sink = {
            "path": str(self.lake),
            "format": options.format,
            "mode": ",".join([*kept, "scd1"]),
            "deletes": ",".join([*soft, "hard"]),
            "spark.master": options.master,
            "changelog.retention.hours": 1000,
            "compaction.min.rows": 200,
            "compaction.merge.sets": 4,
            "retention.seconds": 30,
            **settings_of(options.format),
            **dict(pair.split("=", 1) for pair in options.set),
        }
        lines = ['name = "trial"', "[source]", 'type = "postgres"', *map(_line, source.items())]
        lines += ["[sink]", 'type = "spark"', *map(_line, sink.items())]
        (folder / "trial.toml").write_text("\n".join(lines))
        self._supervisor = threading.Thread(target=self._supervise, daemon=True)

    def start(self) -> None:
        """Run the engine until `stop`, again and again."""
        self._supervisor.start()

    def stop(self) -> None:
        """End the engine as an operator does, and wait until Spark has applied all."""
        self._stopping.set()
        if self._engine is not None:
            self._engine.terminate()
        self._supervisor.join(WAIT_S)
        limit = time.monotonic() + WAIT_S
        while self.processes("driver") and time.monotonic() < limit:
            time.sleep(0.2)

    def _supervise(self) -> None:
        while True:
            with self._log.open("ab") as out:
                self._engine = subprocess.Popen(
                    [sys.executable, "-m", "waltap", "run", "trial.toml"],
                    cwd=self.folder, stdout=out, stderr=out,
                )  # fmt: skip
            status = self._engine.wait()
            if self._stopping.is_set():
                self.ended[f"the last one: {status}"] += 1
                return
            if status != -9:
                said = self._log.read_text().strip().splitlines()
                reported = [line for line in said if "WT-" in line] or said
                self.ended[f"{status}: {(reported or ['nothing'])[-1][-300:]}"] += 1
            time.sleep(0.2)

    def processes(self, what: str) -> list[psutil.Process]:
        """Return the processes that are ``what``."""
        found = []
        for process in psutil.process_iter(["cmdline", "name", "environ", "cwd"]):
            words = process.info["cmdline"] or []
            if what == "engine":
                here = self._engine is not None and process.pid == self._engine.pid
            elif what == "driver":
                here = "waltap_spark.driver.driver" in words and f"{self.lake}/tables" in words
            else:
                java = process.info["name"] == "java" and process.info["cwd"] == str(self.folder)
                executor = any("CoarseGrainedExecutorBackend" in word for word in words)
                here = java and executor if what == "executor" else java and not executor
            if here and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        return found

    def kill_some(self, victims: tuple[str, ...]) -> str:
        """Kill what chance says; return it, "" where it was not there."""
        what = self._chance.choice(victims)
        found = [each for word in what.split(" and ") for each in self.processes(word)]
        for process in found:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        if found:
            self.kills[what] += 1
        return what if found else ""


class Judge:
    """What the tables have, against the source and the change log."""

    def __init__(
        self, database: Database, pipeline: Pipeline, options: argparse.Namespace, spark: Any
    ) -> None:
        self._database, self._options = database, options
        self._lake, self._spark = pipeline.lake, spark
        self._log = ChangeLog(str(self._lake / "changelog"))
        self._tables = LiveTables(spark, SparkOutput(str(self._lake / "tables")))

    def verdict(self) -> list[str]:
        """Return what is wrong."""
        found = []
        state = self._tables.state
        assert state is not None
        last = self._log.last()
        if last is None or state.log_position != last.log_position:
            found.append(
                f"the tables are at {state.log_position}, the log at {last and last.log_position}"
            )
        for table in self._options.tables:
            if f"public.{table.name}" not in state.tables:
                found.append(f"{table.name} is not there")
                continue
            found += self._history(table)
            if table.kept != "append":
                found += self._rows(table)
            if table.kept == "scd2":
                found += self._versions(table)
        return found

    def commits(self) -> int:
        """Return the number of the last commit."""
        state = self._tables.state
        return 0 if state is None else state.number

    def _columns(self, table: Table) -> list[str]:
        return [*COMPARED, table.notes[-1]]

    def _texts(self, frame: Any, columns: list[str], *more: str) -> list[Any]:
        texts = frame.selectExpr(*(f"cast(`{name}` as string)" for name in columns), *more)
        return [tuple(row) for row in texts.collect()]

    def _rows(self, table: Table) -> list[str]:
        columns = self._columns(table)
        listed = ", ".join(f'"{name}"::text' for name in columns)
        there = self._database.execute(f"SELECT {listed} FROM {table.name}")
        here = self._texts(self._tables.live_rows(f"public.{table.name}"), columns)
        return _difference(f"rows of {table.name}", Counter(there), Counter(here))

    def _history(self, table: Table) -> list[str]:
        frame = self._tables.changes(f"public.{table.name}")
        names = ("_epoch", "_commit_lsn", "_seq", "_sub", "_op", "id")
        here = Counter(self._texts(frame, list(names)))
        there: Counter[Any] = Counter()
        for part in self._log.rows("public", table.name):
            for row in part.select([n for n in names if n in part.column_names]).to_pylist():
                there[tuple(None if row.get(n) is None else str(row[n]) for n in names)] += 1
        return _difference(f"history of {table.name}", there, here)

    def _versions(self, table: Table) -> list[str]:
        columns = self._columns(table)
        frame = self._tables.current(f"public.{table.name}")
        more = ("struct(_from_epoch, _from_lsn)", "struct(_to_epoch, _to_lsn)", "_current")
        rows = self._texts(frame, columns, *more)
        wrong = [row for row in rows if row[-1] != (row[-2][0] is None)]
        n = len(columns)
        here = Counter(
            (row[:n], tuple(row[n]), None if row[n + 2] else tuple(row[n + 1])) for row in rows
        )
        model = versions(self._log, f"public.{table.name}", table.key, columns, table.called)
        found = _difference(f"versions of {table.name}", Counter(model), here)
        return found + (
            [f"{table.name}: {len(wrong)} versions are flagged wrongly"] if wrong else []
        )


def _difference(what: str, there: "Counter[Any]", here: "Counter[Any]") -> list[str]:
    missing, surplus = there - here, here - there
    if not missing and not surplus:
        return []
    some = [_short(row) for row in sorted(missing, key=str)[:3]]
    more = [_short(row) for row in sorted(surplus, key=str)[:3]]
    lacks = f"{missing.total()} of {there.total()} are missing, such as {some}"
    return [f"{what}: {lacks}; {surplus.total()} are too much, such as {more}"]


def _short(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_short, value))
    return f"{value[:6]}…{len(value)}" if isinstance(value, str) and len(value) > 40 else value


def verified(database: Database, lake: Path, options: argparse.Namespace) -> list[str]:
    """Return what `waltap spark verify` has to say, where it is not content."""
    more = [w for n, v in settings_of(options.format).items() for w in ("--set", f"{n}={v}")]
    command = [sys.executable, "-m", "waltap", "spark", "verify", str(lake), "--dsn", database.dsn]
    done = subprocess.run(
        [*command, "--master", "local[2]", *more],
        capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip
    (lake.parent / "verify.txt").write_text(done.stdout + done.stderr)
    return [f"waltap spark verify: {done.stdout}{done.stderr[-3000:]}"] if done.returncode else []


def judged(
    database: Database, pipeline: Pipeline, options: argparse.Namespace, output: SparkOutput
) -> tuple[list[str], dict[str, int]]:
    """Return what is wrong, and figures."""
    from waltap_spark.formats.choice import choice_of
    from waltap_spark.session.session import start_session

    ended = output.state()
    tables = {} if ended is None else ended.tables
    wrong = [f"{name} is suspended: {each.failed}" for name, each in tables.items() if each.failed]
    wrong = wrong or verified(database, pipeline.lake, options)
    spark = start_session(
        "trial", master="local[2]", settings=settings_of(options.format),
        notes=pipeline.folder / "judge.log", more=choice_of(output.state()).settings,
    )  # fmt: skip
    try:
        judge = Judge(database, pipeline, options, spark)
        wrong += judge.verdict()
        commits = judge.commits()
    finally:
        spark.stop()
    doubts = sum(bool(each.stale) for each in tables.values())
    return wrong, {"commits": commits, "tables that doubt themselves": doubts}


def play(database: Database, folder: Path, options: argparse.Namespace) -> list[str]:
    """Return what is not as promised."""
    for table in options.tables:
        database.execute(table.create(options.rows))
    load = Load(
        database, options.tables, options.rows, options.seed,
        pause_s=options.pause, alter_s=options.alter,
    )  # fmt: skip
    pipeline = Pipeline(database, folder, options)
    chance = random.Random(options.seed + 1)
    victims = (*VICTIMS, "executor") if "cluster" in options.master else VICTIMS
    output = SparkOutput(str(pipeline.lake / "tables"))
    began = time.monotonic()
    pipeline.start()
    try:
        while output.state() is None:
            if time.monotonic() > began + WAIT_S:
                return [f"no commit came: {pipeline.ended} {_tail(folder / 'engine.log')}"]
            time.sleep(0.2)
        load.start()
        began, seconds = time.monotonic(), options.minutes * 60
        moments = [(n + chance.random()) * seconds / options.kills for n in range(options.kills)]
        for moment in moments:
            time.sleep(max(0.0, began + moment - time.monotonic()))
            while not pipeline.kill_some(victims) and time.monotonic() < began + seconds:
                time.sleep(0.1)
            if options.say:
                print(f"{moment:.0f} s: {dict(pipeline.kills)}, ended {dict(pipeline.ended)}")
        time.sleep(max(0.0, began + seconds - time.monotonic()))
        load.finish()
        database.execute("INSERT INTO plain0 (id, v) VALUES (2000000000, 1)")
        caught_up = time.monotonic()
        ((end,),) = database.execute("SELECT pg_current_wal_lsn() - '0/0'")
        state = output.state()
        beat = 0
        while (
            state is None
            or state.log_position.end_lsn < int(end)
            or state.log_position.end_lsn <= beat
        ):
            if time.monotonic() > caught_up + options.wait:
                return [
                    f"the tables did not catch up: {state and state.log_position}, {pipeline.ended}"
                ]
            time.sleep(0.2)
            state = output.state()
            if (
                state is not None
                and state.log_position.end_lsn < int(end)
                and pipeline.processes("engine")
            ):
                database.execute("SELECT pg_logical_emit_message(true, 'trial', '')")
                ((beat,),) = database.execute("SELECT (pg_current_wal_lsn() - '0/0')::bigint")
                database.execute("UPDATE plain0 SET v = v + 1 WHERE id = 2000000000")
        waited = time.monotonic() - caught_up
    finally:
        pipeline.stop()
    wrong, more = judged(database, pipeline, options, output)
    reported = {
        "format": options.format,
        "master": options.master,
        "minutes": options.minutes,
        "seed": options.seed,
        "kills": dict(pipeline.kills),
        "engine ended by itself": dict(pipeline.ended),
        **more,
        "caught up after": round(waited, 1),
        "load": os.getloadavg(),
        "done": dict(sorted(load.done.items())),
    }
    print(json.dumps(reported, indent=1))
    return wrong


def _tail(path: Path) -> str:
    return path.read_text()[-3000:] if path.exists() else "no log"


def _line(item: tuple[str, object]) -> str:
    return f"{json.dumps(item[0])} = {json.dumps(item[1])}"


def main() -> int:
    """Run the trial; 0: all is as promised."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--format", choices=("parquet", "delta", "iceberg"), default="parquet")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--rows", type=int, default=400, help="of each table at the start")
    parser.add_argument("--count", type=int, default=20, help="tables")
    parser.add_argument("--pause", type=float, default=0.05, help="seconds, of each writer")
    parser.add_argument("--alter", type=float, default=8.0, help="seconds between alterations")
    parser.add_argument("--wait", type=float, default=WAIT_S, help="seconds until they caught up")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--keep", type=Path, help="a new folder for logs and tables, which stays")
    parser.add_argument("--say", action="store_true", help="report each kill")
    options = parser.parse_args()
    options.tables = tables_of(options.count)
    server = Cluster.create()
    with tempfile.TemporaryDirectory(prefix="waltap-trial-") as scratch:
        folder = options.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            wrong = play(server.create_database("trial"), folder.resolve(), options)
        finally:
            server.remove()
    print(f"seed {options.seed}: {'; '.join(wrong) or 'everything is as promised'}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
