"""What is measured: the server's own tools, waltap into its sinks, and Debezium.

Each contender has a slot of its own on one server. Before the data is loaded it is made `ready`, so
that afterwards its slot holds exactly the backlog; `drain` then takes the backlog to its end.
"""

import abc
import atexit
import compileall
import functools
import json
import shutil
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tests.harness.servers.postgres import Database, program

from benchmarks.dataset import EMPTY, TABLE, fill
from benchmarks.measured import Measured, run

ROOT = Path(__file__).parent.parent
PEER = ROOT / "benchmarks" / "peer" / "run-peer"
TUNED = {
    "max.batch.size": "8192",
    "max.queue.size": "32768",
    "poll.interval.ms": "10",
}
"""What helps Debezium most: larger batches and a queue to match, and no waiting between polls."""

OFFSET_ROWS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One measurement. ``seconds`` is the time in which the rows went through, without start-up."""

    contender: str
    round: int
    rows: int
    seconds: float
    wall_seconds: float
    cpu_seconds: float
    peak_mib: float

    @property
    def rate(self) -> float:
        """Rows per second."""
        return self.rows / self.seconds


@dataclass
class Contender(abc.ABC):
    """One way to get the rows; ``slot`` is unique for contender and round."""

    name: str
    database: Database
    folder: Path
    slot: str = "unused"
    round: int = 1

    def ready(self) -> None:
        """Make slot and offsets, so that what is loaded next is the backlog; then end."""

    @abc.abstractmethod
    def drain(self, rows: int, until_lsn: str) -> Result:
        """Take the backlog, ``rows`` rows that end before ``until_lsn``, and measure it."""

    def snapshot(self, rows: int) -> Result:
        """Read the whole table as an initial snapshot and measure it."""
        raise NotSupported(self.name)

    def _result(self, rows: int, measured: Measured, seconds: float | None = None) -> Result:
        return Result(
            contender=self.name,
            round=self.round,
            rows=rows,
            seconds=measured.seconds if seconds is None else seconds,
            wall_seconds=measured.seconds,
            cpu_seconds=measured.cpu_seconds,
            peak_mib=measured.peak_mib,
        )


class NotSupported(Exception):
    """A contender was asked for what it cannot do."""


@dataclass
class PgRecvlogical(Contender):
    """PostgreSQL's own client for logical slots, to /dev/null: nobody can be faster than the server."""

    plugin: str = "pgoutput"
    options: tuple[str, ...] = ("proto_version=1", "publication_names=bench")

    def ready(self) -> None:
        """Make the slot."""
        self.database.execute(
            f"SELECT pg_create_logical_replication_slot('{self.slot}', '{self.plugin}')"
        )

    def drain(self, rows: int, until_lsn: str) -> Result:
        """Receive every message up to ``until_lsn``."""
        command = [
            *(program("pg_recvlogical"), "--start", "-S", self.slot, "-d", self.database.dsn),
            *(word for option in self.options for word in ("-o", option)),
            *(f"--endpos={until_lsn}", "--no-loop", "-f", "-"),
        ]
        return self._result(rows, run(command, self.folder, discard=True))


class Copy(Contender):
    """``COPY … TO STDOUT`` through psql to /dev/null: the limit of a snapshot."""

    def drain(self, rows: int, until_lsn: str) -> Result:
        """COPY does not stream."""
        raise NotSupported(self.name)

    def snapshot(self, rows: int) -> Result:
        """Copy the table out, in the format of the contender's name."""
        statement = f"COPY {TABLE} TO STDOUT (FORMAT {self.name.split()[-1]})"
        command = [program("psql"), "-Xq", "-d", self.database.dsn, "-c", statement]
        return self._result(rows, run(command, self.folder, discard=True))


@dataclass
class Waltap(Contender):
    """``waltap run`` into a sink, in a process of its own, with default properties."""

    sink: str = "null"
    output: Path | None = None
    settings: dict[str, str] = field(default_factory=dict)

    def ready(self) -> None:
        """Start; return when the slot exists and the offset is stored."""
        properties = self._properties(TABLE, "no_data")
        lsn = self.database.execute("SELECT pg_current_wal_lsn()")[0][0]
        self._run(properties, "--until-lsn", lsn)

    def drain(self, rows: int, until_lsn: str) -> Result:
        """Stream from the stored offset to ``until_lsn``; timed from when it streams."""
        properties = self._properties(TABLE, "no_data")
        ready = self.folder / "ready"
        ready.unlink(missing_ok=True)
        measured = self._run(properties, "--until-lsn", until_lsn, "--ready-file", ready)
        seconds = (measured.ended_at - ready.stat().st_mtime_ns) / 1e9
        self._check(rows)
        self._clear()
        return self._result(rows, measured, seconds)

    def snapshot(self, rows: int) -> Result:
        """Take an initial snapshot; the time that one of an empty table takes is start-up."""
        start_up = self._run(self._properties(EMPTY, "initial_only")).seconds
        self._clear()
        measured = self._run(self._properties(TABLE, "initial_only"))
        self._check(rows)
        self._clear()
        return self._result(rows, measured, measured.seconds - start_up)

    def first_rows(self) -> Measured:
        """Take an initial snapshot; measure the whole process."""
        measured = self._run(self._properties(TABLE, "initial_only"))
        self._clear()
        return measured

    def until_ready(self) -> tuple[float, Measured]:
        """Start and end at once; return the seconds from the start to streaming, and all."""
        properties, ready = self._properties(TABLE, "no_data"), self.folder / "ready"
        lsn = self.database.execute("SELECT pg_current_wal_lsn()")[0][0]
        measured = self._run(properties, "--until-lsn", lsn, "--ready-file", ready)
        after = (measured.ended_at - ready.stat().st_mtime_ns) / 1e9
        return measured.seconds - after, measured

    def _run(self, properties: Path, *options: str | Path) -> Measured:
        waltap = Path(sys.executable).parent / "waltap"
        sink = self.sink if self.output is None else f"{self.sink}:{self.output}"
        chosen = ("--sink", sink) if sink else ()  # otherwise the properties name it
        return run(
            [waltap, "run", properties, *chosen, *options],
            self.folder,
            environment={"WALTAP_LOG_LEVEL": "WARNING", **installed()},
        )

    def _properties(self, table: str, mode: str) -> Path:
        slot = self.slot if mode == "no_data" else f"{self.slot}_{table.rpartition('.')[2]}"
        return _write_properties(
            self, table, mode, slot, {"waltap.state.dir": str(self.folder / slot), **self.settings}
        )

    def _check(self, rows: int) -> None:
        """Raise ValueError when the sink holds fewer than ``rows`` rows."""
        if self.output is None:
            return
        if self.output.is_dir():
            import pyarrow.parquet

            files = self.output.rglob("*.parquet")
            found = sum(pyarrow.parquet.ParquetFile(file).metadata.num_rows for file in files)
        else:
            with self.output.open("rb") as file:
                found = sum(block.count(b"\n") for block in iter(lambda: file.read(2**20), b""))
        if found < rows:
            raise ValueError(f"{self.name} delivered {found} of {rows} rows")

    def _clear(self) -> None:
        """Delete what the sink wrote, so that the disk never fills."""
        if self.output is not None and self.output.is_dir():
            shutil.rmtree(self.output)
        elif self.output is not None:
            self.output.unlink(missing_ok=True)


