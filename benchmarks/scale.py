"""``python -m benchmarks.scale`` tables|columns|large-rows|schema-changes|soak|all: how far one process
goes.

A `waltap run` in a process of its own is watched from outside: how long until it streams, its resident
memory, its file descriptors, its processor time. `--write` keeps what was seen in ``benchmarks/results``.
"""

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from tests.harness.servers.postgres import Cluster, Database, Unavailable, server_programs

from benchmarks.machine import stamp
from benchmarks.measured import Failed
from benchmarks.report import write_cases

WAIT_S = 600.0
POLL_S = 0.05
COLUMNS_MAX = 1600
"""As many as a table of PostgreSQL can have."""

Figures = dict[str, float | int | str]


@dataclass
class Run:
    """One ``waltap run`` of all tables of a database. Memory is the resident set, in MiB."""

    database: Database
    folder: Path
    sink: str
    mode: str = "no_data"
    settings: dict[str, str] = field(default_factory=dict)
    ready_s: float = 0.0
    _process: subprocess.Popen[bytes] | None = None

    def start(self) -> "Run":
        """Start it and wait until it streams. Raises: Failed when it ends before."""
        properties = {
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "topic.prefix": "scale",
            "plugin.name": "pgoutput",
            "slot.name": "scale",
            "snapshot.mode": self.mode,
            "publication.autocreate.mode": "all_tables",
            "waltap.state.dir": str(self.folder / "state"),
            **self.database.properties(),
            **self.settings,
        }
        self.folder.mkdir(parents=True)
        path, ready = self.folder / "scale.properties", self.folder / "ready"
        path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        sink = self.sink if self.sink == "null" else f"{self.sink}:{self.folder / 'output'}"
        # An environment of another pyspark may lack the script `waltap`.
        command: list[str | Path] = [sys.executable, "-m", "waltap", "run", path, "--sink", sink]
        started = time.perf_counter()
        with (self.folder / "stderr").open("w") as errors:
            self._process = subprocess.Popen(
                [*command, "--ready-file", ready],
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                env={**os.environ, "WALTAP_LOG_LEVEL": "WARNING"},
            )
        self._wait(ready.exists)
        self.ready_s = time.perf_counter() - started
        return self

    def catch_up(self) -> None:
        """Wait until all that is written by now is confirmed. Raises: Failed."""
        with self.database.connect() as connection:
            row = connection.execute("SELECT pg_current_wal_insert_lsn()").fetchone()
            assert row is not None
            (lsn,) = row

            def confirmed() -> bool:
                query = (
                    "SELECT bool_and(confirmed_flush_lsn >= %s) FROM pg_replication_slots"
                    " WHERE database = current_database()"
                )
                return bool((connection.execute(query, [lsn]).fetchone() or (False,))[0])

            self._wait(confirmed)

    def stop(self) -> None:
        """End it in order. Raises: Failed when it does not end well."""
        assert self._process is not None
        self._process.terminate()
        if self._process.wait(WAIT_S):
            raise Failed(self._said())

    def kill(self) -> None:
        """End it, whatever its state."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    @property
    def resident_mib(self) -> int:
        """Memory now."""
        return self._status("VmRSS")

    @property
    def peak_mib(self) -> int:
        """The most that it ever had."""
        return self._status("VmHWM")

    @property
    def files(self) -> int:
        """Open file descriptors."""
        return len(os.listdir(self._proc / "fd"))

    @property
    def cpu_s(self) -> float:
        """User and system time."""
        assert self._process is not None
        return _cpu_s(self._process.pid)

    @property
    def _proc(self) -> Path:
        assert self._process is not None
        return Path(f"/proc/{self._process.pid}")

    def _status(self, name: str) -> int:
        text = (self._proc / "status").read_text()
        (line,) = (each for each in text.splitlines() if each.startswith(name))
        return int(line.split()[1]) // 1024

    def _wait(self, met: Callable[[], bool]) -> None:
        assert self._process is not None
        deadline = time.monotonic() + WAIT_S
        while not met():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise Failed(self._said())
            time.sleep(POLL_S)

    def _said(self) -> str:
        return f"waltap: {(self.folder / 'stderr').read_text()[-2000:]}"


def main() -> int:
    """Measure what is asked for; 0: all of it ran."""
    options = _options()
    names = list(CASES) if options.case == "all" else [options.case]
    found: dict[str, list[Figures]] = {}
    try:
        with _server() as cluster:
            for name in names:
                found[name] = CASES[name](cluster, options)
                _show(name, found[name])
    except (Failed, Unavailable) as error:
        print(f"scale: {error}", file=sys.stderr)
        return 1
    if options.write:
        machine = {**stamp(server_programs()), "load": os.getloadavg()[0]}
        for name, figures in found.items():
            print(f"written: {write_cases(f'scale-{name}', machine, figures)}")
    return 0


def tables(cluster: Cluster, options: argparse.Namespace) -> list[Figures]:
    """Capture many tables: the start, with and without a snapshot, and the first changes of each."""
    found: list[Figures] = []
    for sink, mode in (("jsonl", "no_data"), ("jsonl", "initial"), ("changelog", "initial")):
        with _case(cluster, sink, mode) as run:
            with run.database.connect() as connection:
                for low in range(0, options.tables, 500):
                    numbers = range(low, min(low + 500, options.tables))
                    connection.execute("".join(map(_small_table, numbers)))
            run.start()
            figures: Figures = {
                "tables": options.tables,
                "sink": sink,
                "snapshot": mode,
                "streams after s": round(run.ready_s, 1),
                "resident MiB": run.resident_mib,
            }
            cpu = run.cpu_s
            with run.database.connect() as connection:
                for number in range(options.tables):
                    connection.execute(f"INSERT INTO s{number} VALUES (1, 'one', 1.5)")
                    connection.execute(f"UPDATE s{number} SET name = 'two'")
            run.catch_up()
            figures |= {
                "peak MiB with changes of all": run.peak_mib,
                "CPU ms a table": round((run.cpu_s - cpu) * 1000 / options.tables, 2),
                "files": run.files,
            }
            run.stop()
            found.append(figures)
    return found


def columns(cluster: Cluster, options: argparse.Namespace) -> list[Figures]:
    """Capture a table of as many columns as there can be."""
    found: list[Figures] = []
    names = [f"c{number}" for number in range(1, COLUMNS_MAX)]
    for sink in ("jsonl", "changelog"):
        with _case(cluster, sink, "initial") as run:
            run.database.execute(
                f"CREATE TABLE wide (id int PRIMARY KEY, {', '.join(f'{n} int' for n in names)})"
            )
            numbers = ", ".join(f"g + {number}" for number in range(1, COLUMNS_MAX))
            fill = f"INSERT INTO wide SELECT g, {numbers} FROM generate_series(%s::int, %s) g"
            run.database.execute(fill, 1, options.rows)
            run.start()
            snapshot_s, cpu, began = run.ready_s, run.cpu_s, time.perf_counter()
            run.database.execute(fill, options.rows + 1, 2 * options.rows)
            run.catch_up()
            found.append(
                {
                    "columns": COLUMNS_MAX,
                    "sink": sink,
                    "snapshot rows": options.rows,
                    "streams after s": round(snapshot_s, 1),
                    "streamed values/s": round(
                        options.rows * COLUMNS_MAX / (time.perf_counter() - began)
                    ),
                    "CPU ns a value": round((run.cpu_s - cpu) * 1e9 / options.rows / COLUMNS_MAX),
                    "peak MiB": run.peak_mib,
                }
            )
            run.stop()
    return found


def large_rows(cluster: Cluster, options: argparse.Namespace) -> list[Figures]:
    """Take rows of 100 MB, in the snapshot and in the stream."""
    found: list[Figures] = []
    for sink in ("jsonl", "changelog"):
        with _case(cluster, sink, "initial") as run:
            run.database.execute(
                "CREATE TABLE large (id int PRIMARY KEY, value text);"
                "ALTER TABLE large ALTER value SET STORAGE EXTERNAL"
            )
            insert = "INSERT INTO large SELECT %s::int, repeat(md5(%s::text), %s)"
            times = options.row_mb * 1_000_000 // 32
            for number in (1, 2):
                run.database.execute(insert, number, number, times)
            run.start()
            snapshot_mib, began = run.peak_mib, time.perf_counter()
            for number in (3, 4, 5):
                run.database.execute(insert, number, number, times)
            run.catch_up()
            found.append(
                {
                    "row MB": options.row_mb,
                    "sink": sink,
                    "peak MiB in the snapshot": snapshot_mib,
                    "peak MiB": run.peak_mib,
                    "stream MB/s, insert included": round(
                        3 * options.row_mb / (time.perf_counter() - began)
                    ),
                }
            )
            run.stop()
    return found


def schema_changes(cluster: Cluster, options: argparse.Namespace) -> list[Figures]:
    """Change the schema a thousand times, with rows between: of fifty tables in turn, and of one, which
    then has hundreds of dropped columns. What the server takes for it without a slot is beside it."""
    found: list[Figures] = []
    for tables_count in options.changed_tables:
        alone = _changes_alone(cluster, options.changes, tables_count)
        for sink in ("jsonl", "changelog"):
            with _case(cluster, sink, "no_data") as run:
                run.database.execute(_moving_tables(tables_count))
                run.start()
                before, cpu, ours = run.resident_mib, run.cpu_s, _backends_cpu_s(run.database)
                began = time.perf_counter()
                with run.database.connect() as connection:
                    _change_schemas(connection, options.changes, tables_count)
                    made_s = time.perf_counter() - began
                    writer = _cpu_s(connection.info.backend_pid)
                run.catch_up()
                seconds = time.perf_counter() - began
                each = 1000 / options.changes
                found.append(
                    {
                        "schema changes": options.changes,
                        "tables": tables_count,
                        "sink": sink,
                        "made in s, no slot": round(alone, 1),
                        "made in s": round(made_s, 1),
                        "taken in s": round(seconds, 1),
                        "a minute": round(options.changes * 60 / seconds),
                        "CPU ms a change": round((run.cpu_s - cpu) * each, 2),
                        "of the server for us": round(
                            (_backends_cpu_s(run.database) - ours) * each, 2
                        ),
                        "of the server to make it": round(writer * each, 2),
                        "resident MiB before": before,
                        "resident MiB after": run.resident_mib,
                        "load": round(os.getloadavg()[0], 1),
                    }
                )
                run.stop()
    return found


def _changes_alone(cluster: Cluster, changes: int, tables_count: int) -> float:
    database = cluster.create_database("scale_alone")
    try:
        database.execute(_moving_tables(tables_count))
        with database.connect() as connection:
            began = time.perf_counter()
            _change_schemas(connection, changes, tables_count)
            return time.perf_counter() - began
    finally:
        database.drop()


def _moving_tables(count: int) -> str:
    return "".join(
        f"CREATE TABLE moving{n} (id serial PRIMARY KEY, note text);" for n in range(count)
    )


def _change_schemas(connection: Any, changes: int, tables_count: int) -> None:
    for number in range(changes):
        turn, table = divmod(number, tables_count)
        what = (
            f"ADD c{turn} int"
            if turn % 2 == 0
            else f"DROP c{turn - 1}, ALTER note TYPE {('varchar', 'text')[turn % 4 == 1]}"
        )
        connection.execute(f"ALTER TABLE moving{table} {what}")
        connection.execute(f"INSERT INTO moving{table} (note) VALUES ('x')")


def _backends_cpu_s(database: Database) -> float:
    """Return the processor time of the server's processes for a database, this question's left out."""
    query = (
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
        " AND pid <> pg_backend_pid()"
    )
    return sum(_cpu_s(pid) for (pid,) in database.execute(query))


def _cpu_s(pid: int) -> float:
    """Return user and system time of a process, 0 when it is gone."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def soak(cluster: Cluster, options: argparse.Namespace) -> list[Figures]:
    """Run under a steady load: what it holds must not grow."""
    found: list[Figures] = []
    with contextlib.ExitStack() as stack:
        runs = [
            stack.enter_context(_case(cluster, sink, "initial")) for sink in ("jsonl", "changelog")
        ]
        for run in runs:
            run.database.execute("".join(map(_small_table, range(20))))
            run.start()
        finish = threading.Event()
        writers = [threading.Thread(target=_write_on, args=(run.database, finish)) for run in runs]
        for writer in writers:
            writer.start()
        stack.callback(finish.set)
        seen: list[list[tuple[float, int, int]]] = [[] for _ in runs]
        began = time.monotonic()
        while (passed := time.monotonic() - began) < options.seconds:
            time.sleep(min(options.seconds / 180, 10))
            for run, rows in zip(runs, seen, strict=True):
                rows.append((passed, run.resident_mib, run.files))
        finish.set()
        for writer in writers:
            writer.join()
        for run, rows in zip(runs, seen, strict=True):
            run.catch_up()
            third = len(rows) // 3
            middle, last = rows[third : 2 * third], rows[2 * third :]
            (count,) = run.database.execute("SELECT sum(id) FROM written")[0]
            found.append(
                {
                    "sink": run.sink,
                    "minutes": round(options.seconds / 60, 1),
                    "transactions": int(count),
                    "MiB, middle third": _median([mib for _, mib, _ in middle]),
                    "MiB, last third": _median([mib for _, mib, _ in last]),
                    "files, middle third": max(files for _, _, files in middle),
                    "files, last third": max(files for _, _, files in last),
                }
            )
            run.stop()
    return found


