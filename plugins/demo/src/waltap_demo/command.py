"""The ``waltap demo`` command: set up, capture, replay, compare, answer."""

import contextlib
import datetime as dt
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from waltap.cli.terminal import answers
from waltap.errors import usage_error
from waltap_demo.errors import DemoDifferent
from waltap_demo.flights import HERE, DayData, load, row_counts
from waltap_demo.processes import (
    EmbeddedServer,
    EngineProcess,
    embedded_server,
    running_server,
    write_profile,
)
from waltap_demo.replay import OperationReplay, ReplayProgress, day_of_operations, night_run
from waltap_spark.session.java import require_java

# A blizzard: 472 of 930 flights were cancelled.
STORMY = "2013-02-08"

DATABASE = "flights"
IN_2013 = "2013-01-01 to 2013-12-31"

# The JVM's second compiler costs more than it saves in a session of a dozen queries.
SHORT_LIVED = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}


def demo(
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="DIR", help="Folder for everything the demo makes."),
    ] = Path("demo-output"),
    day: Annotated[
        str,
        typer.Option("--day", metavar="DATE", help="Day of 2013 that is held back and replayed."),
    ] = STORMY,
    seconds: Annotated[
        float,
        typer.Option(
            "--seconds", metavar="S", min=0, help="Time that the day takes in the replay."
        ),
    ] = 20.0,
    keep_running: Annotated[
        bool, typer.Option("--keep-running", help="Leave database and pipeline running at the end.")
    ] = False,
) -> None:
    """Turn a PostgreSQL database into live Spark tables, and compare every row.

    Starts an embedded PostgreSQL, loads every flight that left New York in 2013, runs the engine
    with the Spark sink, replays a day of operations, and checks that both sides are equal.
    """
    console = answers()
    try:
        chosen = dt.date.fromisoformat(day)
    except ValueError as cause:
        raise usage_error("--day", "is not a date", value=day, allowed=IN_2013) from cause
    if chosen.year != 2013:
        raise usage_error("--day", "has no flights", value=day, allowed=IN_2013)
    # Fail before the work, not when Spark starts.
    require_java()
    _DemoRun(console, output.absolute(), chosen, seconds, keep_running=keep_running).run()