@functools.cache
def installed() -> dict[str, str]:
    """Copy our packages into one folder, as pip does; return the environment that has them.

    A checkout has a search path for each distribution, and may write no bytecode: its imports take up
    to twice as long as a user's.
    """
    folder = Path(tempfile.mkdtemp(prefix="waltap-benchmark-packages-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for package in (*ROOT.glob("framework/src/*"), *ROOT.glob("plugins/**/src/*/")):
        shutil.copytree(
            package, folder / package.name, ignore=shutil.ignore_patterns("__pycache__")
        )
    compileall.compile_dir(folder, quiet=1)
    return {"PYTHONPATH": str(folder)}


@dataclass
class Debezium(Contender):
    """Debezium's embedded engine; records are rendered as JSON or Avro, counted and dropped, or sent to
    the broker at ``kafka`` as they are counted."""

    settings: dict[str, str] = field(default_factory=dict)
    kafka: str = ""

    def ready(self) -> None:
        """Start, let it deliver a few rows so that it stores an offset, and end.

        Without a stored offset Debezium begins at the server's current position and skips what
        the slot holds.
        """
        ready = self.folder / "ready"
        low = self.database.execute("SELECT coalesce(max(id), 0) + 1 FROM bench")[0][0]

        def insert_when_ready() -> None:
            deadline = time.monotonic() + 120
            while not ready.exists() and time.monotonic() < deadline:
                time.sleep(0.05)
            with self.database.connect() as connection:
                fill(connection, low, low + OFFSET_ROWS - 1)

        with ThreadPoolExecutor(1) as pool:
            fed = pool.submit(insert_when_ready)
            self._run(
                "no_data", "--count", OFFSET_ROWS, "--ready-file", ready, "--max-seconds", 150
            )
            fed.result()

    def drain(self, rows: int, until_lsn: str) -> Result:
        """Stream the backlog; timed by the engine itself from the first record to the last."""
        sent = ["--kafka", self.kafka] if self.kafka else []
        if "AvroConverter" in self.settings.get("value.converter", ""):
            sent += ["--format", "avro"]
        return self._reported(rows, self._run("no_data", "--count", rows, *sent))

    def snapshot(self, rows: int) -> Result:
        """Take an initial snapshot; timed from the first record to the last."""
        return self._reported(rows, self._run("initial_only", "--count", rows))

    def _run(self, mode: str, *options: object) -> Measured:
        slot = self.slot if mode == "no_data" else f"{self.slot}_snapshot"
        properties = _write_properties(self, TABLE, mode, slot, self.settings)
        offsets = ("--offset-file", self.folder / f"{slot}.offsets")
        return run(
            [PEER, properties, "--bench", *offsets, *map(str, options)],
            self.folder,
        )

    def _reported(self, rows: int, measured: Measured) -> Result:
        report = json.loads(measured.output.strip().splitlines()[-1])
        if report["records"] < rows:
            raise ValueError(f"{self.name} delivered {report['records']} of {rows} records")
        return self._result(rows, measured, report["first_to_last_s"])


def _write_properties(
    contender: Contender, table: str, mode: str, slot: str, more: dict[str, str]
) -> Path:
    """Write the connector properties that waltap and Debezium get alike."""
    properties = {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "topic.prefix": "bench",
        "plugin.name": "pgoutput",
        "publication.name": "bench",
        "publication.autocreate.mode": "disabled",
        "slot.name": slot,
        "snapshot.mode": mode,
        "table.include.list": table,
        "key.converter.schemas.enable": "false",
        "value.converter.schemas.enable": "false",
        **contender.database.properties(),
        **more,
    }
    contender.folder.mkdir(parents=True, exist_ok=True)
    path = contender.folder / f"{slot}.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    return path