def _write_on(database: Database, finish: threading.Event) -> None:
    """Insert, update and delete in twenty tables, about 200 transactions a second."""
    number = 0
    with database.connect() as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS written (id bigint)")
        while not finish.wait(0.005):
            number += 1
            with connection.transaction():
                connection.execute(
                    f"INSERT INTO s{number % 20} VALUES ({number}, 'n', {number % 1000})"
                )
                connection.execute(f"UPDATE s{number % 20} SET name = 'm' WHERE id = {number}")
                connection.execute(f"DELETE FROM s{number % 20} WHERE id < {number - 20_000}")
        connection.execute("INSERT INTO written VALUES (%s)", [number])


def _small_table(number: int) -> str:
    return (
        f"CREATE TABLE s{number} (id int PRIMARY KEY, name text, amount numeric(10,2),"
        f" at timestamptz DEFAULT now(), n{number % 7} int);"
    )


def _median(values: list[int]) -> int:
    return sorted(values)[len(values) // 2]


@contextlib.contextmanager
def _case(cluster: Cluster, sink: str, mode: str) -> Iterator[Run]:
    folder = Path(tempfile.mkdtemp(prefix="waltap-scale-"))
    database = cluster.create_database(f"scale_{sink}_{mode}")
    run = Run(database, folder / "run", sink, mode, {"slot.name": f"scale_{sink}"})
    try:
        yield run
    finally:
        run.kill()
        database.drop()
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _server() -> Iterator[Cluster]:
    # a table's lock is an entry for each of thousands in one transaction
    cluster = Cluster.create(max_locks_per_transaction="1024", shared_buffers="512MB")
    try:
        yield cluster
    finally:
        cluster.remove()


def _show(name: str, rows: list[Figures]) -> None:
    table = Table(title=name, title_justify="left")
    for column in rows[0]:
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            *(f"{value:,}" if isinstance(value, int) else str(value) for value in row.values())
        )
    Console(width=140).print(table)


def _options() -> Any:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("case", choices=[*CASES, "all"])
    parser.add_argument("--tables", type=int, default=5000)
    parser.add_argument("--rows", type=int, default=2000, help="of 1,600 columns")
    parser.add_argument("--row-mb", type=int, default=100)
    parser.add_argument("--changes", type=int, default=1000, help="of the schema")
    parser.add_argument(
        "--changed-tables",
        type=int,
        nargs="+",
        default=[50, 1],
        help="whose schema changes in turn",
    )
    parser.add_argument("--seconds", type=int, default=1800, help="of the soak")
    parser.add_argument(
        "--write", action="store_true", help="keep the figures in benchmarks/results"
    )
    return parser.parse_args()


CASES: dict[str, Callable[[Cluster, argparse.Namespace], list[Figures]]] = {
    "tables": tables,
    "columns": columns,
    "large-rows": large_rows,
    "schema-changes": schema_changes,
    "soak": soak,
}

if __name__ == "__main__":
    sys.exit(main())