class _DemoRun:
    """Run the demo once."""

    def __init__(
        self, console: Console, folder: Path, day: dt.date, seconds: float, *, keep_running: bool
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
            self._report(server, engine)
        if not equal:
            raise DemoDifferent("source and Spark are not equal", folder=self.folder)

    # --- steps ------------------------------------------------------------------------------------

    def _clear(self) -> None:
        """Remove an earlier demo's files from the folder."""
        # Only a folder that a demo created may be deleted.
        marker = self.folder / ".waltap-demo"
        if self.folder.exists() and any(self.folder.iterdir()):
            if not marker.exists():
                what = "is a folder with other files in it"
                raise usage_error("--output", what, value=str(self.folder))
            running = running_server(self.folder / "postgres")
            if running is not None:
                what = f"has a demo that still runs; kill {running} ends its server"
                raise usage_error("--output", what, value=str(self.folder))
            shutil.rmtree(self.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        marker.touch()

    def _load(self, server: EmbeddedServer) -> DayData:
        started = time.monotonic()
        with server.connect("postgres") as connection:
            version = connection.info.parameter_status("server_version")
            self._step(f"PostgreSQL {version} is running; loading the flights of 2013")
            connection.execute(f"CREATE DATABASE {DATABASE}")
        with server.connect(DATABASE) as connection:
            data, rows = load(connection, self.day)
            counts = row_counts(connection)
        elapsed = time.monotonic() - started
        self._note(", ".join(f"{count:,} {table}" for table, count in counts.items()))
        self.rates.append(("load by COPY", f"{rows:,} rows in {elapsed:.1f} s"))
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
            engine.wait_until(engine.ready_file.exists, 120, "the snapshot")
            elapsed = time.monotonic() - started
            rows = progress.logged_rows()
            self._note(
                f"{rows:,} rows are in the change log after {elapsed:.1f} s; streaming begins"
            )
            self.rates.append(("snapshot, start of waltap included", _rate(rows, elapsed)))
            status("Spark builds the tables")
            engine.wait_until(lambda: progress.applied_rows() >= rows, 120, "Spark")
        elapsed = time.monotonic() - started
        self._note(f"{progress.applied_rows():,} rows are in Spark tables after {elapsed:.1f} s")
        self.rates.append(
            ("the same, as Spark tables, start of Spark included", _rate(rows, elapsed))
        )

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
            elapsed = time.monotonic() - started
            self._note(f"{night.rows:,} rows updated at once are in Spark {elapsed:.1f} s later")
            self.rates.append(("one large transaction, to Spark", _rate(night.rows, elapsed)))

    def _wait(self, engine: EngineProcess, replay: OperationReplay) -> None:
        with self._spinner("Spark catches up"):
            engine.wait_until(replay.caught_up, 120, "catching up")

    def _compare(self, server: EmbeddedServer) -> bool:
        from waltap_sinks.comparison import comparison_table
        from waltap_spark.read.live import open_tables
        from waltap_spark.read.verify import compare
        from waltap_spark.session.session import start_session

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
                for title, sql in _questions(self.day):
                    self.console.print(_answer(title, spark.sql(sql)))
            finally:
                spark.stop()
        return all(each.equal for each in found)

    # --- reports ----------------------------------------------------------------------------------

    def _report(self, server: EmbeddedServer, engine: EngineProcess) -> None:
        rates = Table(title="rates", show_header=False)
        for name, value in self.rates:
            rates.add_row(name, value)
        self.console.print(rates)
        lake = self.folder / "lake"
        paths = Table(title="where everything is", show_header=False)
        paths.add_row("profile", str(self.folder / "flights.toml"))
        paths.add_row("change log (Parquet and manifests)", str(lake / "changelog"))
        paths.add_row("Spark tables (Parquet)", str(lake / "tables"))
        paths.add_row("logs", f"{engine.log_file}, {engine.spark_log}")
        waltap = "waltap" if shutil.which("waltap") else sys.argv[0]
        paths.add_row(
            "query the tables", f'{waltap} spark sql {lake} "select * from flights limit 5"'
        )
        if self.keep_running:
            paths.add_row("database", f'psql "{server.dsn(DATABASE)}"')
            paths.add_row("stop", f"kill {engine.pid}; then stop the server: kill {server.pid}")
        self.console.print(paths)
        self.console.print(f"Done in {time.monotonic() - self.began:.0f} s.")

    def _step(self, text: str) -> None:
        self.console.print(f"[bold cyan]{time.monotonic() - self.began:5.1f} s[/]  [bold]{text}[/]")

    def _note(self, text: str) -> None:
        self.console.print(f"         {text}", style="dim")

    @contextlib.contextmanager
    def _spinner(self, text: str) -> Iterator[Any]:
        """Show a spinner on a terminal. The yielded function changes its text."""
        if self.console.is_terminal:
            with self.console.status(text) as status:
                yield status.update
        else:
            yield lambda _text: None


def _rate(rows: int, seconds: float) -> str:
    return f"{rows:,} rows in {seconds:.1f} s: {rows / max(seconds, 1e-9):,.0f} rows/s"


def _questions(day: dt.date) -> Iterator[tuple[str, str]]:
    """Yield the titles and queries of ``questions.sql``, about the replayed day."""
    for part in (HERE / "questions.sql").read_text().split("-- ")[1:]:
        title, sql = part.split("\n", 1)
        yield title, sql.strip().rstrip(";").replace("{day}", day.isoformat())


def _answer(title: str, frame: Any) -> Table:
    table = Table(title=title, title_justify="left")
    for field in frame.schema.fields:
        text = field.dataType.typeName() == "string"
        table.add_column(field.name.replace("_", " "), justify="left" if text else "right")
    for row in frame.collect():
        table.add_row(*("" if value is None else _text(value) for value in row))
    return table


def _text(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
